"""Signing in with an owner key, opening further agents, and ending sessions."""

from __future__ import annotations

import re
from typing import Any

from flask import Response, redirect, request, url_for

from app.errors import LimitReached, RateLimited, ServiceError, Unauthorized
from app.identity.limits import client_network
from app.owner import cookies, forms, sessions
from app.owner.door import (
    SESSION_COOKIE,
    current_session,
    entrance,
    inside,
    keep_session,
    live_session,
    page,
    session_token,
)

# Pages of ours by their paths alone: nothing in an address leads a signed-in owner anywhere else.
_BACK = re.compile(r"/owner/agents/[0-9a-f-]{36}(?:/wallets/[0-9a-f-]{36})?(?:/[a-z]+)?", re.ASCII)
_WRONG = "This is not an owner key of an agent here."
_WRONG_NEXT = (
    "Paste the whole key that you were shown when you claimed the agent. It begins with ok_ and has 46 characters. "
    "An API key (ak_…) does not sign you in."
)
_LOCKED_NEXT = "Wait before you try again. Freezing is also possible for the operator of this service."


@entrance.get("/owner/sign-in")
def sign_in_form() -> Response:
    """Ask for the owner key."""
    if live_session() is not None:
        return _to(url_for("owner.show_agents"))
    return page("sign_in.html", back=_safe(request.args.get("next")), trouble=None)


@entrance.post("/owner/sign-in")
def sign_in() -> Response:
    """Begin a session, with a token that nobody has seen before."""
    back = _safe(request.form.get("next"))
    if not forms.is_genuine():
        trouble = (
            "This form is too old, or was not opened in this browser.",
            "You were not signed in. Send the form once more, with cookies allowed for this site.",
        )
        return page("sign_in.html", status=400, back=back, trouble=trouble)
    try:
        token, key = sessions.sign_in(
            request.form.get("owner_key", ""), network=client_network(), replacing=session_token()
        )
    except (Unauthorized, RateLimited) as failure:
        return _refused("sign_in.html", failure, back=back)
    return keep_session(_to(back or url_for("owner.show_agent", agent_id=key.agent_id)), token)


@inside.post("/add")
def add_agent() -> Response:
    """Open one more agent in this session with its owner key."""
    try:
        token, key = sessions.add(
            current_session(), request.form.get("owner_key", ""), network=client_network()
        )
    except (Unauthorized, RateLimited, LimitReached) as failure:
        return _refused("add.html", failure)
    return keep_session(_to(url_for("owner.show_agent", agent_id=key.agent_id)), token)


@inside.get("/add")
def add_form() -> Response:
    """Ask for the owner key of a further agent."""
    return page("add.html", trouble=None)


@inside.get("/sessions")
def show_sessions() -> Response:
    """List the sessions that open the same agents."""
    current = current_session()
    return page("sessions.html", listed=sessions.listed(current), done=request.args.get("done") == "ended")


@inside.post("/sessions/end-others")
def end_other_sessions() -> Response:
    """End all sessions but this one."""
    sessions.end_others(current_session())
    return _to(url_for("owner.show_sessions", done="ended"))


@inside.post("/sign-out")
def sign_out() -> Response:
    """End this session, also for whoever has copied its cookie."""
    sessions.end(session_token())
    response = _to(url_for("owner_entrance.sign_in_form", done="signed-out"))
    cookies.forget(response, SESSION_COOKIE)
    return response


def _refused(template: str, failure: ServiceError, **values: Any) -> Response:
    if isinstance(failure, RateLimited):
        trouble = ("Too many wrong keys were sent from your address.", _LOCKED_NEXT)
    elif isinstance(failure, LimitReached):
        trouble = (failure.message, "Nothing was changed.")
    else:
        trouble = (_WRONG, _WRONG_NEXT)
    # 401 would have to name a scheme that browsers then ask for in a window of their own.
    status = 403 if isinstance(failure, Unauthorized) else failure.status
    response = page(template, status=status, trouble=trouble, **values)
    if failure.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(max(1, failure.retry_after_seconds))
    return response


def _safe(path: str | None) -> str | None:
    return path if path and _BACK.fullmatch(path) else None


def _to(path: str) -> Response:
    return redirect(path, 303)  # type: ignore[return-value]
