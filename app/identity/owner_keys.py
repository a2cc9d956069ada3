"""Owner keys (`ok_…`): who signs in with one, and its replacement. All verbs run in the caller's unit.

A key opens one agent. It is kept as a digest only; an e-mail address proves nothing and opens nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select, update

from app.core import clock, identifiers
from app.extensions import db
from app.identity.models import Agent, OwnerKey

PREFIX = "ok"
_OWNER_KEY = re.compile(rf"{PREFIX}_[A-Za-z0-9_-]{{43}}", re.ASCII)
_VALID = (
    select(OwnerKey.id, OwnerKey.agent_id, OwnerKey.owner_email, OwnerKey.created_at)
    .join(Agent, Agent.id == OwnerKey.agent_id)
    .where(OwnerKey.revoked_at.is_(None), Agent.deleted_at.is_(None))
)


@dataclass(frozen=True, slots=True)
class OwnerKeyView:
    """A valid owner key, and the one agent that it opens."""

    id: str
    agent_id: str
    owner_email: str | None
    created_at: datetime


def find(typed: str) -> OwnerKeyView | None:
    """Return whose key this is; None when it is malformed, unknown or revoked."""
    key = typed.strip()
    if not _OWNER_KEY.fullmatch(key):
        return None
    row = db.session.execute(_VALID.where(OwnerKey.digest == identifiers.digest(key))).one_or_none()
    return OwnerKeyView(*row) if row else None


def valid(key_ids: Collection[str]) -> list[OwnerKeyView]:
    """Return those of some keys that still open their agent, the oldest first."""
    rows = db.session.execute(
        _VALID.where(OwnerKey.id.in_(key_ids)).order_by(OwnerKey.created_at, OwnerKey.id)
    )
    return [OwnerKeyView(*row) for row in rows]


def is_valid(key_id: str) -> bool:
    """Tell whether a key still opens its agent."""
    return bool(valid([key_id]))


def replace(agent_id: str, key: str, *, email: str | None) -> str:
    """Revoke a locked agent's owner keys and give it another one; return its id."""
    now = clock.now()
    db.session.execute(
        update(OwnerKey)
        .where(OwnerKey.agent_id == agent_id, OwnerKey.revoked_at.is_(None))
        .values(revoked_at=now)
        .execution_options(synchronize_session=False)
    )
    row = OwnerKey(
        id=identifiers.new_id(), owner_email=email, agent_id=agent_id,
        digest=identifiers.digest(key), created_at=now,
    )  # fmt: skip
    db.session.add(row)
    db.session.flush()
    return row.id
