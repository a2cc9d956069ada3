"""Credit accounts: opened once per owner, granted to, read. Alone writes `credit_accounts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import BigInteger, Row, bindparam, func, insert, select, update

from app.core import clock
from app.core.money import NANOS_PER_USD
from app.core.tables import table_of
from app.credits import postings
from app.credits.models import CreditAccount, CreditPosting
from app.credits.postings import Bucket, Kind, Posting
from app.errors import InvalidInput
from app.extensions import db

MAX_GRANTED_NANOS = 10**18
"""A billion dollars for one account in all its life: far below what a BIGINT counts, so that no sum passes it."""

_AccountRow: TypeAlias = Row[*tuple[Any, ...]]
_TABLE = table_of(CreditAccount)
_AVAILABLE, _HELD, _SPENT = _TABLE.c.available_nanos, _TABLE.c.held_nanos, _TABLE.c.spent_nanos
_COLUMNS = (_TABLE.c.id, _AVAILABLE, _HELD, _TABLE.c.granted_nanos, _SPENT)
_OWNERS = _TABLE.c.id == bindparam("owner_id")
_NANOS = bindparam("nanos", type_=BigInteger)
_READ = select(*_COLUMNS).where(_OWNERS)
_TAKE = {
    into: update(_TABLE)
    .where(_OWNERS, _AVAILABLE >= _NANOS)
    .values({_AVAILABLE: _AVAILABLE - _NANOS, gain: gain + _NANOS})
    .returning(*_COLUMNS)
    for into, gain in ((Bucket.HELD, _HELD), (Bucket.REVENUE, _SPENT))
}
_MOVE = (
    update(_TABLE)
    .where(_OWNERS)
    .values(
        {
            _AVAILABLE: _AVAILABLE + bindparam("available", type_=BigInteger),
            _HELD: _HELD + bindparam("held", type_=BigInteger),
            _SPENT: _SPENT + bindparam("spent", type_=BigInteger),
        }
    )
    .returning(*_COLUMNS)
)
_LOCK = update(_TABLE).where(_OWNERS).values({_HELD: _HELD}).returning(_AVAILABLE)


@dataclass(frozen=True, slots=True)
class Balance:
    """What an account has, in nano-dollars; its owner sees `credits_nanos`."""

    available_nanos: int
    held_nanos: int
    granted_nanos: int
    spent_nanos: int

    @property
    def credits_nanos(self) -> int:
        """Return what was granted and not spent: what is available and what open calls hold."""
        return self.available_nanos + self.held_nanos


def open_account(owner_id: str) -> None:
    """Open the account of a new owner, with nothing in it."""
    db.session.execute(
        insert(CreditAccount).values(
            id=owner_id,
            available_nanos=0,
            held_nanos=0,
            granted_nanos=0,
            spent_nanos=0,
            created_at=clock.now(),
        )
    )


def grant(owner_id: str, nanos: int, *, reference: str) -> bool:
    """Give credits to an account once per reference; tell whether this call did. Granting 0 does nothing.

    Raises: LookupError for an account that was never opened: a defect; InvalidInput beyond `MAX_GRANTED_NANOS`.
    """
    if nanos == 0:
        return False
    posting = Posting(f"grant:{reference}", Kind.GRANT, Bucket.ISSUANCE, Bucket.AVAILABLE, nanos)
    if not postings.write_once(owner_id, posting, at=clock.now()):
        return False
    granted = db.session.execute(
        update(CreditAccount)
        .where(CreditAccount.id == owner_id, CreditAccount.granted_nanos <= MAX_GRANTED_NANOS - nanos)
        .values(
            available_nanos=CreditAccount.available_nanos + nanos,
            granted_nanos=CreditAccount.granted_nanos + nanos,
        )
        .returning(CreditAccount.id)
        .execution_options(synchronize_session=False)
    )
    if granted.first() is None:
        lock_available(owner_id)  # which says when there is no such account
        raise InvalidInput.field("credits_usd", "would pass what one account can be given in all")
    return True


def grants_by_reference(prefix: str) -> dict[str, tuple[str, int]]:
    """Return account and nano-dollars of the grants whose reference begins so. For audits."""
    named = CreditPosting.reference.startswith(f"grant:{prefix}", autoescape=True)
    rows = db.session.execute(
        select(CreditPosting.reference, CreditPosting.account_id, CreditPosting.amount_nanos).where(named)
    )
    return {reference.removeprefix("grant:"): (account, nanos) for reference, account, nanos in rows}


def balance(owner_id: str) -> Balance:
    """Return what an account has. Works in a reading unit. Raises: LookupError."""
    row = db.session.execute(_READ, {"owner_id": owner_id}).one_or_none()
    if row is None:
        raise _never_opened(owner_id)
    return _balance(row)


def totals() -> Balance:
    """Return what all accounts have together, in the current unit. Reads all of them."""
    # Dollars and nano-dollars apart: SQLite's sums are no longer than a BIGINT.
    parts = [
        func.sum(part)
        for column in _COLUMNS[1:]
        for part in (column // NANOS_PER_USD, column % NANOS_PER_USD)
    ]
    found = [int(part or 0) for part in db.session.execute(select(*parts)).one()]
    sums = (dollars * NANOS_PER_USD + rest for dollars, rest in zip(found[::2], found[1::2], strict=True))
    return Balance(*sums)


def balances(owner_ids: Sequence[str]) -> dict[str, Balance]:
    """Return what several accounts have, in one query. Works in a reading unit."""
    rows = db.session.execute(select(*_COLUMNS).where(_TABLE.c.id.in_(owner_ids)))
    return {row.id: _balance(row) for row in rows}


def take(owner_id: str, nanos: int, *, into: Bucket) -> Balance | None:
    """Move available credits to `held` or `revenue` and return what there is then; None if they are not enough."""
    row = db.session.execute(_TAKE[into], {"owner_id": owner_id, "nanos": nanos}).one_or_none()
    return None if row is None else _balance(row)


def move(owner_id: str, *, available: int = 0, held: int = 0, spent: int = 0) -> Balance:
    """Add differences to an account's sums and return what there is then.

    The database refuses what does not add up or is below zero.
    """
    differences = {"owner_id": owner_id, "available": available, "held": held, "spent": spent}
    row = db.session.execute(_MOVE, differences).one_or_none()
    if row is None:
        raise _never_opened(owner_id)
    return _balance(row)


def lock_available(owner_id: str) -> int:
    """Lock an account's row by touching it and return what is available. Raises: LookupError."""
    row = db.session.execute(_LOCK, {"owner_id": owner_id}).one_or_none()
    if row is None:
        raise _never_opened(owner_id)
    available_nanos: int = row.available_nanos
    return available_nanos


def _balance(row: _AccountRow) -> Balance:
    return Balance(row.available_nanos, row.held_nanos, row.granted_nanos, row.spent_nanos)


def _never_opened(owner_id: str) -> LookupError:
    return LookupError(f"no credit account was opened for {owner_id}")
