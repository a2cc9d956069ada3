"""Payments to web services that ask by MPP: for one challenge each, under the limits, whatever the seller does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from flask import Flask

from tests.support.agents import register
from tests.support.buyers import Buyer, buyer_on, refused, seller_on
from tests.support.chains import fund
from tests.support.drivers import EvmDriver
from tests.support.mpp import MppSeller, base64url, draft_nonce, mpp_seller, opened
from tests.support.payments import encoded
from tests.support.sellers import CENT, OTHER_PAYEE, PAYEE, ScriptedSeller, serve, uses_of
from tests.support.upstreams import Exchange

pytestmark = pytest.mark.chain


@pytest.fixture
def buyer(build_app: Callable[..., Flask], sqlite_url: str, driver: EvmDriver) -> Iterator[Buyer]:
    with buyer_on(build_app, sqlite_url, driver) as made:
        yield made


@pytest.fixture
def seller(driver: EvmDriver) -> Iterator[MppSeller]:
    with mpp_seller(driver.node) as made:
        yield made


def test_a_challenge_is_answered_once_and_bound_to_it(buyer: Buyer, seller: MppSeller) -> None:
    url, asked = seller.url + "/report", seller.challenge()
    seller.changed = {**asked, "opaque": "e30", "digest": "sha-256=:AA==:"}
    first, again = (buyer.fetch(url, key="once").get_json() for _ in range(2))
    assert first == again, first
    payment = first["payment"]
    assert (first["status"], payment["state"], payment["protocol"]) == (200, "paid", "mpp")
    assert (payment["pay_to"], payment["network"], payment["amount"]) == (PAYEE, seller.network, "0.01")
    [header] = seller.headers
    sent = opened(header.removeprefix("Payment "))
    assert sent["challenge"] == seller.changed
    payload = sent["payload"]
    assert (payload["type"], payload["value"], payload["to"]) == ("authorization", str(CENT), PAYEE)
    assert (payload["nonce"], payload["validAfter"]) == (draft_nonce(asked), "0")
    assert sent["source"] == f"did:pkh:{seller.network}:{buyer.agent.address}"
    assert (uses_of(buyer.node, buyer.agent.address), buyer.spent()) == (1, 0.01)
    [bought] = buyer.get("/x402/purchases")["purchases"]
    assert buyer.get(f"/x402/purchases/{bought['transaction_id']}")["payment"] == payment


def test_a_dry_run_names_protocol_price_and_payee_and_signs_nothing(buyer: Buyer, seller: MppSeller) -> None:
    quote = buyer.fetch(seller.url + "/report", dry_run=True).get_json()
    assert (quote["protocol"], quote["amount"], quote["pay_to"]) == ("mpp", "0.01", PAYEE)
    checked = buyer.agent.post("/v1/x402/validate", {"resource": seller.url + "/report"}).get_json()
    stated = {step["step"]: step["detail"] for step in checked["steps"]}
    assert stated["terms"] == "The terms are those of mpp."
    assert (seller.headers, buyer.agent.history(), buyer.spent()) == ([], [], 0)


def test_a_price_that_rises_after_the_signature_is_not_paid(buyer: Buyer, seller: MppSeller) -> None:
    def ask_for_more(shop: ScriptedSeller, exchange: Exchange, _payment: Mapping[str, Any]) -> None:
        shop.offer().update(amount=str(4 * CENT), payTo=OTHER_PAYEE)
        shop.ask_payment(exchange)

    seller.behave = ask_for_more
    first, again = (buyer.fetch(seller.url + "/report", key="once", wait=1).get_json() for _ in range(2))
    assert {(each["status"], each["payment"]["state"]) for each in (first, again)} == {(402, "pending")}
    # The same bytes, for the first price; they are held until they can never be used.
    assert (len(seller.headers), len(set(seller.headers)), buyer.spent()) == (2, 1, 0.01)
    seller.behave = serve
    assert buyer.fetch(seller.url + "/report", key="once").get_json()["payment"]["state"] == "paid"
    assert (uses_of(buyer.node, buyer.agent.address), buyer.spent()) == (1, 0.01)


def test_a_challenge_that_was_answered_is_never_answered_again(buyer: Buyer, seller: MppSeller) -> None:
    seller.changed = {"id": "always-the-same"}
    url = seller.url + "/report"
    assert buyer.payment(url, key="a")["state"] == "paid"
    seller.offer()["amount"] = str(2 * CENT)
    refused(buyer.fetch(url, key="b"), "TERMS_NOT_SUPPORTED")
    assert (len(seller.headers), buyer.spent(), len(buyer.agent.history(type="payment"))) == (1, 0.01, 1)
    # Another wallet has another nonce to use, even for the same challenge.
    other = register(buyer.app.test_client())
    fund(buyer.node, other.address, eth=0, dollars=1)
    order = {"url": url, "max_amount_usd": 0.05}
    assert other.post(f"{other.wallet_url}/x402/fetch", order).get_json()["payment"]["state"] == "paid"


def test_terms_that_are_not_ours_to_pay_are_refused_before_anything_is_signed(buyer: Buyer, seller: MppSeller) -> None:
    def reasons(changed: Mapping[str, str] | None = None, /, *, details: Any = None, **offer: str) -> list[str]:
        before = dict(seller.offer())
        seller.changed, seller.details = dict(changed or {}), dict(details or {})
        seller.offer().update(offer)
        found = refused(buyer.fetch(seller.url + "/report", key=None), "TERMS_NOT_SUPPORTED")
        seller.offer().update(before)
        return [each["reason"] for each in found["details"]["offers"]]

    own = buyer.agent.address
    found = {
        "chain": reasons(network="eip155:1"),
        "token": reasons(asset=OTHER_PAYEE),
        "nothing": reasons(amount="0"),
        "negative": reasons(amount="-1"),
        "nobody": reasons(payTo="0x0000000000000000000000000000000000000000"),
        "itself": reasons(payTo=own),
        "method": reasons({"method": "tempo"}),
        "intent": reasons({"intent": "session"}),
        "permit2": reasons(details={"credentialTypes": ["permit2"]}),
        "types": reasons(details={"credentialTypes": "authorization"}),
        "splits": reasons(details={"splits": [{"recipient": PAYEE, "amount": "1"}]}),
        "header": reasons({"header": "Payment-Authorization"}),
        "over": reasons({"expires": "2020-01-01T00:00:00Z"}),
        "no zone": reasons({"expires": "2999-01-01T00:00:00"}),
        "no time": reasons({"expires": "soon"}),
        "of another": reasons({"realm": "shop.example.com"}),
        "no request": reasons({"request": "%%"}),
        "no object": reasons({"request": base64url([1])}),
        "no id": reasons({"id": ""}),
        "not ASCII": reasons({"id": "\xe9"}),
    }
    assert found == {
        "chain": ["unsupported_network"],
        "token": ["unknown_asset"],
        "nothing": ["invalid_amount"],
        "negative": ["invalid_amount"],
        "nobody": ["invalid_recipient"],
        "itself": ["pays_the_wallet_itself"],
        "method": ["unsupported_scheme"],
        "intent": ["unsupported_scheme"],
        "permit2": ["unsupported_scheme"],
        "types": ["unsupported_scheme"],
        "splits": ["unsupported_scheme"],
        "header": ["unsupported_scheme"],
        "over": ["invalid_timeout"],
        "no zone": ["invalid_timeout"],
        "no time": ["invalid_timeout"],
        "of another": ["resource_of_another_host"],
        "no request": [],
        "no object": [],
        "no id": [],
        "not ASCII": [],
    }
    assert (seller.headers, buyer.agent.history(), buyer.spent()) == ([], [], 0)


def test_limits_apply_before_anything_is_signed(buyer: Buyer, seller: MppSeller) -> None:
    url = seller.url + "/report"
    refused(buyer.fetch(url, max_amount_usd=0.005), "PER_TX_LIMIT_EXCEEDED")
    buyer.agent.controls(daily_limit_usd=0.005)
    refused(buyer.fetch(url), "DAILY_LIMIT_EXCEEDED")
    buyer.agent.controls(daily_limit_usd=1)
    assert buyer.payment(url, key="a")["state"] == "paid"
    seller.offer()["payTo"] = OTHER_PAYEE
    refused(buyer.fetch(url, key="b"), "PAYEE_CHANGED")
    assert len(seller.headers) == 1


def test_a_header_of_a_megabyte_is_refused(buyer: Buyer, seller: MppSeller) -> None:
    seller.upstream.behave = lambda exchange: exchange.json({}, 402, ("WWW-Authenticate", "Payment " + "A" * 2**20))
    refused(buyer.fetch(seller.url + "/report"), "UPSTREAM_ERROR")
    seller.changed = {"opaque": "A" * 17_000}
    seller.upstream.behave = seller.answer
    refused(buyer.fetch(seller.url + "/report", key="long"), "TERMS_NOT_SUPPORTED")
    assert seller.headers == []


def test_the_credential_takes_the_place_of_an_own_authorization(buyer: Buyer, seller: MppSeller) -> None:
    headers = {"Authorization": "Bearer mine", "X-Own": "1"}
    assert buyer.payment(seller.url + "/report", headers=headers)["state"] == "paid"
    unpaid, paid = seller.upstream.asked
    assert (unpaid.header("authorization"), unpaid.header("x-own")) == ("Bearer mine", "1")
    assert (paid.header("authorization"), paid.header("x-own")) == (seller.headers[0], "1")


def test_of_both_protocols_the_cheaper_offer_is_paid(buyer: Buyer, seller: MppSeller, driver: EvmDriver) -> None:
    with seller_on(driver) as by_x402:
        both: dict[str, Any] = by_x402.terms

        def ask_by_both(exchange: Exchange) -> None:
            stated = ", ".join(f'{name}="{value}"' for name, value in seller.challenge().items())
            exchange.json({}, 402, ("PAYMENT-REQUIRED", encoded(both)), ("WWW-Authenticate", f"Payment {stated}"))

        seller.upstream.behave = ask_by_both
        url = seller.url + "/report"
        assert buyer.fetch(url, dry_run=True).get_json()["protocol"] == "x402/2"
        seller.offer()["amount"] = str(CENT - 1)
        assert buyer.fetch(url, dry_run=True).get_json()["protocol"] == "mpp"
        both["x402Version"] = 3
        assert buyer.fetch(url, dry_run=True).get_json()["protocol"] == "mpp"
        assert buyer.fetch(url, dry_run=True, networks=["solana"]).get_json()["code"] == "TERMS_NOT_SUPPORTED"
