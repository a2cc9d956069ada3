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
from app.identity.models import Agent, OwnerKey

PREFIX = "ok"
_OWNER_KEY = re.compile(rf"{PREFIX}_[A-Za-z0-9_-]{{43}}", re.ASCII)
_SEAL = seal_of(OwnerKey)
_VALID = (
    select(*_SEAL.columns, OwnerKey.created_at)
    .select_from(OwnerKey)
    .join(Agent, Agent.id == OwnerKey.agent_id)
    .where(OwnerKey.revoked_at.is_(None), Agent.deleted_at.is_(None))
)


@dataclass(frozen=True, slots=True)
class OwnerKeyView:
    id: str
    agent_id: str
    owner_email: str | None
    created_at: datetime


def find(session: Session, key_text: str) -> OwnerKeyView | None:
    """Return the owner key and its agent; None when it is malformed, unknown or revoked."""
    key = key_text.strip()
    if not _OWNER_KEY.fullmatch(key):
        return None
    row = session.execute(_VALID.where(OwnerKey.digest == identifiers.digest(key))).one_or_none()
    return _view(row) if row is not None and _SEAL.accepts(session, row) else None


def list_valid(session: Session, key_ids: Collection[str]) -> list[OwnerKeyView]:
    rows = session.execute(_VALID.where(OwnerKey.id.in_(key_ids)).order_by(OwnerKey.created_at, OwnerKey.id))
    return [_view(row) for row in rows.all() if _SEAL.accepts(session, row)]


def is_valid(session: Session, key_id: str) -> bool:
    return bool(list_valid(session, [key_id]))


def replace(session: Session, agent_id: str, key: str, *, email: str | None) -> str:
    """Revoke a locked agent's owner keys and add a new one; return its id."""
    now = clock.now()
    change(session, OwnerKey, OwnerKey.agent_id == agent_id, OwnerKey.revoked_at.is_(None), revoked_at=now)
    digest = identifiers.digest(key)
    row = OwnerKey(id=identifiers.new_id(), owner_email=email, agent_id=agent_id, digest=digest, created_at=now)
    session.add(row)
    session.flush()
    return row.id


def _view(row: Any) -> OwnerKeyView:
    return OwnerKeyView(row.id, row.agent_id, row.owner_email, row.created_at)
