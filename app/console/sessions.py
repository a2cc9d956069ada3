"""Sessions of the console: begun with a master key, ended by signing out, by time, or by revoking the key."""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ForeignKey, String, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.audit_log import actors, trail
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import Authenticated, seal_of
from app.core import clock, identifiers
from app.db.tables import ID, UtcDateTime
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.device import guess_limits
from app.errors import Unauthorized
from app.extensions import Model
from app.identity import service as identity
from app.identity.models import MasterKey
from app.identity.principal import MasterKeyPrincipal, MasterKeyRole


class ConsoleSession(Authenticated, Model):
    """A browser in which the holder of a master key is signed in."""

    __tablename__ = "console_sessions"
    not_authenticated = frozenset({"started_at"})

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    master_key_id: Mapped[str] = mapped_column(ID, ForeignKey("master_keys.id", ondelete="CASCADE"))
    role: Mapped[str] = mapped_column(String(10))
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


LIFETIME = timedelta(hours=8)
_SEAL = seal_of(ConsoleSession)


@dataclass(frozen=True, slots=True)
class LiveConsoleSession:
    """A live session, and the master key that it acts for."""

    id: str
    caller: MasterKeyPrincipal


def sign_in(master_key: str, *, network: str, previous_token: str | None) -> str:
    """Begin a session and return its token; the browser's previous one ends. Raises: Unauthorized, RateLimited."""
    found = identity.find_master_key(master_key)
    with unit_of_work() as session:
        scope = f"console {network}"
        guess_limits.lock_counter(session, scope)
        if found is None:
            guess_limits.record_miss(session, scope, service_wide=False)
        else:
            _end(session, previous_token)
            token, now = secrets.token_urlsafe(32), clock.now()
            session.add(ConsoleSession(
                id=identifiers.new_id(), digest=identifiers.digest(token), master_key_id=found.key_id,
                role=found.role.value, started_at=now, expires_at=now + LIFETIME,
            ))  # fmt: skip
            session.flush()
            # Fails if the key was revoked in between.
            actor = actors.master_key_actor(found, client_address=network)
            trail.record(session, actor, AuditEvent(AuditAction.CONSOLE_SIGN_IN, found.key_id))
    if found is None:
        raise Unauthorized("This is not a valid master key.")
    return token


def find_session(token: str | None) -> LiveConsoleSession | None:
    """Return the live session of a token, if its master key is still valid."""
    if token is None:
        return None
    with read_only_unit() as session:
        is_live = (ConsoleSession.expires_at > clock.now(), MasterKey.active.is_(True))
        row = session.execute(
            select(*_SEAL.columns, MasterKey.name)
            .join(MasterKey, MasterKey.id == ConsoleSession.master_key_id)
            .where(ConsoleSession.digest == identifiers.digest(token), *is_live)
        ).one_or_none()
        if row is None or not _SEAL.accepts(session, row):
            return None
    caller = MasterKeyPrincipal(row.master_key_id, row.name, MasterKeyRole(row.role), in_console=True)
    return LiveConsoleSession(row.id, caller)


def end_session(token: str | None) -> None:
    with unit_of_work() as session:
        _end(session, token)


def _end(session: Session, token: str | None) -> None:
    if token is not None:
        session.execute(delete(ConsoleSession).where(ConsoleSession.digest == identifiers.digest(token)))
