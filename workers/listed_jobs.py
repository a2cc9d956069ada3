"""Allowlist of RQ jobs: known functions with a few short strings as arguments.

RQ imports and calls the function and callbacks, and requests the webhook URLs, that a job's record in Redis names.
A record is validated before any of it is used, and only the validated parts reach RQ.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any

import structlog
from redis import Redis
from redis.exceptions import ResponseError
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

from app.jobs import FAILURE_TTL_SECONDS, MAX_ARGUMENT_CHARACTERS, MAX_ARGUMENTS, JobName
from app.observability import counters

_MAX_DATA_BYTES = 8192
# The fields that RQ writes for a job without callbacks, dependencies, retries, repetitions, results or webhooks.
_KNOWN_FIELDS = frozenset({
    b"created_at", b"data", b"description", b"ended_at", b"enqueued_at", b"failure_ttl", b"last_heartbeat", b"origin",
    b"result_ttl", b"started_at", b"status", b"timeout", b"ttl", b"worker_name",
})  # fmt: skip

_log = structlog.get_logger(__name__)


class AllowlistedJob(Job):
    """A job with a validated record. RQ treats a refused one as absent."""

    @classmethod
    def fetch(cls, id: str, connection: Redis | None = None, serializer: Any = None) -> Job:  # noqa: A002 - RQ's name
        """Return the job of this id. Raises: NoSuchJobError when it has expired or was refused."""
        try:
            return super().fetch(id, connection=connection, serializer=serializer)
        except (ValueError, ResponseError):
            # The id is malformed, or its key holds no hash.
            _count_rejected_job()
            raise NoSuchJobError from None

    def restore(self, raw_data: Mapping[bytes, bytes]) -> None:
        """Load the validated parts of a record; delete a record that is refused.

        Raises: NoSuchJobError.
        """
        if b"data" not in raw_data:
            # A heartbeat that arrives after its job was deleted leaves such a record.
            raise NoSuchJobError
        try:
            name, arguments = validate_record(raw_data)
            super().restore({
                b"data": json.dumps([name.value, None, arguments, {}]).encode(),
                b"origin": name.queue.value.encode(),
                b"status": raw_data.get(b"status", b""),
                b"timeout": name.timeout_seconds,
                b"result_ttl": b"0",
                b"failure_ttl": FAILURE_TTL_SECONDS,
            })  # fmt: skip
        except (ValueError, RecursionError, zlib.error):
            self.connection.delete(self.key)
            _count_rejected_job()
            raise NoSuchJobError from None


class AllowlistedQueue(Queue):
    """A queue of allowlisted jobs."""

    job_class = AllowlistedJob

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **{**options, "job_class": AllowlistedJob, "serializer": JSONSerializer})

    def enqueue_dependents(self, *_arguments: Any, **_options: Any) -> None:
        """Do nothing: no allowlisted job has dependents, and RQ would fetch theirs as plain jobs."""


def validate_record(record: Mapping[bytes, bytes]) -> tuple[JobName, list[str]]:
    """Return the job and the arguments that a record holds.

    Raises: ValueError, zlib.error, RecursionError when it holds anything else.
    """
    if any(value for field, value in record.items() if field not in _KNOWN_FIELDS):
        raise ValueError("an unknown field")
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(record[b"data"], _MAX_DATA_BYTES)
    if not unpacker.eof:
        raise ValueError("data that is too long or incomplete")
    match json.loads(data):
        case [str(function), None, list(arguments), {**keywords}] if not keywords:
            name = JobName(function)
        case _:
            raise ValueError("malformed data")
    if len(arguments) > MAX_ARGUMENTS or not all(
        isinstance(argument, str) and len(argument) <= MAX_ARGUMENT_CHARACTERS for argument in arguments
    ):
        raise ValueError("arguments that are not a few short strings")
    return name, arguments


def _count_rejected_job() -> None:
    counters.JOBS_REJECTED.inc()
    _log.error("job_rejected")
