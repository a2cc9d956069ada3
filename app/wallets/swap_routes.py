"""`POST /v1/wallets/{id}/swap`: tokens become others on the same chain."""

from __future__ import annotations

from typing import Any

from flask import jsonify, request

from app.errors import (
    DailyLimitExceeded,
    IdempotencyConflict,
    MonthlyLimitExceeded,
    NotFound,
    PerTxLimitExceeded,
    PriceUnavailable,
    SwapFailed,
    Unauthorized,
    WalletFrozen,
    WeeklyLimitExceeded,
)
from app.identity import guards
from app.ports import provider
from app.wallets import history, movements, orders, swap_schemas, swaps
from app.wallets.lifecycle import Status
from app.wallets.orders import SwapOrder
from app.wallets.routes import IDEMPOTENCY_NOTE, PREFER_NOTE, blp
from app.wallets.service import WalletView
from app.web import failures, idempotency, prefer
from app.web.idempotency import idempotent
from app.web.parsing import body_of, parse_json

_LIMITS = (
    DailyLimitExceeded,
    WeeklyLimitExceeded,
    MonthlyLimitExceeded,
    PerTxLimitExceeded,
    WalletFrozen,
    PriceUnavailable,
)
_SWAPPED_OR_QUOTED = {
    "200": {
        "description": "The swap, or the quote of a dry run.",
        "content": {
            "application/json": {"schema": {"oneOf": [swap_schemas.SwapShape, swap_schemas.SwapQuoteShape]}}
        },
    }
}


def _rebuild_swap(transaction_id: str) -> tuple[int, Any]:
    view = history.movement(transaction_id)
    if view.status == Status.FAILED:
        failure = movements.answer_failure(view)
        return failure.status, failures.body_of(failure)
    return 200, swap_schemas.SwapShape().dump(view)


def _is_for_real() -> bool:
    """Tell a swap from a dry run, which makes nothing that a repetition could make again."""
    body = parse_json(body_of(request) or b"{}")
    return not (isinstance(body, dict) and any(body.get(name) is True for name in ("dry_run", "dryRun")))


@blp.post("/<string:wallet_id>/swap")
@idempotent(owner=guards.require_agent, rebuild=_rebuild_swap, applies=_is_for_real)
@blp.arguments(swap_schemas.SwapBody)
@blp.response(200, swap_schemas.SwapShape)
@blp.doc(responses=_SWAPPED_OR_QUOTED)
@blp.raises(Unauthorized, NotFound, *_LIMITS, IdempotencyConflict, SwapFailed)
@blp.header(idempotency.HEADER, IDEMPOTENCY_NOTE)
@blp.header("Prefer", PREFER_NOTE)
def swap(body: dict[str, Any], wallet: WalletView) -> Any:
    """Swap tokens on one chain, for the wallet itself. `pending` means: sent, and finished by the service.

    It brings at least `minimum_output_amount` or does not take place. What counts against the limits is what it may
    lose: the value given less the least that comes back.
    """
    order = orders.parse_swap(
        chain=body["chain"], amount=body["amount"], input_token=body["input_token"],
        output_token=body["output_token"], slippage_bps=body["slippage_bps"],
    )  # fmt: skip
    if body["dry_run"]:
        return jsonify(swap_schemas.SwapQuoteShape().dump(_quoted(order, swaps.quote(wallet, order))))
    wait = prefer.wait_seconds(provider.settings().confirmation_wait_seconds)
    return swaps.send(wallet, order, wait_seconds=wait)


def _quoted(order: SwapOrder, found: swaps.Quote) -> dict[str, Any]:
    return {
        "dry_run": True,
        "input_token": order.given.token.symbol,
        "output_token": order.wanted.symbol,
        "input_amount": order.given,
        "output_amount": found.output,
        "minimum_output_amount": found.minimum,
        "slippage_bps": order.slippage_bps,
        "chain": order.chain.value,
        "route": found.route,
        "value_nanos": found.value_nanos,
        "network_fee": found.fee,
        "network_fee_currency": found.fee.token.symbol,
        "fee_nanos": found.fee_nanos,
    }
