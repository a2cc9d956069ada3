"""The journal: every movement of credits is a posting with a reference of its own, written once for ever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any

from sqlalchemy import Column, Insert, insert
from sqlalchemy.dialects import postgresql, sqlite

from app.core.tables import table_of
from app.credits.models import CreditPosting
from app.extensions import db

_TABLE = table_of(CreditPosting)
_APPEND = insert(_TABLE)


class Bucket(StrEnum):
    """Where an amount of an account can be; `issuance` and `revenue` are outside of it."""

    ISSUANCE = "issuance"
    AVAILABLE = "available"
    HELD = "held"
    REVENUE = "revenue"


class Kind(StrEnum):
    """Why an amount moved."""

    GRANT = "grant"
    HOLD = "hold"
    SETTLE = "settle"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Posting:
    """An amount in nano-dollars that goes from one bucket to another."""

    reference: str
    kind: Kind
    debit: Bucket
    credit: Bucket
    amount_nanos: int


def write(account_id: str, postings: list[Posting], *, at: datetime) -> None:
    """Append postings of one account; those of nothing are left out."""
    rows = [_values(account_id, posting, at) for posting in postings if posting.amount_nanos]
    if rows:
        db.session.execute(_APPEND, rows)


def write_once(account_id: str, posting: Posting, *, at: datetime) -> bool:
    """Append a posting unless its reference was used before; tell whether it was appended."""
    return insert_once(_TABLE.c.reference, _values(account_id, posting, at))


def insert_once(unique: Column[Any], values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with the same unique value exists; tell whether it was inserted.

    Waits for another unit that is inserting the same value just now, so that the answer is final.
    """
    inserted = db.session.execute(_insertion(unique, db.session.get_bind().dialect.name), dict(values))
    return inserted.first() is not None


@cache
def _insertion(unique: Column[Any], dialect: str) -> Insert:
    table = unique.table
    statement = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    return statement.on_conflict_do_nothing(index_elements=[unique]).returning(unique)


def _values(account_id: str, posting: Posting, at: datetime) -> dict[str, Any]:
    return {
        "reference": posting.reference,
        "kind": posting.kind.value,
        "account_id": account_id,
        "debit": posting.debit.value,
        "credit": posting.credit.value,
        "amount_nanos": posting.amount_nanos,
        "created_at": at,
    }
