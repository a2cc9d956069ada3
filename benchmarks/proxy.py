"""A reverse proxy on loopback that counts: HTTP requests, and JSON-RPC calls in them, by method."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Count:
    """What went through since the last reset."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = 0
        self.calls: Counter[str] = Counter()

    def reset(self) -> None:
        """Begin anew."""
        with self._lock:
            self.requests = 0
            self.calls = Counter()

    def note(self, body: bytes) -> None:
        """Count one request."""
        parsed = json.loads(body)
        calls = parsed if isinstance(parsed, list) else [parsed]
        with self._lock:
            self.requests += 1
            self.calls.update(call["method"] for call in calls)


@contextlib.contextmanager
def counting(url: str) -> Iterator[tuple[str, Count]]:
    """Stand in front of a node for as long as the context lasts; yield the proxy's URL and its count."""
    count = Count()
    target = urlsplit(url).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            count.note(body)
            connection = http.client.HTTPConnection(target, timeout=60)
            connection.request("POST", "/", body=body, headers={"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", count
    finally:
        server.shutdown()
        server.server_close()
