"""`python -m workers`: an RQ worker for all queues but shopping's. Start as many as there is work."""

from __future__ import annotations

import sys

from redis import Redis
from rq import Queue, Worker
from rq.serializers import JSONSerializer
from rq.worker import SpawnWorker

from app.extensions import db
from app.jobs import QueueName
from app.ports import provider
from app.wallets import custody
from workers.context import application
from workers.redis_connection import RECONNECT_SECONDS, wait_for


def main() -> None:
    """Serve the queues until told to stop."""
    app = application()
    with app.app_context():
        custody.assert_network()
        # Work-horses are forks of this process; each opens connections of its own.
        db.engine.dispose(close=False)
        redis = Redis.from_url(provider.settings().redis_url.get_secret_value())
    wait_for(redis)
    queues = [
        Queue(name.value, connection=redis, serializer=JSONSerializer)
        for name in QueueName
        if name is not QueueName.SHOPPING
    ]
    # macOS kills forks that use its frameworks; a fresh process per job costs a second there.
    worker_class = SpawnWorker if sys.platform == "darwin" else Worker
    worker = worker_class(
        queues, connection=redis, serializer=JSONSerializer, worker_ttl=60, maintenance_interval=60
    )
    worker.max_connection_wait_time = RECONNECT_SECONDS
    worker.work(with_scheduler=False, logging_level="WARNING")


if __name__ == "__main__":
    main()
