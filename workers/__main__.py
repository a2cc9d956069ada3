"""`python -m workers`: an RQ worker for all queues. Start as many as there is work."""

from __future__ import annotations

import sys
import time

import structlog
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.serializers import JSONSerializer
from rq.worker import SpawnWorker

from app.extensions import db
from app.jobs import QueueName
from app.ports import provider
from app.wallets import custody
from workers.context import application

_log = structlog.get_logger(__name__)
_RECONNECT_SECONDS = 2


def main() -> None:
    """Serve the queues until told to stop."""
    app = application()
    with app.app_context():
        custody.assert_network()
        # Work-horses are forks of this process; each opens connections of its own.
        db.engine.dispose(close=False)
        redis = Redis.from_url(provider.settings().redis_url.get_secret_value())
    _await(redis)
    queues = [Queue(name.value, connection=redis, serializer=JSONSerializer) for name in QueueName]
    # macOS kills forks that use its frameworks; a fresh process per job costs a second there.
    worker_class = SpawnWorker if sys.platform == "darwin" else Worker
    worker = worker_class(
        queues, connection=redis, serializer=JSONSerializer, worker_ttl=60, maintenance_interval=60
    )
    # RQ's own pauses grow to a minute, in which a Redis that is back would have jobs and no worker.
    worker.max_connection_wait_time = _RECONNECT_SECONDS
    worker.work(with_scheduler=False, logging_level="WARNING")


def _await(redis: Redis) -> None:
    # RQ gives up at once when it starts before Redis does; the scheduler does the work meanwhile.
    told = False
    while True:
        try:
            redis.ping()
        except RedisError as error:
            if not told:
                _log.warning("redis_awaited", error=type(error).__name__)
            told = True
            time.sleep(_RECONNECT_SECONDS)
        else:
            return


if __name__ == "__main__":
    main()
