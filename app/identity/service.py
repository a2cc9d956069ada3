"""Agents and keys: authenticate, add, lock, claim; list, change, freeze and delete agents.

Keys are minted before the unit, so that no lock is held while sealing. A freeze is recorded on the agent; `app.wallets`
and `app.spending` enforce it.
"""

import re
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, exists, or_, select, update
from sqlalchemy.orm import Session

from app.authenticated import SealedColumn, change, seal_of, withdraw
from app.core import clock, identifiers
from app.core.pagination import Page, PageRequest
from app.db import lock_order
from app.db.prepared import PreparedInsert, PreparedRead
from app.db.tables import page_of, table_of
from app.db.unit_of_work import read_only_unit
from app.errors import NotFound, Unauthorized
from app.identity import budgets, grants
from app.identity.models import Agent, ApiKey, KeyLimit, MasterKey, OwnerKey
from app.identity.principal import KeyKind, KeyLimits, MasterKeyPrincipal, MasterKeyRole, Principal
from app.state import app_state

# Our keys have 43 characters after the prefix; anything else is refused without a query.
_API_KEY = re.compile(rf"(?:ak|gw|{grants.PREFIX})_[A-Za-z0-9_-]{{43}}", re.ASCII)
MASTER_KEY = re.compile(r"mk_[A-Za-z0-9_-]{20,200}", re.ASCII)
# Built once, because every request executes it: building it took a tenth of a small read.
_KEYS, _KEY_SEAL, _AGENT_SEAL = table_of(ApiKey), seal_of(ApiKey), seal_of(Agent)
_LIMIT_SEAL = seal_of(KeyLimit)
_LIMITS = PreparedRead(select(*_LIMIT_SEAL.columns).where(table_of(KeyLimit).c.id == bindparam("key_id")))
_IS_VALID = and_(_KEYS.c.revoked_at.is_(None), or_(_KEYS.c.expires_at.is_(None), _KEYS.c.expires_at > bindparam("now")))
_VALID_KEY = PreparedRead(
    select(
        *_KEY_SEAL.columns, budgets.is_member(_KEYS.c.id, _KEYS.c.account_id).label("has_budgets"),
        grants.rate_of(_KEYS.c.account_id),
    ).where(_KEYS.c.digest == bindparam("digest"), _IS_VALID)
)  # fmt: skip
_KEY_OF_ACCOUNT = select(_KEYS.c.id).where(
    _KEYS.c.id == bindparam("key_id"), _KEYS.c.account_id == bindparam("owner_id"), _IS_VALID
)
_INSERT_AGENT, _INSERT_KEY = PreparedInsert(Agent), PreparedInsert(ApiKey)
_MASTER_KEYS, _MASTER_KEY_SEAL = table_of(MasterKey), seal_of(MasterKey)
_IS_ACTIVE = _MASTER_KEYS.c.digest == bindparam("digest"), _MASTER_KEYS.c.active.is_(True)
_VALID_MASTER_KEY = PreparedRead(select(*_MASTER_KEY_SEAL.columns, _MASTER_KEYS.c.name).where(*_IS_ACTIVE))


class KeyMemory:
    """The principals of this process by the digest of their key. Thread-safe."""

    def __init__(self, *, lifetime: timedelta = timedelta(seconds=5), max_keys: int = 10_000) -> None:
        self._lifetime_ns = lifetime // timedelta(microseconds=1) * 1000
        self._max_keys = max_keys
        self._found: dict[str, tuple[int, Principal]] = {}
        self._lock = threading.Lock()

    def get(self, digest: str) -> Principal | None:
        """Return the principal of a key that was found in the last seconds."""
        until_ns, principal = self._found.get(digest, (0, None))
        return principal if time.monotonic_ns() < until_ns else None

    def add(self, digest: str, principal: Principal) -> None:
        """Remember a key that is valid now; if there are too many, forget the one that was found first."""
        with self._lock:
            self._found.pop(digest, None)
            if len(self._found) >= self._max_keys:
                del self._found[next(iter(self._found))]
            self._found[digest] = time.monotonic_ns() + self._lifetime_ns, principal

    def forget(self, key_id: str) -> None:
        with self._lock:
            for digest in [each for each, (_, found) in self._found.items() if found.key_id == key_id]:
                del self._found[digest]


