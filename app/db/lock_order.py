"""The order in which a unit of work locks rows.

Two units that lock the same rows in different orders deadlock. The locks are read from the text of each statement, so
that no function has to declare them.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Self

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

_INSERTS = re.compile(r"\bINSERT INTO (\w+)")
_UPSERTS = re.compile(r"\bINSERT INTO (\w+)(?=(?:(?!\bINSERT INTO\b).)*\bON CONFLICT\b.*\bDO UPDATE\b)", re.DOTALL)
_WRITES = re.compile(r"\bUPDATE (\w+) SET\b|\bDELETE FROM (\w+)")
# Not with SKIP LOCKED: such a statement waits for no other unit.
_LOCKS = re.compile(r"\bFROM (\w+)(?=.*\bFOR (?:NO KEY UPDATE|UPDATE|KEY SHARE|SHARE)\b(?!.*\bSKIP LOCKED))", re.DOTALL)


class LockRank(IntEnum):
    """The ranks of row locks with their tables, first to last; a unit skips those that it does not need.

    Several rows of one rank are locked in the order of their ids.
    """

    tables: tuple[str, ...]

    def __new__(cls, *tables: str) -> Self:
        rank = int.__new__(cls, len(cls.__members__) + 1)
        rank._value_, rank.tables = int(rank), tables
        return rank

    AGENT = "agents", "master_keys"
    """When its wallets are counted or named, or it is changed, frozen or deleted."""
    PASSKEY = "owner_passkeys"
    """Its counter, when an owner signs in or confirms; the confirmed change follows in the same unit."""
    SPENDING_ACCOUNT = "spending_accounts"
    """The lock of a wallet: taken by every unit that deletes it, moves its tokens or settles its deposits."""
    BUDGET = "budgets"
    """All of them, when one is made, changed or deleted."""
    BUDGET_COUNTER = "budget_counters"
    """Those of the wallet, or of the account and key that spend: before anything that the unit writes."""
    SPONSORED_DAY = "sponsored_days"
    """The count of an agent's transfers, once the wallet is locked."""
    NONCE = "nonces"
    DEPOSIT_CURSOR = "deposit_cursors"
    SCAN_STATE = "deposit_marks"
    DEPOSIT = "funding_deposits"
    TRANSACTION = "transactions", "purchases"
    """A movement with its attempts, events and holds, or a purchase."""
    WALLET = "wallets"
    """For the count of its transactions."""
    CREDIT_HOLD = "credit_holds"
    CREDIT_ACCOUNT = "credit_accounts"
    USAGE_SUM = "usage_by_provider"
    SERVICE = "services", "subscriptions"
    AGENT_KEY = "api_keys", "owner_keys", "claim_codes", "owner_codes", "key_transfers"
    """The keys and codes of an agent, in any order, since the agent is locked."""
    APPROVAL = "approvals"
    """The hold of the movement or purchase that the unit records, or alone after its wallet's account."""
    IDEMPOTENCY_KEY = "idempotency_keys"
    GRANT_BUDGET = "grant_budgets"
    """One row for all, like the next."""
    AUDIT_HEAD = "audit_heads"


RANKS: Mapping[str, LockRank] = {table: rank for rank in LockRank for table in rank.tables}
"""Rows of other tables are locked under one of these, or in units of their own."""


@functools.lru_cache(maxsize=4096)
def locks_of(statement: str) -> tuple[tuple[LockRank, ...], tuple[LockRank, ...]]:
    """Return the ranks of the rows that a statement locks, in its order of tables, and of those that it inserts."""
    locking = sorted(
        (found for pattern in (_UPSERTS, _WRITES, _LOCKS) for found in pattern.finditer(statement)), key=re.Match.start
    )
    return _ranks(locking), _ranks(_INSERTS.finditer(statement))


def check(statement: str, locked: set[LockRank], inserted: set[LockRank]) -> str | None:
    """Add what a statement locks and inserts to a unit's ranks; return the violation of the order, if it is one.

    Rows of a rank that was locked before are usually the same ones; their own order is not checked. Rows that the unit
    inserted need no order, since no other unit sees them.
    """
    problem = None
    locking, inserting = locks_of(statement)
    for rank in locking:
        if rank not in locked | inserted and rank < max(locked, default=rank):
            problem = f"{rank.name} must be locked before {max(locked).name}: see docs/concurrency.md"
        locked.add(rank)
    inserted.update(inserting)
    return problem


def _ranks(found: Iterable[re.Match[str]]) -> tuple[LockRank, ...]:
    tables = (each[each.lastindex or 0] for each in found)
    return tuple(RANKS[table] for table in tables if table in RANKS)


def lock_rows(session: Session, key: InstrumentedAttribute[Any], *conditions: ColumnElement[bool]) -> list[Any]:
    """Lock the rows that meet the conditions, to be read after this; return their keys in order."""
    if session.get_bind().dialect.name == "postgresql":
        rows = select(key).where(*conditions).order_by(key).with_for_update(key_share=True)
        return list(session.scalars(rows))
    # SQLite has one lock for the database, which any write takes.
    touch = update(key.class_).where(*conditions).values({key: key}).returning(key)
    return sorted(session.scalars(touch, execution_options={"synchronize_session": False}))
