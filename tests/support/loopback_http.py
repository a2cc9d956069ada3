"""A real HTTP server on loopback whose answers a test writes; it records what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came in."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What to answer; `body` None hangs up without a word."""

    body: bytes | None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class LoopbackServer:
    """Change `answer` at any time; `asked` and `connections` grow."""

    url: str
    answer: Callable[[Asked], Reply]
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0


@contextmanager
def serve(answer: Callable[[Asked], Reply]) -> Iterator[LoopbackServer]:
    """Serve until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            state.connections += 1

        def _reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = Asked(self.command, self.path, dict(self.headers.items()), body)
            state.asked.append(asked)
            reply = state.answer(asked)
            if reply.body is None:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_POST = _reply  # noqa: N815 - the names that http.server calls

        def log_message(self, *_arguments: object) -> None:
            """Keep the test run quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_arguments: object) -> None:
            """Say nothing: a client that hangs up is part of a test."""

    server = Server(("127.0.0.1", 0), Handler)
    state = LoopbackServer(f"http://127.0.0.1:{server.server_port}", answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def unused_url() -> str:
    """Return an address at which nobody listens."""
    with serve(lambda _asked: Reply(b"")) as gone:
        return gone.url
