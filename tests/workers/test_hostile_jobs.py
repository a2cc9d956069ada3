"""A real worker, and a client of its Redis that writes records to run code or crash the worker."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from app.adapters.redis_stores import RedisCounterStore, RqQueue
from app.jobs import JobName
from app.observability import counters
from tests.support.hosts import ROOT, command_of, environment_of
from tests.support.processes import Program
from tests.support.servers import free_port, redis_server
from tests.support.waiting import wait_until
from workers.listed_jobs import validate_record

pytestmark = pytest.mark.redis

LISTED = JobName.ADVANCE_MOVEMENTS.value
QUEUE = "rq:queue:chains"
PAST = 1


def data(function: object, *arguments: object, instance: object = None, **keywords: object) -> bytes:
    return zlib.compress(json.dumps([function, instance, arguments, keywords]).encode())


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self._path}",)


def hostile_records(marker: Path) -> dict[str, dict[str, Any]]:
    """Return what would run a command, or keep a worker busy, by what it is."""
    command, pickled = f"touch {marker}", pickle.dumps(Touch(marker))
    listed = data(LISTED)
    return {
        "another function": {"data": data("os.system", command)},
        "uncompressed data": {"data": json.dumps(["os.system", None, [command], {}]).encode()},
        "pickled data": {"data": zlib.compress(pickled)},
        "a listed name with a path behind it": {"data": data(f"{LISTED}.__globals__", command)},
        "an instance": {"data": data("system", command, instance="os")},
        "a success callback": {"data": listed, "success_callback_name": "os.system"},
        "a failure callback": {"data": data(LISTED, "no such parameter"), "failure_callback_name": "os.system"},
        "a stopped callback": {"data": listed, "stopped_callback_name": "os.system"},
        "a webhook": {"data": listed, "webhooks": '[{"url": "http://127.0.0.1:1/", "job_status": "finished"}]'},
        "a pickled result": {"data": listed, "result": pickled},
        "pickled meta": {"data": listed, "meta": pickled},
        "repetitions": {"data": listed, "repeats_left": "1000000", "repeat_intervals": "[0]"},
        "retries": {"data": data(LISTED, "no such parameter"), "retries_left": "1000000", "retry_intervals": "[0]"},
        "dependencies": {"data": listed, "dependency_ids": '["x"]'},
        "a group": {"data": listed, "group_id": "x"},
        "keywords": {"data": data(LISTED, command=command)},
        "a number as argument": {"data": data(LISTED, 1)},
        "a long argument": {"data": data(LISTED, "x" * 101)},
        "many arguments": {"data": data(LISTED, *"abcde")},
        "no list": {"data": zlib.compress(b"5")},
        "an object": {"data": zlib.compress(b'{"a":1,"b":2,"c":3,"d":4}')},
        "deep nesting": {"data": zlib.compress(b"[" * 8000)},
        "a compression bomb": {"data": zlib.compress(b" " * 1_000_000)},
        "data that ends early": {"data": listed[:-3]},
        "an unknown state": {"data": listed, "status": "hijacked"},
    }  # fmt: skip


# RQ's own reader refuses an unknown state.
@pytest.mark.parametrize("name", sorted(hostile_records(Path("x")).keys() - {"an unknown state"}))
def test_a_job_that_is_not_listed_or_has_other_arguments_is_refused(name: str) -> None:
    record = {field.encode(): value for field, value in hostile_records(Path("x"))[name].items()}
    with pytest.raises((ValueError, RecursionError, zlib.error)):
        validate_record(record)


class Worker:
    """A worker of the Procfile, the Redis that it reads, and a file that no job may create."""

    def __init__(self, url: str, redis: Redis, environment: dict[str, str], marker: Path) -> None:
        self.redis, self.environment, self.marker = redis, environment, marker
        self.queue, self.tallies = RqQueue(url), RedisCounterStore(url)
        self.program = Program(command_of("worker"), environment, ROOT)
        self.program.ensure()

    def put(self, job_id: str | bytes, **fields: Any) -> None:
        """Enqueue an id, with a record of these fields if there are any."""
        if fields:
            record = {"origin": "chains", "status": "queued", "timeout": 60} | fields
            self.redis.hset(f"rq:job:{job_id!s}", mapping=record)
        self.redis.rpush(QUEUE, job_id)

    def refused(self) -> int:
        samples = counters.totals(self.tallies) or ()
        return sum(int(each.value) for each in samples if each.name == "purser_jobs_rejected_total")

    def performs_our_jobs(self) -> bool:
        """Enqueue a job of ours behind everything else, and wait until it was performed."""
        assert self.queue.enqueue(JobName.ADVANCE_MOVEMENTS)
        wait_until(self._is_done, 40, what="the worker has performed our job")
        return self.program.running

    def _is_done(self) -> bool:
        return not self.redis.exists(QUEUE) and not list(self.redis.scan_iter("rq:job:advance_movements-*"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Path) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("worker")
    shutil.copy(_sqlite_template, folder / "test.sqlite")
    with redis_server(port=free_port()) as url, Redis.from_url(url) as redis:
        environment = environment_of(f"sqlite:///{folder}/test.sqlite", url)
        made = Worker(url, redis, environment, folder / "marker")
        assert made.performs_our_jobs()
        yield made
        made.program.kill()


@pytest.fixture
def worker(running: Worker) -> Iterator[Worker]:
    running.marker.unlink(missing_ok=True)
    assert running.program.running
    yield running
    assert not running.marker.exists()


def test_no_record_in_redis_runs_a_command_and_each_is_removed_and_counted(worker: Worker) -> None:
    records = hostile_records(worker.marker)
    before = worker.refused()
    for number, fields in enumerate(records.values()):
        worker.put(f"hostile-{number}", **fields)
    assert worker.performs_our_jobs()
    assert not list(worker.redis.scan_iter("rq:job:hostile-*"))
    wait_until(lambda: worker.refused() == before + len(records), what="all refusals are counted")


@pytest.mark.parametrize("job_id", ["spaces and/slashes", b"\xff\xfe", "", "x:y", "of-no-hash"])
def test_an_id_that_rq_cannot_read_does_not_end_the_worker(worker: Worker, job_id: str | bytes) -> None:
    worker.redis.set("rq:job:of-no-hash", "a string")
    worker.put(job_id)
    assert worker.performs_our_jobs()


def test_entries_in_the_registries_of_rq_neither_run_nor_end_the_worker(worker: Worker) -> None:
    for job_id, function in (("abandoned", LISTED), ("unlisted", "os.system")):
        record = {"data": data(function), "failure_callback_name": "os.system", "status": "started", "origin": "chains"}
        worker.redis.hset(f"rq:job:{job_id}", mapping=record)
    for registry in ("wip", "failed", "finished", "deferred", "scheduled"):
        entries = dict.fromkeys(("abandoned:1", "unlisted:1", b"\xff", "a b:1"), PAST)
        worker.redis.zadd(f"rq:{registry}:chains", entries)
    worker.redis.sadd("rq:groups", b"\xff", "x")
    worker.redis.sadd("rq:job:abandoned:dependents", "abandoned", "unlisted", b"\xff")
    worker.redis.sadd("rq:workers:chains", b"\xff")
    worker.redis.rpush("rq:queue:chains:intermediate", b"\xff", "abandoned", "unlisted")
    worker.redis.delete("rq:clean_registries:chains")
    # Registries are cleaned at the start, too.
    worker.program.kill()
    worker.program.ensure()
    assert worker.performs_our_jobs()
    worker.redis.flushdb()


def test_a_worker_recovers_after_keys_of_rq_held_other_types(worker: Worker) -> None:
    worker.redis.delete("rq:wip:chains")
    worker.redis.set("rq:wip:chains", "no sorted set")
    worker.queue.enqueue(JobName.ADVANCE_MOVEMENTS)
    wait_until(lambda: not worker.redis.exists(QUEUE), what="the job was taken")
    worker.redis.flushdb()
    assert worker.performs_our_jobs()


def test_no_worker_listens_for_the_commands_of_rq(worker: Worker) -> None:
    assert worker.performs_our_jobs()
    assert worker.redis.pubsub_channels() == []
