"""Spending accounts: one row per wallet with its lock, its sums, and whether it is frozen.

A row lock on PostgreSQL, a no-op update on SQLite; a unit takes it before it touches the wallet's controls or holds.
The only writer of `spending_accounts`, and of `approved_payees`: those that an owner approved are no longer new,
and perhaps have an amount per week that needs no further approval.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sqlalchemy import ClauseElement, ColumnElement, Row, bindparam, func, select, update
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import Session

from app.authenticated import RowSeal, change, seal_of, withdraw
from app.core import clock
from app.core.identifiers import require
from app.core.money import usd_string
from app.db import lock_order
from app.db.prepared import PreparedInsert, PreparedStatement
from app.db.tables import delete_rows, in_list, insert_into, table_of
from app.errors import InvalidInput, NotFound
from app.events import outbox
from app.events.outbox import EventType
from app.identity.budget_counters import PERCENTAGES
from app.spending import policy
from app.spending.approval_rules import PayeePermission
from app.spending.models import ApprovedPayee, SpendingAccount, SpendingHold
from app.spending.policy import Controls, WindowTotals

MAX_COUNTED_NANOS = 9 * 10**18
"""Nine billion dollars, just below the maximum of a BIGINT: the limit of a wallet's sum of a month."""

SEAL = RowSeal(SpendingAccount, agent_id="account_agent_id", mac="account_mac")
COLUMNS = SEAL.columns
_TABLE = table_of(SpendingAccount)
_INSERT = PreparedInsert(SpendingAccount)
_COUNTED = {"counted_on": "today", "day_nanos": "day", "week_nanos": "week", "month_nanos": "month", "mac": "new_mac"}
_COUNT = PreparedStatement(
    update(_TABLE)
    .where(_TABLE.c.wallet_id == bindparam("of_wallet"))
    .values({column: bindparam(parameter) for column, parameter in _COUNTED.items()})
)
_RELEASED = "released"
_PAYEE_SEAL = seal_of(ApprovedPayee)


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
    values = {"wallet_id": wallet_id, "agent_id": agent_id, "frozen_at": now if frozen else None}
    _INSERT.execute(session, {**values, "counted_on": now.date(), "controls_version": controls_version})


def spent_today(session: Session, agent_id: str) -> int:
    """Return what counts against the limits of an agent's wallets today; one query, no lock."""
    rows = session.execute(select(*COLUMNS).where(SpendingAccount.agent_id == agent_id))
    return sum(account_from_row(row).spent.day for row in rows)


def lock_account(session: Session, wallet_id: str) -> Account:
    """Lock the wallet's account until the unit ends, and return it. Raises: NotFound if the wallet was deleted."""
    row = require(_LOCK.one_or_none(session, {"of_wallet": wallet_id}), wallet_not_found())
    return verified_account(session, row)


def lock_account_of_hold(session: Session, reference: str) -> Account | None:
    """Lock the account of a hold until the unit ends, and return it; None without such a hold."""
    row = _LOCK_OF_HOLD.one_or_none(session, {"of_hold": reference})
    return None if row is None else verified_account(session, row)


def existing(session: Session, wallet_ids: Collection[str]) -> set[str]:
    """Return which of some wallets exist."""
    return set(session.scalars(select(SpendingAccount.wallet_id).where(SpendingAccount.wallet_id.in_(wallet_ids))))


def lock_accounts(session: Session, wallet_ids: Collection[str]) -> None:
    """Lock the accounts of several wallets in the order of their ids; missing ones are skipped."""
    are_meant = in_list(session, SpendingAccount.wallet_id, [*wallet_ids])
    lock_order.lock_rows(session, SpendingAccount.wallet_id, are_meant)


def lock_accounts_of(session: Session, agent_ids: Collection[str]) -> list[str]:
    """Lock the accounts of all wallets of some agents, in the order of the wallets' ids; return those ids."""
    return lock_order.lock_rows(session, SpendingAccount.wallet_id, SpendingAccount.agent_id.in_(agent_ids))


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
        wallet_id=row.wallet_id, agent_id=row.account_agent_id, frozen_at=row.frozen_at, today=today,
        spent=policy.roll_over(counted, row.counted_on, today), controls_version=row.controls_version,
    )  # fmt: skip


def count_amount(session: Session, account: Account, amount_nanos: int) -> None:
    """Add an amount to the windows of a locked account. Raises: InvalidInput beyond `MAX_COUNTED_NANOS`."""
    _write(session, account, countable_sums(account, amount_nanos))


def adjust_count(session: Session, account: Account, amount_nanos: int, *, made_on: date) -> None:
    """Add an amount, which may be negative, to those current windows of a locked account that contain `made_on`."""
    _write(session, account, account.spent.plus(policy.in_windows(amount_nanos, made_on, account.today)))


