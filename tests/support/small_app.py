"""A WSGI application for tests of the server alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

BODY = b"served"


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Serve a small body, or fail where the path says so."""
    path = environ["PATH_INFO"]
    if path == "/fails":
        raise ValueError("before the response")
    if path == "/breaks":
        start_response("200 OK", [("Content-Length", str(2 * len(BODY)))])
        return _broken()
    start_response("200 OK", [("Content-Length", str(len(BODY)))])
    return [BODY]


def _broken() -> Iterator[bytes]:
    yield BODY
    raise ValueError("in the middle of the response")
