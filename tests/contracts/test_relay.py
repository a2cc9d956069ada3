"""Relay's API as its documentation describes it.

Read on 2026-11-23: https://docs.relay.link/references/api/get-quote-v2,
https://docs.relay.link/references/api/get-intents-status-v3 (statuses),
https://docs.relay.link/references/api/api_core_concepts/refunds (`refundTo`),
https://docs.relay.link/references/api/api_core_concepts/handling-errors (error codes),
https://docs.relay.link/references/api/api-keys (`x-api-key`; 50 quotes a minute without a key, 10 a second with one).
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.adapters.bridges.relay.orders import OrderState, RelayOrderService
from app.adapters.rate_limited_http import ServiceAccess
from app.core.chains import ETH, ChainName
from app.core.money import TokenAmount
from app.ports.bridges import BridgePhase, BridgeRequest
from app.ports.errors import Rejected, Unreachable
from tests.support.loopback_http import Reply, serve

OWNER = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
CHAINS = 8453, 1
REQUEST = BridgeRequest(ChainName.BASE, ChainName.ETHEREUM, OWNER, OWNER, TokenAmount(10**17, ETH))
DEPOSIT_HASH, PAYMENT_HASH = "0x" + "e5" * 32, "0x" + "9d" * 32


def _refusal(status: int, body: object, headers: dict[str, str] | None = None) -> tuple[str, dict[str, Any]]:
    """Return why a quote is refused, and the request's body."""
    with serve(lambda _asked: Reply(json.dumps(body).encode(), status, headers or {})) as server:
        with capture_logs(), pytest.raises(Rejected) as refused:
            RelayOrderService(server.url, *CHAINS).quote(REQUEST)
        return refused.value.reason, json.loads(server.asked[0].body)


def _state(status: int, body: object) -> OrderState:
    with serve(lambda _asked: Reply(json.dumps(body).encode(), status)) as server:
        return RelayOrderService(server.url, *CHAINS).order_state({"request_id": "0x" + "ab" * 32}, DEPOSIT_HASH)


def test_a_quote_requests_refunds_to_the_sender() -> None:
    _, body = _refusal(400, {})
    assert body == {
        "user": OWNER,
        "recipient": OWNER,
        "refundTo": OWNER,
        "originChainId": 8453,
        "destinationChainId": 1,
        "originCurrency": "0x" + "0" * 40,
        "destinationCurrency": "0x" + "0" * 40,
        "amount": str(10**17),
        "tradeType": "EXACT_INPUT",
    }


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (400, "AMOUNT_TOO_LOW", "amount_too_small"),
        (400, "CHAIN_DISABLED", "quote_unavailable"),
        (400, "INSUFFICIENT_LIQUIDITY", "quote_unavailable"),
        (400, "NO_QUOTES", "quote_unavailable"),
        (400, "NO_INTERNAL_SWAP_ROUTES_FOUND", "quote_unavailable"),
        (401, "UNAUTHORIZED", "quote_unavailable"),
        (403, "FORBIDDEN", "quote_unavailable"),
        (500, "UNKNOWN_ERROR", "quote_unavailable"),
    ],
)
def test_a_refused_quote_names_what_the_client_can_change(status: int, code: str, reason: str) -> None:
    body = {"message": "No quote", "errorCode": code, "requestId": "0x" + "ab" * 32}
    assert _refusal(status, body)[0] == reason


def test_a_key_is_sent_with_quotes_and_states() -> None:
    with serve(lambda _asked: Reply(b"{}", 400)) as server, capture_logs():
        service = RelayOrderService(server.url, *CHAINS, ServiceAccess("relay-key"))
        with pytest.raises(Rejected):
            service.quote(REQUEST)
        with pytest.raises(Unreachable):
            service.order_state({"request_id": "0x" + "ab" * 32}, DEPOSIT_HASH)
        assert [asked.headers["x-api-key"] for asked in server.asked] == ["relay-key", "relay-key"]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("waiting", BridgePhase.WAITING),
        ("depositing", BridgePhase.WAITING),
        ("pending", BridgePhase.WAITING),
        ("submitted", BridgePhase.WAITING),
        ("delayed", BridgePhase.WAITING),
        # The deposit may still be returned: only a refund ends the order.
        ("failure", BridgePhase.WAITING),
        ("success", BridgePhase.ARRIVED),
        ("refund", BridgePhase.REFUNDED),
        ("refunded", BridgePhase.REFUNDED),
    ],
)
def test_only_a_fill_and_a_refund_end_an_order(status: str, expected: BridgePhase) -> None:
    body = {
        "status": status,
        "inTxHashes": [DEPOSIT_HASH],
        "txHashes": [PAYMENT_HASH],
        "updatedAt": 1713290386145,
        "originChainId": 8453,
        "destinationChainId": 1,
    }
    assert _state(200, body) == OrderState(expected, note=f"relay_{status}", tx_hash=PAYMENT_HASH)


def test_an_order_without_hashes_is_open() -> None:
    assert _state(200, {"status": "waiting"}) == OrderState(BridgePhase.WAITING, note="relay_waiting")
    assert _state(404, {"message": "Request not found"}).phase is BridgePhase.WAITING


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_unavailable_service_says_nothing_about_an_order(status: int) -> None:
    with pytest.raises(Unreachable):
        _state(status, {"message": "Too many requests"})
