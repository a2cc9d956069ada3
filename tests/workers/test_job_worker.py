"""The worker's process ends when a job does not: it is started again, and the job's work is still due."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from tests.support.hosts import ROOT
from tests.support.servers import free_port, redis_server

# Redis is away: only the limits of one job are of interest. Each job has a process of its own, which the imports of one
# process serve.
_START = """
import ctypes, json, os, signal, sys, threading, time
from redis import Redis
from rq.job import Job
from rq.worker import WorkerStatus
from workers.job_worker import JobWorker

jobs = json.loads(sys.argv[1])
started = {}
for name in jobs:
    process = os.fork()
    if not process:
        for descriptor, stream in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{name}.{stream}", os.O_WRONLY | os.O_CREAT), descriptor)
        break
    started[process] = name
else:
    ended = {}
    for _ in jobs:
        process, status = os.wait()
        ended[started[process]] = os.waitstatus_to_exitcode(status)
    print(json.dumps(ended))
    sys.exit()

class Worker(JobWorker):
    overtime_seconds = 1
    def prepare_execution(self, job): self._state = WorkerStatus.BUSY
    def set_state(self, state): pass
    def perform_job(self, job, queue): exec(jobs[name])

class QuickJob(Job):
    def __init__(self): self.timeout = 1
    func_name = "workers.movements.advance"

worker = Worker([], connection=Redis(port=1), prepare_for_work=False)
worker._install_signal_handlers()
worker.execute_job(QuickJob(), None)
print("next job")
"""
_JOBS = {
    "in time": "time.sleep(0.1)",
    "late": "time.sleep(1.1)",
    "with a thread": "threading.Thread(target=time.sleep, args=[50]).start(); time.sleep(1.1)",
    "with a signal": "signal.raise_signal(signal.SIGTERM); print('complete')",
    "waiting": "time.sleep(50)",
    "blocking": "ctypes.PyDLL(None).sleep(50)",
}
"""Jobs of one second, by name."""


@dataclass(frozen=True, slots=True)
class _End:
    status: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, _End]:
    """How the worker of each job ended."""
    folder = tmp_path_factory.mktemp("jobs")
    done = subprocess.run(
        [sys.executable, "-c", _START, json.dumps(_JOBS)],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        name: _End(status, *(folder.joinpath(f"{name}.{stream}").read_text() for stream in ("stdout", "stderr")))
        for name, status in json.loads(done.stdout).items()
    }


def test_a_worker_continues_after_a_job_within_its_time(ends: dict[str, _End]) -> None:
    done = ends["in time"]
    assert (done.status, done.stdout) == (0, "next job\n"), done.stderr


def test_a_worker_ends_after_a_job_that_used_all_of_its_time(ends: dict[str, _End]) -> None:
    done = ends["late"]
    assert done.status == 1
    assert "job_timed_out" in done.stdout
    assert "next job" not in done.stdout


def test_a_worker_ends_after_its_time_although_a_thread_of_the_job_continues(ends: dict[str, _End]) -> None:
    done = ends["with a thread"]
    assert done.status == 1
    assert "job_timed_out" in done.stdout


def test_a_signal_without_redis_does_not_interrupt_a_job(ends: dict[str, _End]) -> None:
    done = ends["with a signal"]
    assert (done.status, done.stdout) == (0, "complete\nnext job\n"), done.stderr


@pytest.mark.parametrize("hang", ["waiting", "blocking"])
def test_a_worker_ends_with_a_job_that_never_returns(ends: dict[str, _End], hang: str) -> None:
    done = ends[hang]
    assert (done.status, done.stdout) == (1, "")
    assert "in perform_job" in done.stderr


_SERVE = """
import os, signal, sys
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer
from workers.job_worker import JobWorker
from workers.listed_jobs import AllowlistedQueue

class Worker(JobWorker):
    def perform_job(self, job, queue):
        {work}

redis = Redis(port=int(sys.argv[1]))
queue = AllowlistedQueue("chains", connection=redis, serializer=JSONSerializer)
queue.enqueue_call("workers.movements.advance", ttl=50)
is_stopped = Worker([queue], connection=redis, serializer=JSONSerializer).serve()
print("stopped" if is_stopped else "another worker follows")
"""


def serve_job(work: str) -> str:
    """Serve a job with a Redis; return what was printed."""
    port = free_port()
    with redis_server(port=port):
        done = subprocess.run(
            [sys.executable, "-c", _SERVE.format(work=work), str(port)],
            cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True, timeout=80, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_redis_that_is_lost_during_a_job_does_not_end_the_process() -> None:
    printed = serve_job("redis.shutdown(nosave=True); job.heartbeat(job.created_at, 60)")
    assert printed.splitlines()[-1] == "another worker follows"


def test_the_record_of_a_running_job_does_not_expire() -> None:
    printed = serve_job("print(redis.ttl(job.key) > 60); os.kill(os.getpid(), signal.SIGTERM)")
    assert printed.splitlines() == ["True", "stopped"]
