"""The terms of web services: which can be paid, and why not; and the requests that may be sent to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from eth_utils.crypto import keccak
from flask import Flask
from hypothesis import example, given
from hypothesis import strategies as st
from solders.keypair import Keypair

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.deployments import DEPLOYMENTS
from app.adapters.evm.x402.payments import EvmPaymentSigner
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS as SOLANA_DEPLOYMENTS
from app.adapters.solana.x402.payments import SolanaPaymentSigner
from app.buying import offers, sellers
from app.buying.offers import PaymentOffer
from app.buying.sellers import SellerAnswer
from app.core.chains import ChainName
from app.errors import InvalidInput, PerTxLimitExceeded, TermsNotSupported
from app.ports.facilitator import AuthorizedPayment, PaymentSigner
from tests.support.mpp import base64url
from tests.support.payments import decoded, encoded
from tests.support.sellers import OTHER_PAYEE, PAYEE

BASE, ETHEREUM, SOLANA = ChainName.BASE, ChainName.ETHEREUM, ChainName.SOLANA
DOLLAR_NANOS = 10**9
HOST = "shop.example.com"


def signer(name: ChainName) -> PaymentSigner:
    deployment = DEPLOYMENTS["mainnet", name.value]
    return EvmPaymentSigner(EvmChain(name, deployment, rpc_urls=["http://127.0.0.1:1"], deposit_confirmations=1))


SIGNERS: dict[ChainName, PaymentSigner] = {ETHEREUM: signer(ETHEREUM), BASE: signer(BASE)}
SOLANA_CHAIN = SolanaChain(SOLANA_DEPLOYMENTS["mainnet"], rpc_urls=["http://127.0.0.1:1"])
WITH_SOLANA = {**SIGNERS, SOLANA: SolanaPaymentSigner(SOLANA_CHAIN)}
USDC_MINT = SOLANA_CHAIN.deployment.usdc_mint
SOLANA_PAYEE, SPONSOR = (str(Keypair().pubkey()) for _ in range(2))


def offer_on(name: ChainName = BASE, **changed: Any) -> dict[str, Any]:
    asset = SIGNERS[name].asset
    return {
        "scheme": "exact", "network": asset.network, "amount": "10000", "asset": asset.address, "payTo": PAYEE,
        "maxTimeoutSeconds": 60, "extra": dict(asset.extra), **changed,
    }  # fmt: skip


def payable(*stated: Mapping[str, Any], **more: Any) -> list[PaymentOffer]:
    document = {"x402Version": 2, "accepts": list(stated), **more.pop("terms", {})}
    terms = offers.read_terms(SellerAnswer(402, [("PAYMENT-REQUIRED", encoded(document))], b""))
    options = {"max_nanos": DOLLAR_NANOS, "networks": (), "own_addresses": (), **more}
    signers = options.pop("signers", SIGNERS)
    return offers.payable_offers(terms, signers, host=HOST, **options)


def reasons(*stated: Mapping[str, Any], **more: Any) -> list[str]:
    with pytest.raises(TermsNotSupported) as refused:
        payable(*stated, **more)
    return [each["reason"] for each in refused.value.details["offers"]]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"asset": "0x00000000000000000000000000000000DeaDBeef"}, "unknown_asset"),
        ({"network": "eip155:84532"}, "unsupported_network"),
        ({"network": "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"}, "unsupported_network"),
        ({"network": 8453}, "unsupported_network"),
        ({"scheme": "upto"}, "unsupported_scheme"),
        ({"amount": "-1"}, "invalid_amount"),
        ({"amount": "0"}, "invalid_amount"),
        ({"amount": "9" * 400}, "invalid_amount"),
        ({"amount": True}, "invalid_amount"),
        ({"amount": 0.5}, "invalid_amount"),
        ({"payTo": "0x0000000000000000000000000000000000000000"}, "invalid_recipient"),
        ({"payTo": SIGNERS[BASE].asset.address}, "invalid_recipient"),
        ({"payTo": "shop.eth"}, "invalid_recipient"),
        ({"extra": {"name": "USD Coin", "version": "3"}}, "unknown_token_domain_or_transfer_method"),
        ({"extra": {"assetTransferMethod": "erc7710"}}, "unknown_token_domain_or_transfer_method"),
        ({"extra": ["USD Coin"]}, "unknown_token_domain_or_transfer_method"),
        ({"maxTimeoutSeconds": 1}, "invalid_timeout"),
    ],
)
def test_terms_that_are_not_supported_are_refused_with_the_reason(changed: Mapping[str, Any], reason: str) -> None:
    assert reasons(offer_on(**changed)) == [reason]


def solana_offer(**changed: Any) -> dict[str, Any]:
    return {
        "scheme": "exact", "network": "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp", "amount": "10000", "asset": USDC_MINT,
        "payTo": SOLANA_PAYEE, "maxTimeoutSeconds": 60, "extra": {"feePayer": SPONSOR}, **changed,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"asset": USDC_MINT.swapcase()}, "unknown_asset"),
        ({"network": "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"}, "unsupported_network"),
        ({"network": "solana"}, "unsupported_network"),
        ({"payTo": USDC_MINT}, "invalid_recipient"),
        ({"payTo": PAYEE}, "invalid_recipient"),
        ({"extra": {}}, "unknown_token_domain_or_transfer_method"),
        ({"extra": {"feePayer": PAYEE}}, "unknown_token_domain_or_transfer_method"),
        ({"extra": {"feePayer": [SPONSOR]}}, "unknown_token_domain_or_transfer_method"),
        ({"extra": {"feePayer": SPONSOR, "memo": 5}}, "unknown_token_domain_or_transfer_method"),
        ({"extra": {"feePayer": SPONSOR, "memo": "\ud800"}}, "unknown_token_domain_or_transfer_method"),
        ({"extra": {"feePayer": SPONSOR, "assetTransferMethod": "permit2"}}, "unknown_token_domain_or_transfer_method"),
    ],
)
def test_terms_on_solana_that_are_not_supported_are_refused_with_the_reason(
    changed: Mapping[str, Any], reason: str
) -> None:
    assert payable(solana_offer(), signers=WITH_SOLANA)
    assert reasons(solana_offer(**changed), signers=WITH_SOLANA) == [reason]


def test_among_equal_prices_base_comes_first_and_the_token_itself_before_permit2() -> None:
    by_permit2 = {**SIGNERS[BASE].asset.extra, "assetTransferMethod": "permit2"}
    found = payable(offer_on(ETHEREUM), solana_offer(), offer_on(extra=by_permit2), offer_on(), signers=WITH_SOLANA)
    chosen = [(each.chain, each.requirements["extra"].get("assetTransferMethod")) for each in found]
    assert chosen == [(BASE, None), (BASE, "permit2"), (SOLANA, None), (ETHEREUM, None)]


def test_what_a_seller_stated_in_an_extension_is_returned_with_the_answer() -> None:
    stated = {"a": {"info": {"version": "1"}, "schema": {}}, "b": "text", "c": {"info": 5}}
    [offer] = payable(offer_on(), terms={"extensions": stated})
    signed = AuthorizedPayment("1", {}, {}, {"a": {"amount": "5"}, "b": {"x": 1}, "other": {"y": 2}})
    sent = decoded(offer.payment_header(signed, identifier="id"))["extensions"]
    assert sent == {**stated, "a": {"info": {"version": "1", "amount": "5"}, "schema": {}}}


def test_a_payment_is_bound_to_the_route_that_terms_name_by_another_nonce_each_time() -> None:
    stated = {"mppx": {"info": {"method": "GET", "opaque": "e30"}, "schema": {"type": "object"}}}
    terms = {"extensions": stated, "resource": {"url": f"https://{HOST}/report"}}
    found = [payable(offer_on(), terms=terms)[0] for _ in range(2)]
    for offer in found:
        sent = decoded(offer.payment_header(AuthorizedPayment("1", {}, {}, {}), identifier="id"))
        salt = sent["extensions"]["mppx"]["info"].pop("nonce")
        assert sent["extensions"] == stated
        sent["extensions"]["mppx"]["info"]["nonce"] = salt
        bound = "|".join(base64url(sent[name]) for name in ("accepted", "resource", "extensions"))
        assert offer.nonce == hashlib.sha256(bound.encode()).digest()
    assert found[0].nonce != found[1].nonce


@pytest.mark.parametrize(
    "extensions",
    [
        {"mppx": "text"}, {"mppx": {"schema": {}}}, {"mppx": {"info": ["GET"]}},
        # What is answered in another extension is not known when the nonce is.
        {"mppx": {"info": {"method": "GET"}}, "payment-identifier": {"info": {"required": True}}},
    ],
)  # fmt: skip
def test_terms_that_cannot_be_bound_to_a_route_get_a_random_nonce(extensions: dict[str, Any]) -> None:
    [offer] = payable(offer_on(), terms={"extensions": extensions})
    assert offer.nonce is None
    sent = decoded(offer.payment_header(AuthorizedPayment("1", {}, {}, {}), identifier="id"))
    assert sent["extensions"]["mppx"] == extensions["mppx"]


def test_the_cheapest_supported_offer_comes_first_and_base_before_ethereum() -> None:
    found = payable(
        offer_on(scheme="upto", amount="1"), offer_on(amount="30000"), offer_on(ETHEREUM, amount="20000"),
        offer_on(amount="20000", payTo=OTHER_PAYEE),
    )  # fmt: skip
    assert [(each.chain, each.amount.units, each.recipient) for each in found] == [
        (BASE, 20_000, OTHER_PAYEE),
        (ETHEREUM, 20_000, PAYEE),
        (BASE, 30_000, PAYEE),
    ]


def test_only_requested_networks_are_paid_on_and_never_the_wallet_itself() -> None:
    found = payable(offer_on(), offer_on(ETHEREUM), networks={ETHEREUM})
    assert [each.chain for each in found] == [ETHEREUM]
    assert reasons(offer_on(), networks={ETHEREUM}) == ["network_not_requested"]
    assert reasons(offer_on(), own_addresses={PAYEE}) == ["pays_the_wallet_itself"]


def test_a_price_above_the_maximum_is_refused_with_both_numbers() -> None:
    with pytest.raises(PerTxLimitExceeded) as refused:
        payable(offer_on(amount="1000001"), offer_on(scheme="upto"))
    shown = {name: str(value) for name, value in refused.value.details.items()}
    assert shown == {"rule": "max_amount_usd", "limit_usd": "1", "requested_usd": "1.000001"}
    assert payable(offer_on(amount="1000000"))


def test_terms_for_another_host_are_refused_since_they_could_be_those_of_another_seller() -> None:
    elsewhere = {"resource": {"url": "https://other.example.com/report"}}
    assert reasons(offer_on(), terms=elsewhere) == ["resource_of_another_host"]
    for own in ({"url": f"https://{HOST}/a"}, {"url": "/relative"}, {}, None):
        assert payable(offer_on(), terms={"resource": own})


def test_a_payment_is_valid_for_eight_minutes_at_most() -> None:
    [offer] = payable(offer_on(maxTimeoutSeconds=86_400))
    assert offer.validity_seconds == offers.MAX_VALIDITY_SECONDS == 480


@pytest.mark.parametrize(
    "answer",
    [
        SellerAnswer(402, [], b""),
        SellerAnswer(402, [], b"<html>"),
        SellerAnswer(402, [], json.dumps({"x402Version": 1}).encode()),
        SellerAnswer(402, [("PAYMENT-REQUIRED", "no base64")], b""),
        SellerAnswer(402, [("PAYMENT-REQUIRED", encoded({"x402Version": 3, "accepts": []}))], b""),
        SellerAnswer(402, [("PAYMENT-REQUIRED", encoded({"x402Version": True, "accepts": []}))], b""),
        SellerAnswer(402, [], b"[" * 100_000),
    ],
)
def test_a_402_without_readable_terms_is_refused(answer: SellerAnswer) -> None:
    with pytest.raises(TermsNotSupported):
        offers.read_terms(answer)


_PARAMETERS = st.sampled_from(
    [
        "id",
        "realm",
        "method",
        "intent",
        "request",
        "expires",
        "opaque",
        "header",
        "Payment id",
        "Payment",
        "Basic x",
        "",
    ]
)
_VALUES = st.sampled_from(["evm", "charge", '"evm"', '"charge"', '"eyJhIjoxfQ"', '"a\\"b"', '"', "", "=", '"2999"'])


@given(st.lists(st.tuples(_PARAMETERS, _VALUES)).map(lambda all_: ", ".join(f"{a}={b}" for a, b in all_)) | st.text())
@example('Payment id="' + '"' * 16_000)
@example("Payment " + "a=," * 5_000)
def test_any_challenge_is_read_or_refused(stated: str) -> None:
    answer = SellerAnswer(402, [("WWW-Authenticate", stated), ("www-authenticate", stated)], b"")
    with suppress(TermsNotSupported):
        terms = offers.read_terms(answer)
        offers.payable_offers(terms, SIGNERS, host=HOST, max_nanos=DOLLAR_NANOS, networks=(), own_addresses=())


def test_several_challenges_in_one_header_are_told_apart() -> None:
    request = base64url(
        {
            "amount": "1",
            "currency": SIGNERS[BASE].asset.address,
            "recipient": PAYEE,
            "methodDetails": {"chainId": 8453, "credentialTypes": ["authorization"]},
        }
    )
    one = f'Payment id="a, \\"b", realm={HOST}, method="evm", intent="charge", request="{request}"'
    other = f'payment ID=c,realm="example.com" , method=evm,intent=charge,request={request}'
    stated = f'Negotiate abc==, {one}, Bearer realm="x, y", {other}, Payment id="no"'
    [terms] = offers.read_terms(SellerAnswer(402, [("WWW-Authenticate", stated)], b""))
    assert [each["challenge"]["id"] for each in terms.accepts] == ['a, "b', "c"]
    found = offers.payable_offers([terms], SIGNERS, host=HOST, max_nanos=DOLLAR_NANOS, networks=(), own_addresses=())
    assert [each.nonce for each in found] == [keccak(text=f'a, "b{HOST}'), keccak(text="cexample.com")]


def test_terms_that_are_too_long_to_store_are_refused_as_such() -> None:
    body = json.dumps({"x402Version": 1, "accepts": [], "error": "x" * 16_384}).encode()
    with pytest.raises(TermsNotSupported, match="longer than 16384 bytes"):
        offers.read_terms(SellerAnswer(402, [], body))


@pytest.fixture
def public_only(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[None]:
    """An application that reaches the public internet only."""
    with build_app(sqlite_url, settings={"allow_private_upstreams": False}).app_context():
        yield


@pytest.mark.usefixtures("public_only")
@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"url": "ftp://shop.example.com/"}, "url"),
        ({"url": "http://shop.example.com/"}, "url"),
        ({"url": "https://shop.example.com:8443/"}, "url"),
        ({"url": "https://127.0.0.1/"}, "url"),
        ({"url": "https://169.254.169.254/latest"}, "url"),
        ({"url": "https://0x7f000001/"}, "url"),
        ({"url": "https://localhost/"}, "url"),
        ({"url": "https://me:secret@shop.example.com/"}, "url"),
        ({"url": "https://shop.example.com/#top"}, "url"),
        ({"url": "https://shop.example.com/\u00e9"}, "url"),
        ({"url": "https://shop.example.com/" + "a" * 3000}, "url"),
        ({"url": "https://purser.test/v1/gateway/brave/web/search"}, "url"),
        ({"headers": {"X-Payment": "stolen"}}, "headers"),
        ({"headers": {"Host": "other"}}, "headers"),
        ({"headers": {"A": "b\r\nHost: other"}}, "headers"),
        ({"headers": {"A b": "c"}}, "headers"),
        ({"headers": {f"A-{number}": "b" for number in range(31)}}, "headers"),
    ],
)
def test_requests_that_cannot_be_sent_are_refused(changed: dict[str, Any], field: str) -> None:
    order = {"url": f"https://{HOST}/report", "method": "GET", "headers": {}, "body": None, **changed}
    with pytest.raises(InvalidInput) as refused:
        sellers.parse_request(**order)
    assert list(refused.value.details["fields"]) == [field]


@pytest.mark.usefixtures("public_only")
def test_a_request_is_sent_as_it_was_asked_for() -> None:
    url = "https://Shop.Example.com/a%2Fb?x=1&y=%20"
    sent = sellers.parse_request(url=url, method="POST", headers={"Accept": "text/csv"}, body="{}")
    assert (sent.origin, sent.host, sent.target) == (f"https://{HOST}", HOST, "/a%2Fb?x=1&y=%20")
    assert (sent.body, sent.headers) == (b"{}", (("Accept", "text/csv"),))
