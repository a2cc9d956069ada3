"""`POST /v1/wallets/{id}/swap`: tokens become others on the same chain."""

from __future__ import annotations

from typing import Any

from flask import jsonify

from app.errors import IdempotencyConflict, NotFound, SwapFailed, Unauthorized
from app.identity import guards
from app.ports import provider
from app.wallets import orders, swap_schemas, swaps
from app.wallets.orders import SwapOrder
from app.wallets.quotable import LIMITS, done_or_quoted, is_for_real, rebuilt_as
from app.wallets.routes import IDEMPOTENCY_NOTE, PREFER_NOTE, blp
from app.wallets.service import WalletView
from app.web import idempotency, prefer
from app.web.idempotency import idempotent


@blp.post("/<string:wallet_id>/swap")
@idempotent(owner=guards.require_agent, rebuild=rebuilt_as(swap_schemas.SwapShape), applies=is_for_real)
@blp.arguments(swap_schemas.SwapBody)
@blp.response(200, swap_schemas.SwapShape)
@blp.doc(responses=done_or_quoted("swap", swap_schemas.SwapShape, swap_schemas.SwapQuoteShape))
@blp.raises(Unauthorized, NotFound, *LIMITS, IdempotencyConflict, SwapFailed)
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
