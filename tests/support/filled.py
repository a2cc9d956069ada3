"""Databases of any revision with rows in every table, and their contents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    Date,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Uuid,
    insert,
    inspect,
)

from app.db.tables import Units, UtcDateTime
from app.extensions import db

ROWS = 3
_AT = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)
_LARGEST_UNITS = 2**255
_LARGEST_NANOS = 9 * 10**18

# Values beyond the types: words that checks require, and sums that must agree.
_VALUES: Mapping[tuple[str, str], Callable[[int], Any]] = {
    ("api_keys", "kind"): lambda _: "ak",
    # Of an owner, which every version knows.
    ("owner_passkeys", "owner_key_id"): lambda n: _of_type(Uuid(), "owner_keys.id", n),
    ("key_limits", "period"): lambda n: ("day", "week", "total")[n],
    ("budgets", "period"): lambda n: ("day", "week", "total")[n],
    ("budget_counters", "period"): lambda n: ("day", "week", "total")[n],
    ("services", "status"): lambda n: ("active", "paused", "retired")[n],
    ("services", "price_nanos"): lambda n: n,
    ("service_payouts", "kind"): lambda n: ("payout", "refund", "payout")[n],
    ("service_payouts", "status"): lambda n: ("pending", "paid", "failed")[n],
    ("subscriptions", "status"): lambda n: ("active", "cancelled", "active")[n],
    ("spending_holds", "state"): lambda n: ("held", "spent", "released")[n],
    ("credit_holds", "state"): lambda n: ("held", "lapsed", "settled")[n],
    ("credit_accounts", "available_nanos"): lambda n: 7 + n,
    ("credit_accounts", "held_nanos"): lambda n: 3 + n,
    ("credit_accounts", "granted_nanos"): lambda n: 20 + 2 * n,
    ("credit_accounts", "spent_nanos"): lambda _: 10,
    ("credit_postings", "debit"): lambda _: "issuance",
    ("credit_postings", "credit"): lambda _: "available",
    ("deposit_marks", "mark"): lambda _: {"number": _LARGEST_NANOS},
    ("transactions", "type"): lambda n: ("transfer", "funding", "trading_query")[n],
    ("transactions", "status"): lambda n: ("pending", "confirmed", "failed")[n],
    ("transactions", "quarantined_at"): lambda _: None,
    # Of known tokens, which every version can store.
    ("transactions", "currency"): lambda _: "USDC",
    ("signing_intents", "currency"): lambda _: "USDC",
    ("approvals", "status"): lambda n: ("awaiting", "executed", "rejected")[n],
    ("purchases", "status"): lambda n: ("queued", "completed", "unknown")[n],
    ("deposit_cursors", "tier"): lambda _: "open",
    ("audit_heads", "name"): lambda n: f"head {n}",
}


def is_ours(table: str) -> bool:
    """Return whether a table is one of the application's; the search index creates others."""
    return table != "alembic_version" and not table.startswith("search_trigrams")


def fill(connection: Connection) -> None:
    """Insert rows into every empty table, with its present columns."""
    # In one query: one per table would take longer than the migrations.
    there = {name: columns for (_, name), columns in inspect(connection).get_multi_columns().items()}
    # Passkeys last: before 0051 they refer to owner keys, which the model does not say.
    for table in sorted(db.metadata.sorted_tables, key=lambda each: each.name == "owner_passkeys"):
        if table.name not in there:
            continue
        if connection.exec_driver_sql(f'SELECT 1 FROM "{table.name}" LIMIT 1').first() is None:  # noqa: S608 - the same
            now = _as_it_is(there[table.name], table)
            connection.execute(insert(now), [row(table, now, n) for n in range(ROWS)])
    connection.commit()


def held(connection: Connection) -> dict[str, dict[str, list[Any]]]:
    """Return the contents of every table by column; rows are sorted, and texts that are JSON decoded.

    What the driver returns: reflecting the tables took three quarters of the time of the tests.
    """
    found: dict[str, dict[str, list[Any]]] = {}
    for name in filter(is_ours, inspect(connection).get_table_names()):
        result = connection.exec_driver_sql(f'SELECT * FROM "{name}"')  # noqa: S608 - the name of a table
        columns = list(result.keys())
        rows = sorted(([_plain(value) for value in row] for row in result), key=repr)
        found[name] = {column: [row[place] for row in rows] for place, column in enumerate(columns)}
    connection.rollback()
    return found


