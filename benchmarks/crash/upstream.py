"""An OpenAI-compatible upstream that counts what it generated, which is what a provider bills.

It needs only the standard library, so that it runs beside any gateway.
"""

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKENS_IN, TOKENS_OUT, MAX_TOKENS_OUT = 12, 100, 200
"""What each answer reports, and the limit that each call states: an answer costs about half of what is reserved."""


@dataclass(slots=True)
class CountingUpstream:
    """A running upstream and its counts by the text of the call."""

    port: int
    delay: float
    generated: Counter[str] = field(default_factory=Counter)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        """Its base URL, as OpenAI's clients have it."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def total(self) -> int:
        """The number of answers that were generated."""
        with self._changed:
            return self.generated.total()

    def generate(self, text: str) -> None:
        """Count an answer. Whether anybody still waits for it does not matter: it is billed."""
        with self._changed:
            self.generated[text] += 1
            self._changed.notify_all()

    def await_total(self, total: int, seconds: float) -> bool:
        """Wait until so many answers were generated; return whether they were in this time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.generated.total() >= total, seconds)


@contextlib.contextmanager
def counting_upstream(*, host: str = "127.0.0.1", port: int = 0, delay: float = 0.2) -> Iterator[CountingUpstream]:
    """Serve until the context ends. Each answer takes `delay` seconds."""
    server = _Server((host, port), _Handler)
    server.counts = CountingUpstream(server.server_address[1], delay)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.counts
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512
    counts: CountingUpstream

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: the killed processes break their connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        time.sleep(self.server.counts.delay)
        self.server.counts.generate(_text(asked["messages"][-1]["content"]))
        self._send(_answer(asked["model"]))

    def do_GET(self) -> None:
        self._send({"object": "list", "data": []})

    def _send(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the standard library
        """Log nothing."""


def _text(content: Any) -> str:
    """Return the text of a message, which may be a list of parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _answer(model: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": "word " * TOKENS_OUT}
    usage = {
        "prompt_tokens": TOKENS_IN, "completion_tokens": TOKENS_OUT, "total_tokens": TOKENS_IN + TOKENS_OUT
    }  # fmt: skip
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model, "usage": usage,
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
    }  # fmt: skip
