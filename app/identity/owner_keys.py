"""Owner keys (`ok_…`): look up and replace.

A key gives access to one agent. Only its digest is stored; an email address proves nothing and gives no access.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.authenticated import change, seal_of
from app.core import clock, identifiers
from app.errors import NotFound
from app.identity.models import Agent, OwnerKey
from app.identity.service import agent_not_found, lock_agent

PREFIX = "ok"
_OWNER_KEY = re.compile(rf"{PREFIX}_[A-Za-z0-9_-]{{43}}", re.ASCII)
_SEAL = seal_of(OwnerKey)
_OF_AGENTS = select(*_SEAL.columns, OwnerKey.created_at).join_from(OwnerKey, Agent, Agent.id == OwnerKey.agent_id)
_VALID = _OF_AGENTS.where(OwnerKey.revoked_at.is_(None), Agent.deleted_at.is_(None))


@dataclass(frozen=True, slots=True)
class OwnerKeyView:
    id: str
    agent_id: str
    owner_email: str | None
    created_at: datetime


def find(session: Session, key_text: str, *, agent_id: str | None = None) -> OwnerKeyView | None:
    """Return the owner key, only of one agent if given; None when it is malformed, unknown or revoked."""
    key = key_text.strip()
    if not _OWNER_KEY.fullmatch(key):
        return None
    found = _accepted(session, _VALID.where(OwnerKey.digest == identifiers.digest(key)))
    return next((each for each in found if agent_id in (None, each.agent_id)), None)


def list_valid(session: Session, key_ids: Collection[str]) -> list[OwnerKeyView]:
    return _accepted(session, _VALID.where(OwnerKey.id.in_(key_ids)).order_by(OwnerKey.created_at, OwnerKey.id))


def lock_owner(session: Session, agent_id: str) -> OwnerKeyView:
    """Lock an agent and return its owner. Raises: NotFound, including for an agent that was not claimed."""
    agent = lock_agent(session, identifiers.require_id(agent_id, agent_not_found()))
    owner = next(iter(_accepted(session, _VALID.where(OwnerKey.agent_id == agent.id))), None)
    unclaimed = NotFound("This agent has not been claimed. Its owner can claim it with a claim code.")
    return identifiers.require(owner, unclaimed)


def is_valid(session: Session, key_id: str) -> bool:
    return bool(list_valid(session, [key_id]))


def replace(session: Session, agent_id: str, key: str, *, email: str | None) -> str:
    """Revoke a locked agent's owner keys and add a new one; return its id."""
    now = clock.now()
    change(session, OwnerKey, OwnerKey.agent_id == agent_id, OwnerKey.revoked_at.is_(None), revoked_at=now)
    change(session, Agent, Agent.id == agent_id, claimed_email=email)
    digest = identifiers.digest(key)
    row = OwnerKey(id=identifiers.new_id(), owner_email=email, agent_id=agent_id, digest=digest, created_at=now)
    session.add(row)
    session.flush()
    return row.id


def _accepted(session: Session, query: Any) -> list[OwnerKeyView]:
    rows = [row for row in session.execute(query).all() if _SEAL.accepts(session, row)]
    return [OwnerKeyView(row.id, row.agent_id, row.owner_email, row.created_at) for row in rows]
