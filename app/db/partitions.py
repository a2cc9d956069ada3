"""Tables that are partitioned by month on PostgreSQL, so that their old rows are dropped instead of deleted.

A row is partitioned by its unique key, which begins with an id that begins with the time (`new_ordered_id`). Rows with
other keys, and those of a month that was not made in time, are in partitions that are never dropped.
"""

from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Column, TableClause, column, table, text
from sqlalchemy.orm import Session

from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db

TABLES = {"usage_logs": "id", "credit_postings": "reference"}
"""The partitioned tables, in the order in which calls lock their partitions, with the column of their keys."""
# Others wait while this waits; and a deadlock ends here, before PostgreSQL finds it after a second.
_LIMITS = text("SELECT set_config('lock_timeout', '500ms', true), set_config('statement_timeout', '30min', true)")
_FIRST_DAYS = text("""
SELECT to_date(right(relname, 7), 'YYYY_MM') FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
WHERE inhparent = to_regclass('partitions.usage_logs_by_month') AND relname ~ '[0-9]{4}_[0-9]{2}$' ORDER BY 1
""")


class Month(NamedTuple):
    """A month with a partition of each table."""

    first: date

    def following(self) -> "Month":
        """Return the next month."""
        return Month((self.first + timedelta(days=31)).replace(day=1))

    @property
    def start(self) -> datetime:
        return datetime(self.first.year, self.first.month, 1, tzinfo=UTC)

    @property
    def keys(self) -> tuple[str, str]:
        """Return the lowest key of the month, and of the following one."""
        digits = [f"{int(each.start.timestamp()) * 1000:012x}" for each in (self, self.following())]
        low, high = (f"{each[:8]}-{each[8:]}-0000-0000-000000000000" for each in digits)
        return low, high

    def partition_of(self, name: str, *columns: Column[Any]) -> TableClause:
        return table(f"{name}_{self.first:%Y_%m}", *(column(each.name) for each in columns), schema="partitions")


def find(session: Session) -> list[Month]:
    """Return the months, oldest first and without gaps; none where tables are not partitioned."""
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    return [Month(first) for first in session.scalars(_FIRST_DAYS)] if is_postgresql else []


def make_ahead(now: datetime) -> None:
    """Make the partitions of this month and the next two, on PostgreSQL."""
    if db.engine.dialect.name != "postgresql":
        return
    with read_only_unit() as session:
        found = find(session)
    current = Month(now.date().replace(day=1))
    month = found[-1].following() if found else current
    while month <= current.following().following():
        with unit_of_work() as session:
            session.execute(_LIMITS)
            # Its foreign key locks it, after the others otherwise.
            session.execute(text("LOCK TABLE credit_accounts IN SHARE ROW EXCLUSIVE MODE"))
            for name, key in TABLES.items():
                _make(session, name, key, month)
        month = month.following()


def lock(session: Session, month: Month) -> None:
    """Lock the partitions of a month against writes."""
    session.execute(_LIMITS)
    session.execute(text(f"LOCK TABLE {', '.join(str(month.partition_of(name)) for name in TABLES)} IN SHARE MODE"))


def drop(session: Session, month: Month) -> None:
    """Drop a locked month at the end of a unit: all calls wait from here to its commit."""
    partitions = ", ".join(str(month.partition_of(name)) for name in TABLES)
    # Tables before their partitions, as everything locks them.
    tables = ", ".join(f"ONLY partitions.{name}_by_month" for name in TABLES)
    session.execute(text(f"LOCK TABLE {tables}, {partitions} IN ACCESS EXCLUSIVE MODE"))
    session.execute(text(f"DROP TABLE {partitions}"))


def _make(session: Session, name: str, key: str, month: Month) -> None:
    """Make the partition of a month, and move rows there that were written before it was made."""
    partition, other, (low, high) = month.partition_of(name), f"partitions.{name}_other", month.keys
    session.execute(text(f"LOCK TABLE {other} IN ACCESS EXCLUSIVE MODE"))
    session.execute(text(f"CREATE TABLE {partition} (LIKE {name} INCLUDING ALL)"))
    moved = f"DELETE FROM {other} WHERE {key} >= '{low}' AND {key} < '{high}' RETURNING *"  # noqa: S608
    session.execute(text(f"WITH moved AS ({moved}) INSERT INTO {partition} SELECT * FROM moved"))  # noqa: S608
    attach = f"ATTACH PARTITION {partition} FOR VALUES FROM ('{low}') TO ('{high}')"
    session.execute(text(f"ALTER TABLE partitions.{name}_by_month {attach}"))
