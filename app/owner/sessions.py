"""Sessions: begun with an owner key or by a claim, widened by further keys, ended. Stories, each with its own unit.

A session opens the agents whose owner keys were shown in it, and none by e-mail: anybody can claim an agent of their
own under somebody else's address. Whenever a session opens more than before, its token changes.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from app.agents import claims
from app.core import clock, identifiers
from app.core.unit_of_work import reading, unit_of_work
from app.device import guesses
from app.errors import LimitReached, Unauthorized
from app.extensions import db
from app.identity import owner_keys
from app.identity import service as identity
from app.identity.owner_keys import OwnerKeyView
from app.owner.models import OwnerSession, OwnerSessionKey
from app.platform import trail
from app.platform.actors import Actor
from app.platform.trail import Act, Action, SubjectKind

LASTS = timedelta(hours=12)
MAX_AGENTS = 50
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Session:
    """A live session and the valid keys that were shown in it."""

    id: str
    started_at: datetime
    expires_at: datetime
    keys: tuple[OwnerKeyView, ...]

    def key_for(self, agent_id: str) -> OwnerKeyView | None:
        """Return the key that opens an agent in this session, if one does."""
        return next((key for key in self.keys if key.agent_id == agent_id), None)


@dataclass(frozen=True, slots=True)
class Listed:
    """A session as its owner sees it in a list."""

    id: str
    started_at: datetime
    expires_at: datetime


def find(token: str | None) -> Session | None:
    """Return the live session of a token, None when it has ended or none of its keys opens anything any more."""
    if token is None or not _TOKEN.fullmatch(token):
        return None
    with reading() as session:
        rows = session.execute(
            select(
                OwnerSession.id,
                OwnerSession.started_at,
                OwnerSession.expires_at,
                OwnerSessionKey.owner_key_id,
            )
            .join(OwnerSessionKey, OwnerSessionKey.session_id == OwnerSession.id)
            .where(OwnerSession.digest == identifiers.digest(token), OwnerSession.expires_at > clock.now())
        ).all()
        keys = tuple(owner_keys.valid([row.owner_key_id for row in rows])) if rows else ()
    if not keys:
        return None
    return Session(rows[0].id, rows[0].started_at, rows[0].expires_at, keys)


def sign_in(typed: str, *, network: str, replacing: str | None) -> tuple[str, OwnerKeyView]:
    """Begin a session with an owner key and return its token; the browser's session before, if any, ends.

    Raises: Unauthorized, RateLimited.
    """
    with unit_of_work():
        key = _shown(typed, network)
        if key is not None:
            _end(replacing)
            return _begin(key.id), key
    raise _no_such_key()


def add(current: Session, typed: str, *, network: str) -> tuple[str, OwnerKeyView]:
    """Open one more agent in a session with its owner key; return the session's new token.

    Raises: Unauthorized, RateLimited, LimitReached.
    """
    with unit_of_work():
        key = _shown(typed, network)
        if key is not None:
            return _widen(current.id, key.id), key
    raise _no_such_key()


def after_claim(owner_key: str, *, current: str | None) -> str:
    """Open the agent that was just claimed: in the browser's live session, else in a new one; return the token."""
    found = find(current)
    with unit_of_work():
        key = owner_keys.find(owner_key)
        if key is None:
            raise _no_such_key()
        # Nothing may keep the claim's answer from the person, so a session that is full makes way for a new one.
        is_full = found is not None and len(found.keys) >= MAX_AGENTS
        return _begin(key.id) if found is None or is_full else _widen(found.id, key.id)


def is_proven(typed: str, key: OwnerKeyView, *, network: str) -> bool:
    """Tell whether an owner key that was typed once more is the agent's own; a wrong one is counted.

    Raises: RateLimited.
    """
    with unit_of_work():
        shown = _shown(typed, network, agent_id=key.agent_id)
    return shown is not None


def end(token: str | None) -> None:
    """End the session of a token; nothing to do when there is none."""
    with unit_of_work():
        _end(token)


def end_others(current: Session) -> int:
    """End every other session that opens any agent of this one; return how many."""
    with unit_of_work() as session:
        ended = session.execute(
            delete(OwnerSession)
            .where(OwnerSession.id.in_(_sharing(current)), OwnerSession.id != current.id)
            .returning(OwnerSession.id)
            .execution_options(synchronize_session=False)
        ).all()
    return len(ended)