@dataclass(frozen=True, slots=True)
class MintedKey:
    """A new key that is not in the database yet; the repr does not show it."""

    id: str
    key: str = field(repr=False)
    digest: str
    sealed: str


@dataclass(frozen=True, slots=True)
class AgentSnapshot:
    id: str
    name: str
    email: str | None
    claimed_at: datetime | None
    claimed_email: str | None
    frozen_at: datetime | None
    requests_per_minute: int | None
    created_at: datetime

    @property
    def is_frozen(self) -> bool:
        """Return whether no new payment may leave this agent's wallets."""
        return self.frozen_at is not None


def mint_api_key(kind: KeyKind) -> MintedKey:
    return mint_key(kind.value, ApiKey.__tablename__)


def find_principal(key: str | None) -> Principal | None:
    """Return the holder of an API key, or None when it is missing, malformed, unknown, expired or revoked.

    One query, and two more for a key with limits.
    """
    if key is None or not _API_KEY.fullmatch(key):
        return None
    if key.startswith(grants.PREFIX):
        return grants.find_principal(key)
    with read_only_unit() as session:
        at = {"now": clock.now()}
        row = _VALID_KEY.one_or_none(session, {"digest": identifiers.digest(key), **at})
        if row is None and key.startswith(KeyKind.GATEWAY.value):
            row = _VALID_KEY.one_or_none(session, {"digest": digest_of_limited(key), **at})
        if row is None or not _KEY_SEAL.accepts(session, row):
            return None
        of_account = {"has_budgets": row.has_budgets, "requests_per_minute": row.requests_per_minute}
        if row.agent_id is not None or row.account_id == row.id:
            return Principal(KeyKind(row.kind), row.id, row.account_id, row.agent_id, **of_account)
        limits = _LIMITS.one_or_none(session, {"key_id": row.id})
        if limits is None or not _LIMIT_SEAL.accepts(session, limits, is_expected=limits.account_id == row.account_id):
            return None
    found = KeyLimits(tuple(limits.models), limits.requests_per_minute, limits.tokens_per_minute)
    return Principal(KeyKind(row.kind), row.id, row.account_id, None, limits=found, **of_account)


def digest_of_limited(key: str) -> str:
    """Return what a key with limits is found by: not by versions that know no limits, beside which this one may run."""
    return identifiers.digest(f"limited {key}")


def recall_principal(key: str | None) -> Principal | None:
    """Return the holder of an API key as `find_principal` does, or as it did in the last seconds: then, no query.

    Only for gateway and proxy calls: all that a revoked key could still do there is be refused by the step that holds
    or charges the call's credits (`app.usage.grouped`), even for a call that costs nothing. It raises Unauthorized, and
    the key is looked up again the next time.
    """
    if key is None or not _API_KEY.fullmatch(key):
        return None
    memory, digest = app_state().part(KeyMemory), identifiers.digest(key)
    found = memory.get(digest)
    if found is None:
        found = find_principal(key)
        if found is not None:
            memory.add(digest, found)
    return found


def assert_valid_key(session: Session, key_id: str, account_id: str) -> None:
    """Check that a key may spend an account's credits now, and forget it if not. Raises: Unauthorized."""
    at = {"key_id": key_id, "owner_id": account_id, "now": clock.now()}
    if session.execute(_KEY_OF_ACCOUNT, at).first() is None:
        app_state().part(KeyMemory).forget(key_id)
        raise Unauthorized


def find_master_key(key: str | None) -> MasterKeyPrincipal | None:
    """Return the holder of a master key, or None. One query."""
    if key is None or not MASTER_KEY.fullmatch(key):
        return None
    with read_only_unit() as session:
        row = _VALID_MASTER_KEY.one_or_none(session, {"digest": identifiers.digest(key)})
        if row is None or not _MASTER_KEY_SEAL.accepts(session, row):
            return None
    return MasterKeyPrincipal(row.id, row.name, MasterKeyRole.of(key))


