"""Owner sessions: begun with an owner key or a claim, extended by further keys, ended.

A session gives access to the agents of the owner keys entered in it, and none by email: an agent can be claimed under
another person's address. Whenever a session is extended, its token changes; the database has only its digest. Each
function opens its own unit of work unless its docstring says otherwise.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import ForeignKey, Row, Select, String, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.agents import claims
from app.agents.claims import CodeKind
from app.audit_log import actors, trail
from app.audit_log.actors import Actor, owner_actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import Authenticated, RowSeal, change, seal_of
from app.core import clock, identifiers
from app.db.prepared import PreparedInsert
from app.db.tables import ID, UtcDateTime, count
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.device import guess_limits
from app.errors import LimitReached, RateLimited, Unauthorized
from app.events import targets
from app.events.targets import Audience, Subscriber
from app.extensions import Model
from app.identity import owner_keys
from app.identity import service as identity
from app.identity.owner_keys import OwnerKeyView
from app.state import app_state


class OwnerSession(Authenticated, Model):
    """A browser in which an owner is signed in. It ends when the row is deleted."""

    __tablename__ = "owner_sessions"
    not_authenticated = frozenset({"started_at"})

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class OwnerSessionKey(Authenticated, Model):
    """An owner key that was entered in a session: the session opens that key's agent, and no other."""

    __tablename__ = "owner_session_keys"
    not_authenticated = frozenset()

    session_id: Mapped[str] = mapped_column(ID, ForeignKey("owner_sessions.id", ondelete="CASCADE"), primary_key=True)
    owner_key_id: Mapped[str] = mapped_column(
        ID, ForeignKey("owner_keys.id", ondelete="CASCADE"), primary_key=True, index=True
    )


SESSION_LIFETIME = timedelta(hours=12)
MAX_AGENTS = 50
_SEAL, _KEY_SEAL = seal_of(OwnerSession), RowSeal(OwnerSessionKey, mac="key_mac")
_INSERT_KEY = PreparedInsert(OwnerSessionKey, unique=[OwnerSessionKey.session_id, OwnerSessionKey.owner_key_id])


@dataclass(frozen=True, slots=True)
class LiveSession:
    """A live session and the valid keys that were entered in it."""

    id: str
    expires_at: datetime
    keys: tuple[OwnerKeyView, ...]


def find_session(token: str | None) -> LiveSession | None:
    """Return the live session of a token, or None if it has ended or none of its keys is still valid."""
    if token is None:
        return None
    with read_only_unit() as session:
        rows = session.execute(
            select(*_SEAL.columns, *_KEY_SEAL.columns)
            .select_from(OwnerSession)
            .join(OwnerSessionKey, OwnerSessionKey.session_id == OwnerSession.id)
            .where(OwnerSession.digest == identifiers.digest(token), OwnerSession.expires_at > clock.now())
        ).all()
        if not rows or not _SEAL.accepts(session, rows[0]):
            return None
        entered = [row.owner_key_id for row in rows if _KEY_SEAL.accepts(session, row)]
        keys = tuple(owner_keys.list_valid(session, entered))
    return LiveSession(rows[0].id, rows[0].expires_at, keys) if keys else None


def enter_key(
    owner_key: str, *, network: str, current: LiveSession | None = None, previous_token: str | None = None
) -> tuple[str, OwnerKeyView]:
    """Add an agent to the current session with its owner key, or begin a session that ends the browser's previous one.

    Returns the new token of the session, and the key.

    Raises: Unauthorized, RateLimited, LimitReached.
    """
    with _typed(network, partial(owner_keys.find, key_text=owner_key)) as (session, key):
        claims.erase_response_of(session, key.agent_id)
        if current is None:
            token = begin_session(session, key, previous_token=previous_token)
        else:
            token = _add_key(session, current.id, key.id)
        trail.record(session, owner_actor(key.id), AuditEvent(AuditAction.OWNER_SIGN_IN, key.agent_id))
        return token, key


