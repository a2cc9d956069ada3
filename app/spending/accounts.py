"""Spending accounts: one row per wallet with its lock, its sums, and whether it is frozen.

A row lock on PostgreSQL, a no-op update on SQLite; a unit takes it before it touches the wallet's controls or holds.
The only writer of `spending_accounts`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sqlalchemy import ClauseElement, ColumnElement, Row, bindparam, select, update
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import Session

from app.authenticated import RowSeal, change, withdraw
from app.core import clock
from app.db import row_locks
from app.db.prepared import PreparedInsert, PreparedStatement
from app.db.statements import table_of
from app.errors import InvalidInput, NotFound
from app.spending import policy
from app.spending.models import SpendingAccount, SpendingHold
from app.spending.policy import WindowTotals

MAX_COUNTED_NANOS = 9 * 10**18
"""Nine billion dollars, just below the maximum of a BIGINT: the limit of a wallet's sum of a month."""

SEAL = RowSeal(SpendingAccount, agent_id="account_agent_id", mac="account_mac")
COLUMNS = SEAL.columns
_TABLE = table_of(SpendingAccount)
_INSERT = PreparedInsert(SpendingAccount)


class _Locking(PreparedStatement):
    """Locks a row and returns it; on PostgreSQL without a new version of the row."""

    def __init__(self, wallet_id: ColumnElement[str]) -> None:
        is_meant = _TABLE.c.wallet_id == wallet_id
        touch = update(_TABLE).where(is_meant).values(lock_version=_TABLE.c.lock_version + 1)
        super().__init__(touch.returning(*COLUMNS))
        self._select = select(*COLUMNS).where(is_meant).with_for_update(key_share=True)

    def _statement_in(self, dialect: Dialect) -> ClauseElement:
        return self._select if dialect.name == "postgresql" else super()._statement_in(dialect)


_LOCK = _Locking(bindparam("of_wallet"))
_LOCK_OF_HOLD = _Locking(
    select(SpendingHold.wallet_id).where(SpendingHold.reference == bindparam("of_hold")).scalar_subquery()
)
_COUNT = PreparedStatement(
    update(_TABLE)
    .where(_TABLE.c.wallet_id == bindparam("of_wallet"))
    .values(
        counted_on=bindparam("today"),
        day_nanos=bindparam("day"),
        week_nanos=bindparam("week"),
        month_nanos=bindparam("month"),
        mac=bindparam("new_mac"),
    )
)


@dataclass(frozen=True, slots=True)
class Account:
    """An account with its sums as they stand on the UTC day `today`."""

    wallet_id: str
    agent_id: str
    frozen_at: datetime | None
    today: date
    spent: WindowTotals
    controls_version: int

    @property
    def frozen(self) -> bool:
        """Return whether nothing new may leave the wallet."""
        return self.frozen_at is not None


def open_account(
    session: Session, wallet_id: str, agent_id: str, *, frozen: bool = False, controls_version: int = 0
) -> None:
    """Open the account of a new wallet; that of a frozen agent is frozen from the start.

    `controls_version` is that of controls which are inserted in the same unit.
    """
    now = clock.now()
    _INSERT.execute(
        session,
        {
            "wallet_id": wallet_id,
            "agent_id": agent_id,
            "frozen_at": now if frozen else None,
            "counted_on": now.date(),
            "controls_version": controls_version,
        },
    )


def lock_account(session: Session, wallet_id: str) -> Account:
    """Lock the wallet's account until the unit ends, and return it. Raises: NotFound if the wallet was deleted."""
    row = _LOCK.one_or_none(session, {"of_wallet": wallet_id})
    if row is None:
        raise wallet_not_found()
    return verified_account(session, row)


def lock_account_of_hold(session: Session, reference: str) -> Account | None:
    """Lock the account of a hold until the unit ends, and return it; None without such a hold."""
    row = _LOCK_OF_HOLD.one_or_none(session, {"of_hold": reference})
    return None if row is None else verified_account(session, row)


