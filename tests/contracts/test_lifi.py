"""LI.FI's API as its documentation describes it.

Read on 2026-11-23: https://docs.li.fi/api-reference/error-codes (codes of errors and tools),
https://docs.li.fi/introduction/user-flows-and-examples/status-tracking and
https://app.unpkg.com/@lifi/types@17.29.0 (`api.ts`: statuses and substatuses),
https://docs.li.fi/api-reference/rate-limits (429, code 1005, `ratelimit-reset`, `x-lifi-api-key`; 75 quotes in two
hours without a key, with one 100 requests a minute over a window of two hours).
"""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from app.adapters.bridges.relay.orders import LifiOrderService, OrderState
from app.adapters.rate_limited_http import ServiceAccess
from app.core.chains import ETH, ChainName
from app.core.money import TokenAmount
from app.ports.bridges import BridgePhase, BridgeRequest
from app.ports.errors import Rejected, Unreachable
from tests.support.loopback_http import Reply, serve

OWNER = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
CHAINS = 8453, 1
REQUEST = BridgeRequest(ChainName.BASE, ChainName.ETHEREUM, OWNER, OWNER, TokenAmount(10**17, ETH))
DEPOSIT_HASH, PAYMENT_HASH = "0x" + "58" * 32, "0x" + "28" * 32


def _refusal(status: int, body: object) -> str:
    with serve(lambda _asked: Reply(json.dumps(body).encode(), status, {"ratelimit-reset": "7200"})) as server:
        with capture_logs(), pytest.raises(Rejected) as refused:
            LifiOrderService(server.url, *CHAINS).quote(REQUEST)
        return refused.value.reason


def _state(status: int, body: object) -> OrderState:
    with serve(lambda _asked: Reply(json.dumps(body).encode(), status)) as server:
        return LifiOrderService(server.url, *CHAINS).order_state({}, DEPOSIT_HASH)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("NO_POSSIBLE_ROUTE", "quote_unavailable"),
        ("INSUFFICIENT_LIQUIDITY", "quote_unavailable"),
        ("TOOL_TIMEOUT", "quote_unavailable"),
        ("UNKNOWN_ERROR", "quote_unavailable"),
        ("RPC_ERROR", "quote_unavailable"),
        ("AMOUNT_TOO_LOW", "amount_too_small"),
        ("AMOUNT_TOO_HIGH", "quote_unavailable"),
        ("FEES_HGHER_THAN_AMOUNT", "amount_too_small"),
        ("FEES_HIGHER_THAN_AMOUNT", "amount_too_small"),
        ("DIFFERENT_RECIPIENT_NOT_SUPPORTED", "quote_unavailable"),
        ("TOOL_SPECIFIC_ERROR", "quote_unavailable"),
        ("CANNOT_GUARANTEE_MIN_AMOUNT", "quote_unavailable"),
    ],
)
def test_a_tools_error_names_what_the_client_can_change(code: str, reason: str) -> None:
    body = {
        "message": "Unable to find a quote for the requested transfer.",
        "code": 1002,
        "errors": [{"errorType": "NO_QUOTE", "code": code, "tool": "relaydepository", "message": "No quote"}],
    }
    assert _refusal(404, body) == reason


@pytest.mark.parametrize(("status", "code"), [(400, 1011), (401, 1010), (424, 1008), (500, 1006), (504, 1009)])
def test_other_errors_are_no_quote(status: int, code: int) -> None:
    assert _refusal(status, {"message": "An error", "code": code}) == "quote_unavailable"


def test_the_time_until_the_limit_is_reset_is_returned_without_another_request() -> None:
    body = b'{"message": "Rate limit exceeded, retry in 2 hours", "code": 1005}'
    headers = {"ratelimit-limit": "75", "ratelimit-remaining": "0", "ratelimit-reset": "7100"}
    with serve(lambda _asked: Reply(body, 429, headers)) as server, capture_logs():
        service = LifiOrderService(server.url, *CHAINS, ServiceAccess("lifi-key"))
        for _ in range(2):
            with pytest.raises(Rejected) as refused:
                service.quote(REQUEST)
            assert refused.value.reason == "quote_rate_limited"
            assert refused.value.details["service"] == "lifi"
            assert 7090 <= int(refused.value.details["retry_after_seconds"]) <= 7100
        assert [asked.headers["x-lifi-api-key"] for asked in server.asked] == ["lifi-key"]


@pytest.mark.parametrize(
    ("status", "substatus", "expected"),
    [
        ("NOT_FOUND", None, BridgePhase.WAITING),
        ("INVALID", None, BridgePhase.WAITING),
        ("PENDING", "WAIT_SOURCE_CONFIRMATIONS", BridgePhase.WAITING),
        ("PENDING", "WAIT_DESTINATION_TRANSACTION", BridgePhase.WAITING),
        ("PENDING", "BRIDGE_NOT_AVAILABLE", BridgePhase.WAITING),
        ("PENDING", "CHAIN_NOT_AVAILABLE", BridgePhase.WAITING),
        ("PENDING", "REFUND_IN_PROGRESS", BridgePhase.WAITING),
        ("PENDING", "UNKNOWN_ERROR", BridgePhase.WAITING),
        ("DONE", "COMPLETED", BridgePhase.ARRIVED),
        # Another token than requested.
        ("DONE", "PARTIAL", BridgePhase.WAITING),
        ("DONE", "REFUNDED", BridgePhase.REFUNDED),
        # The deposit may still be returned.
        ("FAILED", "NOT_PROCESSABLE_REFUND_NEEDED", BridgePhase.WAITING),
        ("FAILED", "SLIPPAGE_EXCEEDED", BridgePhase.WAITING),
    ],
)
def test_only_a_complete_transfer_and_a_refund_end_an_order(
    status: str, substatus: str | None, expected: BridgePhase
) -> None:
    body = {
        "transactionId": "0x" + "09" * 32,
        "sending": {"txHash": DEPOSIT_HASH, "chainId": 8453},
        "receiving": {"txHash": PAYMENT_HASH, "chainId": 1, "amount": "99"},
        "status": status,
        **({} if substatus is None else {"substatus": substatus, "substatusMessage": "…"}),
    }
    found = _state(200, body)
    assert (found.phase, found.tx_hash) == (expected, PAYMENT_HASH)


def test_a_pending_transfer_has_no_payment() -> None:
    found = _state(200, {"status": "PENDING", "sending": {"txHash": DEPOSIT_HASH}, "receiving": {"chainId": 1}})
    assert (found.phase, found.tx_hash) == (BridgePhase.WAITING, None)
    assert _state(404, {"message": "Not an EVM Transaction", "code": 1003}).phase is BridgePhase.WAITING


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_an_error_says_nothing_about_an_order(status: int) -> None:
    with pytest.raises(Unreachable):
        _state(status, {"message": "Rate limit exceeded", "code": 1005})
