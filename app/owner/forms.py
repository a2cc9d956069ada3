"""Tokens that tie a form to the browser, and inside also to the session, that was given it.

A nonce stands in a cookie and, signed, in the form: another site can neither read the one nor make the other.
"""

from __future__ import annotations

import hmac
import secrets

from flask import Response, request
from itsdangerous import BadData, URLSafeTimedSerializer

from app.owner import cookies
from app.ports import provider

FIELD = "csrf_token"
_COOKIE = "purser_form"
_GIVEN = "purser.form_nonce"
_VALID_FOR_SECONDS = 12 * 3600
_NONCE_BYTES = 24


def token(*, session_id: str = "") -> str:
    """Return the token for a form; the browser keeps its own nonce where it has one."""
    return _serializer().dumps([_nonce(), session_id])


def remember(response: Response) -> None:
    """Give the browser the nonce of the forms in this answer, if there are any."""
    nonce = request.environ.get(_GIVEN)
    if nonce is not None:
        cookies.put(response, _COOKIE, nonce, max_age=_VALID_FOR_SECONDS)


def is_genuine(*, session_id: str = "") -> bool:
    """Tell whether the form that was sent was given to this very browser and session, lately."""
    # Browsers say where a request comes from; those that do not are left to the token.
    if request.headers.get("Sec-Fetch-Site", "none") not in {"same-origin", "none"}:
        return False
    try:
        nonce, bound_to = _serializer().loads(request.form.get(FIELD, ""), max_age=_VALID_FOR_SECONDS)
    except (BadData, ValueError, TypeError):
        return False
    given = cookies.get(_COOKIE) or ""
    return hmac.compare_digest(str(nonce).encode(), given.encode()) and hmac.compare_digest(
        str(bound_to).encode(), session_id.encode()
    )


def _nonce() -> str:
    if _GIVEN not in request.environ:
        given = cookies.get(_COOKIE) or ""
        fresh = len(given) < _NONCE_BYTES or not given.isascii()
        request.environ[_GIVEN] = secrets.token_urlsafe(_NONCE_BYTES) if fresh else given
    nonce: str = request.environ[_GIVEN]
    return nonce


def _serializer() -> URLSafeTimedSerializer:
    # The library signs with the last one and believes all.
    return URLSafeTimedSerializer([*reversed(provider.settings().secret_key_list())], salt="owner-form")
