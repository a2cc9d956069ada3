"""Budgets over several agents, keys and wallets: what all of them together may spend from credits and from wallets.

Whoever spends locks the budgets first (`lock`) and adds to their counters in the same unit. The only writer of
`budget_members`, beside `app.identity.api_keys`.
"""

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
from app.identity import budget_counters
from app.identity.models import Agent, ApiKey, Budget, BudgetCounter, BudgetMember, KeyLimit
from app.identity.principal import BudgetPeriod

MAX_BUDGETS = 1000
MAX_LEVELS = 3
"""A budget may be part of another one, and that of a third."""
_MEMBERS = table_of(BudgetMember)
_IS_SHARED = _MEMBERS.c.budget_id != _MEMBERS.c.member_id
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
    """A budget. `used_nanos` is what its members have held and spent since it last began.

    A key's own has no other members, the name of the key, and its `account_id`.
    """

    id: str
    name: str | None
    parent_id: str | None
    limit_nanos: int | None
    period: BudgetPeriod
    used_nanos: int
    resets_at: datetime | None
    members: Mapping[str, Sequence[Any]]
    velocity: Velocity | None
    account_id: str | None
    created_at: datetime

    @property
    def remaining_nanos(self) -> int | None:
        return None if self.limit_nanos is None else max(0, self.limit_nanos - self.used_nanos)


def create(session: Session, values: Mapping[str, Any]) -> str:
    """Create a budget with columns of `budgets`, and return its id. Raises: LimitReached, NotFound, InvalidInput."""
    lock_all(session)
    if count(session, Budget) >= MAX_BUDGETS:
        raise LimitReached(f"There may be at most {MAX_BUDGETS} budgets; delete one first.")
    budget_id = identifiers.new_id()
    session.add(Budget(id=budget_id, created_at=clock.now(), **values))
    session.flush()
    budget_counters.create(session, budget_id, values.get("limit_nanos"), values.get("period", "total"))
    assign_members(session)
    return budget_id


def change_budget(session: Session, budget_id: str, values: Mapping[str, Any]) -> None:
    """Change columns of a budget, from the next spending on. Raises: NotFound, InvalidInput."""
    lock_all(session)
    get(session, budget_id)
    change(session, Budget, Budget.id == budget_id, **values)
    if "limit_nanos" in values:
        budget_counters.change(session, budget_id, values["limit_nanos"])
    assign_members(session)


def delete_budget(session: Session, budget_id: str) -> None:
    """Delete a budget; its members then spend without it. Raises: NotFound, InvalidInput if others are part of it."""
    lock_all(session)
    get(session, budget_id)
    if count(session, Budget, Budget.parent_id == budget_id):
        raise InvalidInput("Other budgets are part of this one; delete or move them first.")
    budget_counters.remove(session, budget_id)
    session.execute(delete(Budget).where(Budget.id == budget_id))
    assign_members(session)


def get(session: Session, budget_id: str) -> SharedBudget:
    """Return a budget as it stands. Raises: NotFound, RowChanged."""
    found = _views(session, Budget, [identifiers.parse_id(budget_id) or identifiers.new_id()])
    if not found:
        raise NotFound("There is no such budget.")
    return found[0]


def list_budgets(
    session: Session, page: PageRequest, *, agent_id: str | None = None, wallet_ids: Collection[str] = ()
) -> Page[SharedBudget]:
    """Return a page of budgets, oldest first: all, or those that an agent, its keys or these wallets belong to."""
    keys = select(ApiKey.id).where(ApiKey.account_id == agent_id)
    belongs = or_(_MEMBERS.c.member_id.in_([agent_id, *wallet_ids]), _MEMBERS.c.member_id.in_(keys))
    are_meant = [Budget.id.in_(select(_MEMBERS.c.budget_id).where(belongs))] if agent_id is not None else []
    found = page_of(session, Budget, page, *are_meant)
    return Page(_views(session, Budget, [row.id for row in found.items]), found.total, found.request)


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
    session.execute(delete(_MEMBERS).where(_IS_SHARED))
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
    budget_counters.lock(session, budget_ids)
    return read(session, budget_ids)


def least_left(found: Iterable[SharedBudget]) -> SharedBudget | None:
    """Return the budget with the least left; None if none has a limit."""
    limited = [each for each in found if each.remaining_nanos is not None]
    return min(limited, key=lambda each: each.remaining_nanos or 0, default=None)


def read(session: Session, budget_ids: Collection[str]) -> list[SharedBudget]:
    """Return budgets as they stand, without locking them. Raises: RowChanged."""
    return [each for model in (KeyLimit, Budget) for each in _views(session, model, budget_ids)] if budget_ids else []


def without_counter(session: Session) -> list[str]:
    """Return the ids of budgets whose counter has another limit or window, and of counters without one. For audits."""
    stated, counted = (
        {each for model in models for each in session.execute(select(model.id, model.limit_nanos, model.period)).all()}
        for models in ((Budget, KeyLimit), (BudgetCounter,))
    )
    return sorted({each.id for each in stated ^ counted})


def mark_announced(session: Session, budget_id: str) -> tuple[SharedBudget, int] | None:
    """Store the highest percentage that a budget has reached, and return both; None if it is known."""
    percent, used_nanos = budget_counters.mark_reached(session, budget_id) or (0, 0)
    # A counter that somebody added has no budget: the audit finds it.
    found = read(session, [budget_id]) if percent else []
    return (replace(found[0], used_nanos=used_nanos), percent) if found else None


def _views(session: Session, model: type[Any], ids: Collection[str]) -> list[SharedBudget]:
    """Return rows of `budgets` or `key_limits` as budgets, if their counters say the same. Raises: RowChanged."""
    now, used = clock.now(), budget_counters.used(session, ids)
    # In one statement, because a change of both may be committed between two.
    stated = select(model, BudgetCounter.limit_nanos, BudgetCounter.period).where(model.id.in_(ids))
    stated = stated.outerjoin(BudgetCounter, BudgetCounter.id == model.id).order_by(model.created_at, model.id)
    rows = []
    for row, *followed in session.execute(stated.execution_options(populate_existing=True)):
        seal_of(model).verify(session, row, is_expected=followed == [row.limit_nanos, row.period])
        rows.append(row)
    return [
        SharedBudget(
            row.id, row.name, getattr(row, "parent_id", None), row.limit_nanos, BudgetPeriod(row.period), used[row.id],
            budget_counters.resets_at(row.period, now), getattr(row, "members", {}), _velocity(row),
            getattr(row, "account_id", None), row.created_at,
        )
        for row in rows
    ]  # fmt: skip


def _velocity(row: Any) -> Velocity | None:
    minutes = getattr(row, "velocity_minutes", None)
    return None if minutes is None else Velocity(row.velocity_payments, row.velocity_nanos, minutes)


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
    shared = select(_MEMBERS.c.member_id).where(_IS_SHARED)
    members = set(session.scalars(shared))
    keys = session.scalars(select(ApiKey.account_id).where(ApiKey.id.in_(shared)))
    tagged = [agent for each in session.scalars(select(Budget.members)) for agent, _ in _tags(each)]
    return {*members, *keys, *tagged}


def existing(session: Session, members: Mapping[str, Sequence[Any]]) -> set[str]:
    """Return which of the agents and keys that members name exist."""
    agents, keys = members.get("agents", ()), members.get("keys", ())
    found = session.scalars(select(Agent.id).where(Agent.id.in_(agents), Agent.deleted_at.is_(None)))
    return {*found, *session.scalars(select(ApiKey.id).where(ApiKey.id.in_(keys), ApiKey.revoked_at.is_(None)))}
