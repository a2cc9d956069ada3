"""The verbs of identity: find who holds a key, add agents and keys, lock, claim.

Those that change or read rows run in the caller's unit unless they say otherwise; `mint` needs none and is
called before the unit, so that sealing costs no lock time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import bindparam, or_, select, update

from app.core import clock, identifiers
from app.core.tables import table_of
from app.core.unit_of_work import reading
from app.errors import NotFound
from app.extensions import db
from app.identity.caller import Caller, KeyKind, MasterCaller
from app.identity.models import Agent, ApiKey, MasterKey, OwnerKey
from app.ports import provider
from app.ports.vault import Place

# Keys that we make have 43 letters after the prefix; anything else is refused without a look-up.
_API_KEY = re.compile(r"(?:ak|gw)_[A-Za-z0-9_-]{43}", re.ASCII)
MASTER_KEY = re.compile(r"mk_[A-Za-z0-9_-]{20,200}", re.ASCII)
# Made once, for every request asks it: making it anew took a tenth of a small read.
_KEYS = table_of(ApiKey)
_VALID_KEY = select(_KEYS.c.kind, _KEYS.c.id, _KEYS.c.account_id, _KEYS.c.agent_id).where(
    _KEYS.c.digest == bindparam("digest"),
    _KEYS.c.revoked_at.is_(None),
    or_(_KEYS.c.expires_at.is_(None), _KEYS.c.expires_at > bindparam("now")),
)


@dataclass(frozen=True, slots=True)
class MintedKey:
    """A fresh key that is not in the database yet; its repr does not show it."""

    id: str
    key: str = field(repr=False)
    digest: str
    sealed: str


@dataclass(frozen=True, slots=True)
class AgentSnapshot:
    """An agent as it was when read."""

    id: str
    name: str
    email: str | None
    claimed_at: datetime | None
    claimed_email: str | None
    frozen_at: datetime | None
    created_at: datetime

    @property
    def is_frozen(self) -> bool:
        """Tell whether nothing new of this agent may move."""
        return self.frozen_at is not None


def mint_api_key(kind: KeyKind) -> MintedKey:
    """Make an agent's or gateway-only key and seal it for its future row. Touches no database."""
    return mint(kind.value, ApiKey.__tablename__)


def find_caller(key: str | None) -> Caller | None:
    """Return who holds an API key, or None when it is missing, malformed, unknown, expired or revoked.

    Opens its own reading unit; one query.
    """
    if key is None or not _API_KEY.fullmatch(key):
        return None
    with reading() as session:
        found = session.execute(_VALID_KEY, {"digest": identifiers.digest(key), "now": clock.now()})
        row = found.one_or_none()
    return Caller(KeyKind(row.kind), row.id, row.account_id, row.agent_id) if row else None


def find_master(key: str | None) -> MasterCaller | None:
    """Return who holds a master key, or None. Opens its own reading unit; one query."""
    if key is None or not MASTER_KEY.fullmatch(key):
        return None
    query = select(MasterKey.id, MasterKey.name).where(
        MasterKey.digest == identifiers.digest(key), MasterKey.active.is_(True)
    )
    with reading() as session:
        row = session.execute(query).one_or_none()
    return MasterCaller(row.id, row.name) if row else None


def add_agent(key: MintedKey, *, name: str, email: str | None) -> AgentSnapshot:
    """Insert an agent and its key; two statements. In the caller's unit."""
    created_at = clock.now()
    agent = Agent(id=identifiers.new_id(), name=name, email=email, created_at=created_at)
    session = db.session()
    session.add(agent)
    session.flush()
    session.add(api_key_row(key, KeyKind.AGENT, agent_id=agent.id, account_id=agent.id, at=created_at))
    session.flush()
    return snapshot_of(agent)


def add_gateway_key(key: MintedKey, *, email: str | None) -> datetime:
    """Insert a gateway-only key, whose credit account has the key's own id, and return when.

    In the caller's unit.
    """
    created_at = clock.now()
    session = db.session()
    session.add(api_key_row(key, KeyKind.GATEWAY, account_id=key.id, email=email, at=created_at))
    session.flush()
    return created_at


