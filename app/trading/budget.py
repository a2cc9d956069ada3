"""What we may ask of the exchange, which counts the weight of all questions from our address: one budget for all.

The budget lies in the database, which every process shares and which is there whatever becomes of Redis. It
refills steadily, and a wallet has a share of its own, so that one busy agent does not silence the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import case, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from app.core import clock
from app.core.unit_of_work import unit_of_work
from app.errors import PerpdexError
from app.extensions import db
from app.trading.models import ExchangeBudget

_MS_PER_SECOND = 1000
_FORGOTTEN_AFTER_MS = 3_600_000
_COOLING_SECONDS = 10
_FORGOTTEN_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much may be asked at once, and after how many milliseconds one more unit of weight is there.

    Within any minute, `burst + 60000 / ms_per_weight` is the most that can be taken.
    """

    burst: int
    ms_per_weight: int


ALL = Allowance(burst=400, ms_per_weight=75)
"""The exchange allows 1200 a minute: 400 at once and 800 more."""
ONE_WALLET = Allowance(burst=200, ms_per_weight=150)
"""Half of all."""
_ALL_NAME = "all"


def take(weight: int, *, wallet_id: str | None = None, now: datetime | None = None) -> None:
    """Take a question's weight from the budget, and from the wallet's share where it asks for itself.

    Raises: PerpdexError saying when enough will be there; then nothing was taken.
    """
    for _ in range(2):
        try:
            with unit_of_work():
                if wallet_id is not None:
                    share = "This wallet's share of the"
                    _take(wallet_id, ONE_WALLET, weight, now_ms=_ms(now), whose=share)
                _take(_ALL_NAME, ALL, weight, now_ms=_ms(now), whose="The")
        except IntegrityError:
            # Another process made the row at the same moment: it is there now.
            continue
        return
    raise refusal("rate_limited", "The exchange's request budget is busy", retry_after_seconds=1)


def charge(weight: int, *, wallet_id: str | None = None, now: datetime | None = None) -> None:
    """Take what an answer weighed beyond its question, even if less is left."""
    with unit_of_work():
        for name, allowance in (*([(wallet_id, ONE_WALLET)] if wallet_id else []), (_ALL_NAME, ALL)):
            _spend(name, weight * allowance.ms_per_weight, ceiling_ms=None, now_ms=_ms(now))


def drain() -> None:
    """Let everybody pause for some seconds, because the exchange said that it was asked too much."""
    pause_ms = (ALL.burst * ALL.ms_per_weight) + _COOLING_SECONDS * _MS_PER_SECOND
    now_ms = _ms(None)
    with unit_of_work() as session:
        session.execute(
            update(ExchangeBudget)
            .where(ExchangeBudget.name == _ALL_NAME, ExchangeBudget.whole_at_ms < now_ms + pause_ms)
            .values(whole_at_ms=now_ms + pause_ms)
        )


def refusal(reason: str, sentence: str, *, retry_after_seconds: int) -> PerpdexError:
    """Make the failure that says when to ask again."""
    return PerpdexError(
        f"{sentence}; try again in {retry_after_seconds} s.",
        details={"reason": reason, "retry_after_seconds": retry_after_seconds},
        retry_after_seconds=retry_after_seconds,
    )


def _take(name: str, allowance: Allowance, weight: int, *, now_ms: int, whose: str) -> None:
    cost_ms = weight * allowance.ms_per_weight
    ceiling_ms = now_ms + allowance.burst * allowance.ms_per_weight
    if _spend(name, cost_ms, ceiling_ms=ceiling_ms, now_ms=now_ms):
        return
    whole_at_ms = db.session.scalar(select(ExchangeBudget.whole_at_ms).where(ExchangeBudget.name == name))
    if whole_at_ms is None:
        _open(name, whole_at_ms=now_ms + cost_ms, now_ms=now_ms)
        return
    wait_ms = max(0, whole_at_ms + cost_ms - ceiling_ms)
    raise refusal(
        "rate_limited",
        f"{whose} request budget for the exchange is used up",
        retry_after_seconds=max(1, -(-wait_ms // _MS_PER_SECOND)),
    )


def _spend(name: str, cost_ms: int, *, ceiling_ms: int | None, now_ms: int) -> bool:
    """Move the moment at which a budget is whole, unless that passes the ceiling; tell whether it moved."""
    whole_at_ms = ExchangeBudget.whole_at_ms
    after = case((whole_at_ms > now_ms, whole_at_ms), else_=now_ms) + cost_ms
    within = [] if ceiling_ms is None else [after <= ceiling_ms]
    moved = db.session.execute(
        update(ExchangeBudget)
        .where(ExchangeBudget.name == name, *within)
        .values(whole_at_ms=after)
        .execution_options(synchronize_session=False)
    )
    return bool(moved.rowcount == 1)  # type: ignore[attr-defined]


def _open(name: str, *, whole_at_ms: int, now_ms: int) -> None:
    # A budget that has been whole for long is as good as none; new ones are rare enough to look for such.
    old = (
        select(ExchangeBudget.name)
        .where(ExchangeBudget.whole_at_ms < now_ms - _FORGOTTEN_AFTER_MS, ExchangeBudget.name != _ALL_NAME)
        .limit(_FORGOTTEN_AT_ONCE)
        # Two who forget at the same time do not wait for each other.
        .with_for_update(skip_locked=True)
    )
    db.session.execute(
        delete(ExchangeBudget)
        .where(ExchangeBudget.name.in_(old.scalar_subquery()))
        .execution_options(synchronize_session=False)
    )
    db.session.execute(insert(ExchangeBudget).values(name=name, whole_at_ms=whole_at_ms))


def _ms(now: datetime | None) -> int:
    return int((now or clock.now()).timestamp() * _MS_PER_SECOND)
