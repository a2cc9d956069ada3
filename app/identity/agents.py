"""Administration of agents: list, lock, update, freeze, delete.

A freeze is recorded on the agent; `app.wallets` and `app.spending` enforce it.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy.orm import Session

from app.authenticated import change, withdraw
from app.core import clock
from app.core.pagination import Page, PageRequest
from app.db import lock_order
from app.db.tables import page_of
from app.identity.models import Agent, ApiKey, OwnerKey
from app.identity.service import AgentSnapshot, agent_snapshot, lock_agent

DELETED_NAME = "deleted-agent"


def list_agents(
    session: Session, page: PageRequest, *, search: str = "", or_ids: Collection[str] = (), frozen: bool | None = None,
    claimed: bool | None = None,
) -> Page[AgentSnapshot]:  # fmt: skip
    """Return a page of agents, oldest first; two queries.

    With `search`, it is a part of the name or of an email address, or the agent is one of `or_ids`.
    """
    conditions: list[ColumnElement[bool]] = [Agent.deleted_at.is_(None)]
    if search:
        texts = (Agent.name, Agent.email, Agent.claimed_email)
        conditions.append(or_(*(each.icontains(search, autoescape=True) for each in texts), Agent.id.in_(or_ids)))
    for since, has_happened in ((Agent.frozen_at, frozen), (Agent.claimed_at, claimed)):
        if has_happened is not None:
            conditions.append(since.is_not(None) if has_happened else since.is_(None))
    found = page_of(session, Agent, page, *conditions)
    return Page([agent_snapshot(row) for row in found.items], found.total, found.request)


def list_ids_after(session: Session, after_id: str | None, *, limit: int) -> list[str]:
    is_later = [] if after_id is None else [Agent.id > after_id]
    query = select(Agent.id).where(Agent.deleted_at.is_(None), *is_later).order_by(Agent.id).limit(limit)
    return list(session.scalars(query))


def exists_with(agent_id: Any) -> ColumnElement[bool]:
    return exists().where(Agent.id == agent_id, Agent.deleted_at.is_(None))


def lock_agents(session: Session, agent_ids: Collection[str]) -> set[str]:
    """Lock several agents in the order of their ids; return those that exist."""
    return set(lock_order.lock_rows(session, Agent.id, Agent.id.in_(agent_ids), Agent.deleted_at.is_(None)))


def update_agent(session: Session, agent_id: str, **changes: Any) -> None:
    """Change columns of a locked agent."""
    change(session, Agent, Agent.id == agent_id, **changes)


def set_frozen(session: Session, agent_id: str, *, frozen: bool) -> AgentSnapshot:
    """Lock an agent, and freeze or unfreeze it; return it as it was. Raises: NotFound."""
    before = lock_agent(session, agent_id)
    if before.is_frozen is not frozen:
        frozen_at = clock.now() if frozen else None
        change(session, Agent, Agent.id == agent_id, frozen_at=frozen_at)
    return before


def delete_agent(session: Session, agent_id: str) -> None:
    """Delete a locked agent: revoke its keys and its owner's, and keep only its row."""
    now = clock.now()
    for table, belongs in ((ApiKey, ApiKey.account_id == agent_id), (OwnerKey, OwnerKey.agent_id == agent_id)):
        withdraw(session, table, belongs, table.revoked_at.is_(None), revoked_at=now)
    change(session, Agent, Agent.id == agent_id, name=DELETED_NAME, deleted_at=now)
