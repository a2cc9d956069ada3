"""An upstream that misbehaves on demand: a real server on loopback that writes any bytes."""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from app.adapters.upstream_http.exchange import HttpUpstream
from tests.support.waiting import PATIENCE_SECONDS, wait_until


def close_idle(upstream: HttpUpstream) -> None:
    """Close the connections that wait for the next request to their origin."""
    for idle in upstream._pool._idle.values():
        while idle:
            idle.pop().close()


@dataclass(frozen=True, slots=True)
class Asked:
    """One received request with all header lines; names in lower case."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name.lower()]
        return found[0] if found else None

    def json(self) -> Any:
        return json.loads(self.body)


class Exchange:
    """A connection for a behaviour, without checks of what it writes."""

    def __init__(self, connection: socket.socket, asked: Asked, upstream: MisbehavingUpstream) -> None:
        self._connection = connection
        self.asked = asked
        self._upstream = upstream
        self.keeps_open = True

    def send(self, raw: bytes) -> None:
        self._connection.sendall(raw)

    def head(self, status: int = 200, *headers: tuple[str, object]) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers)]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def answer(self, body: bytes, status: int = 200, *headers: tuple[str, object]) -> None:
        """Send a correct response; to HEAD without the body."""
        self.head(status, *headers, ("Content-Length", len(body)))
        if self.asked.method != "HEAD":
            self.send(body)

    def json(self, value: object, status: int = 200, *headers: tuple[str, object]) -> None:
        self.answer(json.dumps(value).encode(), status, ("Content-Type", "application/json"), *headers)

    def start_stream(self, kind: str = "text/event-stream") -> None:
        self.head(200, ("Content-Type", kind), ("Transfer-Encoding", "chunked"))

    def chunk(self, data: bytes) -> None:
        self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def end_stream(self) -> None:
        self.send(b"0\r\n\r\n")

    def hang_up(self) -> None:
        """Close the connection, possibly in the middle of a response."""
        self.keeps_open = False

    def reset(self) -> None:
        """Reset the connection."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._connection.close()
        self.keeps_open = False

    def wait_for(self, gate: str) -> None:
        """Wait until the test sets an event or ends."""
        self._upstream.gate(gate).wait(PATIENCE_SECONDS)

    def is_over(self, seconds: float) -> bool:
        """Wait at most this long for the end of the test; return whether it has ended."""
        return self._upstream.over.wait(seconds)

    def await_hang_up(self) -> None:
        """Wait until the client has disconnected, and record that."""
        self._connection.settimeout(PATIENCE_SECONDS)
        with suppress(OSError):
            while self._connection.recv(1024):
                pass
        self._upstream.hang_ups += 1
        self.keeps_open = False


Behaviour = Callable[[Exchange], None]


@dataclass(slots=True)
class MisbehavingUpstream:
    """Change `behave` at any time; `asked`, `connections` and `ended` (closed by this side) grow."""

    url: str
    behave: Behaviour
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    hang_ups: int = 0
    ended: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    _gates: dict[str, threading.Event] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def gate(self, name: str) -> threading.Event:
        with self._lock:
            return self._gates.setdefault(name, threading.Event())

    def open(self, name: str) -> None:
        self.gate(name).set()

    def open_all(self) -> None:
        for gate in list(self._gates.values()):
            gate.set()

    def await_asked(self, count: int = 1) -> None:
        wait_until(lambda: len(self.asked) >= count, what=f"{count} requests at the upstream")

    def await_hang_ups(self, count: int = 1) -> None:
        # Draining takes up to ten seconds.
        seen = f"{count} disconnects seen by the upstream"
        wait_until(lambda: self.hang_ups >= count, what=seen)

    def await_ended(self, count: int = 1) -> None:
        wait_until(lambda: self.ended >= count, what=f"{count} connections closed by the upstream")


@contextmanager
def misbehaving_upstream(behave: Behaviour | None = None) -> Iterator[MisbehavingUpstream]:
    """Serve until the block ends; by default every response is `{}`."""

    class Handler(socketserver.StreamRequestHandler):
        # The kernel would delay a body after its head by 40 ms.
        disable_nagle_algorithm = True

        def handle(self) -> None:
            state.connections += 1
            with suppress(OSError):
                while asked := _read(self.rfile):
                    state.asked.append(asked)
                    exchange = Exchange(self.connection, asked, state)
                    state.behave(exchange)
                    if not exchange.keeps_open or state.over.is_set():
                        return

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False
        allow_reuse_address = True
        request_queue_size = 512

        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            state.ended += 1

        def handle_error(self, *_arguments: object) -> None:
            """Ignore clients that disconnect, as tests do."""

    # The port of an earlier one: an application with the same settings can be used again.
    server = None
    while server is None:
        port = _ports.pop() if _ports else 0
        with suppress(OSError):
            server = Server(("127.0.0.1", port), Handler)
    port = int(server.server_address[1])
    state = MisbehavingUpstream(f"http://127.0.0.1:{port}", behave or (lambda exchange: exchange.json({})))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        state.over.set()
        state.open_all()
        server.shutdown()
        thread.join()
        server.server_close()
        _ports.append(port)


_ports: list[int] = []


def _read(stream: Any) -> Asked | None:
    line = stream.readline(65_536).decode("latin-1").strip()
    if not line:
        return None
    method, target, _ = line.split(" ", 2)
    headers = []
    while line := stream.readline(65_536).decode("latin-1").rstrip("\r\n"):
        name, _, value = line.partition(":")
        headers.append((name.lower(), value.strip()))
    length = int(dict(headers).get("content-length", 0))
    return Asked(method, target, tuple(headers), stream.read(length))


def sse(*events: object) -> list[bytes]:
    """Return events as `data:` frames; a string is used verbatim."""
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return [f"data: {text}\n\n".encode() for text in texts]


def chat_answer(model: str = "gpt-5", *, tokens_in: int = 1000, tokens_out: int = 500) -> Mapping[str, Any]:
    """Return a chat completion with its usage."""
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello there"}, "finish_reason": "stop"}
        ],
        "usage": {
            "prompt_tokens": tokens_in, "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        },
    }  # fmt: skip


def chat_chunks(*words: str, model: str = "gpt-5", tokens_in: int = 1000, tokens_out: int = 500) -> list[bytes]:
    """Return the frames of a chat stream with usage."""
    shape = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    events: list[object] = [
        {
            **shape, "usage": None,
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None}],
        }
        for word in words
    ]  # fmt: skip
    stop = {**shape, "usage": None, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {
        **shape,
        "choices": [],
        "usage": {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out},
    }
    return sse(*events, stop, usage, "[DONE]")
