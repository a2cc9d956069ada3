"""Owner keys (`ok_…`): look up and replace.

A key gives access to one agent. Only its digest is stored; an email address proves nothing and gives no access.
"""

import re
from collections.abc import Collection

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
_VALID = (
    select(OwnerKey)
    .join(Agent, Agent.id == OwnerKey.agent_id)
    .where(OwnerKey.revoked_at.is_(None), Agent.deleted_at.is_(None))
    .execution_options(populate_existing=True)
)


def find(session: Session, key_text: str, *, agent_id: str | None = None) -> OwnerKey | None:
    """Return the owner key, only of one agent if given; None when it is malformed, unknown or revoked."""
    key = key_text.strip()
    if not _OWNER_KEY.fullmatch(key):
        return None
    row = session.scalars(_VALID.where(OwnerKey.digest == identifiers.digest(key))).one_or_none()
    if row is None or agent_id not in (None, row.agent_id) or not _SEAL.accepts(session, row):
        return None
    return row


def list_valid(session: Session, key_ids: Collection[str]) -> list[OwnerKey]:
    rows = session.scalars(_VALID.where(OwnerKey.id.in_(key_ids)).order_by(OwnerKey.created_at, OwnerKey.id))
    return [row for row in rows.all() if _SEAL.accepts(session, row)]


def lock_owner(session: Session, agent_id: str) -> OwnerKey:
    """Lock an agent and return its owner. Raises: NotFound, including for an agent that was not claimed."""
    agent = lock_agent(session, identifiers.require_id(agent_id, agent_not_found()))
    for row in session.scalars(_VALID.where(OwnerKey.agent_id == agent.id)).all():
        if _SEAL.accepts(session, row):
            return row
    raise NotFound("This agent has not been claimed. Its owner can claim it with a claim code.")


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
