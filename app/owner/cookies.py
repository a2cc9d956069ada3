"""Cookies that no script reads, no other site sends, and over https no other host sets (RFC 6265bis `__Host-`)."""

from __future__ import annotations

from flask import Response, request

from app.ports import provider


def get(name: str) -> str | None:
    """Return a cookie of ours."""
    return request.cookies.get(_full(name))


def put(response: Response, name: str, value: str, *, max_age: int) -> None:
    """Set a cookie of ours."""
    response.set_cookie(
        _full(name), value, max_age=max_age, path="/", secure=_over_https(), httponly=True, samesite="Strict"
    )


def forget(response: Response, name: str) -> None:
    """Have the browser forget a cookie of ours."""
    response.delete_cookie(_full(name), path="/", secure=_over_https(), httponly=True, samesite="Strict")


def _full(name: str) -> str:
    # The prefix demands `Secure`, and not every browser takes that from http, even on loopback.
    return f"__Host-{name}" if _over_https() else name


def _over_https() -> bool:
    return provider.settings().public_url.startswith("https://")
