"""Passkeys: add, list, remove, and verify what one has signed; and the confirmation of a sensitive form.

A passkey belongs to one owner key or master key. Replacing that key is the recovery, and ends its passkeys as well. The
private keys never leave the devices. An owner's form is confirmed by the owner key, typed again, or by a passkey.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Protocol, Self
from uuid import UUID

import webauthn
from flask import request
from sqlalchemy import Row, and_, delete, or_, select
from sqlalchemy.orm import Session
from webauthn.authentication.verify_authentication_response import VerifiedAuthentication
from webauthn.helpers import parse_authentication_credential_json, parse_registration_credential_json
from webauthn.helpers.exceptions import WebAuthnException
from webauthn.helpers.structs import AuthenticationCredential, CredentialDeviceType
from webauthn.registration.verify_registration_response import VerifiedRegistration

from app.agents import claims
from app.agents.claims import CodeKind
from app.audit_log import trail
from app.audit_log.actors import Actor, owner_actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import RowSeal
from app.core import clock, identifiers
from app.core.strict_json import parse_response
from app.db.prepared import PreparedInsert
from app.db.tables import count, update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import LimitReached, RateLimited, Unauthorized
from app.identity import owner_keys
from app.identity import service as identity
from app.identity.limits import client_network
from app.identity.owner_keys import OwnerKeyView
from app.owner.passkeys import challenges
from app.owner.passkeys.challenges import PasskeyPrompt, RelyingParty
from app.owner.passkeys.models import Passkey, UsedPasskeyChallenge
from app.owner.session import auth, sessions
from app.owner.session.auth import current_session

_SEAL = RowSeal(Passkey, owner_key_id="key_id")
MAX_PASSKEYS = 10
MAX_NAME_CHARACTERS = 60
_REFUSED = "This passkey was not accepted."
NOT_ACCEPTED = f"{_REFUSED} Nothing was changed."
_MAX_RESPONSE_CHARACTERS = 8_192
_INSERT_PASSKEY = PreparedInsert(Passkey, unique=[Passkey.credential_digest])
_INSERT_CHALLENGE = PreparedInsert(UsedPasskeyChallenge, unique=[UsedPasskeyChallenge.digest])
# What the library raises for malformed input.
_MALFORMED = (WebAuthnException, ValueError, TypeError, KeyError, IndexError, AttributeError)


@dataclass(frozen=True, slots=True)
class PasskeyHolder(Protocol):
    """A person with a valid owner key or master key, signed in or not yet. Audit entries are about `subject_id`."""

    key_id: str
    subject_id: str
    session_id: str
    subject_kind: ClassVar[str]
    sign_in_purpose: ClassVar[str]

    @classmethod
    def find(cls, session: Session, key_id: str) -> Self | None: ...
    @staticmethod
    def relying_party() -> RelyingParty: ...
    def actor(self) -> Actor: ...
    def lock(self, session: Session) -> None: ...
    def begin_session(self, session: Session, *, previous_token: str | None) -> str: ...
    def after_removal(self, session: Session) -> None: ...


@dataclass(frozen=True, slots=True)
class AgentOwner(PasskeyHolder):
    """The owner of an agent, by the owner key."""

    key: OwnerKeyView
    subject_kind = "agent"
    sign_in_purpose = challenges.SIGN_IN
    relying_party = staticmethod(challenges.relying_party)

    @classmethod
    def find(cls, session: Session, key_id: str) -> Self | None:
        return next((cls(key_id, key.agent_id, "", key) for key in owner_keys.list_valid(session, [key_id])), None)

    def actor(self) -> Actor:
        return owner_actor(self.key_id)

    def lock(self, session: Session) -> None:
        identity.lock_agent(session, self.subject_id)

    def begin_session(self, session: Session, *, previous_token: str | None) -> str:
        return sessions.begin_session(session, self.key, previous_token=previous_token)

    def after_removal(self, session: Session) -> None:
        was_last = not count(session, Passkey, Passkey.key_id == self.key_id)
        if was_last and not claims.list_owner_codes(session, self.key_id)[CodeKind.RECOVERY_CODE]:
            raise LimitReached("This is your last passkey, and you have no recovery code. Make recovery codes first.")
        sessions.end_sessions_of_key(session, self.key_id, except_id=self.session_id)


def list_passkeys(holder: PasskeyHolder) -> Sequence[Row[str, str, datetime, datetime | None, bytes]]:
    """Return the ids, name and times of a key's passkeys, oldest first; authenticators find them by `credential_id`."""
    columns = Passkey.id, Passkey.name, Passkey.created_at, Passkey.used_at, Passkey.credential_id
    listed = select(*columns).where(Passkey.key_id == holder.key_id)
    with read_only_unit() as session:
        return session.execute(listed.order_by(Passkey.created_at, Passkey.id)).all()


