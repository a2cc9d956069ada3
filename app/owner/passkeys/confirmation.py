"""Confirmation of a sensitive form: by the owner key, typed again, or by a passkey."""

from flask import request

from app.errors import RateLimited
from app.identity.limits import client_network
from app.identity.owner_keys import OwnerKeyView
from app.owner.passkeys import challenges
from app.owner.passkeys import service as passkeys
from app.owner.passkeys.challenges import PasskeyPrompt
from app.owner.session import sessions
from app.owner.session.auth import current_session


def prompt_for(key: OwnerKeyView) -> PasskeyPrompt | None:
    """Return the prompt of a form that asks for the owner key; None if the owner has no passkey."""
    credential_ids = passkeys.list_credential_ids(key)
    return challenges.prompt_to_use(_purpose(key), credential_ids) if credential_ids else None


def check_owner(key: OwnerKeyView) -> tuple[bool, str]:
    """Return whether the form contains the agent's owner key or a passkey's signature, and the message if not."""
    assertion, owner_key = request.form.get("passkey", ""), request.form.get("owner_key", "").strip()
    if assertion:
        nonce = challenges.challenge_of(_purpose(key), request.form.get("passkey_token", ""))
        path = request.script_root + request.path
        challenge = None if nonce is None else challenges.challenge_of_form(nonce, path, request.form)
        if passkeys.confirm(key, challenge, assertion):
            return True, ""
        return False, "This passkey was not accepted. Nothing was changed."
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
