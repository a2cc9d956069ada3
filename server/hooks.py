"""The server's interface to the application that it serves: pools, error bodies, metrics."""

import json
from enum import StrEnum
from http import HTTPStatus

from server.pool import ResourcePool


class ShedReason(StrEnum):
    """Why a connection was shed or evicted."""

    SLOW_SENDER = "slow_sender"
    SLOW_READER = "slow_reader"
    STREAM_TOO_LONG = "stream_too_long"
    TOO_MANY_WAITING = "too_many_waiting"
    BODY_MEMORY_EXHAUSTED = "body_memory_exhausted"
    IDLE = "idle"
    INCOMPLETE_REQUEST = "incomplete_request"


class Hooks:
    """The hooks of an application without its own; others set `server_hooks` on their WSGI callable."""

    def __init__(self, threads: ResourcePool, bodies: ResourcePool | None = None) -> None:
        self.threads = threads
        self.bodies = bodies or ResourcePool.for_bodies()

    def error_body(self, status: HTTPStatus, message: str | None, request_id: str) -> bytes:
        """Return the JSON of a response that the server sends itself: 400, 408, 431 or 500."""
        return json.dumps({"error": message or status.phrase, "request_id": request_id}).encode()

    def count_shed(self, reason: ShedReason) -> None:
        """Count a connection that was shed or evicted."""
