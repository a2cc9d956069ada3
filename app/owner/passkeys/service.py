"""Passkeys: add, list, remove, and verify what one has signed; and the confirmation of a sensitive form.

A passkey belongs to one owner key. Replacing that key is the recovery, and ends its passkeys as well. The private keys
never leave the owners' devices. A form is confirmed by the owner key, typed again, or by a passkey.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import webauthn
from flask import request
from sqlalchemy import BigInteger, ForeignKey, LargeBinary, Row, String, and_, delete, or_, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column
from webauthn.authentication.verify_authentication_response import VerifiedAuthentication
from webauthn.helpers import parse_authentication_credential_json, parse_registration_credential_json
from webauthn.helpers.exceptions import WebAuthnException
from webauthn.helpers.structs import AuthenticationCredential, CredentialDeviceType
from webauthn.registration.verify_registration_response import VerifiedRegistration

from app.agents import claims
from app.agents.claims import CodeKind
from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import Authenticated, seal_of
from app.core import clock, identifiers
from app.core.strict_json import parse_response
from app.db.prepared import PreparedInsert
from app.db.tables import ID, UtcDateTime, count, table_of
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import LimitReached, RateLimited, Unauthorized
from app.extensions import Model
from app.identity import owner_keys
from app.identity import service as identity
from app.identity.limits import client_network
from app.identity.owner_keys import OwnerKeyView
from app.owner.passkeys import challenges
from app.owner.passkeys.challenges import PasskeyPrompt
from app.owner.session import sessions
from app.owner.session.auth import current_session


class OwnerPasskey(Authenticated, Model):
    """A passkey that opens the agent of one owner key, as long as that key is valid."""

    __tablename__ = "owner_passkeys"
    not_authenticated = frozenset({"sign_count", "backup_eligible", "name", "created_at", "used_at"})

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner_key_id: Mapped[str] = mapped_column(ID, ForeignKey("owner_keys.id", ondelete="CASCADE"), index=True)
    credential_digest: Mapped[str] = mapped_column(String(64), unique=True)
    credential_id: Mapped[bytes] = mapped_column(LargeBinary)
    public_key: Mapped[bytes] = mapped_column(LargeBinary)
    sign_count: Mapped[int] = mapped_column(BigInteger)
    # Whether it may be copied to other devices; null if it was added before this was stored, and not used since.
    backup_eligible: Mapped[bool | None]
    name: Mapped[str] = mapped_column(String(60))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class UsedPasskeyChallenge(Model):
    """A challenge that an authenticator has signed: it is not accepted again."""

    __tablename__ = "used_passkey_challenges"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


MAX_PASSKEYS = 10
MAX_NAME_CHARACTERS = 60
_MAX_RESPONSE_CHARACTERS = 8_192
# Longer than a challenge is valid; an approval is decided once in any case.
_CHALLENGES_KEPT = timedelta(days=1)
_INSERT_PASSKEY = PreparedInsert(OwnerPasskey, unique=[OwnerPasskey.credential_digest])
_INSERT_CHALLENGE = PreparedInsert(UsedPasskeyChallenge, unique=[UsedPasskeyChallenge.digest])
# What the library raises for malformed input.
_MALFORMED = (WebAuthnException, ValueError, TypeError, KeyError, IndexError, AttributeError)


@dataclass(frozen=True, slots=True)
class VerifiedPasskey:
    """A passkey that has signed a challenge, its owner key, and the signature with all that verifies it."""

    id: str
    owner: OwnerKeyView
    evidence: Mapping[str, str]


def list_passkeys(owner: OwnerKeyView) -> Sequence[Row[str, str, datetime, datetime | None]]:
    """Return the id, name and times of an owner key's passkeys, oldest first."""
    columns = OwnerPasskey.id, OwnerPasskey.name, OwnerPasskey.created_at, OwnerPasskey.used_at
    listed = select(*columns).where(OwnerPasskey.owner_key_id == owner.id)
    with read_only_unit() as session:
        return session.execute(listed.order_by(OwnerPasskey.created_at, OwnerPasskey.id)).all()


def list_credential_ids(owner: OwnerKeyView) -> list[bytes]:
    """Return the ids by which authenticators find an owner key's passkeys."""
    with read_only_unit() as session:
        ids = select(OwnerPasskey.credential_id).where(OwnerPasskey.owner_key_id == owner.id)
        return list(session.scalars(ids.order_by(OwnerPasskey.id)))