def countable_sums(account: Account, amount_nanos: int) -> WindowTotals:
    """Return the sums of an account with an amount of today. Raises: InvalidInput beyond `MAX_COUNTED_NANOS`."""
    spent = account.spent.plus(WindowTotals(amount_nanos, amount_nanos, amount_nanos))
    if max(spent) > MAX_COUNTED_NANOS:
        raise InvalidInput.field("amount", "exceeds the largest value that can be counted against limits")
    return spent


def wallet_not_found() -> NotFound:
    """Return the error for a wallet that does not exist, that another agent has, or that was deleted concurrently."""
    return NotFound("No wallet with this id belongs to this key.")


def _write(session: Session, account: Account, spent: WindowTotals) -> None:
    row = {
        "wallet_id": account.wallet_id, "agent_id": account.agent_id, "frozen_at": account.frozen_at,
        "counted_on": account.today, "day_nanos": spent.day, "week_nanos": spent.week, "month_nanos": spent.month,
        "controls_version": account.controls_version,
    }  # fmt: skip
    row["mac"] = SEAL.mac_of(row)
    counted = {parameter: row[column] for column, parameter in _COUNTED.items()}
    _COUNT.execute(session, {"of_wallet": account.wallet_id, **counted})


def announce_thresholds(session: Session, account: Account, rules: Controls | None, amount_nanos: int) -> None:
    """Record an event for the highest threshold of each limit that an amount reaches, once per window and limit.

    The account must be locked, and the amount not counted yet. One that reaches none costs no statement.
    """
    if rules is None or not rules.limited:
        return
    windows = policy.windows(account.today)
    for window, period, limit, spent in zip(windows._fields, windows, rules.limits[1:], account.spent, strict=True):
        after = spent + amount_nanos
        crossed = [each for each in PERCENTAGES if limit and spent * 100 < limit * each <= after * 100]
        if crossed:
            data = {
                "wallet_id": account.wallet_id, "window": window, "percent": crossed[-1],
                "limit_usd": usd_string(limit), "spent_usd": usd_string(after),
                "resets_at": clock.isoformat(period.resets_at),
            }  # fmt: skip
            outbox.record(
                session, EventType.BUDGET_THRESHOLD_REACHED, agent_id=account.agent_id, object_id=account.wallet_id,
                data=data, once=f"budget:{window}:{period.start}:{limit}:{crossed[-1]}",
            )  # fmt: skip


def known_payees(
    session: Session, wallet_id: str, payees: Collection[str], today: date
) -> Mapping[str, PayeePermission]:
    """Return those payees that were approved, and what counts against their permissions this week."""
    if not payees:
        return {}
    is_meant = ApprovedPayee.wallet_id == wallet_id, ApprovedPayee.payee.in_(payees)
    rows = session.execute(select(*_PAYEE_SEAL.columns).where(*is_meant)).all()
    weekly = {row.payee: row.week_nanos for row in rows if _PAYEE_SEAL.accepts(session, row)}
    return {
        payee: PayeePermission(nanos, _counted_of_payee(session, wallet_id, payee, today) if nanos else 0)
        for payee, nanos in weekly.items()
    }


def approve_payees(session: Session, wallet_id: str, payees: Collection[str], *, week_nanos: int = 0) -> None:
    """Record payees as approved; an amount per week replaces the former one, 0 keeps it."""
    for payee in sorted(payees):
        values = {"wallet_id": wallet_id, "payee": payee, "week_nanos": week_nanos, "created_at": clock.now()}
        insert = insert_into(session, ApprovedPayee).values(ApprovedPayee.stamp(values))
        session.execute(insert.on_conflict_do_nothing())
        if week_nanos:
            is_meant = ApprovedPayee.wallet_id == wallet_id, ApprovedPayee.payee == payee
            change(session, ApprovedPayee, *is_meant, week_nanos=week_nanos)


def withdraw_payee(session: Session, wallet_id: str, payee: str) -> bool:
    """Delete the approval of a payee, which is new again; return whether there was one."""
    return delete_rows(session, ApprovedPayee, ApprovedPayee.wallet_id == wallet_id, ApprovedPayee.payee == payee) > 0


def list_payees(session: Session, wallet_ids: Collection[str]) -> Sequence[ApprovedPayee]:
    """Return the approved payees of wallets, newest first."""
    newest_first = ApprovedPayee.created_at.desc(), ApprovedPayee.payee
    of_wallets = select(ApprovedPayee).where(ApprovedPayee.wallet_id.in_(wallet_ids))
    return session.scalars(of_wallets.order_by(*newest_first).limit(200)).all()


def _counted_of_payee(session: Session, wallet_id: str, payee: str, today: date) -> int:
    counts = SpendingHold.made_on >= policy.windows(today).week.start, SpendingHold.state != _RELEASED
    is_payees = SpendingHold.wallet_id == wallet_id, SpendingHold.permitted_payee == payee
    return int(session.scalar(select(func.sum(SpendingHold.amount_nanos)).where(*is_payees, *counts)) or 0)
