"""The RQ worker of this service: runs allowlisted jobs only, ignores commands, survives malformed records."""

import faulthandler
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import structlog
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.executions import Execution
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import now

from app.jobs import FAILURE_TTL_SECONDS, QueueName
from app.state import app_state
from workers.context import application
from workers.listed_jobs import AllowlistedJob, AllowlistedQueue
from workers.redis_connection import RECONNECT_SECONDS, wait_for_redis

_log = structlog.get_logger(__name__)


class JobWorker(SimpleWorker):
    """Runs jobs one after another in its own process, which keeps its connections and costs no fork per job.

    At its time limit a job is interrupted by an exception. The process then ends, because the exception may have
    interrupted code that holds a lock or a connection. A job that does not react ends the process without it. Either
    way the process is started again as after a kill, and no job may depend on how the last one ended.
    """

    job_class = AllowlistedJob
    queue_class = AllowlistedQueue  # type: ignore[assignment] # RQ infers the attribute's type from its default
    max_connection_wait_time = RECONNECT_SECONDS
    log_job_description = False
    on_heartbeat: Callable[[], None] | None = None
    overtime_seconds = 30

    def heartbeat(self, *args: Any, **kwargs: Any) -> None:
        """Send the heartbeat, then call the registered functions."""
        super().heartbeat(*args, **kwargs)
        if self.on_heartbeat is not None:
            self.on_heartbeat()

    def prepare_execution(self, job: Job) -> Execution:
        """Keep the record of a job while it may run: it was to expire unless the job starts in time."""
        execution = super().prepare_execution(job)
        self.connection.expire(job.key, int(job.timeout or 0) + self.overtime_seconds + FAILURE_TTL_SECONDS)
        return execution

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a job within its time limit. Raises: SystemExit when it used all of its time."""
        limit, started = int(job.timeout or 0), time.monotonic()
        # A thread of C code: it ends the process even if the job blocks the interpreter, and prints where.
        faulthandler.dump_traceback_later(limit + self.overtime_seconds, exit=True)
        try:
            super().execute_job(job, queue)
        finally:
            if time.monotonic() - started >= limit:
                _log.error("job_timed_out", job=job.func_name)
                # This waits for threads, but not beyond the time above.
                sys.exit(1)
            faulthandler.cancel_dump_traceback_later()

    def set_shutdown_requested_date(self) -> None:
        """Do nothing: RQ records this in Redis from the signal handler, in the middle of a job."""

    def subscribe(self) -> None:
        """Do nothing: RQ's commands are not used here, and any client of Redis could send them."""

    def run_maintenance_tasks(self) -> None:
        """Clean RQ's registries; continue if an entry cannot be read."""
        try:
            super().run_maintenance_tasks()  # type: ignore[no-untyped-call]
        except StopRequested:
            raise
        except Exception as error:
            # The registries are RQ's own bookkeeping; the database determines what is due.
            _log.warning("queue_maintenance_failed", error=type(error).__name__)
            self.last_cleaned_at = now()  # type: ignore[assignment] # see above

    def serve(self) -> bool:
        """Work until a signal ends it (True) or an error that RQ does not know ends its loop (False)."""
        try:
            self.work(with_scheduler=False, logging_level="WARNING")
        except StopRequested:
            return True
        except RedisError as error:
            # Redis was lost during a job: RQ's cleanup at the end of its loop needs it, too.
            _log.warning("queue_lost", error=type(error).__name__)
        # Until RQ's handlers are installed again, a signal ends the process, as at its start.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return self._shutdown_requested_date is not None


def serve(queues: Iterable[QueueName], *, on_heartbeat: Callable[[], None] | None = None) -> None:
    """Run the jobs of these queues until a signal stops the process."""
    with application().app_context():
        url = app_state().settings.redis_address
    names = tuple(queues)
    redis = Redis.from_url(url)
    while True:
        # A separate client: RQ sets the long timeout of a blocking read only when the worker is created.
        with Redis.from_url(url) as probe:
            wait_for_redis(probe)
        # A new one each time, with a new name: Redis may still list the one before as alive.
        worker = JobWorker(
            [AllowlistedQueue(name.value, connection=redis) for name in names],
            connection=redis,
            serializer=JSONSerializer,
            worker_ttl=60,
            maintenance_interval=60,
            log_job_description=False,
        )
        worker.on_heartbeat = on_heartbeat
        if worker.serve():
            return
        time.sleep(RECONNECT_SECONDS)
