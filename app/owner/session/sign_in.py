"""Signing in with an owner key, adding agents to a session, and ending sessions."""

import re
from contextlib import suppress
from typing import Any

from flask import Response, request, url_for
from itsdangerous import BadData

from app.core import identifiers
from app.db.unit_of_work import read_only_unit
from app.errors import InvalidInput, LimitReached, RateLimited, ServiceError, Unauthorized
from app.identity import owner_keys
from app.identity import service as identity
from app.identity.limits import client_network
from app.owner import notices
from app.owner.passkeys import challenges
from app.owner.session import auth, sessions

# Only paths of these pages: a crafted link must not redirect a signed-in owner elsewhere.
_RETURN_PATH = re.compile(
    r"/owner/(?:agents/[0-9a-f-]{36}(?:/(?:wallets|approvals)/[0-9a-f-]{36})?(?:/[a-z]+)?|connect/[A-Za-z0-9_.-]+)",
    re.ASCII,
)
_INVALID_KEY_NEXT_STEP = (
    "Paste all of it. The owner key that you got when you claimed the agent begins with ok_ and has 46 characters. "
    "A code has 28 letters and digits, and is valid once, in its time. An API key (ak_…) does not sign you in."
)
_LOCKED_NEXT_STEP = "Wait before you try again. The operator of this service can also freeze the agent for you."


@auth.public_pages.get("/owner/sign-in")
def sign_in_form() -> Response:
    if auth.live_session() is not None:
        return auth.see_other(url_for("owner.show_agents"))
    return render_sign_in(safe_return_path(request.args.get("next")))


@auth.public_pages.post("/owner/sign-in")
def sign_in() -> Response:
    """Begin a session with a new token."""
    return_path = safe_return_path(request.form.get("next"))
    if not auth.is_form_valid():
        next_step = "You were not signed in. Submit the form again, with cookies enabled for this site."
        error = ("This form has expired or was opened in another browser.", next_step)
        return render_sign_in(return_path, status=400, error=error)
    try:
        typed, network = request.form.get("owner_key", ""), client_network(request.remote_addr)
        token, key = sessions.enter_key(typed, network=network, previous_token=auth.session_token())
    except (Unauthorized, RateLimited) as failure:
        prompt = challenges.prompt_to_use(challenges.SIGN_IN)
        return _render_refusal("sign_in.html", failure, back=return_path, prompt=prompt)
    page = return_path or url_for("owner.show_agent", agent_id=key.agent_id)
    return auth.set_session_cookie(auth.see_other(page), token)


@auth.public_pages.get("/owner/recover")
def show_owner_code_form() -> Response:
    return auth.render_page("recover.html")


@auth.public_pages.post("/owner/recover")
def look_up_owner_code() -> Response:
    """Show what a code does, and the owner key that its use makes valid: a lost response then locks nobody out."""
    code = request.form.get("code", "")
    try:
        agent_id, kind, _ = sessions.use_code(code, None, network=client_network(request.remote_addr))
    except (Unauthorized, RateLimited) as failure:
        return _render_refusal("recover.html", failure)
    with read_only_unit() as session:
        named, new_key = identity.get_agent(session, agent_id), identifiers.new_key(owner_keys.PREFIX)
    token = auth.serializer(f"owner-code {code}").dumps(new_key)
    return auth.render_page("recover_use.html", kind=kind, named=named, code=code, new_key=new_key, token=token)


@auth.public_pages.post("/owner/recover/use")
def use_owner_code() -> Response:
    """Make the holder of a code the owner, and sign them in."""
    code, token = request.form.get("code", ""), request.form.get("token", "")
    key = None
    with suppress(BadData):
        key = auth.serializer(f"owner-code {code}").loads(token, max_age=3600)
    if key is None or not auth.is_form_valid():
        raise InvalidInput("This form has expired or was opened in another browser. Enter the code again.")
    try:
        agent_id, kind, farewells = sessions.use_code(code, key, network=client_network(request.remote_addr))
    except (Unauthorized, RateLimited) as failure:
        return _render_refusal("recover.html", failure)
    for address in farewells:
        notices.send_farewell(agent_id, address)
    token, codes = sessions.open_claimed_agent(key, current=auth.session_token())
    auth.use_session_token(token)
    page = auth.render_page("recovered.html", agent=auth.agent_of(auth.owner_key_of(agent_id)), kind=kind, codes=codes)
    return auth.set_session_cookie(page, token)


@auth.session_pages.post("/add")
def add_agent() -> Response:
    try:
        typed, network = request.form.get("owner_key", ""), client_network(request.remote_addr)
        token, key = sessions.enter_key(typed, network=network, current=auth.current_session())
    except (Unauthorized, RateLimited, LimitReached) as failure:
        return _render_refusal("add_agent.html", failure)
    return auth.set_session_cookie(auth.see_other(url_for("owner.show_agent", agent_id=key.agent_id)), token)


@auth.session_pages.get("/add")
def add_form() -> Response:
    return auth.render_page("add_agent.html", error=None)


@auth.session_pages.get("/sessions")
def show_sessions() -> Response:
    """List the sessions with access to the same agents."""
    listed = sessions.list_sessions(auth.current_session())
    return auth.render_page("sessions.html", listed=listed, done=request.args.get("done") == "ended")


@auth.session_pages.post("/sessions/end-others")
def end_other_sessions() -> Response:
    sessions.end_other_sessions(auth.current_session())
    return auth.see_other(url_for("owner.show_sessions", done="ended"))


@auth.session_pages.post("/sign-out")
def sign_out() -> Response:
    """End this session, including for a copy of its cookie."""
    sessions.end_session(auth.session_token())
    response = auth.see_other(url_for("owner_entrance.sign_in_form", done="signed-out"))
    auth.delete_cookie(response, auth.SESSION_COOKIE)
    return response


def safe_return_path(path: str | None) -> str | None:
    """Return a path of these pages; None for any other."""
    return path if path and _RETURN_PATH.fullmatch(path) else None


def render_sign_in(back: str | None, *, status: int = 200, error: tuple[str, str] | None = None) -> Response:
    """Render the form that asks for the owner key or a passkey, with what went wrong and what to do, if anything."""
    prompt = challenges.prompt_to_use(challenges.SIGN_IN)
    return auth.render_page("sign_in.html", status=status, back=back, error=error, prompt=prompt)


def _render_refusal(template: str, failure: ServiceError, **values: Any) -> Response:
    if isinstance(failure, RateLimited):
        error = ("Too many wrong keys were entered from your network.", _LOCKED_NEXT_STEP)
    elif isinstance(failure, LimitReached):
        error = (failure.message, "Nothing was changed.")
    else:
        error = ("This is not a valid owner key or code.", _INVALID_KEY_NEXT_STEP)
    # A 401 would need a scheme, for which browsers open a dialog of their own.
    status = 403 if isinstance(failure, Unauthorized) else failure.status
    return auth.render_page(
        template, status=status, retry_after_seconds=failure.retry_after_seconds, error=error, **values
    )
