"""Shared budgets: made, changed and deleted by operators, announced when they are nearly used, and audited."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import RowChanged
from app.core import clock
from app.core.money import usd_string
from app.core.pagination import Page, PageRequest
from app.credits import accounts as credit_accounts
from app.credits import holds as credit_holds
from app.db.leases import once_per_period
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput
from app.events import outbox
from app.events.outbox import EventType
from app.idempotency.service import Claim
from app.identity import budget_counters, budgets
from app.identity import service as identity
from app.identity.budgets import SharedBudget
from app.spending import accounts as spending_accounts
from app.spending import holds as payments
from app.wallets.core import wallets


def create(actor: Actor, values: Mapping[str, Any], *, claim: Claim) -> SharedBudget:
    """Create a budget. Raises: InvalidInput, LimitReached."""
    with unit_of_work() as session:
        _lock_tagged(session, values)
        budget_id = budgets.create(session, values)
        _let_count(session, values.get("members", {}))
        claim.bind(session, budget_id)
        return _changed(session, actor, AuditAction.BUDGET_CREATED, budget_id)


def change(actor: Actor, budget_id: str, values: Mapping[str, Any]) -> SharedBudget:
    """Change a budget, from the next spending on. Raises: NotFound, InvalidInput."""
    with unit_of_work() as session:
        _lock_tagged(session, values)
        budgets.change_budget(session, budget_id, values)
        _let_count(session, values.get("members", {}))
        return _changed(session, actor, AuditAction.BUDGET_CHANGED, budget_id)


def delete(actor: Actor, budget_id: str) -> SharedBudget:
    """Delete a budget, and return it. Raises: NotFound, InvalidInput."""
    with unit_of_work() as session:
        found = budgets.get(session, budget_id)
        budgets.delete_budget(session, found.id)
        trail.record(session, actor, AuditEvent(AuditAction.BUDGET_DELETED, found.id, before={"name": found.name}))
    return found


def get(budget_id: str) -> SharedBudget:
    """Return a budget. Raises: NotFound."""
    with read_only_unit() as session:
        return budgets.get(session, budget_id)


def list_budgets(page: PageRequest, *, agent_id: str | None = None) -> Page[SharedBudget]:
    """Return a page of budgets, oldest first: all, or those that an agent, its keys or its wallets belong to."""
    with read_only_unit() as session:
        wallet_ids = [] if agent_id is None else [each.id for each in wallets.all_of(session, agent_id)]
        return budgets.list_budgets(session, page, agent_id=agent_id, wallet_ids=wallet_ids)


def announce() -> None:
    """Record an event for each budget that reached 50, 80, 95 or 100 %, once per window; about once a minute."""
    with once_per_period(timedelta(minutes=1), "shared_budgets", duration=timedelta(seconds=30)) as is_due:
        if not is_due:
            return
        with unit_of_work() as session:
            budget_counters.subtract_returns(session)
            due = budget_counters.due_for_announcement(session)
        for budget_id in due:
            # A row that somebody else changed must not silence the others.
            with suppress(RowChanged), unit_of_work() as session:
                if (reached := budgets.mark_announced(session, budget_id)) is not None:
                    _announce(session, *reached)


def check(session: Session) -> list[str]:
    """Return one sentence for each budget, of keys too, that counts less than its calls and payments.

    To count more is safe, and possible. A counter with another limit than its budget is one, too.
    """
    counted = budget_counters.counted(session)
    starts, calls = {budget_id: since for budget_id, (_, since) in counted.items()}, Counter[str]()
    for budget_ids, day, nanos in credit_holds.totals_in_budgets(session, min(starts.values())) if starts else ():
        # Windows begin with a day, and nothing was counted before a budget was made.
        calls.update({each: nanos for each in budget_ids if each in starts and day >= starts[each].date()})
    wrong = [f"budget {each}: its counter has not its limit and window" for each in budgets.without_counter(session)]
    return wrong + [
        f"budget {budget_id}: it counts {used_nanos} nano-dollars, its calls and payments have {nanos}"
        for budget_id, (used_nanos, since) in counted.items()
        if (nanos := calls[budget_id] + payments.paid_since(session, budget_id, since)[1]) > used_nanos
    ]


def _changed(session: Session, actor: Actor, action: AuditAction, budget_id: str) -> SharedBudget:
    found = budgets.get(session, budget_id)
    after = {
        "name": found.name, "limit_usd": found.limit_nanos and usd_string(found.limit_nanos),
        "window": found.period.value, "members": {kind: len(each) for kind, each in found.members.items()},
    }  # fmt: skip
    trail.record(session, actor, AuditEvent(action, budget_id, after=after))
    return found


def _let_count(session: Session, members: Mapping[str, Any]) -> None:
    """Let the calls of members be counted from now on. Raises: InvalidInput if one does not exist."""
    known = budgets.existing(session, members) | spending_accounts.existing(session, members.get("wallets", ()))
    named = {each for kind in ("agents", "keys", "wallets") for each in members.get(kind, ())}
    if named - known:
        raise InvalidInput.field("members", f"names what does not exist: {', '.join(sorted(named - known))}")
    credit_accounts.mark_with_budgets(session, budgets.accounts_of(session))


def _lock_tagged(session: Session, values: Mapping[str, Any]) -> None:
    """Lock the agents whose keys' tags decide, so that no key is made or changed meanwhile. Raises: NotFound."""
    for agent_id in sorted({each["agent_id"] for each in values.get("members", {}).get("tags", ())}):
        identity.lock_agent(session, agent_id)


def _announce(session: Session, budget: SharedBudget, percent: int) -> None:
    kind = "budget" if budget.account_id is None else "key"
    data = {
        f"{kind}_id": budget.id, f"{kind}_name": budget.name, "window": budget.period.value, "percent": percent,
        "limit_usd": usd_string(budget.limit_nanos or 0), "spent_usd": usd_string(budget.used_nanos),
        "resets_at": budget.resets_at and clock.isoformat(budget.resets_at),
    }  # fmt: skip
    outbox.record(
        session, EventType.BUDGET_THRESHOLD_REACHED, agent_id=budget.account_id, object_id=budget.id, data=data
    )
