"""CSRF tokens: tie a form to the browser, and for signed-in owners also to the session.

A nonce is in a cookie and, signed, in the form: another site can neither read the former nor forge the latter.
"""

from __future__ import annotations

import hmac
import secrets

from flask import Response, request
from itsdangerous import BadData

from app.owner.session import cookies
from app.owner.session.signed_texts import serializer

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
        cookies.set_cookie(response, _COOKIE, nonce, max_age=_VALID_FOR_SECONDS)


def is_valid(*, session_id: str = "") -> bool:
    """Return whether the submitted form was issued to this browser and session, and recently."""
    # Browsers send `Sec-Fetch-Site`; for those that do not, the token decides.
    if request.headers.get("Sec-Fetch-Site", "none") not in {"same-origin", "none"}:
        return False
    try:
        nonce, bound_to = serializer("owner-form").loads(request.form.get(FIELD, ""), max_age=_VALID_FOR_SECONDS)
    except (BadData, ValueError, TypeError):
        return False
    sent = cookies.get_cookie(_COOKIE) or ""
    return hmac.compare_digest(str(nonce).encode(), sent.encode()) and hmac.compare_digest(
        str(bound_to).encode(), session_id.encode()
    )


def _nonce() -> str:
    if _NONCE_KEY not in request.environ:
        sent = cookies.get_cookie(_COOKIE) or ""
        new_nonce = len(sent) < _NONCE_BYTES or not sent.isascii()
        request.environ[_NONCE_KEY] = secrets.token_urlsafe(_NONCE_BYTES) if new_nonce else sent
    nonce: str = request.environ[_NONCE_KEY]
    return nonce
