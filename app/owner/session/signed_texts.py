"""Signed texts in forms and links of the owners' pages."""

from __future__ import annotations

from itsdangerous import URLSafeTimedSerializer

from app.state import app_state


def serializer(salt: str) -> URLSafeTimedSerializer:
    """Return what signs texts for one purpose, its salt, and verifies them."""
    # The library signs with the last key and accepts all.
    return URLSafeTimedSerializer([*reversed(app_state().settings.secret_key_list())], salt=salt)


def printable(text: str) -> str:
    """Return what a person typed on one line."""
    return "".join(each if each.isprintable() else " " for each in text).strip()
