"""Tokens that tie the form to the browser that was given it: a nonce in a cookie, and signed in the form.

No session and no table: another site can neither read the cookie nor sign a nonce of its own.
"""

from __future__ import annotations

import hmac
import secrets

from flask import Response, request
from itsdangerous import BadData, URLSafeTimedSerializer

from app.ports import provider

FIELD = "csrf_token"
_COOKIE = "purser_form"
_VALID_FOR_SECONDS = 4 * 3600
_NONCE_BYTES = 24


def issue() -> tuple[str, str]:
    """Return `(nonce for the cookie, token for the form)`; the browser's own nonce where it has one."""
    nonce = request.cookies.get(_COOKIE, "")
    if len(nonce) < _NONCE_BYTES or not nonce.isascii():
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
    return nonce, _serializer().dumps(nonce)


def remember(response: Response, nonce: str, *, path: str) -> None:
    """Set the nonce as a cookie that no script reads and no other site sends."""
    response.set_cookie(
        _COOKIE,
        nonce,
        max_age=_VALID_FOR_SECONDS,
        path=path,
        secure=provider.settings().public_url.startswith("https://"),
        httponly=True,
        samesite="Strict",
    )


def is_valid(token: str) -> bool:
    """Tell whether the form that was sent was given to this very browser, and lately."""
    try:
        nonce = _serializer().loads(token, max_age=_VALID_FOR_SECONDS)
    except BadData:
        return False
    return hmac.compare_digest(str(nonce).encode(), request.cookies.get(_COOKIE, "").encode())


def _serializer() -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(provider.settings().secret_key.get_secret_value(), salt="device-form")
