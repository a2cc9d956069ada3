"""Grants: what owners have permitted applications, and the access token of each.

An access token is an API key of the agent with less power. It has the id of its grant, so that usage, audit log and
revocation name the application, and there is one at a time: the next one replaces it.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, bindparam, delete, exists, or_, select, update
from sqlalchemy.orm import Session

from app.authenticated import RowSeal, SealedColumn, change, seal_of, withdraw
from app.core import clock, identifiers
from app.db.prepared import PreparedRead
from app.db.tables import table_of
from app.db.unit_of_work import read_only_unit
from app.identity.models import Agent, ApiKey, OwnerGrant
from app.identity.principal import Grant, KeyKind, Principal, Scope
from app.state import app_state

PREFIX = "at"
TOKEN_LIFETIME = timedelta(hours=1)
_KEYS, _GRANTS = table_of(ApiKey), table_of(OwnerGrant)
_KEY_SEAL = RowSeal(ApiKey, agent_id="key_agent_id", expires_at="key_expires_at", mac="key_mac")
_SEAL = seal_of(OwnerGrant)
_SHOWN = (*_SEAL.columns, _GRANTS.c.created_at, _GRANTS.c.used_at)
_IS_LIVE = (_GRANTS.c.ended_at.is_(None), _GRANTS.c.expires_at > bindparam("now"))
_LIVE = select(*_SHOWN).where(*_IS_LIVE)
# The column `id` of both is the same.
_IS_VALID = (_KEYS.c.revoked_at.is_(None), _KEYS.c.expires_at > bindparam("now"))


def rate_of(agent_id: Any) -> Any:
    """Return a column of the requests per minute that an operator permits an agent; NULL: RATE_LIMIT_PER_KEY."""
    return select(Agent.requests_per_minute).where(Agent.id == agent_id).scalar_subquery().label("requests_per_minute")


_OF_TOKEN = PreparedRead(
    select(*_SHOWN, *(each for each in _KEY_SEAL.columns if each.key != "id"), rate_of(_GRANTS.c.agent_id))
    .select_from(_GRANTS.join(_KEYS, _KEYS.c.id == _GRANTS.c.id))
    .where(_KEYS.c.digest == bindparam("digest"), *_IS_VALID, *_IS_LIVE)
)


def resource() -> str:
    """Return the only audience of tokens: this service, as its MCP endpoint."""
    return f"{app_state().settings.public_url}/mcp"


def find_principal(token: str) -> Principal | None:
    """Return the application that holds an access token, or None if it is unknown, expired or for another service."""
    with read_only_unit() as session:
        row = _OF_TOKEN.one_or_none(session, {"digest": identifiers.digest(token), "now": clock.now()})
        if row is None or not (_KEY_SEAL.accepts(session, row) and _SEAL.accepts(session, row)):
            return None
    if row.resource != resource():
        return None
    of_agent = {"grant": _grant(row), "requests_per_minute": row.requests_per_minute}
    return Principal(KeyKind.AGENT, row.id, row.agent_id, row.agent_id, **of_agent)


def add(session: Session, **values: Any) -> Grant:
    """Insert a grant for this service; `values` are its columns."""
    row = OwnerGrant(id=identifiers.new_id(), resource=resource(), created_at=clock.now(), **values)
    session.add(row)
    session.flush()
    return _grant(row)


def issue_token(session: Session, grant: Grant) -> tuple[str, int]:
    """Replace the access token of a grant; return the new one, and for how many seconds it is valid."""
    token, now = identifiers.new_key(PREFIX), clock.now()
    expires_at = min(now + TOKEN_LIFETIME, grant.expires_at)
    values: dict[str, Any] = {"digest": identifiers.digest(token), "expires_at": expires_at}
    if not change(session, ApiKey, ApiKey.id == grant.id, ApiKey.revoked_at.is_(None), **values):
        # The text itself is stored nowhere.
        sealed = SealedColumn(ApiKey.__tablename__, "sealed").seal("", grant.id)
        agent = {"kind": KeyKind.AGENT.value, "agent_id": grant.agent_id, "account_id": grant.agent_id}
        session.add(ApiKey(id=grant.id, **agent, sealed=sealed, created_at=now, **values))
        session.flush()
    session.execute(update(OwnerGrant).where(OwnerGrant.id == grant.id).values(used_at=now))
    return token, (expires_at - now) // timedelta(seconds=1)


def find_live(session: Session, grant_id: str) -> Grant | None:
    """Return a grant that has not ended, and whose token was not revoked with the agent's keys."""
    is_revoked = exists().where(ApiKey.id == OwnerGrant.id, ApiKey.revoked_at.is_not(None))
    row = session.execute(_LIVE.where(OwnerGrant.id == grant_id, ~is_revoked), {"now": clock.now()}).one_or_none()
    return _grant(row) if row is not None and _SEAL.accepts(session, row) else None


def find_of_token(session: Session, token: str, *, grant_id: str | None = None) -> Grant | None:
    """Return the live grant with an id, or that of an access token, even if that has expired."""
    if grant_id is None:
        grant_id = session.scalar(select(ApiKey.id).where(ApiKey.digest == identifiers.digest(token)))
    return None if grant_id is None else find_live(session, grant_id)


def list_live(session: Session, agent_id: str) -> Sequence[Grant]:
    """Return the grants of an agent that have not ended, newest first."""
    query = _LIVE.where(OwnerGrant.agent_id == agent_id).order_by(OwnerGrant.created_at.desc(), OwnerGrant.id)
    return [_grant(row) for row in session.execute(query, {"now": clock.now()}) if _SEAL.accepts(session, row)]


def end(session: Session, grant_id: str) -> bool:
    """End a grant and revoke its token; return whether this call did so."""
    now = clock.now()
    ended = withdraw(session, OwnerGrant, OwnerGrant.id == grant_id, OwnerGrant.ended_at.is_(None), ended_at=now)
    withdraw(session, ApiKey, ApiKey.id == grant_id, ApiKey.revoked_at.is_(None), revoked_at=now)
    return bool(ended)


def prune(session: Session, before: datetime, *, limit: int = 500) -> int:
    """Delete grants that ended before an instant, with their tokens; return how many."""
    is_over: ColumnElement[bool] = or_(OwnerGrant.expires_at < before, OwnerGrant.ended_at < before)
    ids = list(session.scalars(select(OwnerGrant.id).where(is_over).order_by(OwnerGrant.id).limit(limit)))
    for model in (ApiKey, OwnerGrant):
        session.execute(delete(model).where(model.id.in_(ids)))
    return len(ids)


def as_json(grant: Grant) -> dict[str, Any]:
    names = ("client_name", "client_host", "wallet_id", "session_id")
    kept = {name: value for name, value in asdict(grant).items() if name in names}
    return {**kept, "scopes": list(grant.scopes), "expires_at": clock.isoformat(grant.expires_at)}


def _grant(row: Any) -> Grant:
    return Grant(
        row.id, row.agent_id, row.client_id, row.client_name, row.client_host, tuple(map(Scope, row.scopes)),
        row.wallet_id, row.session_id, row.expires_at, row.created_at, row.used_at,
    )  # fmt: skip