def add_passkey(actor: Actor, owner: OwnerKeyView, challenge: bytes | None, response: str, *, name: str) -> None:
    """Add the passkey that a browser has created. Raises: Unauthorized, LimitReached."""
    party = challenges.relying_party()
    if challenge is None or len(response) > _MAX_RESPONSE_CHARACTERS:
        raise _refused()
    try:
        created = webauthn.verify_registration_response(
            credential=response, expected_challenge=challenge, expected_rp_id=party.id, expected_origin=party.origin,
            require_user_verification=True,
        )  # fmt: skip
        _assert_same_origin(parse_registration_credential_json(response).response.client_data_json)
    except _MALFORMED:
        raise _refused() from None
    with unit_of_work() as session:
        identity.lock_agent(session, owner.agent_id)
        if not owner_keys.is_valid(session, owner.id) or not _use_challenge(session, challenge):
            raise _refused()
        if count(session, OwnerPasskey, OwnerPasskey.owner_key_id == owner.id) >= MAX_PASSKEYS:
            raise LimitReached(f"An agent can have at most {MAX_PASSKEYS} passkeys; remove one first.")
        passkey_id = identifiers.new_id()
        values = {
            "id": passkey_id, "owner_key_id": owner.id, "name": name, "created_at": clock.now(),
            "credential_digest": _digest(created.credential_id), "credential_id": created.credential_id,
            "public_key": created.credential_public_key, "sign_count": created.sign_count,
            "backup_eligible": _is_backup_eligible(created),
        }  # fmt: skip
        if not _INSERT_PASSKEY.execute(session, values):
            raise _refused()
        after = {"passkey_id": passkey_id, "name": name}
        trail.record(session, actor, AuditEvent(AuditAction.PASSKEY_ADDED, owner.agent_id, after=after))


def remove_passkey(actor: Actor, owner: OwnerKeyView, passkey_id: str, *, current_session_id: str) -> bool:
    """Remove a passkey and end the agent's other sessions; return whether there was one. Raises: LimitReached."""
    is_meant = OwnerPasskey.id == passkey_id, OwnerPasskey.owner_key_id == owner.id
    with unit_of_work() as session:
        identity.lock_agent(session, owner.agent_id)
        removed = session.scalars(delete(OwnerPasskey).where(*is_meant).returning(OwnerPasskey.name)).one_or_none()
        if removed is None:
            return False
        is_last = not count(session, OwnerPasskey, OwnerPasskey.owner_key_id == owner.id)
        if is_last and not claims.list_owner_codes(session, owner.id)[CodeKind.RECOVERY_CODE]:
            raise LimitReached("This is your last passkey, and you have no recovery code. Make recovery codes first.")
        sessions.end_sessions_of_key(session, owner.id, except_id=current_session_id)
        before = {"passkey_id": passkey_id, "name": removed}
        trail.record(session, actor, AuditEvent(AuditAction.PASSKEY_REMOVED, owner.agent_id, before=before))
    return True


def verify_assertion(
    session: Session, owner: OwnerKeyView | None, challenge: bytes | None, assertion: str
) -> VerifiedPasskey | None:
    """Return the passkey that signed a challenge, only one of `owner` if given; None if it is refused.

    A challenge is accepted once. A unit that receives None must return, not raise: a counter that did not increase is
    recorded in the audit log.
    """
    if challenge is None or len(assertion) > _MAX_RESPONSE_CHARACTERS:
        return None
    try:
        response = parse_authentication_credential_json(assertion)
    except _MALFORMED:
        return None
    is_named = OwnerPasskey.credential_digest == _digest(response.raw_id)
    row = session.scalars(select(OwnerPasskey).where(is_named)).one_or_none()
    is_other = row is None or (owner is not None and owner.id != row.owner_key_id)
    if row is None or is_other or not seal_of(OwnerPasskey).accepts(session, row):
        return None
    valid = owner_keys.list_valid(session, [row.owner_key_id])
    verified = _verified(row, challenge, response) if valid else None
    if verified is None or not _use_challenge(session, challenge):
        return None
    if not _advance_counter(session, row.id, verified):
        after = {"passkey_id": row.id, "counter": verified.new_sign_count, "stored_counter": row.sign_count}
        refused = AuditEvent(AuditAction.PASSKEY_REFUSED, valid[0].agent_id, after=after)
        trail.record(session, sessions.owner_as_actor(valid[0]), refused)
        return None
    signed = {
        "credential_id": row.credential_id, "public_key": row.public_key,
        "authenticator_data": response.response.authenticator_data, "client_data": response.response.client_data_json,
        "signature": response.response.signature,
    }  # fmt: skip
    evidence = {name: base64.b64encode(value).decode() for name, value in signed.items()}
    return VerifiedPasskey(row.id, valid[0], {"passkey_id": row.id, **evidence})


