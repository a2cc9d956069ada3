"""Limits of a whole process: descriptors, memory, and time to stop. Each test has its own server."""

from __future__ import annotations

import resource
import select
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from server import closing
from server.worker import HEAD_TIMEOUT_SECONDS
from tests.support.services import web_service
from tests.support.waiting import conclusive
from tests.support.wire import PATIENCE_SECONDS, Wire, cpu_seconds, get, post, resident_bytes, worker_of

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def own(_sqlite_template: Path, tmp_path: Path) -> Iterator[Wire]:
    database = tmp_path / "own.sqlite"
    shutil.copy(_sqlite_template, database)
    with web_service(f"sqlite:///{database}", workers=1, threads=250) as service:
        yield Wire(service, "")


@pytest.fixture
def limited(_sqlite_template: Path, tmp_path: Path) -> Iterator[Wire]:
    """A service with a low rate limit for requests without a key."""
    database = tmp_path / "limited.sqlite"
    shutil.copy(_sqlite_template, database)
    settings = {"keyless_rate_limit": "60 per hour", "openai_api_key": "sk-x"}
    with web_service(f"sqlite:///{database}", settings, workers=1, threads=250) as service:
        yield Wire(service, "")


@contextmanager
def without_descriptors(process: int) -> Iterator[None]:
    soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_without_free_descriptors_pauses_without_spinning(own: Wire) -> None:
    worker = worker_of(own.service)
    with ExitStack() as stack:
        with without_descriptors(worker):
            # In the kernel's backlog; the process cannot accept it.
            waiting = stack.enter_context(own.connection())
            waiting.sendall(get(b"/v1/health", b"Connection: close"))
            before = cpu_seconds(worker)
            # By now all evictable connections are closed.
            answered, _, _ = select.select([waiting], [], [], 2)
            assert not answered
            assert cpu_seconds(worker) - before < 0.1
        (answer,) = own.read_all(waiting)
    assert answer.status == 200


def test_incomplete_requests_of_anonymous_clients_have_bounded_memory(own: Wire) -> None:
    unfinished = post(b"Content-Length: 65000", body=b"x" * 64_000)

    def attempt() -> None:
        with ExitStack() as stack:
            started: dict[socket.socket, float] = {}
            for _ in range(400):
                now = time.monotonic()
                client = stack.enter_context(own.connection())
                started[client] = now
                client.sendall(unfinished)
            closed, _, _ = select.select(started, [], [], PATIENCE_SECONDS)
            now = time.monotonic()
            # Evicted before its timeout, to bound the memory.
            assert max(started[client] for client in closed) > now - HEAD_TIMEOUT_SECONDS
            assert [answer.status for answer in own.read_all(closed[0])] == [408]

    conclusive(attempt, HEAD_TIMEOUT_SECONDS - 1)


def test_hostile_bodies_take_little_time_and_memory(limited: Wire) -> None:
    worker = worker_of(limited.service)
    chat = b"/v1/gateway/openai/chat/completions"
    limited.exchange(post(b"Content-Length: 2", body=b"{}", path=chat))
    before, idle = cpu_seconds(worker), resident_bytes(worker)
    body = b'{"model":"gpt-5","x":[' + b"1.5," * 65_000 + b"1]}"
    statuses: Counter[int] = Counter()
    for _ in range(100):
        answers = limited.exchange(post(b"Content-Length: %d" % len(body), body=body, path=chat))
        statuses.update(answer.status for answer in answers)
    assert statuses[402] <= 60
    assert statuses[429] >= 35
    assert (cpu_seconds(worker) - before) / 100 < 0.02
    assert resident_bytes(worker) < 1.5 * idle


def test_shutdown_waits_for_clients_that_still_read_their_response(own: Wire) -> None:
    with own.connection() as reading:
        began = time.monotonic()
        reading.sendall(get(b"/v1/health", b"Connection: close"))
        assert [answer.status for answer in own.read_all(reading)] == [200]
        own.service.process.send_signal(signal.SIGTERM)
        assert own.service.process.wait(PATIENCE_SECONDS) == 0
        assert time.monotonic() - began >= closing.LINGER_SECONDS
