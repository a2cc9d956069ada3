"""Generation of concurrent HTTP load on loopback.

Each connection is a thread that keeps one socket alive and sends its requests in a loop. Time and count are
bounded. It does little work per request, because it shares the processors with the server that it measures.
"""

import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import processes

_LOOPBACK = "127.0.0.1"
_RESPONSE_TIMEOUT_SECONDS = 60.0
_OK = range(200, 300)


@dataclass(frozen=True, slots=True)
class Request:
    """One request; a body is JSON."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None

    def encoded(self, port: int) -> bytes:
        """Return the bytes of HTTP/1.1."""
        body = b"" if self.body is None else json.dumps(self.body).encode()
        lines = [f"{self.method} {self.path} HTTP/1.1", f"Host: {_LOOPBACK}:{port}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a load: successes per second, latencies in milliseconds, failures by kind.

    `processor_seconds` is what the measured process trees used meanwhile, by name; "load" is the load generator,
    "machine" are all programs.
    """

    answered: int
    seconds: float
    per_second: float
    p50_ms: float
    p99_ms: float
    failures: Mapping[str, int]
    processor_seconds: Mapping[str, float] = field(default_factory=dict)


def run(
    port: int | Sequence[int],
    connections: Sequence[Sequence[Request]],
    *,
    seconds: float,
    max_requests: int = 10**9,
    measured: Mapping[str, int] | None = None,
) -> Result:
    """Send each connection's requests to a local port in a loop, until a time or count is reached.

    With several ports, each connection uses them in turn, as behind a router. `measured` are the roots of the process
    trees of the result, by name.

    Raises: subprocess.CalledProcessError, subprocess.TimeoutExpired.
    """
    order = {
        "ports": [port] if isinstance(port, int) else list(port),
        "seconds": seconds,
        "most": max_requests,
        "measured": dict(measured or {}),
        "connections": [[asdict(request) for request in requests] for requests in connections],
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load_generator"],
        input=json.dumps(order).encode(),
        stdout=subprocess.PIPE,
        check=True,
        cwd=Path(__file__).parent.parent,
        timeout=seconds + 2 * _RESPONSE_TIMEOUT_SECONDS,
    )
    return Result(**json.loads(done.stdout))


class _Load:
    def __init__(self, ports: Sequence[int], *, seconds: float, most: int) -> None:
        self._ports = ports
        self._left = most
        self._lock = threading.Lock()
        self._seconds = seconds
        self._deadline = 0.0
        self._latencies: list[float] = []
        self._failures: Counter[str] = Counter()

    def run(self, connections: Sequence[Sequence[bytes]]) -> Result:
        """Run all connections until the deadline or the count is reached."""
        started = time.perf_counter()
        self._deadline = started + self._seconds
        threads = [threading.Thread(target=self._run_connection, args=(requests,)) for requests in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed = time.perf_counter() - started
        ordered = sorted(self._latencies) or [0.0]
        return Result(
            answered=len(self._latencies),
            seconds=elapsed,
            per_second=len(self._latencies) / elapsed,
            p50_ms=ordered[len(ordered) // 2] * 1000,
            p99_ms=ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000,
            failures=dict(self._failures),
        )

    def _run_connection(self, requests: Sequence[bytes]) -> None:
        latencies: list[float] = []
        failures: Counter[str] = Counter()
        kept_open: dict[int, socket.socket] = {}
        turn = 0
        while self._should_continue():
            began = time.perf_counter()
            port = self._ports[turn % len(self._ports)]
            try:
                connection = kept_open.pop(port, None)
                if connection is None:
                    connection = socket.create_connection((_LOOPBACK, port), timeout=_RESPONSE_TIMEOUT_SECONDS)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(requests[turn % len(requests)])
                status, kept = _receive(connection)
            except (OSError, ValueError) as error:
                failures[type(error).__name__] += 1
                turn += 1
                continue
            turn += 1
            if status in _OK:
                latencies.append(time.perf_counter() - began)
            else:
                failures[str(status)] += 1
            if kept:
                kept_open[port] = connection
            else:
                connection.close()
        with self._lock:
            self._latencies += latencies
            self._failures += failures

    def _should_continue(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0 and time.perf_counter() < self._deadline


def _receive(connection: socket.socket) -> tuple[int, bool]:
    """Read one response; return its status and whether the connection stays open. Raises: ValueError, OSError."""
    received = connection.recv(65_536)
    while (end := received.find(b"\r\n\r\n")) < 0:
        if not (more := connection.recv(65_536)):
            raise ValueError("closed")
        received += more
    head = received[:end].lower()
    at = head.index(b"content-length:") + len(b"content-length:")
    missing = int(head[at:].split(b"\r\n", 1)[0]) - (len(received) - end - 4)
    while missing > 0:
        if not (more := connection.recv(65_536)):
            raise ValueError("closed")
        missing -= len(more)
    return int(head[9:12]), b"connection: close" not in head


def main() -> None:
    """Read the load from standard input, run it and write the result."""
    order = json.load(sys.stdin)
    connections = [
        [Request(**request).encoded(order["ports"][0]) for request in requests] for requests in order["connections"]
    ]
    load = _Load(order["ports"], seconds=order["seconds"], most=order["most"])
    before = _processor_seconds(order["measured"])
    began = time.process_time()
    result = load.run(connections)
    own = time.process_time() - began
    after = _processor_seconds(order["measured"])
    spent = {"load": own, **{name: seconds - before[name] for name, seconds in after.items()}}
    json.dump(asdict(replace(result, processor_seconds=spent)), sys.stdout)


def _processor_seconds(roots: Mapping[str, int]) -> dict[str, float]:
    spent = {name: processes.processor_seconds(pid) for name, pid in roots.items()}
    return {**spent, "machine": processes.machine_seconds()}


if __name__ == "__main__":
    main()
