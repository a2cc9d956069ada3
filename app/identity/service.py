"""The verbs of identity: find who holds a key, add agents and keys, freeze, claim.

Those that change or read rows run in the caller's unit unless they say otherwise; `mint` needs none and is
called before the unit, so that sealing costs no lock time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import bindparam, or_, select, update
from sqlalchemy.exc import IntegrityError

from app.core import clock, identifiers
from app.core.unit_of_work import reading, unit_of_work
from app.errors import NotFound
from app.extensions import db
from app.identity.caller import Caller, KeyKind, MasterCaller
from app.identity.models import Agent, ApiKey, MasterKey, OwnerKey
from app.ports import provider
from app.ports.vault import Place

# Keys that we make have 43 letters after the prefix; anything else is refused without a look-up.
_API_KEY = re.compile(r"(?:ak|gw)_[A-Za-z0-9_-]{43}", re.ASCII)
_MASTER_KEY = re.compile(r"mk_[A-Za-z0-9_-]{20,200}", re.ASCII)
_BOOTSTRAP_NAME = "bootstrap"
# Made once, for every request asks it: making it anew took a tenth of a small read.
_VALID_KEY = select(ApiKey.kind, ApiKey.id, ApiKey.account_id, ApiKey.agent_id).where(
    ApiKey.digest == bindparam("digest"),
    ApiKey.revoked_at.is_(None),
    or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > bindparam("now")),
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
    created_at: datetime


def mint_api_key(kind: KeyKind) -> MintedKey:
    """Make an agent's or gateway-only key and seal it for its future row. Touches no database."""
    return _mint(kind.value, ApiKey.__tablename__)


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
    if key is None or not _MASTER_KEY.fullmatch(key):
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
    session.add(_api_key(key, KeyKind.AGENT, agent_id=agent.id, account_id=agent.id, at=created_at))
    session.flush()
    return _snapshot(agent)


def add_gateway_key(key: MintedKey, *, email: str | None) -> datetime:
    """Insert a gateway-only key, whose credit account has the key's own id, and return when.

    In the caller's unit.
    """
    created_at = clock.now()
    session = db.session()
    session.add(_api_key(key, KeyKind.GATEWAY, account_id=key.id, email=email, at=created_at))
    session.flush()
    return created_at


def agent(agent_id: str) -> AgentSnapshot:
    """Return an agent as the database has it now. In the caller's unit. Raises: NotFound."""
    found = db.session().get(Agent, agent_id, populate_existing=True)
    if found is None:
        raise NotFound("There is no such agent.")
    return _snapshot(found)


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
    return _open(row.sealed, ApiKey.__tablename__, row.id)


def lock_agent(agent_id: str) -> AgentSnapshot:
    """Return an agent and hold its row until the caller's unit ends. Raises: NotFound."""
    # Writing the row locks it on SQLite too, which has no FOR UPDATE.
    touch = update(Agent).where(Agent.id == agent_id).values(name=Agent.name).returning(Agent)
    found = db.session().scalars(touch, execution_options={"populate_existing": True}).one_or_none()
    if found is None:
        raise NotFound("There is no such agent.")
    return _snapshot(found)


def claim_first(agent_id: str, owner_key: str, *, email: str | None, at: datetime) -> bool:
    """Record who claimed the agent and add the owner's key, unless it was claimed before; tell which.

    Of two claims at once one is the first: the other waits for it. In the caller's unit.
    """
    session = db.session()
    won = session.execute(
        update(Agent)
        .where(Agent.id == agent_id, Agent.claimed_at.is_(None))
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


def bootstrap_master_key(key: str) -> bool:
    """Create the first master key if there is none at all, and tell whether this call did.

    Opens its own unit.

    Processes that start together are told apart by the unique digest: one of them creates it.

    Raises: ValueError when the key is too short or not of the form `mk_…`.
    """
    if not _MASTER_KEY.fullmatch(key):
        msg = "BOOTSTRAP_MASTER_KEY must be mk_ and at least 20 letters, digits, hyphens or underscores"
        raise ValueError(msg)
    minted = _seal(key, MasterKey.__tablename__)
    try:
        with unit_of_work() as session:
            if session.scalar(select(MasterKey.id).limit(1)) is not None:
                return False
            session.add(
                MasterKey(
                    id=minted.id, name=_BOOTSTRAP_NAME, digest=minted.digest, sealed=minted.sealed,
                    active=True, created_at=clock.now(),
                )
            )  # fmt: skip
    except IntegrityError:
        return False
    return True


def _mint(prefix: str, table: str) -> MintedKey:
    return _seal(identifiers.new_key(prefix), table)


def _seal(key: str, table: str) -> MintedKey:
    row_id = identifiers.new_id()
    sealed = provider.current().vault.seal(key.encode(), Place(table, "sealed", row_id))
    return MintedKey(row_id, key, identifiers.digest(key), sealed)


def _open(sealed: str, table: str, row_id: str) -> str:
    return provider.current().vault.open(sealed, Place(table, "sealed", row_id)).decode()


def _api_key(
    key: MintedKey,
    kind: KeyKind,
    *,
    account_id: str,
    at: datetime,
    agent_id: str | None = None,
    email: str | None = None,
) -> ApiKey:
    return ApiKey(
        id=key.id, kind=kind.value, agent_id=agent_id, account_id=account_id, email=email,
        digest=key.digest, sealed=key.sealed, created_at=at,
    )  # fmt: skip


def _snapshot(agent: Agent) -> AgentSnapshot:
    return AgentSnapshot(
        id=agent.id, name=agent.name, email=agent.email, claimed_at=agent.claimed_at,
        claimed_email=agent.claimed_email, created_at=agent.created_at,
    )  # fmt: skip