def kept(before: Mapping[str, Mapping[str, list[Any]]], after: Mapping[str, Mapping[str, list[Any]]]) -> list[str]:
    """Return the columns that exist before and after, and lost a value."""
    return [
        f"{table}.{column}"
        for table, columns in before.items()
        for column, values in columns.items()
        if column in after.get(table, {}) and Counter(map(repr, values)) - Counter(map(repr, after[table][column]))
    ]


def shape(connection: Connection) -> dict[str, Any]:
    """Return the columns, keys, indexes and checks of every table, unordered."""
    there = inspect(connection)
    found = {
        name: {
            "columns": sorted(
                (c["name"], str(c["type"]), c["nullable"], str(c.get("default"))) for c in there.get_columns(name)
            ),
            "key": sorted(there.get_pk_constraint(name)["constrained_columns"]),
            "indexes": sorted(
                (str(i["name"]), tuple(map(str, i["column_names"])), bool(i["unique"]), _condition(i))
                for i in there.get_indexes(name)
                if not str(i["name"]).startswith("search_trigrams")
            ),
            "unique": sorted(tuple(u["column_names"]) for u in there.get_unique_constraints(name)),
            "foreign": sorted(
                (tuple(f["constrained_columns"]), f["referred_table"], str(f["options"].get("ondelete")))
                for f in there.get_foreign_keys(name)
            ),
            "checks": sorted(c["sqltext"] for c in there.get_check_constraints(name)),
        }
        for name in filter(is_ours, there.get_table_names())
    }
    connection.rollback()
    return found


def _condition(index: Any) -> str:
    options = index.get("dialect_options", {})
    return " ".join(str(options[name]) for name in ("postgresql_where", "sqlite_where") if name in options)


def _as_it_is(there: Sequence[Any], table: Table) -> Table:
    """Return a table with the columns that the database has."""
    known = table.columns
    columns: list[Column[Any]] = []
    for column in there:
        name = column["name"]
        kind = known[name].type if name in known else column["type"]
        columns.append(Column(name, kind, primary_key=name in known and known[name].primary_key))
    return Table(table.name, MetaData(), *columns)


def row(table: Table, now: Table, n: int) -> dict[str, Any]:
    """Return a row with a value in every column; `now` has the columns that the database has."""
    return {column.name: _value(table, column, n) for column in now.columns}


def _value(table: Table, column: Column[Any], n: int) -> Any:
    made = _VALUES.get((table.name, column.name))
    if made is not None:
        return made(n)
    known = table.columns.get(column.name)
    refers = next(iter(known.foreign_keys), None) if known is not None else None
    if refers is not None:
        of = refers.column
        return _value(of.table, of, n)
    return _of_type(column.type, f"{table.name}.{column.name}", n)


def _of_type(kind: Any, name: str, n: int) -> Any:  # noqa: C901, PLR0911 - one line per type
    if isinstance(kind, Units):
        return _LARGEST_UNITS + n
    if isinstance(kind, Uuid):
        return str(UUID(int=(abs(hash_of(name)) % 2**64 << 32) + n))
    if isinstance(kind, UtcDateTime | DateTime):
        return _AT.replace(minute=n)
    if isinstance(kind, Date):
        return date(2026, 11, 1 + n)
    if isinstance(kind, Boolean):
        return bool(n % 2)
    if isinstance(kind, LargeBinary):
        return bytes([n, 0, 255])
    if isinstance(kind, JSON):
        return {"text": f"{name} é", "number": n, "none": None}
    if isinstance(kind, Integer):
        return _LARGEST_NANOS - n if name.endswith("_nanos") else n + 1
    if isinstance(kind, Numeric):
        return n
    if isinstance(kind, String):
        return f"{n} {name} é"[: kind.length or 80]
    raise TypeError(f"{name} has the unknown type {kind!r}")


def hash_of(name: str) -> int:
    """Return a number that is the same in every process."""
    return int.from_bytes(name.encode()[-8:], "big")


def _plain(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(("{", "[")):
        with suppress(ValueError):
            return json.loads(value)
    return str(value) if isinstance(value, UUID) else value