def add_passkey(holder: PasskeyHolder, challenge: bytes | None, response: str, *, name: str) -> None:
    """Add the passkey that a browser has created. Raises: Unauthorized, LimitReached."""
    party = holder.relying_party()
    if challenge is None or len(response) > _MAX_RESPONSE_CHARACTERS:
        raise Unauthorized(_REFUSED)
    try:
        created = webauthn.verify_registration_response(
            credential=response, expected_challenge=challenge, expected_rp_id=party.id, expected_origin=party.origin,
            require_user_verification=True,
        )  # fmt: skip
        _assert_same_origin(parse_registration_credential_json(response).response.client_data_json)
    except _MALFORMED:
        raise Unauthorized(_REFUSED) from None
    with unit_of_work() as session:
        holder.lock(session)
        if holder.find(session, holder.key_id) is None or not _use_challenge(session, challenge):
            raise Unauthorized(_REFUSED)
        if count(session, Passkey, Passkey.key_id == holder.key_id) >= MAX_PASSKEYS:
            raise LimitReached(f"There can be at most {MAX_PASSKEYS} passkeys; remove one first.")
        passkey_id = identifiers.new_id()
        values = {
            "id": passkey_id, "owner_key_id": holder.key_id, "name": name, "created_at": clock.now(),
            "credential_digest": _digest(created.credential_id), "credential_id": created.credential_id,
            "public_key": created.credential_public_key, "sign_count": created.sign_count,
            "backup_eligible": _is_backup_eligible(created),
        }  # fmt: skip
        if not _INSERT_PASSKEY.execute(session, values):
            raise Unauthorized(_REFUSED)
        after = {"passkey_id": passkey_id, "name": name}
        _record(session, holder, "added", after=after)


def remove_passkey(holder: PasskeyHolder, passkey_id: str) -> bool:
    """Remove a passkey and end the key's other sessions; return whether there was one. Raises: LimitReached."""
    is_meant = Passkey.id == passkey_id, Passkey.key_id == holder.key_id
    with unit_of_work() as session:
        holder.lock(session)
        removed = session.scalars(delete(Passkey).where(*is_meant).returning(Passkey.name)).one_or_none()
        if removed is None:
            return False
        holder.after_removal(session)
        before = {"passkey_id": passkey_id, "name": removed}
        _record(session, holder, "removed", before=before)
    return True


def verify_assertion(
    session: Session, kind: type[PasskeyHolder], key_id: str | None, challenge: bytes | None, assertion: str
) -> tuple[PasskeyHolder, Mapping[str, str]] | None:
    """Return who signed a challenge, and the passkey's id and signature with all that verifies it; None if refused.

    Only holders of this kind, and of this key if given, are accepted.

    A challenge is accepted once. A unit that receives None must return, not raise: a counter that did not increase is
    recorded in the audit log.
    """
    if challenge is None or len(assertion) > _MAX_RESPONSE_CHARACTERS:
        return None
    try:
        response = parse_authentication_credential_json(assertion)
    except _MALFORMED:
        return None
    is_named = Passkey.credential_digest == _digest(response.raw_id)
    row = session.scalars(select(Passkey).where(is_named)).one_or_none()
    if row is None or key_id not in (None, row.key_id) or not _SEAL.accepts(session, row):
        return None
    holder = kind.find(session, row.key_id)
    verified = _verified(row, challenge, response, kind.relying_party()) if holder else None
    if holder is None or verified is None or not _use_challenge(session, challenge):
        return None
    if not _advance_counter(session, row.id, verified):
        after = {"passkey_id": row.id, "counter": verified.new_sign_count, "stored_counter": row.sign_count}
        _record(session, holder, "refused", after=after)
        return None
    signed = {
        "credential_id": row.credential_id, "public_key": row.public_key,
        "authenticator_data": response.response.authenticator_data, "client_data": response.response.client_data_json,
        "signature": response.response.signature,
    }  # fmt: skip
    evidence = {name: base64.b64encode(value).decode() for name, value in signed.items()}
    return holder, {"passkey_id": row.id, **evidence}


