"""The service as a relying party of WebAuthn: its id, its origin, and challenges.

A challenge is in the form, with a signature: an anonymous client that asks for one stores nothing here.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import webauthn
from itsdangerous import BadData
from webauthn.helpers import bytes_to_base64url, structs
from werkzeug.datastructures import MultiDict

from app.core.ip_ranges import is_loopback
from app.owner.session.auth import serializer
from app.state import app_state

SIGN_IN = "sign in"
_TIMEOUT_MILLISECONDS = 120_000
# What authenticates a form.
_UNSIGNED_FIELDS = frozenset({"csrf_token", "owner_key", "master_key", "passkey", "passkey_token"})


@dataclass(frozen=True, slots=True)
class RelyingParty:
    """The id and the origin that authenticators sign."""

    id: str
    origin: str


@dataclass(frozen=True, slots=True)
class PasskeyPrompt:
    """Options for the browser as JSON, the origin on which it can use them, and the signed challenge."""

    options: str
    origin: str
    token: str


def relying_party(host: str | None = None) -> RelyingParty:
    """Return the relying party of the public URL, or of another host; a loopback address becomes localhost."""
    url = urlsplit(app_state().settings.public_url)
    url = url._replace(netloc=host or url.netloc)
    host = url.hostname or ""
    # An IP address cannot be the id of a relying party.
    name = "localhost" if is_loopback(host) else host
    port = "" if url.port in (None, {"http": 80, "https": 443}.get(url.scheme)) else f":{url.port}"
    return RelyingParty(name, f"{url.scheme}://{name}{port}")


def prompt_to_use(purpose: str, ids: Sequence[bytes] = (), party: RelyingParty | None = None) -> PasskeyPrompt:
    """Return a prompt for one of some passkeys, or for any if none is given."""
    party = party or relying_party()
    allowed = [structs.PublicKeyCredentialDescriptor(id=each) for each in ids]
    needed = structs.UserVerificationRequirement.REQUIRED
    options = webauthn.generate_authentication_options(
        rp_id=party.id, timeout=_TIMEOUT_MILLISECONDS, allow_credentials=allowed, user_verification=needed
    )
    return _prompt(purpose, options, party)


def prompt_to_add(purpose: str, key_id: str, name: str, ids: Sequence[bytes], party: RelyingParty) -> PasskeyPrompt:
    """Return a prompt that creates a passkey of a key, on a device that has none yet."""
    selection = structs.AuthenticatorSelectionCriteria(
        resident_key=structs.ResidentKeyRequirement.REQUIRED,
        user_verification=structs.UserVerificationRequirement.REQUIRED,
    )
    options = webauthn.generate_registration_options(
        rp_id=party.id, rp_name="Purser", user_id=UUID(key_id).bytes, user_name=name, timeout=_TIMEOUT_MILLISECONDS,
        authenticator_selection=selection,
        exclude_credentials=[structs.PublicKeyCredentialDescriptor(id=each) for each in ids],
    )  # fmt: skip
    return _prompt(purpose, options, party)


def challenge_of(purpose: str, token: str) -> bytes | None:
    """Return the challenge of a form, or None if it is forged, expired or for another purpose."""
    try:
        issued_for, challenge = serializer("owner-passkey").loads(token, max_age=600)
        return base64.b64decode(challenge, validate=True) if issued_for == purpose else None
    except (BadData, ValueError, TypeError):
        return None


def challenge_of_form(nonce: bytes, path: str, form: MultiDict[str, str]) -> bytes:
    """Return the challenge that confirms a form: what is signed is where it is posted to, and its values.

    `static/passkeys.js` computes the same.
    """
    values = [[name, form.getlist(name)] for name in sorted(form) if name not in _UNSIGNED_FIELDS]
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(f"purser form\n{bytes_to_base64url(nonce)}\nPOST {path}\n{text}".encode()).digest()


def challenge_of_approval(request_hash: str, decision: str, week_usd: str) -> bytes:
    """Return the challenge of a decision: what is signed is the request, the decision and the amount as typed.

    `static/passkeys.js` computes the same.
    """
    return hashlib.sha256(f"purser approval\n{request_hash}\n{decision}\n{week_usd}".encode()).digest()


def _prompt(purpose: str, options: Any, party: RelyingParty) -> PasskeyPrompt:
    token = serializer("owner-passkey").dumps([purpose, base64.b64encode(options.challenge).decode()])
    return PasskeyPrompt(webauthn.options_to_json(options), party.origin, token)