def agent(agent_id: str) -> AgentSnapshot:
    """Return an agent as the database has it now. In the caller's unit. Raises: NotFound."""
    found = db.session().get(Agent, agent_id, populate_existing=True)
    if found is None or found.deleted_at is not None:
        raise no_such_agent()
    return snapshot_of(found)


def reveal_api_key(agent_id: str) -> str:
    """Open the agent's newest valid key; the answer that carries it must be `no-store`. In the caller's unit.

    Raises: NotFound when the agent has no valid key.
    """
    query = (
        select(ApiKey.id, ApiKey.sealed)
        .where(ApiKey.agent_id == agent_id, ApiKey.revoked_at.is_(None), ApiKey.expires_at.is_(None))
        .order_by(ApiKey.created_at.desc())
        .limit(1)
    )
    row = db.session().execute(query).one_or_none()
    if row is None:
        raise NotFound("This agent has no valid key.")
    return open_sealed(row.sealed, ApiKey.__tablename__, row.id)


def lock_agent(agent_id: str) -> AgentSnapshot:
    """Return an agent and hold its row until the caller's unit ends. Raises: NotFound."""
    # Writing the row locks it on SQLite too, which has no FOR UPDATE.
    touch = (
        update(Agent)
        .where(Agent.id == agent_id, Agent.deleted_at.is_(None))
        .values(name=Agent.name)
        .returning(Agent)
    )
    found = db.session().scalars(touch, execution_options={"populate_existing": True}).one_or_none()
    if found is None:
        raise no_such_agent()
    return snapshot_of(found)


def claim_first(agent_id: str, owner_key: str, *, email: str | None, at: datetime) -> bool:
    """Record who claimed the agent and add the owner's key, unless it was claimed before; tell which.

    Of two claims at once one is the first: the other waits for it. In the caller's unit.
    """
    session = db.session()
    won = session.execute(
        update(Agent)
        .where(Agent.id == agent_id, Agent.claimed_at.is_(None), Agent.deleted_at.is_(None))
        .values(claimed_at=at, claimed_email=email)
    )
    if won.rowcount != 1:  # type: ignore[attr-defined, unused-ignore]
        return False
    session.add(
        OwnerKey(
            id=identifiers.new_id(), owner_email=email, agent_id=agent_id,
            digest=identifiers.digest(owner_key), created_at=at,
        )
    )  # fmt: skip
    session.flush()
    return True


def no_such_agent() -> NotFound:
    """Make the failure for an agent that never was or was deleted."""
    return NotFound("There is no such agent.")


def mint(prefix: str, table: str) -> MintedKey:
    """Make a key of a kind and seal it for its future row in a table. Touches no database."""
    return seal(identifiers.new_key(prefix), table)


def seal(key: str, table: str) -> MintedKey:
    """Seal a key for its future row in a table."""
    row_id = identifiers.new_id()
    sealed = provider.current().vault.seal(key.encode(), Place(table, "sealed", row_id))
    return MintedKey(row_id, key, identifiers.digest(key), sealed)


def open_sealed(sealed: str, table: str, row_id: str) -> str:
    """Open the sealed key of a row."""
    return provider.current().vault.open(sealed, Place(table, "sealed", row_id)).decode()


def api_key_row(
    key: MintedKey,
    kind: KeyKind,
    *,
    account_id: str,
    at: datetime,
    agent_id: str | None = None,
    email: str | None = None,
) -> ApiKey:
    """Make the row of a minted key."""
    return ApiKey(
        id=key.id, kind=kind.value, agent_id=agent_id, account_id=account_id, email=email,
        digest=key.digest, sealed=key.sealed, created_at=at,
    )  # fmt: skip


def snapshot_of(agent: Agent) -> AgentSnapshot:
    """Return what a row says of an agent."""
    return AgentSnapshot(
        id=agent.id, name=agent.name, email=agent.email, claimed_at=agent.claimed_at,
        claimed_email=agent.claimed_email, frozen_at=agent.frozen_at, created_at=agent.created_at,
    )  # fmt: skip