def sign_in(kind: type[PasskeyHolder], *, previous_token: str | None) -> tuple[str, str]:
    """Begin a session with the form's passkey; return its token, and its `subject_id`. Raises: Unauthorized."""
    challenge = challenges.challenge_of(kind.sign_in_purpose, request.form.get("passkey_token", ""))
    with unit_of_work() as session:
        assertion = request.form.get("passkey", "") if auth.is_form_valid() else ""
        found = verify_assertion(session, kind, None, challenge, assertion)
        if found is not None:
            holder, evidence = found
            token = holder.begin_session(session, previous_token=previous_token)
            _record(session, holder, "sign_in", after={"passkey_id": evidence["passkey_id"]})
            return token, holder.subject_id
    raise Unauthorized(_REFUSED)


def _verified(
    row: Passkey, challenge: bytes, response: AuthenticationCredential, party: RelyingParty
) -> VerifiedAuthentication | None:
    if response.response.user_handle not in (None, UUID(row.key_id).bytes):
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
    has_none = and_(Passkey.sign_count == new_count, Passkey.sign_count == 0)
    is_behind = Passkey.id == passkey_id, or_(Passkey.sign_count < new_count, has_none)
    now, is_eligible = clock.now(), _is_backup_eligible(verified)
    return update_rows(session, Passkey, *is_behind, sign_count=new_count, used_at=now, backup_eligible=is_eligible) > 0


def _use_challenge(session: Session, challenge: bytes) -> bool:
    # Kept longer than a challenge is valid; an approval is decided once in any case.
    values = {"digest": _digest(challenge), "expires_at": clock.now() + timedelta(days=1)}
    return bool(_INSERT_CHALLENGE.execute(session, values))


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


def purpose(name: str, holder: PasskeyHolder) -> str:
    """Return the purpose of a challenge in the holder's session."""
    return f"{name} {holder.session_id} {holder.key_id}"


def _record(session: Session, holder: PasskeyHolder, act: str, **values: Any) -> None:
    action = AuditAction(f"{holder.subject_kind}.passkey_{act}")
    trail.record(session, holder.actor(), AuditEvent(action, holder.subject_id, **values))


def prompt_of(holder: PasskeyHolder) -> PasskeyPrompt | None:
    """Return the prompt of a form that a passkey confirms; None if the holder has none."""
    ids = [each.credential_id for each in list_passkeys(holder)]
    return challenges.prompt_to_use(purpose("confirm", holder), ids, holder.relying_party()) if ids else None


def is_signed(holder: PasskeyHolder) -> bool:
    """Return whether a passkey of the holder has signed the values of the current form, in this session."""
    nonce = challenges.challenge_of(purpose("confirm", holder), request.form.get("passkey_token", ""))
    path = request.script_root + request.path
    challenge = None if nonce is None else challenges.challenge_of_form(nonce, path, request.form)
    with unit_of_work() as session:
        assertion = request.form.get("passkey", "")
        return verify_assertion(session, type(holder), holder.key_id, challenge, assertion) is not None


def owner_here(key: OwnerKeyView) -> AgentOwner:
    return AgentOwner(key.id, key.agent_id, current_session().id, key)


def prompt_for(key: OwnerKeyView) -> PasskeyPrompt | None:
    """Return the prompt of a form that asks for the owner key; None if the owner has no passkey."""
    return prompt_of(owner_here(key))


def find_refusal(key: OwnerKeyView) -> str | None:
    """Return why the form does not prove that the owner sends it: by the owner key or a passkey; None if it does."""
    owner_key = request.form.get("owner_key", "").strip()
    if request.form.get("passkey"):
        return None if is_signed(owner_here(key)) else NOT_ACCEPTED
    if not owner_key:
        return "Enter your owner key to continue. Nothing was changed."
    try:
        is_own = sessions.verify_owner_key(owner_key, key, network=client_network(request.remote_addr))
    except RateLimited:
        return "Too many wrong keys were entered from your network. Wait before you try again."
    return None if is_own else "This is not the owner key of this agent. Nothing was changed."
