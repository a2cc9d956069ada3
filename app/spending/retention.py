"""Forgetting old holds: the windows in which they counted ended long ago, so no sum changes."""

from __future__ import annotations

from datetime import date

from sqlalchemy import delete, select, text

from app.core import pacing
from app.core.unit_of_work import unit_of_work
from app.spending.models import SpendingHold

_PER_UNIT = 1000
_UNITS = 10
# In the words of the index, which covers ended holds only.
_ENDED = text("spending_holds.state <> 'held'")


def prune(before: date, *, per_unit: int = _PER_UNIT, units: int = _UNITS) -> int:
    """Forget holds that ended and were made before a day, in short units; return how many.

    The day must lie before every window that the audit still looks at: two months are enough.
    """

    def step(limit: int) -> int:
        old = (
            select(SpendingHold.reference)
            .where(_ENDED, SpendingHold.made_on < before)
            .order_by(SpendingHold.made_on)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        with unit_of_work() as session:
            gone = session.execute(
                delete(SpendingHold)
                .where(SpendingHold.reference.in_(old.scalar_subquery()))
                .execution_options(synchronize_session=False)
            )
        return int(gone.rowcount)  # type: ignore[attr-defined]

    return pacing.repeat(step, per_unit=per_unit, most=units)
