"""Sessions of the console: begun with a master key or its passkey, ended by signing out, by time, or with the key."""

import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from flask import request
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app.audit_log import trail
from app.audit_log.actors import Actor, ActorKind
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import seal_of
from app.console.models import ConsoleSession
from app.core import clock, identifiers
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.device import guess_limits
from app.errors import RateLimited, Unauthorized
from app.identity import master_keys
from app.identity import service as identity
from app.identity.limits import client_network
from app.identity.models import MasterKey
from app.identity.principal import MasterKeyPrincipal, MasterKeyRole
from app.observability import telemetry
from app.owner.passkeys import challenges
from app.owner.passkeys import service as passkeys
from app.owner.passkeys.challenges import RelyingParty
from app.owner.passkeys.service import PasskeyHolder
from app.owner.session.sessions import end_by_token

LIFETIME = timedelta(hours=8)
_SEAL = seal_of(ConsoleSession)


@dataclass(frozen=True, slots=True)
class LiveConsoleSession(PasskeyHolder):
    """A live session, and the master key that it acts for; without an id before it has begun."""

    caller: MasterKeyPrincipal

    subject_kind = "master_key"
    sign_in_purpose = "sign in to the console"

    @classmethod
    def find(cls, session: Session, key_id: str) -> Self | None:
        found = master_keys.find(session, key_id)
        return None if found is None else cls(key_id, key_id, "", found)

    @staticmethod
    def relying_party() -> RelyingParty:
        return challenges.relying_party(request.host)

    def actor(self) -> Actor:
        by, network = telemetry.originating_request_id(), client_network(request.remote_addr)
        return Actor(ActorKind.MASTER_KEY, self.key_id, self.caller.name, by, network)

    def lock(self, session: Session) -> None:
        master_keys.find(session, self.key_id)

    def begin_session(self, session: Session, *, previous_token: str | None) -> str:
        """Begin a session of the same master key and return its token; the previous one ends."""
        end_by_token(session, previous_token, ConsoleSession)
        token, now = secrets.token_urlsafe(32), clock.now()
        session.add(ConsoleSession(
            id=identifiers.new_id(), digest=identifiers.digest(token), master_key_id=self.key_id,
            role=self.caller.role.value, started_at=now, expires_at=now + LIFETIME,
        ))  # fmt: skip
        session.flush()
        return token

    def after_removal(self, session: Session) -> None:
        are_others = ConsoleSession.master_key_id == self.key_id, ConsoleSession.id != self.session_id
        session.execute(delete(ConsoleSession).where(*are_others))


def enter_key(master_key: str) -> LiveConsoleSession | None:
    """Return the holder of a master key that was entered; count one that is not valid. Raises: RateLimited."""
    found, scope = identity.find_master_key(master_key.strip()), f"console {client_network(request.remote_addr)}"
    with unit_of_work() as session:
        guess_limits.lock_counter(session, scope)
        if found is None:
            guess_limits.record_miss(session, scope, service_wide=False)
    return None if found is None else LiveConsoleSession(found.key_id, found.key_id, "", found)


def sign_in(master_key: str, *, previous_token: str | None) -> str:
    """Begin a session and return its token; the browser's previous one ends. Raises: Unauthorized, RateLimited."""
    found = identifiers.require(enter_key(master_key), Unauthorized("This is not a valid master key."))
    with unit_of_work() as session:
        token = found.begin_session(session, previous_token=previous_token)
        # Fails if the key was revoked in between.
        trail.record(session, found.actor(), AuditEvent(AuditAction.CONSOLE_SIGN_IN, found.key_id))
    return token


def find_refusal(current: LiveConsoleSession) -> str | None:
    """Return why the form is refused; None if a passkey has signed it or, without any, it has the master key.

    With a passkey the master key does not suffice: who has found it cannot add a passkey.
    """
    if passkeys.list_passkeys(current):
        return None if passkeys.is_signed(current) else passkeys.NOT_ACCEPTED
    try:
        found = enter_key(request.form.get("master_key", ""))
    except RateLimited as error:
        return error.message
    is_own = found is not None and found.key_id == current.key_id
    return None if is_own else "This is not the master key of this session. Nothing was changed."


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
    return LiveConsoleSession(caller.key_id, caller.key_id, row.id, caller)
