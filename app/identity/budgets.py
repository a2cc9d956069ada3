"""Budgets over several agents, keys and wallets: what all of them together may spend from credits and from wallets.

Whoever spends locks the budgets first (`lock`) and adds to them in the same unit (`add`). What was not spent is
returned without a lock, as a row (`give_back`), which is subtracted by the next unit that locks the budget; one that
waits for the lock may miss it, which is safe. The only writer of `budget_members`, and beside the statements of
`app.usage.step_statements` of `budgets` and `budget_returns`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, delete, exists, insert, or_, select
from sqlalchemy.orm import Session

from app.authenticated import change, seal_of
from app.core import clock, identifiers
from app.core.pagination import Page, PageRequest
from app.db import lock_order
from app.db.prepared import PreparedRead
from app.db.tables import count, page_of, table_of
from app.errors import InvalidInput, LimitReached, NotFound
from app.identity import budget_windows
from app.identity.budget_windows import resets_at, start_of, start_of_window, used_in_window
from app.identity.models import Agent, ApiKey, Budget, BudgetMember, BudgetReturn, KeyLimit
from app.identity.principal import BudgetPeriod

MAX_BUDGETS = 1000
MAX_LEVELS = 3
"""A budget may be part of another one, and that of a third."""
_TABLE, _MEMBERS, _RETURNS, _SEAL = table_of(Budget), table_of(BudgetMember), table_of(BudgetReturn), seal_of(Budget)
_OF_MEMBERS = PreparedRead(
    select(_MEMBERS.c.budget_id)
    .where(or_(_MEMBERS.c.member_id == bindparam("one"), _MEMBERS.c.member_id == bindparam("other")))
    .order_by(_MEMBERS.c.budget_id)
)


def is_member(*ids: Any) -> Any:
    """Return the condition that one of some agents, keys or wallets, given as columns, belongs to a budget."""
    return exists().where(or_(*(_MEMBERS.c.member_id == each for each in ids)))


@dataclass(frozen=True, slots=True)
class Velocity:
    """How many payments of wallets, and how many dollars in them, may leave in so many minutes; None for any."""

    payments: int | None
    nanos: int | None
    minutes: int

    def is_exceeded(self, earlier_payments: int, nanos: int) -> bool:
        """Return whether another payment is one too many, or makes the sum too large."""
        too_many = self.payments is not None and earlier_payments >= self.payments
        return too_many or (self.nanos is not None and nanos > self.nanos)


@dataclass(frozen=True, slots=True)
class SharedBudget:
    """A budget. `used_nanos` is what its members have held and spent since it last began."""

    id: str
    name: str
    parent_id: str | None
    limit_nanos: int | None
    period: BudgetPeriod
    used_nanos: int
    resets_at: datetime | None
    members: Mapping[str, Sequence[Any]]
    velocity: Velocity | None
    created_at: datetime

    @property
    def remaining_nanos(self) -> int | None:
        return None if self.limit_nanos is None else max(0, self.limit_nanos - self.used_nanos)


def create(session: Session, values: Mapping[str, Any]) -> str:
    """Create a budget with columns of `budgets`, and return its id. Raises: LimitReached, NotFound, InvalidInput."""
    lock_all(session)
    if count(session, Budget) >= MAX_BUDGETS:
        raise LimitReached(f"There may be at most {MAX_BUDGETS} budgets; delete one first.")
    now, budget_id = clock.now(), identifiers.new_id()
    begins = start_of(values.get("period", "total"), now) or now
    session.add(Budget(id=budget_id, window_start=begins, created_at=now, **values))
    session.flush()
    assign_members(session)
    return budget_id


def change_budget(session: Session, budget_id: str, values: Mapping[str, Any]) -> None:
    """Change columns of a budget, from the next spending on. Raises: NotFound, InvalidInput."""
    lock_all(session)
    get(session, budget_id)
    change(session, Budget, Budget.id == budget_id, **values, announced_percent=0)
    assign_members(session)


def delete_budget(session: Session, budget_id: str) -> None:
    """Delete a budget; its members then spend without it. Raises: NotFound, InvalidInput if others are part of it."""
    lock_all(session)
    get(session, budget_id)
    if count(session, Budget, Budget.parent_id == budget_id):
        raise InvalidInput("Other budgets are part of this one; delete or move them first.")
    session.execute(delete(_RETURNS).where(_RETURNS.c.budget_id == budget_id))
    session.execute(delete(Budget).where(Budget.id == budget_id))
    assign_members(session)


def get(session: Session, budget_id: str) -> SharedBudget:
    """Return a budget as it stands. Raises: NotFound, RowChanged."""
    row = session.get(Budget, identifiers.parse_id(budget_id) or identifiers.new_id(), populate_existing=True)
    if row is None:
        raise NotFound("There is no such budget.")
    return _view(session, row)


def list_budgets(session: Session, page: PageRequest) -> Page[SharedBudget]:
    """Return a page of budgets, oldest first."""
    found = page_of(session, Budget, page)
    return Page([_view(session, row) for row in found.items], found.total, found.request)


def lock_all(session: Session) -> None:
    """Lock all budgets, to change who belongs to them: they are few, and their changes rare."""
    lock_order.lock_rows(session, Budget.id)


def lock_for_tags(session: Session, agent_id: str) -> bool:
    """Return whether tags of a locked agent's keys decide about budgets; lock them if so, for `assign_members`."""
    found = any(agent_id == agent for each in session.scalars(select(Budget.members)) for agent, _ in _tags(each))
    if found:
        lock_all(session)
    return found


