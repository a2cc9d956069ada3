"""The page of an agent's passkeys, and signing in with one."""

from typing import Any

from flask import Response, request, url_for

from app.errors import LimitReached, NotFound, Unauthorized
from app.identity.owner_keys import OwnerKeyView
from app.owner.passkeys import challenges
from app.owner.passkeys import service as passkeys
from app.owner.session import auth, cookies, sessions
from app.owner.session.cookies import printable
from app.owner.session.sign_in import render_sign_in, safe_return_path

_PAGE = "/agents/<string:agent_id>/passkeys"


@auth.public_pages.post("/owner/sign-in/passkey")
def sign_in_by_passkey() -> Response:
    """Begin a session with a passkey instead of an owner key."""
    return_path = safe_return_path(request.form.get("next"))
    challenge = challenges.challenge_of(challenges.SIGN_IN, request.form.get("passkey_token", ""))
    try:
        challenge, assertion = challenge if cookies.is_valid() else None, request.form.get("passkey", "")
        token, key = passkeys.sign_in(challenge, assertion, previous_token=auth.session_token())
    except Unauthorized:
        next_step = "You were not signed in. Try again, or use the owner key of your agent."
        return render_sign_in(return_path, status=403, error=("This passkey was not accepted.", next_step))
    page = return_path or url_for("owner.show_agent", agent_id=key.agent_id)
    return auth.set_session_cookie(auth.see_other(page), token)


@auth.session_pages.get(_PAGE)
def show_passkeys(key: OwnerKeyView) -> Response:
    """List an agent's passkeys, with the form that adds one."""
    return _render(key)


@auth.session_pages.post(_PAGE)
def begin_passkey(key: OwnerKeyView) -> Response:
    """Offer the creation of a passkey, with the owner key."""
    is_owner, error = passkeys.check_owner(key)
    if not is_owner:
        return _render(key, error=error, status=403)
    prompt = challenges.prompt_to_add(_adding(key), key, auth.agent_of(key).name, passkeys.list_credential_ids(key))
    return _render(key, creation=prompt, name=_name())


@auth.session_pages.post(f"{_PAGE}/create")
def add_passkey(key: OwnerKeyView) -> Response:
    challenge = challenges.challenge_of(_adding(key), request.form.get("passkey_token", ""))
    try:
        passkeys.add_passkey(sessions.acting_owner(key), key, challenge, request.form.get("passkey", ""), name=_name())
    except (Unauthorized, LimitReached) as failure:
        # A 401 would need a scheme, for which browsers open a dialog of their own.
        return _render(key, error=failure.message, status=403 if isinstance(failure, Unauthorized) else failure.status)
    return auth.see_other(url_for("owner.show_passkeys", agent_id=key.agent_id, done="added"))


@auth.session_pages.post(f"{_PAGE}/remove")
def remove_passkey(key: OwnerKeyView) -> Response:
    """Remove a passkey and sign out the agent's other sessions, without asking for the owner key."""
    passkey_id, current_id = request.form.get("passkey_id", "")[:36], auth.current_session().id
    if not passkeys.remove_passkey(sessions.acting_owner(key), key, passkey_id, current_session_id=current_id):
        raise NotFound("This agent has no such passkey.")
    return auth.see_other(url_for("owner.show_passkeys", agent_id=key.agent_id, done="removed"))


def _render(key: OwnerKeyView, *, status: int = 200, **values: Any) -> Response:
    return auth.render_page(
        "passkeys.html", status=status, agent=auth.agent_of(key), listed=passkeys.list_passkeys(key),
        limit=passkeys.MAX_PASSKEYS, party=challenges.relying_party(), prompt=passkeys.prompt_for(key),
        done=request.args.get("done"), **values,
    )  # fmt: skip


def _adding(key: OwnerKeyView) -> str:
    return f"add {auth.current_session().id} {key.id}"


def _name() -> str:
    return printable(request.form.get("name", ""))[: passkeys.MAX_NAME_CHARACTERS] or "Passkey"
