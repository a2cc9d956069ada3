"""The two blueprints of the pages: `public_pages` without authentication, `session_pages` for signed-in owners.

Every response has the same strict headers, every form a token; a refusal is an HTML page with a remedy.

Scripts cannot read the cookies, and other sites cannot send them; over https they have the `__Host-` prefix (RFC
6265bis). CSRF tokens tie a form to the browser, and for signed-in owners also to the session: a nonce is in a cookie
and, signed, in the form, and another site can neither read the former nor forge the latter.
"""

import hmac
import secrets
from typing import Any

from flask import Blueprint, Response, make_response, redirect, render_template, request, url_for
from itsdangerous import BadData, URLSafeTimedSerializer

from app.approvals import service as approvals
from app.core.identifiers import require
from app.db.unit_of_work import read_only_unit
from app.errors import NotFound, RateLimited, ServiceError
from app.identity import limits
from app.identity import service as identity
from app.identity.owner_keys import OwnerKeyView
from app.identity.service import AgentSnapshot
from app.owner.session import sessions
from app.owner.session.sessions import LiveSession
from app.spending.policy import DEFAULT
from app.state import app_state
from app.version import VERSION
from app.wallets.core import wallets
from app.wallets.core.wallets import WalletView
from app.web import error_responses, request_bodies
from app.web.client_request import current_request


def serializer(salt: str) -> URLSafeTimedSerializer:
    """Return what signs texts for one purpose, its salt, and verifies them."""
    # The library signs with the last key and accepts all.
    return URLSafeTimedSerializer([*reversed(app_state().settings.secret_key_list())], salt=salt)


def printable(text: str) -> str:
    """Return what a person typed on one line."""
    return "".join(each if each.isprintable() else " " for each in text).strip()


def get_cookie(name: str) -> str | None:
    """Return a cookie by its name without the prefix."""
    return request.cookies.get(_full_name(name))


def set_cookie(response: Response, name: str, value: str, *, max_age: int) -> None:
    """Set a cookie by its name without the prefix."""
    response.set_cookie(
        _full_name(name), value, max_age=max_age, path="/", secure=_is_https(), httponly=True, samesite="Strict"
    )


def delete_cookie(response: Response, name: str) -> None:
    """Delete a cookie by its name without the prefix."""
    response.delete_cookie(_full_name(name), path="/", secure=_is_https(), httponly=True, samesite="Strict")


def _full_name(name: str) -> str:
    # The prefix requires `Secure`, which not every browser accepts over http, even on loopback.
    return f"__Host-{name}" if _is_https() else name


def _is_https() -> bool:
    return app_state().settings.public_url.startswith("https://")


CSRF_FIELD = "csrf_token"
_NONCE_COOKIE = "purser_form"
_NONCE_KEY = "purser.form_nonce"
_VALID_FOR_SECONDS = 12 * 3600
_NONCE_BYTES = 24


def csrf_token(*, session_id: str = "") -> str:
    """Return the token of a form; the browser keeps its nonce if it has one."""
    return serializer("owner-form").dumps([_nonce(), session_id])


def is_form_valid(*, session_id: str = "") -> bool:
    """Return whether the submitted form was issued to this browser and session, and recently."""
    # Browsers send `Sec-Fetch-Site`; for those that do not, the token decides.
    if request.headers.get("Sec-Fetch-Site", "none") not in {"same-origin", "none"}:
        return False
    try:
        nonce, bound_to = serializer("owner-form").loads(request.form.get(CSRF_FIELD, ""), max_age=_VALID_FOR_SECONDS)
    except (BadData, ValueError, TypeError):
        return False
    pairs = (nonce, get_cookie(_NONCE_COOKIE) or ""), (bound_to, session_id)
    return all(hmac.compare_digest(str(signed).encode(), known.encode()) for signed, known in pairs)


def _nonce() -> str:
    if _NONCE_KEY not in request.environ:
        sent = get_cookie(_NONCE_COOKIE) or ""
        new_nonce = len(sent) < _NONCE_BYTES or not sent.isascii()
        request.environ[_NONCE_KEY] = secrets.token_urlsafe(_NONCE_BYTES) if new_nonce else sent
    nonce: str = request.environ[_NONCE_KEY]
    return nonce


public_pages = Blueprint("owner_entrance", __name__)
session_pages = Blueprint("owner", __name__, url_prefix="/owner")

SESSION_COOKIE = "purser_owner"
_SESSION_KEY = "purser.owner_session"
_FORM_TARGETS = "purser.form_targets"
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'{targets}; "
    "frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types push-worker"
)
_HEADERS = {
    "Cache-Control": "no-store", "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex, nofollow",
}  # fmt: skip
_REMEDIES: dict[type[ServiceError], tuple[str, str]] = {
    NotFound: (
        "Page not found",
        "It may have been deleted, or you are not signed in to its agent. Go back to your agents.",
    ),
    RateLimited: ("Too many requests", "Wait a minute, then try again."),
}


def session_token() -> str | None:
    """Return the session token that the browser sent, valid or not."""
    return get_cookie(SESSION_COOKIE)


def live_session() -> LiveSession | None:
    """Return the browser's session, read once per request."""
    if _SESSION_KEY not in request.environ:
        request.environ[_SESSION_KEY] = sessions.find_session(session_token())
    found: LiveSession | None = request.environ[_SESSION_KEY]
    return found


def use_session_token(token: str) -> None:
    """Continue in a session created in this request: the forms in its response belong to it."""
    request.environ[_SESSION_KEY] = sessions.find_session(token)