def assign_members(session: Session) -> None:
    """Store who belongs to each budget, those of its parts included; all must be locked. Raises: InvalidInput."""
    rows = {row.id: row for row in session.scalars(select(Budget).execution_options(populate_existing=True))}
    found: set[tuple[str, str]] = set()
    for row in rows.values():
        own = _direct_members(session, row.members)
        level: Budget | None = row
        for _ in range(MAX_LEVELS):
            if level is None:
                break
            found.update((level.id, member) for member in own)
            if level.parent_id is not None and level.parent_id not in rows:
                raise InvalidInput.field("parent_id", "is no budget")
            level = rows.get(level.parent_id or "")
        if level is not None:
            raise InvalidInput.field("parent_id", f"must not make more than {MAX_LEVELS} levels, or a circle")
    session.execute(delete(_MEMBERS))
    if found:
        values = [{"budget_id": budget, "member_id": member} for budget, member in sorted(found)]
        session.execute(insert(_MEMBERS), values)


def budgets_of(session: Session, one: str, other: str) -> list[str]:
    """Return the budgets to which an account or its key belong, or a wallet or its agent."""
    return list(dict.fromkeys(row.budget_id for row in _OF_MEMBERS.all(session, {"one": one, "other": other})))


def lock(session: Session, budget_ids: Collection[str]) -> list[SharedBudget]:
    """Lock budgets in the order of their ids until the unit ends, and return them as they stand. Raises: RowChanged."""
    if not budget_ids:
        return []
    lock_order.lock_rows(session, Budget.id, Budget.id.in_(budget_ids))
    # Subtract what was returned; what was held in an earlier window is dropped.
    taken, now = delete(_RETURNS).where(_RETURNS.c.budget_id.in_(budget_ids)), clock.now()
    returns = session.execute(taken.returning(*_RETURNS.c)).all()
    rows = session.execute(select(_TABLE).where(_TABLE.c.id.in_(budget_ids))).all() if returns else ()
    for budget_id, nanos in _sums(rows, returns, now).items():
        add(session, [budget_id], -nanos, at=now)
    locked = select(Budget).where(Budget.id.in_(budget_ids)).order_by(Budget.id)
    return [_view(session, row) for row in session.scalars(locked.execution_options(populate_existing=True))]


def add(session: Session, budget_ids: Collection[str], nanos: int, *, at: datetime | None = None) -> None:
    """Add what is held or spent to locked budgets."""
    now = at or clock.now()
    for row in session.execute(select(_TABLE).where(_TABLE.c.id.in_(budget_ids))).all() if budget_ids else ():
        budget_windows.add(session, Budget, row, nanos, now)


def give_back(session: Session, budget_ids: Iterable[str], nanos: int, *, held_at: datetime) -> None:
    """Return what was held at an instant and is not spent; a negative amount was spent beyond what was held."""
    rows = [{"budget_id": each, "nanos": nanos, "held_at": held_at} for each in budget_ids]
    if rows and nanos:
        session.execute(insert(_RETURNS), rows)


def drop_returns(session: Session) -> None:
    """Delete what was returned to budgets after they were deleted."""
    session.execute(delete(_RETURNS).where(_RETURNS.c.budget_id.not_in(select(_TABLE.c.id))))


def least_left(found: Iterable[SharedBudget]) -> SharedBudget | None:
    """Return the budget with the least left; None if none has a limit."""
    limited = [each for each in found if each.remaining_nanos is not None]
    return min(limited, key=lambda each: each.remaining_nanos or 0, default=None)


