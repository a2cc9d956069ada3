"""What a whole process has little of: descriptors, memory, and time to stop. Each server here is one's own to break."""

from __future__ import annotations

import resource
import select
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from app.web import lingering
from app.web.server import HEAD_SECONDS
from tests.support.services import web_service
from tests.support.wire import PATIENCE_SECONDS, Wire, cpu_seconds, get, post, worker_of

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def own(_sqlite_template: Path, tmp_path: Path) -> Iterator[Wire]:
    database = tmp_path / "own.sqlite"
    shutil.copy(_sqlite_template, database)
    with web_service(f"sqlite:///{database}", workers=1, threads=250) as service:
        yield Wire(service, "")


@contextmanager
def without_descriptors(process: int) -> Iterator[None]:
    soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_without_descriptors_rests_until_it_has_some(own: Wire) -> None:
    worker = worker_of(own.service)
    with ExitStack() as stack:
        with without_descriptors(worker):
            # Accepted by the kernel, and announced to the process, which cannot.
            waiting = stack.enter_context(own.connection())
            waiting.sendall(get(b"/v1/health", b"Connection: close"))
            before = cpu_seconds(worker)
            # Whoever could give way has done so at once.
            answered, _, _ = select.select([waiting], [], [], 2)
            assert not answered
            assert cpu_seconds(worker) - before < 0.1
        (answer,) = own.hear(waiting)
    assert answer.status == 200


def test_what_strangers_have_sent_of_heads_and_small_bodies_fills_no_memory(own: Wire) -> None:
    unfinished = post(b"Content-Length: 65000", body=b"x" * 64_000)
    with ExitStack() as stack:
        began: dict[socket.socket, float] = {}
        for _ in range(400):
            now = time.monotonic()
            caller = stack.enter_context(own.connection())
            began[caller] = now
            caller.sendall(unfinished)
        told, _, _ = select.select(began, [], [], PATIENCE_SECONDS)
        heard = time.monotonic()
        # Whose time is merely over has waited for all of it.
        assert max(began[caller] for caller in told) > heard - HEAD_SECONDS
        assert [answer.status for answer in own.hear(told[0])] == [408]


def test_who_still_reads_its_last_answer_is_waited_for_at_the_end(own: Wire) -> None:
    with own.connection() as reading:
        began = time.monotonic()
        reading.sendall(get(b"/v1/health", b"Connection: close"))
        assert [answer.status for answer in own.hear(reading)] == [200]
        own.service.process.send_signal(signal.SIGTERM)
        assert own.service.process.wait(PATIENCE_SECONDS) == 0
        assert time.monotonic() - began >= lingering.SECONDS