def current_session() -> LiveSession:
    """Return the session of a signed-in owner; only for `session_pages`."""
    return require(live_session(), page_not_found())


def owner_key_of(agent_id: str) -> OwnerKeyView:
    """Return the session's key to an agent. Raises: NotFound, including for other owners' agents."""
    return require(next((key for key in current_session().keys if key.agent_id == agent_id), None), page_not_found())


def agent_of(key: OwnerKeyView) -> AgentSnapshot:
    """Return the agent of an owner key. Raises: NotFound."""
    with read_only_unit() as session:
        return identity.get_agent(session, key.agent_id)


def owned_wallet(key: OwnerKeyView, wallet_id: str) -> WalletView:
    """Return a wallet of the key's agent with its controls. Raises: NotFound, including for other agents' wallets."""
    return wallets.with_controls(wallets.get_owned(wallet_id, agent_id=key.agent_id))


def allow_form_target(source: str) -> None:
    """Let a form of this response end in a redirect to another place: Chromium checks redirects, too."""
    request.environ[_FORM_TARGETS] = f" {source}"


def set_session_cookie(response: Response, token: str) -> Response:
    set_cookie(response, SESSION_COOKIE, token, max_age=int(sessions.SESSION_LIFETIME.total_seconds()))
    return response


def see_other(path: str) -> Response:
    """Redirect to the page, or to the application, that shows the result of a form."""
    return redirect(path, 303)  # type: ignore[return-value]


def render_page(template: str, *, status: int = 200, retry_after_seconds: int | None = None, **values: Any) -> Response:
    """Render a page, with tabs if it is one of an `agent`; the forms of a signed-in owner are tied to the session."""
    signed_in, agent = live_session(), values.get("agent")
    if agent is not None:
        with read_only_unit() as session:
            values["waiting_count"] = approvals.count_awaiting(session, agent.id)
    body = render_template(
        f"owner/{template}", csrf_field=CSRF_FIELD,
        csrf_token=csrf_token(session_id=signed_in.id if signed_in else ""), open_token=csrf_token(),
        signed_in=signed_in, settings=app_state().settings, default_limits=DEFAULT, version=VERSION, **values,
    )  # fmt: skip
    response = make_response(body, status)
    if retry_after_seconds is not None:
        response.headers["Retry-After"] = str(max(1, retry_after_seconds))
    return response


@public_pages.before_request
def _limit_anonymous() -> None:
    limits.count_keyless_request(current_request(), "owner_pages")
    limit_form(16 * 1024)


@session_pages.before_request
def _require_session() -> Response | None:
    """Check the session and the form, and replace the agent's id in the path by the session's key to it."""
    found = live_session()
    if found is None:
        back = request.path if request.method == "GET" else None
        return see_other(url_for("owner_entrance.sign_in_form", next=back))
    limits.count_authenticated_request(found.keys[0].id)
    limit_form(256 * 1024)  # the longest form has two allowlists of 500 entries each
    if request.method == "POST" and not is_form_valid(session_id=found.id):
        return render_page(
            "error.html", status=403, title="This form has expired",
            message="It was opened in another session or browser, or more than twelve hours ago.",
            next_step="Nothing was changed. Go back, reload the page and try again.",
        )  # fmt: skip
    if request.view_args and "agent_id" in request.view_args:
        request.view_args["key"] = owner_key_of(request.view_args.pop("agent_id"))
    return None


@public_pages.after_request
@session_pages.after_request
def set_security_headers(response: Response) -> Response:
    if (nonce := request.environ.get(_NONCE_KEY)) is not None:  # there are forms in it
        set_cookie(response, _NONCE_COOKIE, nonce, max_age=_VALID_FOR_SECONDS)
    response.headers.update(_HEADERS)
    policy = _CONTENT_SECURITY_POLICY.format(targets=request.environ.get(_FORM_TARGETS, ""))
    response.headers["Content-Security-Policy"] = policy
    places = (request.path, request.args.get("next", ""), response.headers.get("Location", ""))
    if any(each.startswith(("/oauth/", "/owner/connect/")) for each in places):
        # An application may have opened this page as a window, and waits for that to come back.
        response.headers["Cross-Origin-Opener-Policy"] = "unsafe-none"
    return response


@public_pages.errorhandler(ServiceError)
@session_pages.errorhandler(ServiceError)
def _on_service_error(failure: ServiceError) -> Response:
    title, next_step = _REMEDIES.get(type(failure), ("Something went wrong", "Nothing was changed. Try again."))
    return render_page(
        "error.html", status=failure.status, retry_after_seconds=failure.retry_after_seconds, title=title,
        message=failure.message, next_step=next_step,
    )  # fmt: skip


@public_pages.errorhandler(Exception)
@session_pages.errorhandler(Exception)
def on_unhandled_error(error: Exception) -> Response:
    return error_responses.as_page(error_responses.response_of(error, route=str(request.url_rule)))


def limit_form(max_bytes: int) -> None:
    """Bound the size of the current request's form, and reserve memory for it. Raises: Overloaded."""
    request.max_content_length = max_bytes
    if request.method == "POST":
        size = min(request.content_length or max_bytes, max_bytes)
        # Measured: while it is decoded, a form needs 80 times its bytes if all are escapes.
        request_bodies.reserve_memory(current_request(), 80 * size)


def page_not_found() -> NotFound:
    return NotFound("There is no page at this address.")
