"""Low balances: an event when few of the credits that an agent was granted are left.

They are found by a sweep, so that the calls that spend credits cost nothing more.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import String, cast, exists, select

from app.core.money import usd_string
from app.credits.models import CreditAccount
from app.db.leases import once_per_period
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events import outbox
from app.events.outbox import EventType
from app.identity import agents

_PERIOD = timedelta(minutes=1)
_LEASE = timedelta(seconds=30)
_BATCH_SIZE = 500
_LOW_NANOS = 10**9


def announce_low(below_nanos: int = _LOW_NANOS) -> None:
    """Record an event for each agent with less credits than this, once after each grant; about once a minute."""
    with once_per_period(_PERIOD, "low_balances", duration=_LEASE) as is_due:
        if is_due:
            _announce(below_nanos)


def _announce(below_nanos: int) -> None:
    granted = cast(CreditAccount.granted_nanos, String)
    low = (
        select(CreditAccount.id, CreditAccount.granted_nanos, CreditAccount.spent_nanos)
        .where(
            CreditAccount.granted_nanos > 0,
            CreditAccount.granted_nanos - CreditAccount.spent_nanos < below_nanos,
            agents.exists_with(CreditAccount.id),
            ~exists().where(outbox.was_recorded(EventType.CREDITS_LOW, CreditAccount.id, granted)),
        )
        .limit(_BATCH_SIZE)
    )
    with read_only_unit() as session:
        rows = session.execute(low).all()
    for row in rows:
        with unit_of_work() as session:
            outbox.record(
                session,
                EventType.CREDITS_LOW,
                agent_id=row.id,
                object_id=row.id,
                data={
                    "credits_usd": usd_string(row.granted_nanos - row.spent_nanos),
                    "below_usd": usd_string(below_nanos),
                },
                once=str(row.granted_nanos),
            )
