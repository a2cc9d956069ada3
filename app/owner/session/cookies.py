"""Cookies that scripts cannot read and other sites cannot send; over https with the `__Host-` prefix (RFC 6265bis).

CSRF tokens tie a form to the browser, and for signed-in owners also to the session: a nonce is in a cookie and,
signed, in the form, and another site can neither read the former nor forge the latter.
"""

import hmac
import secrets

from flask import Response, request
from itsdangerous import BadData, URLSafeTimedSerializer

from app.state import app_state


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


FIELD = "csrf_token"
_COOKIE = "purser_form"
_NONCE_KEY = "purser.form_nonce"
_VALID_FOR_SECONDS = 12 * 3600
_NONCE_BYTES = 24


def csrf_token(*, session_id: str = "") -> str:
    """Return the token of a form; the browser keeps its nonce if it has one."""
    return serializer("owner-form").dumps([_nonce(), session_id])


def set_nonce_cookie(response: Response) -> None:
    """Set the nonce cookie of the forms in this response, if there are any."""
    nonce = request.environ.get(_NONCE_KEY)
    if nonce is not None:
        set_cookie(response, _COOKIE, nonce, max_age=_VALID_FOR_SECONDS)


def is_valid(*, session_id: str = "") -> bool:
    """Return whether the submitted form was issued to this browser and session, and recently."""
    # Browsers send `Sec-Fetch-Site`; for those that do not, the token decides.
    if request.headers.get("Sec-Fetch-Site", "none") not in {"same-origin", "none"}:
        return False
    try:
        nonce, bound_to = serializer("owner-form").loads(request.form.get(FIELD, ""), max_age=_VALID_FOR_SECONDS)
    except (BadData, ValueError, TypeError):
        return False
    pairs = (nonce, get_cookie(_COOKIE) or ""), (bound_to, session_id)
    return all(hmac.compare_digest(str(signed).encode(), known.encode()) for signed, known in pairs)


def _nonce() -> str:
    if _NONCE_KEY not in request.environ:
        sent = get_cookie(_COOKIE) or ""
        new_nonce = len(sent) < _NONCE_BYTES or not sent.isascii()
        request.environ[_NONCE_KEY] = secrets.token_urlsafe(_NONCE_BYTES) if new_nonce else sent
    nonce: str = request.environ[_NONCE_KEY]
    return nonce
