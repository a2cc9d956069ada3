"""Pending transactions, counted by age, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from app.core import clock
from app.wallets.core.lifecycle import MovementStatus
from app.wallets.core.models import Transaction

_AGES_SECONDS = (0, 60, 600, 3600)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The pending transactions of one type on one chain; `by_age` counts those of at least so many seconds."""

    type: str
    chain: str
    by_age: Mapping[int, int]
    oldest_seconds: int


def pending(session: Session) -> list[Backlog]:
    """Return the pending transactions. Both queries use a partial index."""
    is_movement = Transaction.next_check_at.is_not(None) & (Transaction.type != "funding")
    return [*_count_by_age(session, is_movement), *_count_by_age(session, Transaction.type == "funding")]


def _count_by_age(session: Session, condition: ColumnElement[bool]) -> list[Backlog]:
    now = clock.now()
    counts = [
        func.sum(case((Transaction.created_at <= now - timedelta(seconds=age), 1), else_=0)) for age in _AGES_SECONDS
    ]
    rows = session.execute(
        select(Transaction.type, Transaction.chain, func.min(Transaction.created_at), *counts)
        .where(condition, Transaction.status == MovementStatus.PENDING.value)
        .group_by(Transaction.type, Transaction.chain)
    )
    return [
        Backlog(
            type=type_,
            chain=chain or "",
            by_age=dict(zip(_AGES_SECONDS, map(int, numbers), strict=True)),
            oldest_seconds=max(0, int((now - oldest).total_seconds())),
        )
        for type_, chain, oldest, *numbers in rows
    ]
