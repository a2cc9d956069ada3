"""The request of a client, as an object that functions take instead of Flask's global `request`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import flask

from app.core.identifiers import new_id
from server.client_socket import ClientSocket, client_socket_of

_ABSOLUTE = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


class ClientRequest(flask.Request):
    """One request, and what is noted about it until its response is sent."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.id = new_id()
        self.started_ns = time.perf_counter_ns()
        self.on_response: list[Callable[[int], None]] = []
        """Called with the status of the response, before it is sent."""
        self.derives_idempotency_keys = False
        """Whether an idempotency key that was not sent is derived from the body."""

    @property
    def connection(self) -> ClientSocket | None:
        """The client's connection; None in tests, which have none."""
        return client_socket_of(self.environ)

    @property
    def raw_target(self) -> str:
        """Path and query as they were sent; `path` is decoded."""
        line = request_line_target(self.environ)
        return _ABSOLUTE.sub("", line, count=1) if not line.startswith("/") else line


def request_line_target(environ: Mapping[str, Any]) -> str:
    """Return the target in the request line, which servers give one name or the other."""
    target: str = environ.get("REQUEST_URI") or environ.get("RAW_URI") or ""
    return target


def current_request() -> ClientRequest:
    """Return the request that Flask dispatches in this thread."""
    return cast("ClientRequest", flask.request._get_current_object())  # type: ignore[attr-defined]  # noqa: SLF001 - the documented way
