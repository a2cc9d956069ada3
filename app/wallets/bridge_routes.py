"""`POST /v1/wallets/{id}/bridge`: tokens go to the same wallet on another chain."""

from __future__ import annotations

from typing import Any

from flask import jsonify, request

from app.errors import (
    BridgeFailed,
    DailyLimitExceeded,
    IdempotencyConflict,
    MonthlyLimitExceeded,
    NotFound,
    PerTxLimitExceeded,
    PriceUnavailable,
    Unauthorized,
    WalletFrozen,
    WeeklyLimitExceeded,
)
from app.identity import guards
from app.ports import provider
from app.wallets import bridge_schemas, bridges, history, movements, orders
from app.wallets.lifecycle import Status
from app.wallets.orders import BridgeOrder
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
_BRIDGED_OR_QUOTED = {
    "200": {
        "description": "The bridge, or the quote of a dry run.",
        "content": {
            "application/json": {
                "schema": {"oneOf": [bridge_schemas.BridgeShape, bridge_schemas.BridgeQuoteShape]}
            }
        },
    }
}


def _rebuild_bridge(transaction_id: str) -> tuple[int, Any]:
    view = history.movement(transaction_id)
    if view.status == Status.FAILED:
        failure = movements.answer_failure(view)
        return failure.status, failures.body_of(failure)
    return 200, bridge_schemas.BridgeShape().dump(view)


def _is_for_real() -> bool:
    """Tell a bridge from a dry run, which makes nothing that a repetition could make again."""
    body = parse_json(body_of(request) or b"{}")
    return not (isinstance(body, dict) and any(body.get(name) is True for name in ("dry_run", "dryRun")))


@blp.post("/<string:wallet_id>/bridge")
@idempotent(owner=guards.require_agent, rebuild=_rebuild_bridge, applies=_is_for_real)
@blp.arguments(bridge_schemas.BridgeBody)
@blp.response(200, bridge_schemas.BridgeShape)
@blp.doc(responses=_BRIDGED_OR_QUOTED)
@blp.raises(Unauthorized, NotFound, *_LIMITS, IdempotencyConflict, BridgeFailed)
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