def begin_session(session: Session, key: OwnerKeyView, *, previous_token: str | None) -> str:
    """Begin a session of an authenticated owner and return its token; the previous session ends."""
    claims.erase_response_of(session, key.agent_id)
    end_by_token(session, previous_token)
    return _create_session(session, key.id)


def use_code(code: str, key: str | None, *, network: str) -> tuple[str, str, list[str]]:
    """Make the holder of a code the owner if a new key is given; return agent, kind, and removed email addresses."""
    with _typed(network, partial(claims.find_owner_code, typed=code)) as (session, (used, old)):
        if key is None:
            return old.agent_id, used.kind, []
        is_handover, removed = used.kind == CodeKind.HANDOVER, list[str]()
        if owner_keys.lock_owner(session, old.agent_id).id != old.id:
            raise Unauthorized("This owner key was replaced.")
        key_id = owner_keys.replace(session, old.agent_id, key, email=None if is_handover else old.owner_email)
        claims.use_owner_code(session, used, new_key_id=key_id)
        claims.erase_response_of(session, old.agent_id)
        if is_handover:
            removed = targets.remove_all(session, Subscriber(Audience.OWNER, old.agent_id))
            claims.end_connections(session, old.agent_id, reason="handover")
        claims.announce(session, owner_actor(key_id), old.agent_id, f"{used.kind}_used")
        return old.agent_id, used.kind, removed


@contextmanager
def _typed(network: str, find: Callable[[Session], Any], agent_id: str | None = None) -> Iterator[tuple[Session, Any]]:
    """Open a unit with what a typed key or code is. Count a wrong one as a guess, and record it; of many, some.

    Raises: Unauthorized for a wrong one; RateLimited.
    """
    with unit_of_work() as session:
        # Counted separately from claim codes: their service-wide limit must not be consumed here.
        scope = f"owner {network}"
        guess_limits.lock_counter(session, scope)
        if (found := find(session)) is not None:
            yield session, found
            return
        guess_limits.record_miss(session, scope, service_wide=False)
    # Anybody can send them.
    with suppress(RateLimited):
        app_state().rate_limiter.count("20 per hour", "wrong-owner-key", agent_id or "sign-in")
        trail.record_alone(actors.anonymous_actor(network), AuditAction.OWNER_KEY_REFUSED, agent_id)
    raise Unauthorized("This key or code is not valid.")


def open_claimed_agent(owner_key: str, *, current: str | None) -> tuple[str, list[str]]:
    """Add the agent to the browser's live session, or to a new one; return the token, and the first recovery codes."""
    found = find_session(current)
    with unit_of_work() as session:
        key = identifiers.require(owner_keys.find(session, owner_key), Unauthorized("This key is not valid."))
        # The result of a claim must always be shown, so a full session is replaced by a new one.
        is_full = found is not None and len(found.keys) >= MAX_AGENTS
        token = _create_session(session, key.id) if found is None or is_full else _add_key(session, found.id, key.id)
    codes, *_ = claims.create_owner_codes(owner_actor(key.id), key.agent_id, CodeKind.RECOVERY_CODE, only_first=True)
    return token, codes


def verify_owner_key(typed_key: str, key: OwnerKeyView, *, network: str) -> bool:
    """Return whether an owner key entered again is the agent's own; a wrong one is counted. Raises: RateLimited."""
    try:
        find = partial(owner_keys.find, key_text=typed_key, agent_id=key.agent_id)
        with _typed(network, find, key.agent_id):
            return True
    except Unauthorized:
        return False


def acting_owner(key: OwnerKeyView) -> Actor:
    """Return the owner as the actor of a change. From the first change on, the claim's result is not repeated."""
    with unit_of_work() as session:
        claims.erase_response_of(session, key.agent_id)
    return owner_actor(key.id)


def end_session(token: str | None, kind: Any = OwnerSession) -> None:
    with unit_of_work() as session:
        end_by_token(session, token, kind)


