"""A wallet's account row: the lock that orders all about its limits, its sums, and whether it is frozen.

A row is locked by touching it, which is a row lock on every database; a unit locks it before it touches the
wallet's controls or holds. Alone writes `spending_accounts`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, insert, update

from app.core import clock, row_locks
from app.errors import InvalidInput, NotFound
from app.extensions import db
from app.spending import policy
from app.spending.models import SpendingAccount
from app.spending.policy import Spent

MAX_COUNTED_NANOS = 9 * 10**18
"""Nine billion dollars, just below what a BIGINT counts: no wallet's month may sum up to more."""

COLUMNS = (
    SpendingAccount.wallet_id,
    SpendingAccount.agent_id,
    SpendingAccount.frozen_at,
    SpendingAccount.counted_on,
    SpendingAccount.day_nanos,
    SpendingAccount.week_nanos,
    SpendingAccount.month_nanos,
)


@dataclass(frozen=True, slots=True)
class Account:
    """An account with its sums as they stand on the UTC day `today`."""

    wallet_id: str
    agent_id: str
    frozen: bool
    today: date
    spent: Spent


def open_account(wallet_id: str, agent_id: str, *, frozen: bool = False) -> None:
    """Open the account of a new wallet; that of a frozen agent is frozen at once."""
    now = clock.now()
    db.session.execute(
        insert(SpendingAccount).values(
            wallet_id=wallet_id,
            agent_id=agent_id,
            frozen_at=now if frozen else None,
            lock_version=0,
            counted_on=now.date(),
            day_nanos=0,
            week_nanos=0,
            month_nanos=0,
        )
    )


def lock_account(wallet_id: str) -> None:
    """Lock the wallet's account until the unit ends. Raises: NotFound when the wallet is gone."""
    locked(SpendingAccount.wallet_id == wallet_id, now=clock.now())


def lock_accounts(wallet_ids: Collection[str]) -> None:
    """Lock the accounts of several wallets, in the order of their ids, as far as there are any."""
    row_locks.lock(SpendingAccount.wallet_id, SpendingAccount.wallet_id.in_(wallet_ids))


def lock_accounts_of(agent_ids: Collection[str]) -> list[str]:
    """Lock the accounts of all wallets of some agents, in the order of the wallets' ids; return those ids."""
    return row_locks.lock(SpendingAccount.wallet_id, SpendingAccount.agent_id.in_(agent_ids))


def freeze(agent_id: str) -> int:
    """Freeze all wallets of an agent and return how many; units that hold in them just now finish first."""
    return _set_frozen(agent_id, clock.now())


def unfreeze(agent_id: str) -> int:
    """Let all wallets of an agent move again and return how many."""
    return _set_frozen(agent_id, None)


def locked(which: ColumnElement[bool], *, now: datetime) -> Account:
    """Lock the one account that a condition names and return it as it stands now. Raises: NotFound."""
    row = db.session.execute(
        update(SpendingAccount)
        .where(which)
        .values(lock_version=SpendingAccount.lock_version + 1)
        .returning(*COLUMNS)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if row is None:
        raise gone()
    return account_of(row, now=now)


def account_of(row: Row[*tuple[Any, ...]], *, now: datetime) -> Account:
    """Make the snapshot of a row of `COLUMNS`.

    A clock that is behind the last one that counted (another machine's, just after midnight) stays in the
    newer windows: time never runs back into a window that has ended.
    """
    today = max(now.date(), row.counted_on)
    counted = Spent(row.day_nanos, row.week_nanos, row.month_nanos)
    return Account(
        wallet_id=row.wallet_id,
        agent_id=row.agent_id,
        frozen=row.frozen_at is not None,
        today=today,
        spent=policy.carry(counted, row.counted_on, today),
    )


def count(account: Account, amount_nanos: int) -> None:
    """Add an amount to the windows of a locked account. Raises: InvalidInput beyond `MAX_COUNTED_NANOS`."""
    spent = policy.add(account.spent, amount_nanos)
    assert_countable(spent)
    _write(account, spent)


def give_back(account: Account, amount_nanos: int, *, made_on: date) -> None:
    """Take an amount out of those windows of a locked account in which it was counted on `made_on`."""
    counted = policy.carry(policy.add(Spent(), amount_nanos), made_on, account.today)
    spent = account.spent
    _write(account, Spent(spent.day - counted.day, spent.week - counted.week, spent.month - counted.month))


def recount(account: Account, amount_nanos: int, *, made_on: date) -> None:
    """Undo `give_back`: add an amount to those windows that still are the ones of `made_on`."""
    counted = policy.carry(policy.add(Spent(), amount_nanos), made_on, account.today)
    spent = account.spent
    _write(account, Spent(spent.day + counted.day, spent.week + counted.week, spent.month + counted.month))


def assert_countable(spent: Spent) -> None:
    """Refuse sums that the columns cannot hold. Raises: InvalidInput."""
    if max(spent.day, spent.week, spent.month) > MAX_COUNTED_NANOS:
        raise InvalidInput.field("amount", "is worth more than any limit can count")


def gone() -> NotFound:
    """Make the failure for a wallet that was deleted meanwhile."""
    return NotFound("This key has no such wallet.")


def _write(account: Account, spent: Spent) -> None:
    db.session.execute(
        update(SpendingAccount)
        .where(SpendingAccount.wallet_id == account.wallet_id)
        .values(counted_on=account.today, day_nanos=spent.day, week_nanos=spent.week, month_nanos=spent.month)
        .execution_options(synchronize_session=False)
    )


def _set_frozen(agent_id: str, at: datetime | None) -> int:
    lock_accounts_of([agent_id])
    changed = db.session.execute(
        update(SpendingAccount)
        .where(SpendingAccount.agent_id == agent_id)
        .values(frozen_at=at)
        .returning(SpendingAccount.wallet_id)
        .execution_options(synchronize_session=False)
    ).all()
    return len(changed)
