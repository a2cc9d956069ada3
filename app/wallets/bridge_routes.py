"""`POST /v1/wallets/{id}/bridge`: tokens go to the same wallet on another chain."""

from __future__ import annotations

from typing import Any

from flask import jsonify

from app.errors import BridgeFailed, IdempotencyConflict, NotFound, Unauthorized
from app.identity import guards
from app.ports import provider
from app.wallets import bridge_schemas, bridges, orders
from app.wallets.orders import BridgeOrder
from app.wallets.quotable import LIMITS, done_or_quoted, is_for_real, rebuilt_as
from app.wallets.routes import IDEMPOTENCY_NOTE, PREFER_NOTE, blp
from app.wallets.service import WalletView
from app.web import idempotency, prefer
from app.web.idempotency import idempotent


@blp.post("/<string:wallet_id>/bridge")
@idempotent(owner=guards.require_agent, rebuild=rebuilt_as(bridge_schemas.BridgeShape), applies=is_for_real)
@blp.arguments(bridge_schemas.BridgeBody)
@blp.response(200, bridge_schemas.BridgeShape)
@blp.doc(responses=done_or_quoted("bridge", bridge_schemas.BridgeShape, bridge_schemas.BridgeQuoteShape))
@blp.raises(Unauthorized, NotFound, *LIMITS, IdempotencyConflict, BridgeFailed)
@blp.header(idempotency.HEADER, IDEMPOTENCY_NOTE)
@blp.header("Prefer", PREFER_NOTE)
def bridge(body: dict[str, Any], wallet: WalletView) -> Any:
    """Move tokens to the wallet's address on another chain. Answers `pending`; the service brings it to its end.

    What counts against the limits is the fee. What has left and not arrived stays `pending` with an `error` that says
    what is waited for, and is tried for as long as it takes. `legs` shows each transaction of it.
    """
    order = orders.parse_bridge(
        source_chain=body["source_chain"], destination_chain=body["destination_chain"],
        token=body["token"], amount=body["amount"],
    )  # fmt: skip
    if body["dry_run"]:
        return jsonify(bridge_schemas.BridgeQuoteShape().dump(_quoted(order, bridges.quote(wallet, order))))
    wait = prefer.wait_seconds(provider.settings().confirmation_wait_seconds)
    return bridges.send(wallet, order, wait_seconds=wait)


def _quoted(order: BridgeOrder, found: bridges.Quote) -> dict[str, Any]:
    return {
        "dry_run": True,
        "source_chain": order.source.value,
        "destination_chain": order.destination.value,
        "token": order.amount.token.symbol,
        "amount": order.amount,
        "route": found.route,
        "fee": found.fee,
        "value_nanos": found.value_nanos,
        "network_fee": found.network_fee,
        "network_fee_currency": found.network_fee.token.symbol,
        "fee_nanos": found.network_fee_nanos,
        "estimated_seconds": found.seconds,
    }
