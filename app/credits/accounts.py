"""Credit accounts and their ledger: opening, grants, balances, and entries that are only appended.

The only writer of `credit_accounts` and `credit_postings`, and of `grant_budgets`, which bounds what is granted in a
day. Each entry has a unique reference.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import BigInteger, ColumnElement, Select, String, bindparam, cast, exists, func, select, update
from sqlalchemy.orm import Session

from app.core import clock
from app.core.money import NANOS_PER_USD, usd_string
from app.credits.models import CreditAccount, CreditLedgerEntry, GrantBudget
from app.db import lock_order
from app.db.leases import once_per_period
from app.db.prepared import PreparedInsert, PreparedRead, PreparedStatement
from app.db.tables import insert_into, table_of
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput, RateLimited
from app.events import outbox
from app.events.outbox import EventType
from app.identity import service as identity

_APPEND = PreparedInsert(CreditLedgerEntry)
_APPEND_ONCE = PreparedInsert(CreditLedgerEntry, unique=[CreditLedgerEntry.reference])
MAX_GRANTED_NANOS = 10**18
"""A billion dollars, the most that one account can ever be granted: no sum exceeds a BIGINT."""
_TABLE = table_of(CreditAccount)
_AVAILABLE, _HELD, _SPENT = _TABLE.c.available_nanos, _TABLE.c.held_nanos, _TABLE.c.spent_nanos
_COLUMNS = (_TABLE.c.id, _AVAILABLE, _HELD, _TABLE.c.granted_nanos, _SPENT)
_BY_OWNER = _TABLE.c.id == bindparam("owner_id")
_NANOS = bindparam("nanos", type_=BigInteger)
_READ = PreparedRead(select(*_COLUMNS).where(_BY_OWNER))
_OPEN = PreparedInsert(CreditAccount)
_GRANT = PreparedStatement(
    update(_TABLE)
    .where(_BY_OWNER, _TABLE.c.granted_nanos <= MAX_GRANTED_NANOS - _NANOS)
    .values({_AVAILABLE: _AVAILABLE + _NANOS, _TABLE.c.granted_nanos: _TABLE.c.granted_nanos + _NANOS})
)
_HOLD = PreparedStatement(
    update(_TABLE)
    .where(_BY_OWNER, _AVAILABLE >= _NANOS)
    .values({_AVAILABLE: _AVAILABLE - _NANOS, _HELD: _HELD + _NANOS})
)
_DIFFERENCES = {"available": _AVAILABLE, "held": _HELD, "spent": _SPENT}
_ADJUSTED = {each: each + bindparam(name, type_=BigInteger) for name, each in _DIFFERENCES.items()}
_ADJUST = PreparedStatement(update(_TABLE).where(_BY_OWNER).values(_ADJUSTED).returning(*_COLUMNS))
_LOCK = PreparedStatement(update(_TABLE).where(_BY_OWNER).values({_HELD: _HELD}).returning(_AVAILABLE))
_PERIOD = timedelta(minutes=1)
_LEASE = timedelta(seconds=30)
_BATCH_SIZE = 500
LOW_NANOS = 10**9


class Bucket(StrEnum):
    """The buckets of an account; `issuance` and `revenue` are outside of it."""

    ISSUANCE = "issuance"
    AVAILABLE = "available"
    HELD = "held"
    REVENUE = "revenue"


class EntryKind(StrEnum):
    GRANT = "grant"
    REVOKE = "revoke"
    HOLD = "hold"
    SETTLE = "settle"
    RELEASE = "release"


LedgerEntry: TypeAlias = tuple[EntryKind, str, Bucket, Bucket, int]
"""Kind and reference, the debited and the credited bucket, and the nano-dollars that move between them."""


def append_entry(
    session: Session, account_id: str, entry: LedgerEntry, *, at: datetime, statement: PreparedInsert = _APPEND
) -> bool:
    """Append an entry of one account; return whether this call did: one of 0 is left out."""
    kind, reference, debit, credit, nanos = entry
    values = {
        "reference": reference, "kind": kind.value, "account_id": account_id, "debit": debit.value,
        "credit": credit.value, "amount_nanos": nanos, "created_at": at,
    }  # fmt: skip
    return nanos != 0 and bool(statement.execute(session, values))


class Balance(NamedTuple):
    """The balance of an account in nano-dollars, in the order of its columns; agents see `credits_nanos`."""

    available_nanos: int
    held_nanos: int
    granted_nanos: int
    spent_nanos: int

    @property
    def credits_nanos(self) -> int:
        """Return what was granted and not spent: the available credits and those held by open calls."""
        return self.available_nanos + self.held_nanos


def open_account(session: Session, owner_id: str) -> None:
    """Open an empty account for a new owner."""
    _OPEN.execute(session, {"id": owner_id, "created_at": clock.now()})


def grant(session: Session, owner_id: str, nanos: int, *, reference: str) -> bool:
    """Grant credits to an account once per reference; return whether this call did. Granting 0 does nothing.

    Raises: IntegrityError for an account that was never opened: a bug; InvalidInput beyond `MAX_GRANTED_NANOS`.
    """
    entry = EntryKind.GRANT, f"grant:{reference}", Bucket.ISSUANCE, Bucket.AVAILABLE, nanos
    if not append_entry(session, owner_id, entry, at=clock.now(), statement=_APPEND_ONCE):
        return False
    if not _GRANT.execute(session, {"owner_id": owner_id, "nanos": nanos}):
        most = MAX_GRANTED_NANOS // NANOS_PER_USD
        raise InvalidInput.field("credits_usd", f"would exceed the {most} USD that one account can be granted in total")
    return True


def revoke(session: Session, owner_id: str, nanos: int, *, reference: str) -> int:
    """Take back granted credits as far as they are available; return how much."""
    taken = min(nanos, lock_available(session, owner_id))
    entry = EntryKind.REVOKE, f"revoke:{reference}", Bucket.AVAILABLE, Bucket.ISSUANCE, taken
    append_entry(session, owner_id, entry, at=clock.now())
    _GRANT.execute(session, {"owner_id": owner_id, "nanos": -taken})
    return taken


def has_available(owner_id: Any) -> ColumnElement[bool]:
    return exists().where(CreditAccount.id == owner_id, CreditAccount.available_nanos > 0)


def find_wrong_grants(session: Session, prefix: str, recorded: Mapping[str, tuple[str | None, int]]) -> list[str]:
    """Return one sentence for each reference with a prefix whose grants, less what was revoked, are not as recorded.

    A second grant for a reference, or what was revoked, has a suffix after a colon.
    """
    found: dict[str, tuple[str, int]] = {}
    for kind, sign in (("grant:", 1), ("revoke:", -1)):
        named = CreditLedgerEntry.reference.startswith(f"{kind}{prefix}", autoescape=True)
        columns = (CreditLedgerEntry.reference, CreditLedgerEntry.account_id, CreditLedgerEntry.amount_nanos)
        for entry, account, nanos in session.execute(select(*columns).where(named)):
            reference = prefix + entry.removeprefix(f"{kind}{prefix}").split(":")[0]
            found[reference] = account, found.get(reference, (account, 0))[1] + sign * nanos
    granted = {reference: net for reference, net in found.items() if net[1]}
    return [
        f"{reference}: recorded are {recorded.get(reference)}, the ledger has {granted.get(reference)}"
        for reference in sorted(recorded.keys() | granted.keys())
        if recorded.get(reference) != granted.get(reference)
    ]


def balance(session: Session, owner_id: str) -> Balance:
    """Return the balance of an account. Raises: NoResultFound for one that was never opened: a bug."""
    return Balance(*_READ.one(session, {"owner_id": owner_id})[1:])


def totals(session: Session) -> Balance:
    """Return the sums of all accounts. Reads all of them."""
    return Balance(*sums_of(session, *_COLUMNS[1:]))


def sums_of(session: Session, *amounts: ColumnElement[int]) -> list[int]:
    """Sum amounts over all rows: dollars and nano-dollars apart, because sums of SQLite are limited to a BIGINT."""
    parts = [func.sum(part) for each in amounts for part in (each // NANOS_PER_USD, each % NANOS_PER_USD)]
    found = [int(part or 0) for part in session.execute(select(*parts)).one()]
    return [dollars * NANOS_PER_USD + rest for dollars, rest in zip(found[::2], found[1::2], strict=True)]


def balances(session: Session, owner_ids: Sequence[str] | Select[str]) -> dict[str, Balance]:
    """Return the balances of several accounts, in one query."""
    rows = session.execute(select(*_COLUMNS).where(_TABLE.c.id.in_(owner_ids)))
    return {row.id: Balance(*row[1:]) for row in rows}


def hold_available(session: Session, owner_id: str, nanos: int) -> bool:
    """Move available credits to `held`; return whether they suffice."""
    return bool(_HOLD.execute(session, {"owner_id": owner_id, "nanos": nanos}))


def adjust(session: Session, owner_id: str, *, available: int = 0, held: int = 0, spent: int = 0) -> Balance:
    """Add differences to an account's sums and return the new balance.

    Check constraints refuse sums that are negative or do not add up.
    """
    differences = {"owner_id": owner_id, "available": available, "held": held, "spent": spent}
    return Balance(*_ADJUST.one(session, differences)[1:])


def mark_with_budgets(session: Session, owner_ids: Collection[str]) -> None:
    """Let every call of these accounts be counted in budgets, from the next one on."""
    unmarked = CreditAccount.id.in_(owner_ids), CreditAccount.has_budgets.is_(False)
    marked = lock_order.lock_rows(session, CreditAccount.id, *unmarked)
    session.execute(update(_TABLE).where(_TABLE.c.id.in_(marked)).values(has_budgets=True))


def lock_available(session: Session, owner_id: str) -> int:
    available_nanos: int = _LOCK.one(session, {"owner_id": owner_id}).available_nanos
    return available_nanos


def announce_low(below_nanos: int = LOW_NANOS) -> None:
    """Record an event for each agent with less credits than this, once after each grant; about once a minute."""
    account, granted = _TABLE.c.id, _TABLE.c.granted_nanos
    was_recorded = exists().where(outbox.was_recorded(EventType.CREDITS_LOW, CreditAccount.id, cast(granted, String)))
    is_low = granted > 0, granted - _SPENT < below_nanos, identity.exists_with(account), ~was_recorded
    with once_per_period(_PERIOD, "low_balances", duration=_LEASE) as is_due:
        if not is_due:
            return
        with read_only_unit() as session:
            rows = session.execute(select(account, granted, _SPENT).where(*is_low).limit(_BATCH_SIZE)).all()
        for row in rows:
            left, agent = row.granted_nanos - row.spent_nanos, {"agent_id": row.id, "object_id": row.id}
            data = {"credits_usd": usd_string(left), "below_usd": usd_string(below_nanos)}
            with unit_of_work() as session:
                outbox.record(session, EventType.CREDITS_LOW, **agent, data=data, once=str(row.granted_nanos))


def consume(session: Session, nanos: int, *, limit_nanos: int) -> None:
    """Consume an amount of today's budget. Raises: RateLimited until midnight UTC if less than the amount is left."""
    now, granted = clock.now(), GrantBudget.granted_nanos
    first = insert_into(session, GrantBudget).values(day=now.date(), granted_nanos=nanos)
    added = first.on_conflict_do_update(
        index_elements=["day"], set_={"granted_nanos": granted + nanos}, where=granted <= limit_nanos - nanos
    )
    if nanos <= limit_nanos and session.scalar(added.returning(GrantBudget.day)) is not None:
        return
    midnight = datetime.combine(now.date() + timedelta(days=1), time(), UTC)
    raise RateLimited(
        "The service has granted all of its free credits for today; try again after midnight UTC.",
        retry_after_seconds=int((midnight - now).total_seconds()) + 1,
    )
