"""The job queue: hints reach a real worker, and a Redis that is away or mute never holds up a request."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue
from rq.job import Job
from structlog.testing import capture_logs

from app.adapters.queue_rq import SERIALIZER, RqQueue
from app.core.unit_of_work import UnitError, reading
from app.extensions import db
from app.jobs import JobName, QueueName
from app.ports.queue import JobQueue
from launcher.redis_server import find_program
from tests.support.waiting import wait_until

pytestmark = pytest.mark.redis

_ID = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
_STAND_IN_JOB = """
import pathlib, time

here = pathlib.Path(__file__).parent

def confirm(*arguments):
    with (here / "ran").open("a") as ran:
        ran.write(",".join(arguments) + "\\n")
    deadline = time.monotonic() + 20
    while (here / "hold").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
"""


class _Server:
    """A Redis-compatible server that can be killed, muted and started again on the same port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://:canary-password@127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = find_program()
        assert program is not None
        options = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "requirepass": "canary-password"}
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self.process = subprocess.Popen([program, *arguments], cwd=self.directory, stdout=subprocess.DEVNULL)
        wait_until(self._answers, what="the server answers")

    def _answers(self) -> bool:
        try:
            with Redis.from_url(self.url) as client:
                return bool(client.ping())
        except RedisError:
            return False

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[_Server]:
    made = _Server(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def redis(server: _Server) -> Iterator[Redis]:
    with Redis.from_url(server.url) as client:
        yield client


def _queue(server: _Server, *, at: float = 1_800_000_000) -> JobQueue:
    return RqQueue(server.url, clock=lambda: at)


def _waiting(redis: Redis) -> list[Job]:
    return Queue(QueueName.CHAINS.value, connection=redis, serializer=SERIALIZER).jobs


def test_a_hint_is_json_that_names_the_job_by_path_and_carries_its_arguments(
    server: _Server, redis: Redis
) -> None:
    assert _queue(server).put(JobName.CONFIRM, _ID) is True
    (job,) = _waiting(redis)
    assert (job.func_name, job.args) == ("workers.confirmations.confirm", [_ID])
    assert job.ttl is not None


def test_a_hint_that_waits_already_is_not_put_twice(server: _Server, redis: Redis) -> None:
    queue = _queue(server)
    assert [queue.put(JobName.CONFIRM, _ID) for _ in range(3)] == [True] * 3
    assert queue.put(JobName.FIND_DEPOSITS, _ID)
    assert queue.put(JobName.CONFIRM, "another")
    assert len(_waiting(redis)) == 3


def test_no_two_argument_lists_are_taken_for_each_other(server: _Server, redis: Redis) -> None:
    queue = _queue(server)
    lists = [("a", "b"), ("a,b",), ("ab",), (), ("",), ('a", "b',), ("ü \n*",)]
    assert all(queue.put(JobName.CONFIRM, *arguments) for arguments in lists)
    assert sorted(tuple(job.args) for job in _waiting(redis)) == sorted(lists)


def test_a_job_abandoned_by_a_killed_worker_does_not_block_the_next_hints(
    server: _Server, redis: Redis
) -> None:
    assert _queue(server).put(JobName.CONFIRM, _ID)
    assert redis.lpop("rq:queue:chains") is not None
    assert _queue(server).put(JobName.CONFIRM, _ID)
    assert _waiting(redis) == []
    assert _queue(server, at=1_800_000_010).put(JobName.CONFIRM, _ID)
    assert len(_waiting(redis)) == 1


def test_a_hint_given_while_its_job_runs_is_worked_off_after_it(
    server: _Server, redis: Redis, tmp_path: Path
) -> None:
    package = tmp_path / "workers"
    package.mkdir()
    (package / "confirmations.py").write_text(_STAND_IN_JOB)
    hold, ran = package / "hold", package / "ran"
    hold.touch()
    queue = _queue(server)
    assert queue.put(JobName.CONFIRM, _ID)
    command = [str(Path(sys.executable).parent / "rq"), "worker", "--serializer", SERIALIZER, "--quiet"]
    worker = subprocess.Popen(
        [*command, "--path", str(tmp_path), "--url", server.url, QueueName.CHAINS.value], cwd=tmp_path
    )
    try:
        wait_until(lambda: ran.exists() and ran.read_text() == f"{_ID}\n", what="the job runs")
        assert [queue.put(JobName.CONFIRM, _ID) for _ in range(3)] == [True] * 3
        assert len(_waiting(redis)) == 1
        hold.unlink()
        wait_until(lambda: ran.read_text() == f"{_ID}\n" * 2, what="the hint is worked off")
        wait_until(lambda: not list(redis.scan_iter("rq:job:*")), what="nothing of the jobs is left")
    finally:
        worker.terminate()
        worker.wait(20)


def test_an_absent_redis_fails_no_caller_costs_no_time_and_is_told_once(server: _Server) -> None:
    queue = _queue(server)
    server.kill()
    began = time.monotonic()
    with capture_logs() as logs:
        assert [queue.put(JobName.CONFIRM, _ID) for _ in range(50)] == [False] * 50
        assert queue.ping() is False
    assert time.monotonic() - began < 0.5
    assert [entry["event"] for entry in logs] == ["queue_unreachable"]
    assert "canary-password" not in repr([logs, queue])


def test_a_mute_redis_holds_up_one_request_for_a_quarter_of_a_second(server: _Server) -> None:
    queue = _queue(server)
    server.signal(signal.SIGSTOP)
    began = time.monotonic()
    with capture_logs():
        assert queue.put(JobName.CONFIRM, _ID) is False
        first = time.monotonic() - began
        assert [queue.put(JobName.CONFIRM, _ID) for _ in range(50)] == [False] * 50
    assert first < 0.7
    assert time.monotonic() - began < 0.8


def test_a_redis_that_came_back_is_used_again(server: _Server, redis: Redis) -> None:
    queue = _queue(server)
    server.kill()
    with capture_logs() as logs:
        assert queue.put(JobName.CONFIRM, _ID) is False
        server.start()
        wait_until(lambda: queue.put(JobName.CONFIRM, _ID), what="the queue tries again")
    assert [entry["event"] for entry in logs] == ["queue_unreachable", "queue_reachable_again"]
    assert len(_waiting(redis)) == 1


def test_a_redis_that_was_restarted_between_two_hints_loses_neither_call(server: _Server) -> None:
    queue = _queue(server)
    assert queue.put(JobName.CONFIRM, _ID) is True
    server.kill()
    server.start()
    assert queue.put(JobName.CONFIRM, _ID) is True
    assert queue.ping() is True


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_queue_made_and_used_before_a_fork_works_in_parent_and_child(server: _Server, redis: Redis) -> None:
    queue = _queue(server)
    assert queue.ping()
    child = os.fork()
    if child == 0:
        answers = [queue.put(JobName.CONFIRM, f"child-{number}") for number in range(50)]
        os._exit(0 if all(answers) else 1)
    assert all(queue.put(JobName.CONFIRM, f"parent-{number}") for number in range(50))
    assert os.waitpid(child, 0)[1] == 0
    assert len(_waiting(redis)) == 100


def test_no_hint_leaves_before_its_unit_is_committed(server: _Server) -> None:
    app = Flask("a service with a database")
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite://"
    db.init_app(app)
    queue = _queue(server)
    with app.app_context(), reading(), pytest.raises(UnitError):
        queue.put(JobName.SWEEP)
    with app.app_context(), reading(), pytest.raises(UnitError):
        queue.ping()