def lock_accounts(session: Session, wallet_ids: Collection[str]) -> None:
    """Lock the accounts of several wallets in the order of their ids; missing ones are skipped."""
    row_locks.lock_rows(session, SpendingAccount.wallet_id, SpendingAccount.wallet_id.in_(wallet_ids))


def lock_accounts_of(session: Session, agent_ids: Collection[str]) -> list[str]:
    """Lock the accounts of all wallets of some agents, in the order of the wallets' ids; return those ids."""
    return row_locks.lock_rows(session, SpendingAccount.wallet_id, SpendingAccount.agent_id.in_(agent_ids))


def set_frozen(session: Session, agent_id: str, *, frozen: bool) -> None:
    """Freeze or unfreeze all wallets of an agent; waits for units that hold their locks."""
    lock_accounts_of(session, [agent_id])
    frozen_at = clock.now() if frozen else None
    is_agents = SpendingAccount.agent_id == agent_id
    (withdraw if frozen else change)(session, SpendingAccount, is_agents, frozen_at=frozen_at)


def advance_controls_version(session: Session, wallet_ids: Collection[str]) -> None:
    """Count a change of the controls of wallets whose accounts are locked."""
    version = SpendingAccount.controls_version + 1
    change(session, SpendingAccount, SpendingAccount.wallet_id.in_(wallet_ids), controls_version=version)


def verified_account(session: Session, row: Row[*tuple[Any, ...]]) -> Account:
    """Return the account of a row of `COLUMNS`. Raises: RowChanged."""
    SEAL.verify(session, row)
    return account_from_row(row)


def account_from_row(row: Row[*tuple[Any, ...]]) -> Account:
    """Return the account of a row of `COLUMNS`, to show it.

    If the clock is behind the one that counted last (another machine's, just after midnight), the newer windows
    apply: a window that has ended is never reopened.
    """
    today = max(clock.now().date(), row.counted_on)
    counted = WindowTotals(row.day_nanos, row.week_nanos, row.month_nanos)
    return Account(
        wallet_id=row.wallet_id,
        agent_id=row.account_agent_id,
        frozen_at=row.frozen_at,
        today=today,
        spent=policy.roll_over(counted, row.counted_on, today),
        controls_version=row.controls_version,
    )


def count_amount(session: Session, account: Account, amount_nanos: int) -> None:
    """Add an amount to the windows of a locked account. Raises: InvalidInput beyond `MAX_COUNTED_NANOS`."""
    _write(session, account, countable_sums(account, amount_nanos))


def adjust_count(session: Session, account: Account, amount_nanos: int, *, made_on: date) -> None:
    """Add an amount, which may be negative, to those current windows of a locked account that contain `made_on`."""
    _write(session, account, account.spent.plus(policy.in_windows(amount_nanos, made_on, account.today)))


def countable_sums(account: Account, amount_nanos: int) -> WindowTotals:
    """Return the sums of an account with an amount of today. Raises: InvalidInput beyond `MAX_COUNTED_NANOS`."""
    spent = account.spent.plus(WindowTotals(amount_nanos, amount_nanos, amount_nanos))
    if max(spent.day, spent.week, spent.month) > MAX_COUNTED_NANOS:
        raise InvalidInput.field("amount", "exceeds the largest value that can be counted against limits")
    return spent


def wallet_not_found() -> NotFound:
    """Return the error for a wallet that was deleted concurrently."""
    return NotFound("This key has no such wallet.")


def _write(session: Session, account: Account, spent: WindowTotals) -> None:
    counted = {"today": account.today, "day": spent.day, "week": spent.week, "month": spent.month}
    row = {
        "wallet_id": account.wallet_id, "agent_id": account.agent_id, "frozen_at": account.frozen_at,
        "counted_on": account.today, "day_nanos": spent.day, "week_nanos": spent.week, "month_nanos": spent.month,
        "controls_version": account.controls_version,
    }  # fmt: skip
    _COUNT.execute(session, {"of_wallet": account.wallet_id, **counted, "new_mac": SEAL.mac_of(row)})
