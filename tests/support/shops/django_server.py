"""What the Django shops of the tests share: tables without migrations, and a server on loopback.

Imported by the shops' own programs, which run in their own environments, so it imports nothing of this project.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

Application = Callable[..., Iterable[bytes]]


class NoMigrations:
    """Reports to Django that no application has migrations: running hundreds takes longer than all tests."""

    def __contains__(self, _name: str) -> bool:
        return True

    def __getitem__(self, _name: str) -> None:
        return None


class Server(ThreadingMixIn, WSGIServer):
    """Serves requests concurrently."""

    daemon_threads = True
    request_queue_size = 64


class Quiet(WSGIRequestHandler):
    """Writes no log."""

    def log_message(self, *_arguments: object) -> None:
        """Write nothing."""


def serve(application: Application, stock: Callable[[str], Mapping[str, Any]]) -> None:
    """Print what `stock` returns for the base URL as a line of JSON, and serve until killed."""
    with make_server("127.0.0.1", 0, application, Server, Quiet) as server:
        print(json.dumps(stock(f"http://127.0.0.1:{server.server_port}")), flush=True)  # noqa: T201 - what the tests wait for
        sys.stdout = sys.stderr
        server.serve_forever()