def listed(current: Session) -> list[Listed]:
    """Return the live sessions that open any agent of this one, the newest first."""
    with reading() as session:
        rows = session.execute(
            select(OwnerSession.id, OwnerSession.started_at, OwnerSession.expires_at)
            .where(OwnerSession.id.in_(_sharing(current)), OwnerSession.expires_at > clock.now())
            .order_by(OwnerSession.started_at.desc())
        )
        return [Listed(*row) for row in rows]


def replace_owner_key(actor: Actor, current: Session, old: OwnerKeyView) -> tuple[str, str]:
    """Give an agent another owner key; return it and the session's new token.

    The key before opens nothing any more, in no session but this one, nor by repeating the claim.

    Raises: NotFound; Unauthorized when the key was replaced meanwhile.
    """
    key = identifiers.new_key(owner_keys.PREFIX)
    with unit_of_work():
        identity.lock_agent(old.agent_id)
        if not owner_keys.is_valid(old.id):
            raise Unauthorized("This owner key was replaced meanwhile.")
        new_id = owner_keys.replace(old.agent_id, key, email=old.owner_email)
        claims.forget_answer_of(old.agent_id)
        token = _widen(current.id, new_id)
        act = Act(
            Action.OWNER_KEY_REPLACED,
            SubjectKind.AGENT,
            old.agent_id,
            before={"key_id": old.id},
            after={"key_id": new_id},
        )
        # From here on it is the new key that acts.
        trail.record(replace(actor, id=new_id), act)
        return key, token


def prune(now: datetime) -> int:
    """Forget sessions that are over; return how many. In the caller's unit."""
    gone = db.session.execute(
        delete(OwnerSession)
        .where(OwnerSession.expires_at <= now)
        .returning(OwnerSession.id)
        .execution_options(synchronize_session=False)
    ).all()
    return len(gone)


def _shown(typed: str, network: str, *, agent_id: str | None = None) -> OwnerKeyView | None:
    """Find a typed key, counted as a guess when it is wrong. The unit that got None must return, not raise."""
    # Apart from guesses at claim codes, whose service-wide limit must not be used up from here.
    scope = f"owner {network}"
    guesses.enter(scope)
    key = owner_keys.find(typed)
    if key is None or (agent_id is not None and key.agent_id != agent_id):
        guesses.count_miss(scope, everywhere=False)
        return None
    return key


def _begin(key_id: str) -> str:
    token, now = _new_token(), clock.now()
    session_id = identifiers.new_id()
    db.session.add(
        OwnerSession(id=session_id, digest=identifiers.digest(token), started_at=now, expires_at=now + LASTS)
    )
    db.session.flush()
    _insert_key(session_id, key_id)
    return token


def _widen(session_id: str, key_id: str) -> str:
    token = _new_token()
    changed = db.session.execute(
        update(OwnerSession)
        .where(OwnerSession.id == session_id, OwnerSession.expires_at > clock.now())
        .values(digest=identifiers.digest(token))
        .returning(OwnerSession.id)
        .execution_options(synchronize_session=False)
    ).first()
    if changed is None:
        # It was ended by another click.
        return _begin(key_id)
    _insert_key(session_id, key_id)
    count = db.session.scalar(
        select(func.count()).select_from(OwnerSessionKey).where(OwnerSessionKey.session_id == session_id)
    )
    if count and count > MAX_AGENTS:
        raise LimitReached(f"One session opens at most {MAX_AGENTS} agents; sign out and sign in anew.")
    return token


def _insert_key(session_id: str, key_id: str) -> None:
    insert = sqlite.insert if db.session.get_bind().dialect.name == "sqlite" else postgresql.insert
    db.session.execute(
        insert(OwnerSessionKey)
        .values(session_id=session_id, owner_key_id=key_id)
        .on_conflict_do_nothing(index_elements=["session_id", "owner_key_id"])
    )


def _end(token: str | None) -> None:
    if token is not None and _TOKEN.fullmatch(token):
        db.session.execute(
            delete(OwnerSession)
            .where(OwnerSession.digest == identifiers.digest(token))
            .execution_options(synchronize_session=False)
        )


def _sharing(current: Session) -> Select[str]:
    keys = [key.id for key in current.keys]
    return select(OwnerSessionKey.session_id).where(OwnerSessionKey.owner_key_id.in_(keys))


def _new_token() -> str:
    return secrets.token_urlsafe(32)


def _no_such_key() -> Unauthorized:
    return Unauthorized("This is no owner key that opens an agent here.")
