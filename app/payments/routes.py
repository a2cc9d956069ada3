"""`/v1/credits`: credits for USDC from a wallet of the caller's."""

from __future__ import annotations

from typing import Any

from app.errors import (
    DailyLimitExceeded,
    IdempotencyConflict,
    MonthlyLimitExceeded,
    NotFound,
    PerTxLimitExceeded,
    PriceUnavailable,
    TransferFailed,
    Unauthorized,
    WalletFrozen,
    WeeklyLimitExceeded,
)
from app.identity import guards
from app.payments import schemas, topups
from app.ports import provider
from app.wallets import history, movements, service
from app.wallets.history import TransactionView
from app.web import failures, idempotency, prefer
from app.web.blueprint import Blueprint
from app.web.idempotency import idempotent

blp = Blueprint(
    "credits",
    __name__,
    guard=guards.AGENT_KEY,
    url_prefix="/v1/credits",
    description="Credits that pay for gateway and catalog calls.",
)


def _rebuild(transaction_id: str) -> tuple[int, Any]:
    view = history.movement(transaction_id)
    if view.status == "failed":
        failure = movements.answer_failure(view)
        return failure.status, failures.body_of(failure)
    return 200, schemas.TopUpShape().dump(view)


@blp.post("/topup")
@idempotent(owner=guards.require_agent, rebuild=_rebuild)
@blp.arguments(schemas.TopUpBody)
@blp.response(200, schemas.TopUpShape)
@blp.raises(
    Unauthorized, NotFound, DailyLimitExceeded, WeeklyLimitExceeded, MonthlyLimitExceeded, PerTxLimitExceeded,
    WalletFrozen, PriceUnavailable, IdempotencyConflict, TransferFailed,
)  # fmt: skip
@blp.header(idempotency.HEADER, "Repeating a request with the same key moves nothing again.")
@blp.header("Prefer", "`respond-async` answers at once; `wait=N` waits up to N (at most 25) seconds.")
def top_up(body: dict[str, Any]) -> TransactionView:
    """Buy credits with USDC of a wallet, under its limits; they are granted when the movement is final."""
    wallet = service.owned(body["wallet_id"], agent_id=guards.require_agent())
    wait = prefer.wait_seconds(provider.settings().confirmation_wait_seconds)
    return topups.make(
        wallet, guards.caller().account_id, chain=body["chain"], amount=body["amount"], wait_seconds=wait
    )
