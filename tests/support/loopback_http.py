"""A real HTTP server on loopback with responses from the test; it records requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from solana_node.loopback_server import LoopbackHandler, LoopbackServer


@dataclass(frozen=True, slots=True)
class Asked:
    """One received request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """A response; `body` None closes the connection without one."""

    body: bytes | None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class RecordingServer(LoopbackServer):
    """Change `answer` at any time; `asked` and `connections` grow."""

    def __init__(self, answer: Callable[[Asked], Reply]) -> None:
        super().__init__(_Handler)
        self.answer = answer
        self.asked: list[Asked] = []
        self.connections = 0

    def handle_error(self, *_arguments: object) -> None:
        """Ignore clients that disconnect, as tests do."""


class _Handler(LoopbackHandler):
    server: RecordingServer

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def _answer(self) -> None:
        asked = Asked(self.command, self.path, dict(self.headers.items()), self.read_body())
        self.server.asked.append(asked)
        reply = self.server.answer(asked)
        if reply.body is None:
            self.close_connection = True
        else:
            self.reply(reply.status, reply.body, content_type=None, headers=reply.headers)

    do_GET = do_POST = _answer


@contextmanager
def serve(answer: Callable[[Asked], Reply]) -> Iterator[RecordingServer]:
    """Serve until the block ends."""
    server = RecordingServer(answer)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def unused_url() -> str:
    """Return a URL with no listener."""
    with serve(lambda _asked: Reply(b"")) as gone:
        return gone.url
