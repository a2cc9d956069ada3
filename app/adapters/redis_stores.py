"""Jobs over RQ, and counters. The database is authoritative: a job is a hint, so no failure here fails a request.

Payloads are JSON, never pickle. The workers check each record before they use it (`workers.listed_jobs`).
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry
from rq import Queue
from rq.exceptions import DuplicateJobError, InvalidJobOperation
from rq.job import Job, JobStatus

from app.adapters.jsonrpc.endpoint import OutageLog
from app.adapters.reachability import connection_problem
from app.db.unit_of_work import assert_no_unit
from app.jobs import FAILURE_TTL_SECONDS, JobName, QueueName

T = TypeVar("T")

SERIALIZER = "json"
"""Workers must be started with the same one."""

_SOCKET_TIMEOUT_SECONDS = 0.25
_BUCKET_SECONDS = 10
_CREDENTIALS = frozenset({"username", "password", "credential_provider"})
# A release that counts something else under an old name uses another key.
_COUNTERS_KEY = "purser:counters:1"
_MAX_SERIES = 50_000


def _client(redis_url: str, *, decode_responses: bool = False) -> Redis:
    """Return a client that connects on first use, separately in each process. Raises: ValueError for an invalid URL.

    The client's own default is ten attempts; here a web request waits. Connections that died in the pool are detected
    when they are taken out of it.
    """
    return Redis.from_url(
        redis_url, socket_connect_timeout=_SOCKET_TIMEOUT_SECONDS, socket_timeout=_SOCKET_TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0), decode_responses=decode_responses,
    )  # fmt: skip


class RqQueue:
    """Puts jobs into Redis."""

    def __init__(self, redis_url: str, *, clock: Callable[[], float] = time.time) -> None:
        """Store the URL, which may contain a password. Raises: ValueError for an invalid one."""
        self._clock = clock
        self._url = redis_url
        self._redis = _client(redis_url)
        self._queues = {name: Queue(name.value, connection=self._redis, serializer=SERIALIZER) for name in QueueName}
        self._outage = OutageLog("queue", name="redis")
        self._backoff_until = 0.0

    def __repr__(self) -> str:
        return "RqQueue()"

    def enqueue(self, job: JobName, *arguments: str) -> bool:
        """Enqueue a job unless the same one is queued; return whether Redis could be reached, without a long wait."""
        return self._run(lambda: self._enqueue(job, arguments), otherwise=False)

    def ping(self) -> bool:
        return self._run(lambda: bool(self._redis.ping()), otherwise=False)

    def problem(self) -> str | None:
        if (problem := connection_problem(self._url)) is not None:
            return problem
        try:
            self._redis.ping()
        except RedisError as error:
            return "it refuses the password" if isinstance(error, AuthenticationError) else type(error).__name__
        return None

    def depths(self) -> Mapping[QueueName, int]:
        return self._run(lambda: {name: int(queue.count) for name, queue in self._queues.items()}, otherwise={})

    def needs_password(self) -> bool:
        assert_no_unit()
        pool = self._redis.connection_pool
        options = {name: value for name, value in pool.connection_kwargs.items() if name not in _CREDENTIALS}
        anonymous = Redis(connection_pool=ConnectionPool(connection_class=pool.connection_class, **options))
        try:
            anonymous.ping()
        except RedisError:
            return True
        finally:
            anonymous.connection_pool.disconnect()
        return False

    def _run(self, operation: Callable[[], T], *, otherwise: T) -> T:
        """Return the result of an operation, or `otherwise` while Redis is unreachable."""
        assert_no_unit()
        if time.monotonic() < self._backoff_until:
            return otherwise
        try:
            result = operation()
        except RedisError as error:
            self._backoff_until = time.monotonic() + 1.0
            # The error's text can quote the address of a managed Redis; its class is enough.
            self._outage.begin(type(error).__name__)
            return otherwise
        self._backoff_until = 0.0
        self._outage.end()
        return result

    def _enqueue(self, job: JobName, arguments: tuple[str, ...]) -> bool:
        queue = self._queues[job.queue]
        # RQ accepts [A-Za-z0-9_-] only. An id is unique as long as the job's record exists, so the time bucket bounds
        # how long a job that died with its worker blocks the next one.
        digest = hashlib.sha256(json.dumps(arguments).encode()).hexdigest()[:32]
        job_id = f"{job.name.lower()}-{digest}-{int(self._clock()) // _BUCKET_SECONDS}"
        # A running job may have read the database before the change that is hinted at, so the hint is queued behind
        # it under a second name. The periodic sweep covers more than these two.
        for candidate in (job_id, f"{job_id}-again"):
            try:
                queue.enqueue_call(
                    func=job.value, args=arguments, job_id=candidate, unique=True, timeout=job.timeout_seconds,
                    ttl=60, result_ttl=0, failure_ttl=FAILURE_TTL_SECONDS,
                )  # fmt: skip
            except DuplicateJobError:
                if self._is_waiting(candidate):
                    break
            else:
                break
        return True

    def _is_waiting(self, job_id: str) -> bool:
        try:
            status = Job(job_id, connection=self._redis, serializer=SERIALIZER).get_status()
        except (InvalidJobOperation, ValueError):
            return False
        return status is JobStatus.QUEUED


class RedisCounterStore:
    """Counters in one hash. Losing it resets them, which Prometheus treats as a restart."""

    def __init__(self, redis_url: str) -> None:
        self._redis = _client(redis_url, decode_responses=True)

    def __repr__(self) -> str:
        return "RedisCounterStore()"

    def add(self, counts: Mapping[str, float]) -> bool:
        """Add counts in one transaction; return whether they were stored. A lost response may count twice."""
        assert_no_unit()
        if not counts:
            return True
        try:
            if int(self._redis.hlen(_COUNTERS_KEY)) > _MAX_SERIES:
                self._redis.delete(_COUNTERS_KEY)
            with self._redis.pipeline(transaction=True) as pipeline:
                for series, amount in counts.items():
                    pipeline.hincrbyfloat(_COUNTERS_KEY, series, amount)
                pipeline.execute()
        except RedisError:
            return False
        return True

    def totals(self) -> Mapping[str, float] | None:
        assert_no_unit()
        try:
            found: Mapping[str, str] = self._redis.hgetall(_COUNTERS_KEY)  # type: ignore[assignment] # decoded
        except RedisError:
            return None
        return {series: float(amount) for series, amount in found.items()}
