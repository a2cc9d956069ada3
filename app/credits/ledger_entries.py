"""Ledger entries: append-only, each with a unique reference."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy.orm import Session

from app.credits.models import CreditLedgerEntry
from app.db.prepared import PreparedInsert

_APPEND = PreparedInsert(CreditLedgerEntry)
_APPEND_ONCE = PreparedInsert(CreditLedgerEntry, unique=[CreditLedgerEntry.reference])


class Bucket(StrEnum):
    """The buckets of an account; `issuance` and `revenue` are outside of it."""

    ISSUANCE = "issuance"
    AVAILABLE = "available"
    HELD = "held"
    REVENUE = "revenue"


class EntryKind(StrEnum):
    GRANT = "grant"
    HOLD = "hold"
    SETTLE = "settle"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """An amount in nano-dollars that moves from one bucket to another."""

    reference: str
    kind: EntryKind
    debit: Bucket
    credit: Bucket
    amount_nanos: int


def append(session: Session, account_id: str, entries: list[LedgerEntry], *, at: datetime) -> None:
    """Append entries of one account; those of 0 are left out."""
    for entry in entries:
        if entry.amount_nanos:
            _APPEND.execute(session, _values(account_id, entry, at))


def append_once(session: Session, account_id: str, entry: LedgerEntry, *, at: datetime) -> bool:
    """Append an entry unless its reference exists; return whether it was appended."""
    return bool(_APPEND_ONCE.execute(session, _values(account_id, entry, at)))


def _values(account_id: str, entry: LedgerEntry, at: datetime) -> dict[str, Any]:
    return {
        "reference": entry.reference,
        "kind": entry.kind.value,
        "account_id": account_id,
        "debit": entry.debit.value,
        "credit": entry.credit.value,
        "amount_nanos": entry.amount_nanos,
        "created_at": at,
    }
