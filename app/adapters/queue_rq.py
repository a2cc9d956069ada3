"""Jobs over RQ. The database is the truth: a job is a hint, so nothing here ever fails a request.

Payloads are JSON, never pickle: whoever can write to Redis must not gain code execution in the workers.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import Queue
from rq.exceptions import DuplicateJobError, InvalidJobOperation
from rq.job import Job, JobStatus

from app.core.unit_of_work import assert_no_unit
from app.jobs import JobName, QueueName

SERIALIZER = "json"
"""Workers must be started with the same one."""

_SOCKET_TIMEOUT_SECONDS = 0.25
_REST_SECONDS = 1.0
_SILENCE_SECONDS = 60.0
_BUCKET_SECONDS = 10
_WAITING_TTL_SECONDS = 60
_FAILURE_TTL_SECONDS = 60

_log = structlog.get_logger(__name__)


class RqQueue:
    """Puts jobs into Redis; connects on first use, in each process for itself."""

    def __init__(self, redis_url: str, *, clock: Callable[[], float] = time.time) -> None:
        """Take the URL, which may hold a password. Raises: ValueError when it is none."""
        self._clock = clock
        # The client's own default is ten tries; here the caller is a web request. Connections that died in
        # the pool are noticed when they are taken out of it.
        self._redis = Redis.from_url(
            redis_url,
            socket_connect_timeout=_SOCKET_TIMEOUT_SECONDS,
            socket_timeout=_SOCKET_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._queues = {
            name: Queue(name.value, connection=self._redis, serializer=SERIALIZER) for name in QueueName
        }
        self._absence = _Absence()

    def __repr__(self) -> str:
        """Show nothing of the URL."""
        return "RqQueue()"

    def put(self, job: JobName, *arguments: str) -> bool:
        """Enqueue a job unless the same one waits already; tell whether the queue could be reached.

        While Redis is away this returns at once, trying again about once a second.
        """
        assert_no_unit()
        if self._absence.is_resting():
            return False
        try:
            self._enqueue(job, arguments)
        except RedisError as error:
            self._absence.note(error)
            return False
        self._absence.end()
        return True

    def ping(self) -> bool:
        """Tell whether Redis answers."""
        assert_no_unit()
        if self._absence.is_resting():
            return False
        try:
            self._redis.ping()
        except RedisError as error:
            self._absence.note(error)
            return False
        self._absence.end()
        return True

    def depths(self) -> Mapping[QueueName, int]:
        """Return how many jobs wait in each queue; empty while Redis is away."""
        assert_no_unit()
        if self._absence.is_resting():
            return {}
        try:
            return {name: int(queue.count) for name, queue in self._queues.items()}
        except RedisError as error:
            self._absence.note(error)
            return {}

    def _enqueue(self, job: JobName, arguments: tuple[str, ...]) -> None:
        queue = self._queues[job.queue]
        job_id = _job_id(job, arguments, int(self._clock()) // _BUCKET_SECONDS)
        # A job that runs already may have read the database before the change that is hinted at, so the hint
        # waits behind it under a second name. Of more than these two, the sweep takes care.
        for candidate in (job_id, f"{job_id}-again"):
            try:
                queue.enqueue_call(
                    func=job.value,
                    args=arguments,
                    job_id=candidate,
                    unique=True,
                    timeout=job.seconds,
                    ttl=_WAITING_TTL_SECONDS,
                    result_ttl=0,
                    failure_ttl=_FAILURE_TTL_SECONDS,
                )
            except DuplicateJobError:
                if self._is_waiting(candidate):
                    return
            else:
                return

    def _is_waiting(self, job_id: str) -> bool:
        try:
            status = Job(job_id, connection=self._redis, serializer=SERIALIZER).get_status()
        except InvalidJobOperation:
            return False
        return status is JobStatus.QUEUED


class _Absence:
    """Remembers that Redis is away: callers do not wait for it again and again, and the log says it once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told = False
        self._rest_until = 0.0
        self._silent_until = 0.0

    def is_resting(self) -> bool:
        return time.monotonic() < self._rest_until

    def note(self, error: RedisError) -> None:
        now = time.monotonic()
        with self._lock:
            self._rest_until = now + _REST_SECONDS
            if now < self._silent_until:
                return
            self._silent_until = now + _SILENCE_SECONDS
            self._told = True
        # The error's text can quote the address of a managed Redis; its class says enough.
        _log.warning("queue_unreachable", error=type(error).__name__)

    def end(self) -> None:
        self._rest_until = 0.0
        if not self._told:
            return
        with self._lock:
            told, self._told = self._told, False
        if told:
            _log.info("queue_reachable_again")


def _job_id(job: JobName, arguments: tuple[str, ...], bucket: int) -> str:
    # RQ accepts [A-Za-z0-9_-] only. Its uniqueness lasts as long as the job's record does, so the time
    # bucket bounds how long a job that a killed worker took along stands in the way.
    digest = hashlib.sha256(json.dumps(arguments).encode()).hexdigest()[:32]
    return f"{job.name.lower()}-{digest}-{bucket}"
