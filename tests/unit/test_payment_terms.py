"""The terms of a payment: price, request, and the service's own wallets that receive and submit payments."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from app.adapters.vault import LocalVault
from app.core.chains import ChainName
from app.errors import PaymentAlreadyUsed, PaymentInvalid, PaymentRequired, ServiceError
from app.payments import treasury
from app.payments.presented import PayableRequest, PaymentHeaders, PaymentPrice, request_fingerprint
from app.payments.treasury import WalletRole
from app.payments.x402 import terms
from app.ports.facilitator import PaymentAsset, SettlementCapacity
from app.ports.vault import NewWallet, SecretLocation
from app.state import Application
from tests.support.applications import change_ports
from tests.support.receipts import statement_of

HEADERS = PaymentHeaders(plain="0x")


def price_of(target: str, *, nanos: int = 10_000_000, body: bytes = b"") -> PaymentPrice:
    return PayableRequest("POST", target, HEADERS, "192.0.2.1").price(
        nanos, body, provider_name="brave", description="A search.", unavailable_reason="Closed."
    )


def test_the_resource_is_the_address_without_the_query_and_the_fingerprint_has_all(app: Application) -> None:
    with app.app_context():
        priced = price_of("/v1/gateway/brave/search?q=a%3Fb?c", body=b"{}")
    assert priced == PaymentPrice(
        nanos=10_000_000,
        fingerprint=request_fingerprint("POST", "/v1/gateway/brave/search?q=a%3Fb?c", b"{}"),
        provider="brave",
        resource="http://purser.test/v1/gateway/brave/search",
        description="A search.",
        headers=HEADERS,
        remote_address="192.0.2.1",
        unavailable_reason="Closed.",
        method="POST",
    )


def test_requests_that_differ_anywhere_have_different_fingerprints() -> None:
    requests = [
        ("POST", "/a", b"x"),
        ("PUT", "/a", b"x"),
        ("POST", "/a?", b"x"),
        ("POST", "/a", b"y"),
        ("POST", "/a", b""),
    ]
    assert len({request_fingerprint(*request) for request in requests}) == len(requests)


@pytest.mark.parametrize(
    ("nanos", "amount"), [(10_000_000, "0.01"), (10_000_001, "0.010001"), (1, "0.000001"), (1_000, "0.000001")]
)
def test_a_price_is_rounded_up_to_a_unit_of_usdc(app: Application, nanos: int, amount: str) -> None:
    with app.app_context():
        assert price_of("/", nanos=nanos).amount == amount


@dataclass(frozen=True)
class Facilitator:
    """A facilitator of a chain on which submissions cost this fee."""

    name: ChainName
    asset: PaymentAsset
    fee_units: int = 1

    def settlement_capacity(self, _settler: str, _recipient: str) -> SettlementCapacity:
        return SettlementCapacity(100 * self.fee_units, self.fee_units, self.fee_units, recipient_can_receive=True)


ETHEREUM = Facilitator(ChainName.ETHEREUM, PaymentAsset("eip155:1", "ethereum", "0xe", {"name": "USDC"}))
BASE = Facilitator(ChainName.BASE, PaymentAsset("eip155:8453", "base", "0xb", {"name": "USD Coin"}))
SOLANA = Facilitator(ChainName.SOLANA, PaymentAsset("solana:1", "solana", "So1"))
OFFERED = {
    "eip155:8453": {
        "scheme": "exact", "network": "eip155:8453", "amount": "10000", "asset": "0xb", "payTo": "0xt",
        "maxTimeoutSeconds": 300, "extra": {"name": "USD Coin"},
    },
    "solana:1": {
        "scheme": "exact", "network": "solana:1", "amount": "10000", "asset": "So1", "payTo": "T",
        "maxTimeoutSeconds": 300, "extra": {"feePayer": "S"},
    },
    "eip155:1": {
        "scheme": "exact", "network": "eip155:1", "amount": "10000", "asset": "0xe", "payTo": "0xt",
        "maxTimeoutSeconds": 300, "extra": {"name": "USDC"},
    },
}  # fmt: skip
OFFERED_BY_VERSION_1 = {
    "scheme": "exact", "network": "base", "maxAmountRequired": "10000", "resource": "http://purser.test/x",
    "description": "A search.", "mimeType": "application/json", "payTo": "0xt", "maxTimeoutSeconds": 300,
    "asset": "0xb", "extra": {"name": "USD Coin"},
}  # fmt: skip


@dataclass(frozen=True)
class Counter:
    """An application that offers payments on some chains, and the addresses of its wallets there."""

    app: Application

    def refuse(
        self, refusal: ServiceError, *, chain: str | None = None, unavailable_reason: str | None = None
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        """Return the members, the decoded header of x402 and the other headers of a refusal with terms."""
        price = PaymentPrice(
            nanos=10_000_000, fingerprint="f", provider="brave", resource="http://purser.test/x",
            description="A search.", headers=PaymentHeaders(chain=chain), unavailable_reason=unavailable_reason,
        )  # fmt: skip
        with self.app.app_context():
            attached = terms.attach(price, refusal)
            assert attached is refusal
            names = {
                treasury.recipient(ChainName.BASE): "0xt", treasury.recipient(ChainName.SOLANA): "T",
                treasury.settler(ChainName.BASE): "0xs", treasury.settler(ChainName.SOLANA): "S",
            }  # fmt: skip
        headers = dict(attached.headers)
        required = json.loads(base64.b64decode(headers.pop("PAYMENT-REQUIRED", "e30=")))
        found = json.dumps([attached.members, required, headers])
        for address, name in names.items():
            found = found.replace(address, name)
        members, required, headers = json.loads(found)
        return members, required, headers


@pytest.fixture
def counter(build_app: Callable[..., Application], sqlite_url: str) -> Callable[..., Counter]:
    def build(*facilitators: Facilitator) -> Counter:
        return Counter(build_app(sqlite_url, facilitators={each.name: each for each in facilitators}))

    return build


def test_a_refusal_has_the_terms_of_both_versions_of_x402_the_cheapest_chain_first(
    counter: Callable[..., Counter],
) -> None:
    refusal = PaymentRequired(headers={"Retry-After": "1"})
    members, required, headers = counter(ETHEREUM, SOLANA, BASE).refuse(refusal, chain="Solana")
    instructions = members["payment"].pop("instructions")
    assert members == {
        "payment": {
            "amount": "0.01", "currency": "USDC", "recipient": "T", "chain": "solana", "network": "solana:1",
            "description": "A search.",
            "options": [
                {"chain": "base", "network": "eip155:8453", "recipient": "0xt"},
                {"chain": "solana", "network": "solana:1", "recipient": "T"},
                {"chain": "ethereum", "network": "eip155:1", "recipient": "0xt"},
            ],
        },
        "x402Version": 1,
        # A legacy client rejects the whole list for one network that it does not know.
        "accepts": [OFFERED_BY_VERSION_1],
    }  # fmt: skip
    extension = required.pop("extensions")["offer-receipt"]
    signed = [statement_of(each["signature"]) for each in extension["info"]["offers"]]
    assert [(each["network"], each["amount"], each["resourceUrl"]) for each in signed] == [
        (each["network"], "10000", "http://purser.test/x") for each in required["accepts"]
    ]
    assert required == {
        "x402Version": 2,
        "error": "Payment required",
        "resource": {"url": "http://purser.test/x", "description": "A search.", "mimeType": "application/json"},
        "accepts": [OFFERED["eip155:8453"], OFFERED["solana:1"], OFFERED["eip155:1"]],
    }
    assert headers == {
        "X-Payment-Required": "true", "X-Payment-Amount": "0.01", "X-Payment-Currency": "USDC",
        "X-Payment-Recipient": "T", "X-Payment-Chain": "solana", "X-Payment-Description": "A search.",
        "Cache-Control": "no-store", "Retry-After": "1",
    }  # fmt: skip
    assert instructions.startswith("Pay with an x402 client")
    assert "send at least 0.01 USDC on solana to T and repeat exactly this request within" in instructions


def test_a_chain_with_a_high_fee_is_not_offered_and_the_reason_is_given(counter: Callable[..., Counter]) -> None:
    # With ether at 3 000 USD, this fee is above the price.
    expensive = replace(BASE, fee_units=10**14)
    members, required, _ = counter(expensive, SOLANA).refuse(PaymentRequired())
    assert "accepts" not in members
    assert required["accepts"] == [OFFERED["solana:1"]]
    assert members["payment"]["instructions"].startswith("Signed payments are not accepted on base at the moment")
    members, required, _ = counter(expensive).refuse(PaymentRequired())
    assert required["accepts"] == []
    assert "Pay by transaction hash: send" in members["payment"]["instructions"]


def test_what_would_be_refused_is_not_offered(counter: Callable[..., Counter]) -> None:
    members, required, _ = counter(BASE).refuse(PaymentRequired(), unavailable_reason="it is closed.")
    assert (required["accepts"], "accepts" in members) == ([], False)
    assert members["payment"]["instructions"] == "Do not pay: it is closed."


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (PaymentRequired("Pay first."), "Pay first."),
        (PaymentAlreadyUsed(), "already_used"),
        (PaymentInvalid("It is old.", details={"reason": "too_old"}), "too_old"),
    ],
)
def test_a_client_of_x402_gets_the_reason_of_a_refusal(
    counter: Callable[..., Counter], refusal: ServiceError, error: str
) -> None:
    assert counter(BASE).refuse(refusal)[1]["error"] == error


def test_a_chain_without_payments_has_no_terms(counter: Callable[..., Counter]) -> None:
    refused = counter(BASE).refuse(PaymentRequired(), chain="ethereum")
    assert refused == ({}, {}, {"Cache-Control": "no-store"})
    # A chain that does not exist was not chosen.
    assert counter(BASE).refuse(PaymentRequired(), chain="tron")[0]["payment"]["chain"] == "base"


@dataclass
class InterruptedVault:
    """A vault in which another process does something while a key is generated."""

    real: LocalVault
    meanwhile: Callable[[], object]

    def create_wallet(self, location: SecretLocation) -> NewWallet:
        self.meanwhile()
        return self.real.create_wallet(location)

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)


@pytest.mark.parametrize("role", WalletRole)
def test_processes_that_create_a_wallet_of_the_service_concurrently_share_one(
    sqlite_url: str, build_app: Callable[..., Application], role: WalletRole
) -> None:
    app, other = build_app(sqlite_url), build_app(sqlite_url)

    def find(process: Application) -> str:
        with process.app_context():
            return treasury.wallet(role, ChainName.BASE).id

    with app.app_context():
        assert not treasury.has_wallets(role)
    change_ports(app, vault=InterruptedVault(app.state.ports.vault, lambda: find(other)))
    assert find(app) == find(other)
    with app.app_context():
        assert treasury.has_wallets(role)
        assert not treasury.has_wallets()
        # One wallet has the addresses on all chains.
        assert treasury.wallet(role, ChainName.SOLANA).id == find(app)
