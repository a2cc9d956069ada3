"""Cookies that scripts cannot read and other sites cannot send; over https with the `__Host-` prefix (RFC 6265bis)."""

from __future__ import annotations

from flask import Response, request

from app.state import app_state


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