def add_agent(session: Session, key: MintedKey, *, name: str, email: str | None) -> str:
    """Insert an agent with its key; return its id."""
    agent_id = identifiers.new_id()
    _INSERT_AGENT.execute(session, {"id": agent_id, "name": name, "email": email, "created_at": clock.now()})
    add_key(session, key, account_id=agent_id, agent_id=agent_id)
    return agent_id


def add_key(session: Session, key: MintedKey, **values: Any) -> datetime:
    """Insert an agent's key, or without an `agent_id` a gateway-only one of an account; return the time."""
    kind, created_at = KeyKind.AGENT if "agent_id" in values else KeyKind.GATEWAY, clock.now()
    minted = {"id": key.id, "digest": key.digest, "sealed": key.sealed, "kind": kind.value, "created_at": created_at}
    _INSERT_KEY.execute(session, {**minted, **values})
    return created_at


def get_agent(session: Session, agent_id: str) -> AgentSnapshot:
    """Return an agent as the database has it now. Raises: NotFound."""
    found = session.get(Agent, agent_id, populate_existing=True)
    if found is None or found.deleted_at is not None:
        raise agent_not_found()
    _AGENT_SEAL.verify(session, found)
    return agent_snapshot(found)


def newest_keys_of(session: Session, agent_ids: Sequence[str]) -> dict[str, str]:
    """Return the newest valid key of each agent that has one; one query. The response must be `no-store`."""
    is_valid = ApiKey.agent_id.in_(agent_ids), ApiKey.revoked_at.is_(None), ApiKey.expires_at.is_(None)
    rows = session.scalars(select(ApiKey).where(*is_valid).order_by(ApiKey.created_at))
    return {str(row.agent_id): open_api_key(session, row) for row in rows}


def open_api_key(session: Session, row: ApiKey) -> str:
    """Open the key of a row; the response must be `no-store`. Raises: RowChanged, if it was moved to another agent."""
    _KEY_SEAL.verify(session, row)
    return open_key(row.sealed, ApiKey.__tablename__, row.id)


def lock_agent(session: Session, agent_id: str) -> AgentSnapshot:
    """Return an agent and hold its row until the unit ends. Raises: NotFound."""
    touch = update(Agent).where(Agent.id == agent_id, Agent.deleted_at.is_(None)).values(name=Agent.name)
    locked = session.scalars(touch.returning(Agent), execution_options={"populate_existing": True}).one_or_none()
    found = identifiers.require(locked, agent_not_found())
    _AGENT_SEAL.verify(session, found)
    return agent_snapshot(found)


def record_claim(session: Session, agent_id: str, owner_key: str, *, email: str | None, at: datetime) -> bool:
    """Record the claim of an agent and add the owner's key; return whether this call did so, not an earlier one.

    Of two concurrent claims, one waits for the other.
    """
    is_unclaimed = Agent.id == agent_id, Agent.claimed_at.is_(None), Agent.deleted_at.is_(None)
    if not change(session, Agent, *is_unclaimed, claimed_at=at, claimed_email=email):
        return False
    digest = identifiers.digest(owner_key)
    session.add(OwnerKey(id=identifiers.new_id(), owner_email=email, agent_id=agent_id, digest=digest, created_at=at))
    session.flush()
    return True


def agent_not_found() -> NotFound:
    return NotFound("There is no such agent.")


def mint_key(prefix: str, table: str) -> MintedKey:
    return seal_key(identifiers.new_key(prefix), table)


def seal_key(key: str, table: str) -> MintedKey:
    row_id = identifiers.new_id()
    return MintedKey(row_id, key, identifiers.digest(key), SealedColumn(table, "sealed").seal(key, row_id))


def open_key(sealed: str, table: str, row_id: str) -> str:
    return SealedColumn(table, "sealed").open(sealed, row_id).decode()


def agent_snapshot(agent: Agent) -> AgentSnapshot:
    return AgentSnapshot(**{name: getattr(agent, name) for name in AgentSnapshot.__slots__})


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