def end_other_sessions(current: LiveSession) -> None:
    """End every other session that opens any agent of this one."""
    others = OwnerSession.id.in_(_related_session_ids(current)), OwnerSession.id != current.id
    with unit_of_work() as session:
        session.execute(delete(OwnerSession).where(*others))


def end_sessions_of_key(session: Session, key_id: str, *, except_id: str) -> None:
    """End every session that has an owner key but one."""
    with_key = select(OwnerSessionKey.session_id).where(OwnerSessionKey.owner_key_id == key_id)
    session.execute(delete(OwnerSession).where(OwnerSession.id.in_(with_key), OwnerSession.id != except_id))


def list_sessions(current: LiveSession) -> Sequence[Row[str, datetime, datetime]]:
    """Return the live sessions that open any agent of this one, newest first."""
    is_shown = OwnerSession.id.in_(_related_session_ids(current)), OwnerSession.expires_at > clock.now()
    found = select(OwnerSession.id, OwnerSession.started_at, OwnerSession.expires_at).where(*is_shown)
    with read_only_unit() as session:
        return session.execute(found.order_by(OwnerSession.started_at.desc())).all()


def replace_owner_key(actor: Actor, current: LiveSession, old: OwnerKeyView) -> tuple[str, str]:
    """Replace an agent's owner key; return the new one and the session's new token.

    The previous key becomes invalid in all other sessions, and for repeating the claim.

    Raises: NotFound; Unauthorized if the key was concurrently replaced.
    """
    key = identifiers.new_key(owner_keys.PREFIX)
    with unit_of_work() as session:
        identity.lock_agent(session, old.agent_id)
        if not owner_keys.is_valid(session, old.id):
            raise Unauthorized("This owner key was replaced.")
        new_id = owner_keys.replace(session, old.agent_id, key, email=old.owner_email)
        claims.erase_response_of(session, old.agent_id)
        token, before = _add_key(session, current.id, new_id), {"key_id": old.id}
        after = {"key_id": new_id, "disabled_targets": targets.disable_set_up_by(session, owner_of=old.agent_id)}
        act = AuditEvent(AuditAction.OWNER_KEY_REPLACED, old.agent_id, before=before, after=after)
        # From here on the new key is the actor.
        actor = replace(actor, id=new_id)
        trail.record(session, actor, act)
        claims.announce(session, actor, old.agent_id, "owner_key_replaced")
        return key, token


def _create_session(session: Session, key_id: str) -> str:
    token, session_id, now = secrets.token_urlsafe(32), identifiers.new_id(), clock.now()
    times = {"started_at": now, "expires_at": now + SESSION_LIFETIME}
    session.add(OwnerSession(id=session_id, digest=identifiers.digest(token), **times))
    _INSERT_KEY.execute(session, {"session_id": session_id, "owner_key_id": key_id})
    return token


def _add_key(session: Session, session_id: str, key_id: str) -> str:
    token = secrets.token_urlsafe(32)
    is_live = OwnerSession.id == session_id, OwnerSession.expires_at > clock.now()
    if not change(session, OwnerSession, *is_live, digest=identifiers.digest(token)):
        # A concurrent request has ended it.
        return _create_session(session, key_id)
    _INSERT_KEY.execute(session, {"session_id": session_id, "owner_key_id": key_id})
    if count(session, OwnerSessionKey, OwnerSessionKey.session_id == session_id) > MAX_AGENTS:
        raise LimitReached(f"A session can have at most {MAX_AGENTS} agents; sign out and sign in again.")
    return token


def end_by_token(session: Session, token: str | None, kind: Any = OwnerSession) -> None:
    """End the session of an owner, or of another kind, that has a token."""
    if token is not None:
        session.execute(delete(kind).where(kind.digest == identifiers.digest(token)))


def _related_session_ids(current: LiveSession) -> Select[str]:
    keys = [key.id for key in current.keys]
    return select(OwnerSessionKey.session_id).where(OwnerSessionKey.owner_key_id.in_(keys))
