"""Agents as an operator handles them: in pages and by the hundred, changed, frozen, deleted.

All verbs run in the caller's unit. A freeze is a fact of the agent; what it means for wallets is said there.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import func, select, update

from app.core import clock, row_locks
from app.core.pagination import Page, PageRequest
from app.extensions import db
from app.identity.models import Agent, ApiKey, OwnerKey
from app.identity.service import AgentSnapshot, lock_agent, no_such_agent, snapshot_of

DELETED_NAME = "deleted-agent"


def page_of_agents(page: PageRequest) -> Page[AgentSnapshot]:
    """Return a page of all agents, the oldest first; two queries. Works in a reading unit."""
    alive = Agent.deleted_at.is_(None)
    total = db.session.scalar(select(func.count()).select_from(Agent).where(alive)) or 0
    # The page is found in the index alone, however far it lies; then its few rows are read.
    ids = (
        select(Agent.id)
        .where(alive)
        .order_by(Agent.created_at, Agent.id)
        .limit(page.limit)
        .offset(page.offset)
        .subquery()
    )
    rows = db.session.scalars(
        select(Agent).join(ids, ids.c.id == Agent.id).order_by(Agent.created_at, Agent.id)
    )
    return Page([snapshot_of(row) for row in rows], total, page)


def ids_after(last: str | None, *, limit: int) -> list[str]:
    """Return ids of agents in their order, from the first one beyond `last`. Works in a reading unit."""
    beyond = [] if last is None else [Agent.id > last]
    query = select(Agent.id).where(Agent.deleted_at.is_(None), *beyond).order_by(Agent.id).limit(limit)
    return list(db.session.scalars(query))


def lock_agents(agent_ids: Collection[str]) -> set[str]:
    """Lock several agents in the order of their ids; return those that there are."""
    return set(row_locks.lock(Agent.id, Agent.id.in_(agent_ids), Agent.deleted_at.is_(None)))


def change(agent_id: str, *, name: str | None, email: str | None) -> None:
    """Give an agent another name and owner's e-mail. Raises: NotFound."""
    done = db.session.execute(
        update(Agent)
        .where(Agent.id == agent_id, Agent.deleted_at.is_(None))
        .values(name=name, email=email)
        .returning(Agent.id)
        .execution_options(synchronize_session=False)
    )
    if done.first() is None:
        raise no_such_agent()


def freeze(agent_id: str) -> AgentSnapshot:
    """Lock an agent and say that nothing new of it may move; return it as it was. Raises: NotFound."""
    before = lock_agent(agent_id)
    if before.frozen_at is None:
        _set_frozen(agent_id, clock.now())
    return before


def unfreeze(agent_id: str) -> AgentSnapshot:
    """Lock an agent and undo its freeze; return it as it was. Raises: NotFound."""
    before = lock_agent(agent_id)
    _set_frozen(agent_id, None)
    return before


def erase(agent_id: str) -> None:
    """Delete a locked agent: its keys and its owner's open nothing any more; the nameless row alone stays."""
    now = clock.now()
    for table in (ApiKey, OwnerKey):
        db.session.execute(
            update(table)
            .where(table.agent_id == agent_id, table.revoked_at.is_(None))
            .values(revoked_at=now)
            .execution_options(synchronize_session=False)
        )
    db.session.execute(
        update(OwnerKey)
        .where(OwnerKey.agent_id == agent_id)
        .values(owner_email=None)
        .execution_options(synchronize_session=False)
    )
    db.session.execute(
        update(Agent)
        .where(Agent.id == agent_id)
        .values(name=DELETED_NAME, email=None, claimed_email=None, deleted_at=now)
        .execution_options(synchronize_session=False)
    )


def _set_frozen(agent_id: str, at: datetime | None) -> None:
    db.session.execute(
        update(Agent)
        .where(Agent.id == agent_id)
        .values(frozen_at=at)
        .execution_options(synchronize_session=False)
    )
