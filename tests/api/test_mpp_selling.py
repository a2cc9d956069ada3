"""Calls that are paid for by MPP: a challenge pays for the request that it was made for, once, and on no other rail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from pydantic import SecretStr
from werkzeug.test import TestResponse

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import USDC, ChainName
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.applications import change_settings
from tests.support.gateway import SEARCH
from tests.support.mpp import answered, base64url, challenges, credential, draft_nonce, opened, pympp_nonce, signed
from tests.support.payments import PRICE, EvmPayer, Shop, by_hash, offered, shop, signed_headers
from tests.support.upstreams import Exchange

pytestmark = pytest.mark.chain
BASE = ChainName.BASE
OTHER = "/v1/gateway/brave/web/search?q=weather"


@pytest.fixture
def open_shop(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Shop]:
    with shop(build_app, sqlite_url, chains) as made:
        base_node.fund_eth(made.settler(BASE), 10**18)
        made.expire_capacity()
        made.upstream.behave = lambda exchange: exchange.json({"results": []})
        yield made


@pytest.fixture
def payer(base_node: EvmNode) -> EvmPayer:
    return EvmPayer(base_node)


def reason(answer: TestResponse) -> str:
    assert answer.status_code == 402, answer.get_data(as_text=True)
    assert "Payment-Receipt" not in answer.headers
    # Each refusal has a new challenge to pay.
    assert challenges(answer)
    body = answer.get_json()
    return str(body.get("details", {}).get("reason") or body["code"])


def received(made: Shop) -> int:
    units: int = made.app.state.ports.chains[BASE].balances(made.recipient(BASE)).of(USDC).units
    return units


@pytest.mark.parametrize("derive", [draft_nonce, pympp_nonce])
def test_a_challenge_is_paid_and_the_call_served(
    open_shop: Shop, payer: EvmPayer, derive: Callable[[Any], str]
) -> None:
    unpaid = open_shop.ask()
    [challenge] = challenges(unpaid)
    assert unpaid.headers["Cache-Control"] == "no-store"
    assert "PAYMENT-REQUIRED" in unpaid.headers
    asked = opened(challenge["request"])
    terms = offered(unpaid)
    assert (asked["amount"], asked["currency"], asked["recipient"]) == (str(PRICE), terms["asset"], terms["payTo"])
    assert asked["methodDetails"] == {"chainId": 908453, "credentialTypes": ["authorization"], "decimals": 6}
    answer = open_shop.ask(answered(payer, unpaid, nonce=derive(challenge)))
    assert (answer.status_code, answer.get_json()) == (200, {"results": []})
    [payment] = open_shop.payments()
    assert opened(answer.headers["Payment-Receipt"]) == {
        "method": "evm", "status": "success", "reference": payment.tx_hash,
        "timestamp": f"{payment.paid_at:%Y-%m-%dT%H:%M:%SZ}",
    }  # fmt: skip
    assert "PAYMENT-RESPONSE" not in answer.headers
    assert (payment.status, payment.payer, received(open_shop)) == ("served", payer.address, PRICE)
    [forwarded] = open_shop.upstream.asked
    assert forwarded.header("authorization") is None


def test_a_credential_serves_one_call_on_one_rail(open_shop: Shop, payer: EvmPayer, base_node: EvmNode) -> None:
    unpaid = open_shop.ask()
    headers = answered(payer, unpaid)
    terms, payload = offered(unpaid), opened(headers["Authorization"].split()[1])["payload"]
    by_x402 = signed_headers(terms, {"signature": payload["signature"], "authorization": payload})
    answer = open_shop.ask(headers)
    assert answer.status_code == 200
    base_node.mine(6)
    landed = by_hash(opened(answer.headers["Payment-Receipt"])["reference"], BASE)
    for again in (headers, by_x402, landed):
        for path in (SEARCH, OTHER):
            assert reason(open_shop.ask(again, path=path)) == "PAYMENT_ALREADY_USED"
    assert (open_shop.served(), received(open_shop)) == (1, PRICE)


def test_what_x402_has_used_pays_no_challenge(open_shop: Shop, payer: EvmPayer) -> None:
    unpaid = open_shop.ask()
    challenge = challenges(unpaid)[0]
    payload = signed(payer, challenge)
    by_x402 = signed_headers(offered(unpaid), {"signature": payload["signature"], "authorization": payload})
    assert open_shop.ask(by_x402).status_code == 200
    assert reason(open_shop.ask(credential(challenge, payload))) == "PAYMENT_ALREADY_USED"
    assert (open_shop.served(), received(open_shop)) == (1, PRICE)


def test_one_authorization_on_both_rails_at_once_serves_one_call(open_shop: Shop, payer: EvmPayer) -> None:
    unpaid = open_shop.ask()
    challenge = challenges(unpaid)[0]
    payload = signed(payer, challenge)
    by_mpp = credential(challenge, payload)
    by_x402 = signed_headers(offered(unpaid), {"signature": payload["signature"], "authorization": payload})

    def pay(headers: dict[str, str]) -> int:
        with open_shop.app.app_context():
            return open_shop.ask(headers).status_code

    with ThreadPoolExecutor(6) as threads:
        statuses = list(threads.map(pay, [by_mpp, by_x402] * 3))
    assert statuses.count(200) <= 1
    assert set(statuses) <= {200, 402, 503}
    assert (open_shop.served(), received(open_shop)) == (statuses.count(200), PRICE)
    assert len(open_shop.payments()) == 1


def test_a_credential_for_anything_else_is_refused_and_consumes_nothing(open_shop: Shop, payer: EvmPayer) -> None:
    unpaid, second = open_shop.ask(), open_shop.ask()
    mine, other = challenges(unpaid)[0], challenges(second)[0]
    assert mine["id"] != other["id"]
    asked, poor, rich = opened(mine["request"]), EvmPayer(payer.node, dollars=0), EvmPayer(payer.node)

    def refused(changed: dict[str, str] | None = None, /, *, path: str = SEARCH, **fields: str) -> str:
        challenge = {**mine, **(changed or {})}
        return reason(open_shop.ask(credential(challenge, signed(payer, challenge, **fields)), path=path))

    def requesting(**changed: Any) -> dict[str, str]:
        return {"request": base64url({**asked, **changed})}

    def presented(document: Any) -> str:
        return reason(open_shop.ask({"Authorization": f"Payment {base64url(document)}"}))

    payload, elsewhere = signed(payer, mine), {**asked["methodDetails"], "chainId": 1}
    not_issued = {
        "another resource": refused(path=OTHER),
        "a lower amount": refused(requesting(amount="1")),
        "another recipient": refused(requesting(recipient=poor.address)),
        "another token": refused(requesting(currency=poor.address)),
        "another spelling": refused({"request": base64url(asked) + "=="}),
        "another realm": refused({"realm": "shop.example"}),
        "a later end": refused({"expires": "2999-01-01T00:00:00Z"}),
        "no end": refused({"expires": ""}),
        "another id": refused({"id": other["id"][:20] + mine["id"][20:]}),
        "no id": refused({"id": ""}),
        "odd characters": refused({"id": "é|" * 40, "expires": "|"}),
        "a digest": refused({"digest": "sha-256=:AA==:"}),
        "a header": refused({"header": "Payment-Authorization"}),
        "opaque data": refused({"opaque": "e30"}),
    }
    assert set(not_issued.values()) == {"challenge_not_issued"}, not_issued
    found = {
        "other nonce": refused(nonce="0x" + "12" * 32),
        "nonce of another challenge": refused(nonce=draft_nonce(other)),
        "lower value": refused(value=str(PRICE - 1)),
        "paid to oneself": refused(to=payer.address),
        "over": refused(validBefore="1"),
        "other chain": refused(requesting(methodDetails=elsewhere)),
        "no details": refused(requesting(methodDetails=None)),
        "by hash": presented({"challenge": mine, "payload": {"type": "hash", "hash": "0x" + "1" * 64}}),
        "method": presented({"challenge": {**mine, "method": "tempo"}, "payload": payload}),
        "forged": presented({"challenge": mine, "payload": {**payload, "from": rich.address}}),
        "no funds": reason(open_shop.ask(answered(poor, unpaid))),
        "no payload": presented({"challenge": mine}),
        "no object": presented([]),
        "garbage": reason(open_shop.ask({"Authorization": "Payment %%"})),
    }
    assert found == {
        "other nonce": "challenge_nonce_mismatch",
        "nonce of another challenge": "challenge_nonce_mismatch",
        "lower value": "invalid_exact_evm_payload_authorization_value_mismatch",
        "paid to oneself": "invalid_exact_evm_payload_recipient_mismatch",
        "over": "invalid_exact_evm_payload_authorization_valid_before",
        "other chain": "invalid_network",
        "no details": "invalid_network",
        "by hash": "unsupported_scheme",
        "method": "unsupported_scheme",
        "forged": "invalid_exact_evm_payload_signature",
        "no funds": "insufficient_funds",
        "no payload": "invalid_payload",
        "no object": "invalid_payload",
        "garbage": "invalid_payload",
    }
    assert (open_shop.claims(), open_shop.served(), received(open_shop)) == (set(), 0, 0)
    # What the payer meant is accepted after all of it.
    assert open_shop.ask(credential(mine, payload)).status_code == 200


def test_an_expired_challenge_is_refused(open_shop: Shop, payer: EvmPayer) -> None:
    headers = answered(payer, open_shop.ask(), validBefore="4000000000")
    with time_machine.travel(clock.now() + timedelta(seconds=301), tick=True):
        assert reason(open_shop.ask(headers)) == "challenge_expired"
    assert (open_shop.claims(), received(open_shop)) == (set(), 0)


def test_a_challenge_of_a_lower_price_is_refused(open_shop: Shop, payer: EvmPayer) -> None:
    headers = answered(payer, open_shop.ask())
    with open_shop.app.app_context():
        body = {"model": "gpt-5", "max_completion_tokens": 20_000, "messages": [{"role": "user", "content": "Hi"}]}
        chat = "/v1/gateway/openai/chat/completions"
        client = open_shop.app.test_client()
        dear = challenges(client.post(chat, json=body))[0]
        assert int(opened(dear["request"])["amount"]) > PRICE
        other = client.post(
            chat, json={**body, "max_completion_tokens": 30_000}, headers=credential(dear, signed(payer, dear))
        )
        assert reason(other) == "challenge_not_issued"
        assert reason(client.post(chat, json=body, headers=headers)) == "challenge_not_issued"
    assert (open_shop.claims(), open_shop.served()) == (set(), 0)


def test_a_failed_call_has_no_receipt_and_is_served_by_the_same_credential_later(
    open_shop: Shop, payer: EvmPayer
) -> None:
    headers = answered(payer, open_shop.ask())

    def fail(exchange: Exchange) -> None:
        exchange.json({"error": "down"}, 500, ("WWW-Authenticate", "Payment id=1"), ("Payment-Receipt", "e30"))

    open_shop.upstream.behave = fail
    failed = open_shop.ask(headers)
    assert failed.status_code == 500
    # Neither ours, because nothing was served, nor the upstream's.
    assert {"Payment-Receipt", "WWW-Authenticate"}.isdisjoint(failed.headers.keys())
    open_shop.upstream.behave = lambda exchange: exchange.json({"results": []})
    # The challenge has ended, the payment that it led to has not.
    with time_machine.travel(clock.now() + timedelta(hours=1), tick=True):
        assert reason(open_shop.ask(headers, path=OTHER)) == "PAYMENT_ALREADY_USED"
        served = open_shop.ask(headers)
    assert (served.status_code, "Payment-Receipt" in served.headers) == (200, True)
    assert received(open_shop) == PRICE


def test_a_challenge_survives_a_change_of_the_secret(open_shop: Shop, payer: EvmPayer) -> None:
    headers, app = answered(payer, open_shop.ask()), open_shop.app
    former = app.state.settings.secret_key
    change_settings(app, secret_key=SecretStr("n" * 64), secret_key_fallbacks=former)
    assert open_shop.ask(headers).status_code == 200


def test_a_key_with_credits_leaves_a_credential_unused(open_shop: Shop, payer: EvmPayer) -> None:
    key = {"X-API-Key": register(open_shop.app.test_client()).key}
    assert open_shop.ask({**key, **answered(payer, open_shop.ask())}).status_code == 200
    assert (open_shop.claims(), received(open_shop)) == (set(), 0)


def test_a_request_that_would_be_refused_has_no_challenge(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, sqlite_url, chains, brave_api_key="") as made:
        base_node.fund_eth(made.settler(BASE), 10**18)
        made.expire_capacity()
        assert "WWW-Authenticate" not in made.ask().headers


def test_json_of_a_challenge_is_canonical(open_shop: Shop) -> None:
    """RFC 8785: clients serialise the request again."""
    request = challenges(open_shop.ask())[0]["request"]
    assert base64url(json.loads(json.dumps(opened(request)))) == request
