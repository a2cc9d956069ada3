"""What waits for its end, counted by age: for an operator's eyes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, case, func, select

from app.core import clock
from app.extensions import db
from app.wallets.lifecycle import Status
from app.wallets.models import Transaction

_AGES_SECONDS = (0, 60, 600, 3600)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The pending transactions of one type on one chain; `by_age` counts those of at least so many seconds."""

    type: str
    chain: str
    by_age: Mapping[int, int]
    oldest_seconds: int


def pending() -> list[Backlog]:
    """Return what is pending, in the current unit. Reads only rows that are: both kinds have an index of their own."""
    is_movement = Transaction.next_check_at.is_not(None) & (Transaction.type != "funding")
    return [*_of(is_movement), *_of(Transaction.type == "funding")]


def _of(kind: ColumnElement[bool]) -> list[Backlog]:
    now = clock.now()
    counts = [
        func.sum(case((Transaction.created_at <= now - timedelta(seconds=age), 1), else_=0))
        for age in _AGES_SECONDS
    ]
    found = db.session.execute(
        select(Transaction.type, Transaction.chain, func.min(Transaction.created_at), *counts)
        .where(kind, Transaction.status == Status.PENDING.value)
        .group_by(Transaction.type, Transaction.chain)
    )
    return [
        Backlog(
            type=type_,
            chain=chain or "",
            by_age=dict(zip(_AGES_SECONDS, map(int, numbers), strict=True)),
            oldest_seconds=max(0, int((now - oldest).total_seconds())),
        )
        for type_, chain, oldest, *numbers in found
    ]