def sign_in(challenge: bytes | None, assertion: str, *, previous_token: str | None) -> tuple[str, OwnerKeyView]:
    """Begin a session with a passkey and return its token. Raises: Unauthorized."""
    with unit_of_work() as session:
        found = verify_assertion(session, None, challenge, assertion)
        if found is not None:
            token = sessions.begin_session(session, found.owner, previous_token=previous_token)
            act = AuditEvent(AuditAction.PASSKEY_SIGN_IN, found.owner.agent_id, after={"passkey_id": found.id})
            trail.record(session, sessions.owner_as_actor(found.owner), act)
            return token, found.owner
    raise _refused()


def _verified(row: OwnerPasskey, challenge: bytes, response: AuthenticationCredential) -> VerifiedAuthentication | None:
    party = challenges.relying_party()
    if response.response.user_handle not in (None, UUID(row.owner_key_id).bytes):
        return None
    try:
        _assert_same_origin(response.response.client_data_json)
        # The counter is compared when it is stored, so that of two concurrent assertions one is refused.
        verified = webauthn.verify_authentication_response(
            credential=response, expected_challenge=challenge, expected_rp_id=party.id, expected_origin=party.origin,
            credential_public_key=row.public_key, credential_current_sign_count=0, require_user_verification=True,
        )  # fmt: skip
    except _MALFORMED:
        return None
    # The authenticator says at the creation whether a passkey may be copied; another answer is another key's.
    return verified if row.backup_eligible in (None, _is_backup_eligible(verified)) else None


def _is_backup_eligible(verified: VerifiedRegistration | VerifiedAuthentication) -> bool:
    return verified.credential_device_type is CredentialDeviceType.MULTI_DEVICE


def _assert_same_origin(client_data: bytes) -> None:
    """Refuse what was signed in a frame of another origin (WebAuthn Level 3, section 7.2). Raises: ValueError."""
    stated = parse_response(client_data)
    if not isinstance(stated, dict):
        raise TypeError("client data must be an object")
    if stated.get("crossOrigin", False) is not False or stated.get("topOrigin") is not None:
        raise ValueError("signed in a frame of another origin")


def _advance_counter(session: Session, passkey_id: str, verified: VerifiedAuthentication) -> bool:
    new_count = verified.new_sign_count
    # Authenticators without a counter always send 0 (WebAuthn, section 6.1.1).
    has_none = and_(OwnerPasskey.sign_count == new_count, OwnerPasskey.sign_count == 0)
    advanced: Any = session.execute(
        update(table_of(OwnerPasskey))
        .where(OwnerPasskey.id == passkey_id, or_(OwnerPasskey.sign_count < new_count, has_none))
        .values(sign_count=new_count, used_at=clock.now(), backup_eligible=_is_backup_eligible(verified))
    )
    return bool(advanced.rowcount)


def _use_challenge(session: Session, challenge: bytes) -> bool:
    values = {"digest": _digest(challenge), "expires_at": clock.now() + _CHALLENGES_KEPT}
    return bool(_INSERT_CHALLENGE.execute(session, values))


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


def _refused() -> Unauthorized:
    return Unauthorized("This passkey was not accepted.")


def prompt_for(key: OwnerKeyView) -> PasskeyPrompt | None:
    """Return the prompt of a form that asks for the owner key; None if the owner has no passkey."""
    credential_ids = list_credential_ids(key)
    return challenges.prompt_to_use(_purpose(key), credential_ids) if credential_ids else None


def check_owner(key: OwnerKeyView) -> tuple[bool, str]:
    """Return whether the form contains the agent's owner key or a passkey's signature, and the message if not."""
    assertion, owner_key = request.form.get("passkey", ""), request.form.get("owner_key", "").strip()
    if assertion:
        nonce = challenges.challenge_of(_purpose(key), request.form.get("passkey_token", ""))
        path = request.script_root + request.path
        challenge = None if nonce is None else challenges.challenge_of_form(nonce, path, request.form)
        with unit_of_work() as session:
            found = verify_assertion(session, key, challenge, assertion)
        return (True, "") if found else (False, "This passkey was not accepted. Nothing was changed.")
    if not owner_key:
        return False, "Enter your owner key to continue. Nothing was changed."
    try:
        if sessions.verify_owner_key(owner_key, key, network=client_network(request.remote_addr)):
            return True, ""
    except RateLimited:
        return False, "Too many wrong keys were entered from your network. Wait before you try again."
    return False, "This is not the owner key of this agent. Nothing was changed."


def is_filled() -> bool:
    """Return whether the form contains anything to confirm it with."""
    return bool(request.form.get("passkey") or request.form.get("owner_key", "").strip())


def _purpose(key: OwnerKeyView) -> str:
    return f"confirm {current_session().id} {key.id}"
