"""Jupiter's `GET /swap/v2/build` as its documentation describes it.

Read on 2026-11-23: https://dev.jup.ag/docs/swap/build, https://dev.jup.ag/api-reference/swap/build (members),
https://dev.jup.ag/docs/portal/rate-limits (429; 30 requests in a sliding window of 60 seconds without a key, 60 with a
free one), https://dev.jup.ag/portal/setup (`x-api-key`), and the error codes that clients of the API distinguish:
COULD_NOT_FIND_ANY_ROUTE and TOKEN_NOT_TRADABLE with status 400.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from structlog.testing import capture_logs

from app.adapters.rate_limited_http import ServiceAccess
from app.adapters.swaps.jupiter.api import JupiterApi, JupiterRoute
from app.ports.errors import Rejected
from tests.support.loopback_http import Asked, Reply, serve

OWNER = "9WzDXwBbmkg8ZTbNMqUxvQRAyrZzDsGYdLVL9zYtAWWM"
SOL_MINT = "So11111111111111111111111111111111111111112"
USDC_MINT = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"
PROGRAM = "JUP6LkbZbjS1jKKwapdHNy74zcZ3tLUZoi5QNyVTaV4"


def _instruction(data: str = "AQID") -> dict[str, Any]:
    account = {"pubkey": OWNER, "isSigner": True, "isWritable": True}
    return {"programId": PROGRAM, "accounts": [account], "data": data}


BUILT: dict[str, Any] = {
    "inputMint": SOL_MINT, "outputMint": USDC_MINT, "inAmount": "1000000000", "outAmount": "149535091",
    "otherAmountThreshold": "148787415", "swapMode": "ExactIn", "slippageBps": 50, "priceImpactPct": "0.0001",
    "routePlan": [{"swapInfo": {"ammKey": OWNER, "label": "Meteora DLMM"}, "percent": 100, "bps": 10000}],
    "computeBudgetInstructions": [_instruction()], "setupInstructions": [_instruction()],
    "swapInstruction": _instruction("BAUG"), "cleanupInstruction": None, "otherInstructions": [],
    "tipInstruction": None, "addressesByLookupTableAddress": None,
    "blockhashWithMetadata": {"blockhash": [1, 2], "lastValidBlockHeight": 1},
}  # fmt: skip


def _build(body: object, status: int = 200) -> tuple[JupiterRoute, Asked]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with serve(lambda _asked: Reply(raw, status)) as server, capture_logs():
        route = JupiterApi(server.url).build(OWNER, SOL_MINT, USDC_MINT, units=10**9, slippage_bps=50)
        return route, server.asked[0]


def test_a_route_is_requested_and_read_in_the_documented_form() -> None:
    route, asked = _build(BUILT)
    address = urlsplit(asked.target)
    assert address.path == "/swap/v2/build"
    assert parse_qs(address.query) == {
        "inputMint": [SOL_MINT],
        "outputMint": [USDC_MINT],
        "amount": ["1000000000"],
        "taker": [OWNER],
        "slippageBps": ["50"],
        "maxAccounts": ["40"],
    }
    assert (route.output_units, route.labels, bytes(route.swap.data)) == (149_535_091, ("Meteora DLMM",), b"\4\5\6")
    assert (len(route.auxiliary_instructions), route.unexpected_instructions, route.tables) == (1, 0, ())


@pytest.mark.parametrize(
    "body", [b'{"code": 429, "message": "Rate limit exceeded"}', b"[API Gateway] Too many requests"]
)
def test_a_request_above_the_limit_is_repeated(body: bytes) -> None:
    answers = [Reply(body, 429), Reply(json.dumps(BUILT).encode())]
    with serve(lambda _asked: answers.pop(0)) as server, capture_logs():
        api = JupiterApi(server.url, ServiceAccess("jup_key"))
        route = api.build(OWNER, SOL_MINT, USDC_MINT, units=10**9, slippage_bps=50)
        assert [asked.headers["x-api-key"] for asked in server.asked] == ["jup_key", "jup_key"]
    assert route.output_units == 149_535_091


def test_optional_members_are_counted_and_tables_named() -> None:
    more = {"cleanupInstruction": _instruction(), "otherInstructions": [_instruction()]}
    tables = {"addressesByLookupTableAddress": {USDC_MINT: [OWNER]}, "tipInstruction": _instruction()}
    route, _ = _build(BUILT | more | tables)
    assert (len(route.auxiliary_instructions), route.unexpected_instructions) == (2, 2)
    assert [str(table) for table in route.tables] == [USDC_MINT]


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (400, {"error": "Could not find any route", "errorCode": "COULD_NOT_FIND_ANY_ROUTE"}, "no_liquidity"),
        (400, {"error": "No routes found", "errorCode": "NO_ROUTES_FOUND"}, "no_liquidity"),
        (400, {"error": f"The token {USDC_MINT} is not tradable", "errorCode": "TOKEN_NOT_TRADABLE"}, "no_liquidity"),
        (400, {"error": "Invalid taker"}, "quote_unavailable"),
        # The address of the API is wrong, not the pair.
        (404, {"message": "Route not found"}, "quote_unavailable"),
        (401, {"code": 401, "message": "Unauthorized"}, "quote_unavailable"),
        (500, {"error": "Could not find any route"}, "quote_unavailable"),
        (503, b"<html>", "quote_unavailable"),
    ],
)
def test_only_a_pair_without_route_has_no_liquidity(status: int, body: object, reason: str) -> None:
    with pytest.raises(Rejected) as refused:
        _build(body, status)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "changed",
    [
        {"swapMode": "ExactOut"},
        {"outputMint": SOL_MINT},
        {"outAmount": "-1"},
        {"swapInstruction": None},
        {"outAmount": str(2**64)},
        {"outAmount": True},
        {"routePlan": [{"swapInfo": {}}] * 41},
        {"setupInstructions": {}},
        {"addressesByLookupTableAddress": {"no address": []}},
        {"swapInstruction": _instruction() | {"data": "no base64"}},
    ],
)
def test_an_answer_to_another_question_is_no_quote(changed: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match="quote_unavailable"):
        _build(BUILT | changed)