def read(session: Session, budget_ids: Collection[str]) -> list[SharedBudget]:
    """Return budgets as they stand, without locking them. Raises: RowChanged."""
    if not budget_ids:
        return []
    return [_view(session, row) for row in session.scalars(select(Budget).where(Budget.id.in_(budget_ids)))]


def counted(session: Session) -> Sequence[tuple[str, int, datetime]]:
    """Return id, what is counted, and since when, of each budget. For audits."""
    rows, now = session.scalars(select(Budget)).all(), clock.now()
    returned = _returned(session, rows, now)
    return [(row.id, used_in_window(row, now) - returned[row.id], start_of_window(row, now)) for row in rows]


def due_for_announcement(session: Session) -> Sequence[str]:
    """Return budgets that may have reached another of `PERCENTAGES`, and those with returns to take back."""
    is_due = or_(budget_windows.may_have_reached(Budget), exists().where(_RETURNS.c.budget_id == Budget.id))
    return session.scalars(select(Budget.id).where(is_due).order_by(Budget.id)).all()


def mark_announced(session: Session, budget_id: str) -> tuple[SharedBudget, int] | None:
    """Store the highest percentage that a budget has reached, and return both; None if it is known."""
    for found in lock(session, [budget_id]):
        row = session.get_one(Budget, budget_id)
        if (reached := budget_windows.mark_reached(row)) is not None:
            # In the window in which it was reached, which may just have ended.
            return replace(found, used_nanos=row.used_nanos), reached
    return None


def _returned(session: Session, rows: Collection[Any], now: datetime) -> dict[str, int]:
    """Return what is returned to budgets and not yet subtracted."""
    returns = select(_RETURNS).where(_RETURNS.c.budget_id.in_([row.id for row in rows]))
    return _sums(rows, session.execute(returns).all() if rows else (), now)


def _sums(rows: Iterable[Any], returns: Iterable[Any], now: datetime) -> dict[str, int]:
    """Return what was returned to each budget of what was held in the window of now."""
    budgets = {row.id: row for row in rows}
    totals: dict[str, int] = defaultdict(int)
    for each in returns:
        budget = budgets[each.budget_id]
        if budget.period == "total" or start_of_window(budget, now) <= each.held_at:
            totals[each.budget_id] += each.nanos
    return totals


def _view(session: Session, row: Budget) -> SharedBudget:
    _SEAL.verify(session, row)
    now, velocity = clock.now(), None
    used_nanos = max(0, used_in_window(row, now) - _returned(session, [row], now)[row.id])
    if row.velocity_minutes is not None:
        velocity = Velocity(row.velocity_payments, row.velocity_nanos, row.velocity_minutes)
    return SharedBudget(
        row.id, row.name, row.parent_id, row.limit_nanos, BudgetPeriod(row.period), used_nanos,
        resets_at(row.period, now), row.members, velocity, row.created_at,
    )  # fmt: skip


def _direct_members(session: Session, members: Mapping[str, Sequence[Any]]) -> set[str]:
    found = {each for kind in ("agents", "keys", "wallets") for each in members.get(kind, ())}
    if tags := _tags(members):
        agents = {agent for agent, _ in tags}
        keys = session.scalars(select(KeyLimit).where(KeyLimit.account_id.in_(agents)))
        found |= {row.id for row in keys if any((row.account_id, tag) in tags for tag in row.tags)}
    return found


def _tags(members: Mapping[str, Sequence[Any]]) -> set[tuple[str, str]]:
    return {(each["agent_id"], each["tag"]) for each in members.get("tags", ())}


def accounts_of(session: Session) -> set[str]:
    """Return the ids of members, and the accounts from which keys and agents with tags among them spend."""
    members = set(session.scalars(select(_MEMBERS.c.member_id)))
    keys = session.scalars(select(ApiKey.account_id).where(ApiKey.id.in_(select(_MEMBERS.c.member_id))))
    tagged = [agent for each in session.scalars(select(Budget.members)) for agent, _ in _tags(each)]
    return {*members, *keys, *tagged}


def existing(session: Session, members: Mapping[str, Sequence[Any]]) -> set[str]:
    """Return which of the agents and keys that members name exist."""
    agents, keys = members.get("agents", ()), members.get("keys", ())
    found = session.scalars(select(Agent.id).where(Agent.id.in_(agents), Agent.deleted_at.is_(None)))
    return {*found, *session.scalars(select(ApiKey.id).where(ApiKey.id.in_(keys), ApiKey.revoked_at.is_(None)))}
