"""The state machine of transactions: the only writer of `status`, with an event row for every move.

pending → confirmed | failed; confirmed → pending and failed → pending only when a reorganisation took the
block away that decided it, and failed → pending when the chain shows that it was carried out by bytes that a database
which was set back does not know.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy import update

from app.core import clock, logs
from app.core.unit_of_work import after_commit
from app.extensions import db
from app.wallets.models import Bridge, SignedAttempt, Transaction, TransactionEvent, Wallet

_log = structlog.get_logger(__name__)


class Status(StrEnum):
    """The states of a transaction, as on the wire."""

    PENDING = "pending"
    CONFIRMED = "confirmed"
    FAILED = "failed"


class TransactionType(StrEnum):
    """The types of a transaction, as on the wire."""

    TRANSFER = "transfer"
    WITHDRAWAL = "withdrawal"
    FUNDING = "funding"
    SWAP = "swap"
    TRADING_QUERY = "trading_query"
    TRADING_ORDER = "trading_order"


class Kind(StrEnum):
    """What a transaction is beyond its type."""

    BRIDGE = "bridge"
    BRIDGE_LEG = "bridge_leg"
    """One transaction of a bridge; callers see it among the bridge's legs only."""


EXCHANGE = "perpdex"
"""What stands for the chain of a row that no chain knows of: a question to the trading exchange."""


class Reason(StrEnum):
    """Why a transaction moved to a state, where that needs saying."""

    REVERTED = "reverted"
    SLOT_TAKEN = "slot_taken"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REORGANISED = "reorganised"
    FOUND = "found_on_chain"
    REFUNDED = "refunded"
    WRITTEN_OFF = "written_off"


_MOVES: frozenset[tuple[Status, Status]] = frozenset(
    {
        (Status.PENDING, Status.CONFIRMED),
        (Status.PENDING, Status.FAILED),
        (Status.CONFIRMED, Status.PENDING),
        (Status.FAILED, Status.PENDING),
    }
)


def record(transaction: Transaction, *, status: Status, attempt: SignedAttempt | None = None) -> None:
    """Add a new transaction with its first event, in the current unit.

    It may be born `failed` (refused) or `confirmed` (a question that was answered).
    """
    session = db.session
    transaction.status = status.value
    transaction.request_id = logs.origin()
    session.add(transaction)
    session.add(_event(transaction.id, status, transaction.error, transaction.created_at))
    if attempt is not None:
        session.add(attempt)
    if transaction.bridge_id is not None:
        return
    session.execute(
        update(Wallet)
        .where(Wallet.id == transaction.wallet_id)
        .values(transaction_count=Wallet.transaction_count + 1)
    )


def move(
    transaction_id: str,
    *,
    source: Status,
    target: Status,
    reason: str | None = None,
    changes: dict[str, Any] | None = None,
) -> bool:
    """Move a transaction if it still is in `source`, in the current unit; tell whether this call did it.

    Raises: ValueError for a move that the machine does not have: a defect.
    """
    if (source, target) not in _MOVES:
        msg = f"a transaction never goes from {source} to {target}"
        raise ValueError(msg)
    values = {"error": reason if target is Status.FAILED else None, **(changes or {}), "status": target.value}
    moved = db.session.execute(
        update(Transaction)
        .where(Transaction.id == transaction_id, Transaction.status == source.value)
        .values(**values)
        .returning(Transaction.request_id, Transaction.chain)
    ).one_or_none()
    if moved is None:
        return False
    db.session.add(_event(transaction_id, target, reason, clock.now()))
    told = {"transaction_id": transaction_id, "chain": moved.chain, "status": target.value}
    after_commit(lambda: _tell(moved.request_id, {**told, "reason": reason}))
    return True


def wake(bridge_id: str) -> None:
    """Have a bridge looked at, for something became of one of its legs; in the current unit."""
    db.session.execute(
        update(Bridge)
        .where(Bridge.id == bridge_id)
        .values(next_step_at=clock.now(), steps=0)
        .execution_options(synchronize_session=False)
    )


def _tell(request_id: str | None, told: dict[str, str | None]) -> None:
    with logs.caused_by(request_id):
        _log.info("transaction_moved", **told)


def _event(transaction_id: str, status: Status, reason: str | None, at: datetime) -> TransactionEvent:
    return TransactionEvent(transaction_id=transaction_id, status=status.value, reason=reason, at=at)
