"""A thread that stays with a busy connection serves its next request; it starves no other client."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.http.unreader import SocketUnreader

from server.client_socket import ClientSocket
from server.hooks import Hooks
from server.pool import ResourcePool
from server.staying import Staying
from tests.support.servers import free_port
from tests.support.small_app import BODY
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.wire import answers_in, get, post

ROOT = Path(__file__).resolve().parents[2]
REQUEST = get(b"/")
THREADS = 4
# Far longer than a busy test process needs between a response and its next request.
LONG_MS = 60_000


@dataclass(frozen=True, slots=True)
class Pair:
    """A connection that just sent a request, and its client."""

    connection: Any
    client: socket.socket

    def left_for_the_parser(self) -> bytes:
        data: bytes = self.connection.parser.unreader.take_buffered()
        return data


@pytest.fixture
def pair() -> Iterator[Pair]:
    accepted, client = socket.socketpair()
    with ClientSocket.wrap(accepted, Hooks(ResourcePool.for_threads(1))) as ours, client:
        parser = SimpleNamespace(unreader=SocketUnreader(ours))
        yield Pair(SimpleNamespace(sock=ours, parser=parser, is_busy=True), client)


def staying(*, occupied: int = 1, wait_ms: int = LONG_MS) -> Staying:
    made = Staying(threads=THREADS, wait_ms=wait_ms)
    made.occupied = occupied
    return made


def test_a_request_that_follows_immediately_is_received(pair: Pair) -> None:
    pair.client.sendall(REQUEST)
    assert staying().receive_next(pair.connection)
    assert pair.left_for_the_parser() == REQUEST


def test_a_pipelined_request_is_received_from_the_buffer(pair: Pair) -> None:
    pair.connection.parser.unreader.unread(REQUEST + REQUEST)
    assert staying().receive_next(pair.connection)
    assert pair.left_for_the_parser() == REQUEST + REQUEST


@pytest.mark.parametrize("start", [REQUEST[:-1], post(b"Content-Length: 9", body=b"12345678")])
def test_no_thread_waits_for_the_rest_of_an_incomplete_request(pair: Pair, start: bytes) -> None:
    pair.client.sendall(start)
    assert not staying().receive_next(pair.connection)
    assert pair.left_for_the_parser() == start


def test_a_silent_client_is_no_longer_busy(pair: Pair) -> None:
    assert not staying(wait_ms=1).receive_next(pair.connection)
    assert not pair.connection.is_busy


def test_a_client_that_is_gone_is_left_to_the_event_loop(pair: Pair) -> None:
    pair.client.close()
    assert not staying().receive_next(pair.connection)
    # As in the event loop: the end of its requests.
    assert pair.connection.sock.recv(1) == b""


@pytest.mark.parametrize("reason", ["not busy", "too few free threads"])
def test_a_thread_does_not_stay(pair: Pair, reason: str) -> None:
    pair.client.sendall(REQUEST)
    pair.connection.is_busy = reason != "not busy"
    occupied = THREADS // 2 + 1 if reason == "too few free threads" else 1
    assert not staying(occupied=occupied).receive_next(pair.connection)
    assert pair.left_for_the_parser() == b""


def test_only_quick_clients_are_busy_and_none_if_staying_is_turned_off() -> None:
    assert staying(wait_ms=20).is_busy(idle_ms=19)
    assert not staying(wait_ms=20).is_busy(idle_ms=20)
    assert not staying(wait_ms=0).is_busy(idle_ms=0)


@dataclass(frozen=True, slots=True)
class Server:
    """A gunicorn with one worker and few threads."""

    port: int
    process: subprocess.Popen[bytes]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS)

    def switches_of_the_event_loop(self) -> int:
        """Return how often the event loop has waited (proc(5), the main thread's status)."""
        (worker,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        status = Path(f"/proc/{worker}/task/{worker}/status").read_text()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[int], Server]]:
    with ExitStack() as stack:

        def start(stay_ms: int) -> Server:
            settings = tmp_path / "gunicorn.conf.py"
            settings.write_text(f"def post_fork(_server, worker):\n    worker.stay_ms = {stay_ms}\n")
            port = free_port()
            options = {
                "bind": f"127.0.0.1:{port}", "worker-class": "server.worker.Worker", "threads": THREADS,
                "worker-connections": 100, "keep-alive": 600,
            }  # fmt: skip
            process = stack.enter_context(
                subprocess.Popen([
                    sys.executable, "-m", "gunicorn", "tests.support.small_app:app", "--config", settings,
                    "--no-control-socket", *(f"--{name}={value}" for name, value in options.items()),
                ], cwd=ROOT)
            )  # fmt: skip
            stack.callback(process.terminate)
            server = Server(port, process)
            wait_until(lambda: is_listening(server), what="the server")
            return server

        yield start


def is_listening(server: Server) -> bool:
    try:
        with server.connect():
            return True
    except ConnectionRefusedError:
        return False


def exchange(client: socket.socket, request: bytes = REQUEST) -> bytes:
    """Send a request and return the response, or what arrived of it before the server closed."""
    client.sendall(request)
    received = b""
    while not received.endswith(BODY) and (piece := client.recv(65_536)):
        received += piece
    return received


@pytest.mark.parametrize(("stay_ms", "expected"), [(LONG_MS, range(100)), (0, range(300, 10_000))])
def test_a_busy_connection_does_not_wake_the_event_loop(
    serve: Callable[[int], Server], stay_ms: int, expected: range
) -> None:
    server = serve(stay_ms)
    for _ in range(THREADS):
        with server.connect() as earlier:
            exchange(earlier)
    with server.connect() as client:
        exchange(client)
        before = server.switches_of_the_event_loop()
        for _ in range(400):
            assert exchange(client).startswith(b"HTTP/1.1 200 OK\r\n")
        # Besides, it wakes once per second.
        assert server.switches_of_the_event_loop() - before in expected


@contextmanager
def busy_clients(server: Server, count: int) -> Iterator[list[bytes]]:
    """Let clients send requests without a pause; yield a list of their last responses."""
    stopped, last = threading.Event(), []
    ready = threading.Barrier(count + 1)

    def send_on() -> None:
        with server.connect() as client:
            response = exchange(client)
            ready.wait(PATIENCE_SECONDS)
            while response and not stopped.is_set() and b"Connection: close" not in response:
                response = exchange(client)
            last.append(response)

    threads = [threading.Thread(target=send_on) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        ready.wait(PATIENCE_SECONDS)
        yield last
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def test_more_busy_clients_than_threads_do_not_starve_another_client(serve: Callable[[int], Server]) -> None:
    server = serve(LONG_MS)
    with busy_clients(server, 2 * THREADS):
        for _ in range(20):
            with server.connect() as other:
                assert exchange(other).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_busy_connection_does_not_delay_a_stop_and_loses_no_response(serve: Callable[[int], Server]) -> None:
    server = serve(20)
    with busy_clients(server, 2) as last:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_SECONDS) == 0
    assert all(b"Connection: close" in response for response in last), last


def test_an_error_before_the_response_is_a_response_and_one_in_the_middle_closes(
    serve: Callable[[int], Server],
) -> None:
    server = serve(20)
    with server.connect() as client:
        client.sendall(get(b"/fails"))
        (answer,) = answers_in(read_all(client))
        assert (answer.status, answer.headers["connection"]) == (500, "close")
    with server.connect() as client:
        client.sendall(get(b"/breaks"))
        _, _, body = read_all(client).partition(b"\r\n\r\n")
        assert body == BODY


def read_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65_536), b""))
