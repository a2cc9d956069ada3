"""The two doors of the pages: `entrance`, open to everybody, and `inside`, for a signed-in owner.

Every answer has the same strict headers, every form a token; what is refused is said in HTML, with what to do next.
"""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Any

import structlog
from flask import Blueprint, Response, g, make_response, redirect, render_template, request, url_for
from gunicorn.http.errors import ParseException
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as SqlTimeoutError
from werkzeug.exceptions import HTTPException

from app.core import alarms
from app.errors import NotFound, RateLimited, ServiceError
from app.identity import limits
from app.identity.owner_keys import OwnerKeyView
from app.owner import cookies, forms, sessions
from app.owner.sessions import Session
from app.ports import provider
from app.version import VERSION

entrance = Blueprint("owner_entrance", __name__)
inside = Blueprint("owner", __name__, url_prefix="/owner")

SESSION_COOKIE = "purser_owner"
_FOUND = "purser.owner_session"
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex, nofollow",
}
_log = structlog.get_logger(__name__)


def session_token() -> str | None:
    """Return the session's token that the browser sent, valid or not."""
    return cookies.get(SESSION_COOKIE)


def live_session() -> Session | None:
    """Return the browser's session, looked up once in a request."""
    if _FOUND not in request.environ:
        request.environ[_FOUND] = sessions.find(session_token())
    found: Session | None = request.environ[_FOUND]
    return found


def continue_in(token: str) -> None:
    """Go on in the session of a token that was made in this request: forms of its answer belong to it."""
    request.environ[_FOUND] = sessions.find(token)


def current_session() -> Session:
    """Return the session of a signed-in owner; only `inside` asks."""
    found = live_session()
    if found is None:
        raise _nothing_here()
    return found


def key_of(agent_id: str) -> OwnerKeyView:
    """Return the session's key to an agent. Raises: NotFound, also for agents of others."""
    key = current_session().key_for(agent_id)
    if key is None:
        raise _nothing_here()
    return key


def keep_session(response: Response, token: str) -> Response:
    """Give the browser a session's new token."""
    cookies.put(response, SESSION_COOKIE, token, max_age=int(sessions.LASTS.total_seconds()))
    return response


def page(template: str, *, status: int = 200, **values: Any) -> Response:
    """Render one of the pages; the forms of a signed-in owner's are tied to the session."""
    signed_in = live_session()
    body = render_template(
        f"owner/{template}",
        csrf_field=forms.FIELD,
        csrf_token=forms.token(session_id=signed_in.id if signed_in else ""),
        open_token=forms.token(),
        signed_in=signed_in,
        settings=provider.settings(),
        version=VERSION,
        **values,
    )
    return make_response(body, status)


def failure_page(failure: ServiceError, *, title: str, next_step: str) -> Response:
    """Render what went wrong and what to do next."""
    response = page(
        "problem.html", status=failure.status, title=title, message=failure.message, next_step=next_step
    )
    if failure.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(max(1, failure.retry_after_seconds))
    return response


@inside.before_request
def _require_session() -> Response | None:
    found = live_session()
    if found is None:
        back = request.path if request.method == "GET" else None
        return redirect(url_for("owner_entrance.sign_in_form", next=back), 303)  # type: ignore[return-value]
    limits.count_call_of_key(found.keys[0].id)
    if request.method == "POST" and not forms.is_genuine(session_id=found.id):
        return page(
            "problem.html",
            status=403,
            title="This form is too old",
            message="It was opened in another session or browser, or more than twelve hours ago.",
            next_step="Nothing was changed. Go back, load the page again and repeat what you wanted to do.",
        )
    return None


@entrance.after_request
@inside.after_request
def _be_strict(response: Response) -> Response:
    forms.remember(response)
    response.headers.update(_HEADERS)
    return response


@entrance.errorhandler(ServiceError)
@inside.errorhandler(ServiceError)
def _refused(failure: ServiceError) -> Response:
    if isinstance(failure, NotFound):
        return failure_page(
            failure,
            title="There is nothing here",
            next_step="It may have been deleted, or your session does not open it. Go back to your agents.",
        )
    if isinstance(failure, RateLimited):
        return failure_page(failure, title="Too many requests", next_step="Wait a minute, then try again.")
    return failure_page(
        failure, title="That did not work", next_step="Nothing was changed. Try it once more."
    )


@entrance.errorhandler(Exception)
@inside.errorhandler(Exception)
def _failed(error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status = error.code or HTTPStatus.INTERNAL_SERVER_ERROR
        if status < HTTPStatus.BAD_REQUEST:
            return error.get_response()  # type: ignore[return-value]
        text = "This request could not be understood."
    elif isinstance(error, ParseException):
        status, text = HTTPStatus.BAD_REQUEST, "This request could not be read."
    elif isinstance(error, OperationalError | SqlTimeoutError):
        _log.exception("database_not_available")
        status, text = HTTPStatus.SERVICE_UNAVAILABLE, "The service is busy at the moment."
    else:
        _log.exception("page_failed")
        alarms.report(error, route=str(request.url_rule))
        status, text = HTTPStatus.INTERNAL_SERVER_ERROR, "Something went wrong on our side."
    body = render_template(
        "owner/problem.html",
        title="That did not work",
        message=text,
        next_step="Go back and try it once more. If it happens again, tell the operator this number: "
        + g.get("request_id", secrets.token_hex(4)),
        settings=provider.settings(),
        version=VERSION,
        signed_in=None,
    )
    return make_response(body, int(status))


def _nothing_here() -> NotFound:
    return NotFound("Nothing is found at this address.")
