"""Credit accounts: opened once per owner, granted to, read. Alone writes `credit_accounts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import insert, select, update

from app.core import clock
from app.credits import postings
from app.credits.models import CreditAccount
from app.credits.postings import Bucket, Kind, Posting
from app.errors import InvalidInput
from app.extensions import db

MAX_GRANTED_NANOS = 10**18
"""A billion dollars for one account in all its life: far below what a BIGINT counts, so that no sum passes it."""

_COLUMNS = (
    CreditAccount.id,
    CreditAccount.available_nanos,
    CreditAccount.held_nanos,
    CreditAccount.granted_nanos,
    CreditAccount.spent_nanos,
)


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


def balance(owner_id: str) -> Balance:
    """Return what an account has. Works in a reading unit. Raises: LookupError."""
    found = balances([owner_id])
    if not found:
        raise _never_opened(owner_id)
    return found[owner_id]


def balances(owner_ids: Sequence[str]) -> dict[str, Balance]:
    """Return what several accounts have, in one query. Works in a reading unit."""
    rows = db.session.execute(select(*_COLUMNS).where(CreditAccount.id.in_(owner_ids)))
    return {
        row.id: Balance(row.available_nanos, row.held_nanos, row.granted_nanos, row.spent_nanos)
        for row in rows
    }


def take(owner_id: str, nanos: int, *, into: Bucket) -> bool:
    """Move available credits to `held` or `revenue` if there are enough; tell whether there were."""
    gain = CreditAccount.held_nanos if into is Bucket.HELD else CreditAccount.spent_nanos
    taken = db.session.execute(
        update(CreditAccount)
        .where(CreditAccount.id == owner_id, CreditAccount.available_nanos >= nanos)
        .values({CreditAccount.available_nanos: CreditAccount.available_nanos - nanos, gain: gain + nanos})
        .returning(CreditAccount.id)
        .execution_options(synchronize_session=False)
    )
    return taken.first() is not None


def move(owner_id: str, *, available: int = 0, held: int = 0, spent: int = 0) -> None:
    """Add differences to an account's sums; the database refuses what does not add up or is below zero."""
    changed = db.session.execute(
        update(CreditAccount)
        .where(CreditAccount.id == owner_id)
        .values(
            available_nanos=CreditAccount.available_nanos + available,
            held_nanos=CreditAccount.held_nanos + held,
            spent_nanos=CreditAccount.spent_nanos + spent,
        )
        .returning(CreditAccount.id)
        .execution_options(synchronize_session=False)
    )
    if changed.first() is None:
        raise _never_opened(owner_id)


def lock_available(owner_id: str) -> int:
    """Lock an account's row by touching it and return what is available. Raises: LookupError."""
    found = db.session.execute(
        update(CreditAccount)
        .where(CreditAccount.id == owner_id)
        .values(held_nanos=CreditAccount.held_nanos)
        .returning(CreditAccount.available_nanos)
        .execution_options(synchronize_session=False)
    ).scalar_one_or_none()
    if found is None:
        raise _never_opened(owner_id)
    return found


def _never_opened(owner_id: str) -> LookupError:
    return LookupError(f"no credit account was opened for {owner_id}")
