"""The job queue: jobs reach a real worker, and an absent or silent Redis never delays a request."""

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

from app.adapters.redis_stores import SERIALIZER, RqQueue
from app.db.unit_of_work import UnitError, read_only_unit
from app.extensions import db
from app.jobs import JobName, QueueName
from app.ports.services import JobQueue
from launcher.redis_server import find_program
from tests.support.servers import free_port, redis_server
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
    """A Redis-compatible server that can be killed, suspended and restarted on the same port."""

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


def test_a_job_is_json_with_its_path_and_arguments(server: _Server, redis: Redis) -> None:
    assert _queue(server).enqueue(JobName.CONFIRM, _ID) is True
    (job,) = _waiting(redis)
    assert (job.func_name, job.args) == ("workers.confirmations.confirm", [_ID])
    assert job.ttl is not None


def test_a_queued_job_is_not_enqueued_twice(server: _Server, redis: Redis) -> None:
    queue = _queue(server)
    assert [queue.enqueue(JobName.CONFIRM, _ID) for _ in range(3)] == [True] * 3
    assert queue.enqueue(JobName.FIND_DEPOSITS, _ID)
    assert queue.enqueue(JobName.CONFIRM, "another")
    assert len(_waiting(redis)) == 3


def test_a_foreign_record_under_our_id_fails_no_caller(server: _Server, redis: Redis) -> None:
    assert _queue(server).enqueue(JobName.CONFIRM, _ID)
    (key,) = redis.scan_iter("rq:job:*")
    redis.hset(key, "status", "no status of RQ")
    assert _queue(server).enqueue(JobName.CONFIRM, _ID)


def test_different_arguments_have_different_job_ids(server: _Server, redis: Redis) -> None:
    queue = _queue(server)
    lists = [("a", "b"), ("a,b",), ("ab",), (), ("",), ('a", "b',), ("ü \n*",)]
    assert all(queue.enqueue(JobName.CONFIRM, *arguments) for arguments in lists)
    assert sorted(tuple(job.args) for job in _waiting(redis)) == sorted(lists)


def test_a_job_of_a_killed_worker_does_not_block_later_jobs(server: _Server, redis: Redis) -> None:
    assert _queue(server).enqueue(JobName.CONFIRM, _ID)
    assert redis.lpop("rq:queue:chains") is not None
    assert _queue(server).enqueue(JobName.CONFIRM, _ID)
    assert _waiting(redis) == []
    assert _queue(server, at=1_800_000_010).enqueue(JobName.CONFIRM, _ID)
    assert len(_waiting(redis)) == 1


def test_a_job_enqueued_while_it_runs_is_executed_again(server: _Server, redis: Redis, tmp_path: Path) -> None:
    package = tmp_path / "workers"
    package.mkdir()
    (package / "confirmations.py").write_text(_STAND_IN_JOB)
    hold, ran = package / "hold", package / "ran"
    hold.touch()
    queue = _queue(server)
    assert queue.enqueue(JobName.CONFIRM, _ID)
    command = [str(Path(sys.executable).parent / "rq"), "worker", "--serializer", SERIALIZER, "--quiet"]
    worker = subprocess.Popen(
        [*command, "--path", str(tmp_path), "--url", server.url, QueueName.CHAINS.value], cwd=tmp_path
    )
    try:
        wait_until(lambda: ran.exists() and ran.read_text() == f"{_ID}\n", what="the job runs")
        assert [queue.enqueue(JobName.CONFIRM, _ID) for _ in range(3)] == [True] * 3
        assert len(_waiting(redis)) == 1
        hold.unlink()
        wait_until(lambda: ran.read_text() == f"{_ID}\n" * 2, what="the job is executed")
        wait_until(lambda: not list(redis.scan_iter("rq:job:*")), what="nothing of the jobs remains")
    finally:
        worker.terminate()
        worker.wait(20)


def test_an_absent_redis_delays_no_caller_and_is_logged_once(server: _Server) -> None:
    queue = _queue(server)
    server.kill()
    began = time.monotonic()
    with capture_logs() as logs:
        assert [queue.enqueue(JobName.CONFIRM, _ID) for _ in range(50)] == [False] * 50
        assert queue.ping() is False
    assert time.monotonic() - began < 0.5
    assert [entry["event"] for entry in logs] == ["queue_failed"]
    assert "canary-password" not in repr([logs, queue])


def test_a_silent_redis_delays_one_request_by_a_quarter_second(server: _Server) -> None:
    queue = _queue(server)
    server.signal(signal.SIGSTOP)
    began = time.monotonic()
    with capture_logs():
        assert queue.enqueue(JobName.CONFIRM, _ID) is False
        first = time.monotonic() - began
        assert [queue.enqueue(JobName.CONFIRM, _ID) for _ in range(50)] == [False] * 50
    assert first < 0.7
    assert time.monotonic() - began < 0.8


def test_a_server_without_a_password_is_detected(server: _Server) -> None:
    assert _queue(server).needs_password()
    with redis_server(port=free_port()) as url:
        assert not RqQueue(url).needs_password()
        assert not RqQueue(url.replace("//", "//:a-password-that-is-not-checked@")).needs_password()
    assert RqQueue(url).needs_password()


def test_a_recovered_redis_is_used_again(server: _Server, redis: Redis) -> None:
    queue = _queue(server)
    server.kill()
    with capture_logs() as logs:
        assert queue.enqueue(JobName.CONFIRM, _ID) is False
        server.start()
        wait_until(lambda: queue.enqueue(JobName.CONFIRM, _ID), what="the queue tries again")
    assert [entry["event"] for entry in logs] == ["queue_failed", "queue_recovered"]
    assert len(_waiting(redis)) == 1


def test_a_redis_restart_between_two_jobs_loses_neither(server: _Server) -> None:
    queue = _queue(server)
    assert queue.enqueue(JobName.CONFIRM, _ID) is True
    server.kill()
    server.start()
    assert queue.enqueue(JobName.CONFIRM, _ID) is True
    assert queue.ping() is True


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_queue_used_before_a_fork_works_in_parent_and_child(server: _Server, redis: Redis) -> None:
    queue = _queue(server)
    assert queue.ping()
    child = os.fork()
    if child == 0:
        answers = [queue.enqueue(JobName.CONFIRM, f"child-{number}") for number in range(50)]
        os._exit(0 if all(answers) else 1)
    assert all(queue.enqueue(JobName.CONFIRM, f"parent-{number}") for number in range(50))
    assert os.waitpid(child, 0)[1] == 0
    assert len(_waiting(redis)) == 100


def test_no_job_is_enqueued_before_its_unit_of_work_commits(server: _Server) -> None:
    app = Flask("a service with a database")
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite://"
    db.init_app(app)
    queue = _queue(server)
    with app.app_context(), read_only_unit(), pytest.raises(UnitError):
        queue.enqueue(JobName.SWEEP)
    with app.app_context(), read_only_unit(), pytest.raises(UnitError):
        queue.ping()
