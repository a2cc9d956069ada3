"""`python -m workers.purchases`: the worker that goes shopping, one purchase at a time. Start one for each free core.

It serves its own queue in its own process. The browser runs in a further one that knows none of our secrets.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import structlog
from redis import Redis
from rq import Queue, Worker
from rq.serializers import JSONSerializer
from rq.worker import SpawnWorker
from sqlalchemy.exc import SQLAlchemyError

from app.core import heartbeats
from app.core.heartbeats import Heart
from app.extensions import db
from app.jobs import QueueName
from app.ports import provider
from app.shopping import carrying
from app.wallets import custody
from workers.context import application, job
from workers.redis_connection import RECONNECT_SECONDS, wait_for

_log = structlog.get_logger(__name__)
_BEAT_SECONDS = 15


@job
def buy(purchase_id: str) -> None:
    """Carry a purchase out, unless it was begun before."""
    carrying.carry_out(purchase_id)


class _Beating:
    """Lets an RQ worker say in the database, too, that it is there."""

    _next_beat = 0

    def heartbeat(self, *args: Any, **kwargs: Any) -> None:
        """Beat in Redis, and now and then in the database."""
        super().heartbeat(*args, **kwargs)  # type: ignore[misc]
        if time.monotonic() >= self._next_beat:
            self._next_beat = int(time.monotonic()) + _BEAT_SECONDS
            beat()


class _Forking(_Beating, Worker):
    """Forks for each purchase."""


class _Spawning(_Beating, SpawnWorker):
    """Starts a fresh process for each purchase."""


def beat() -> None:
    """Note that a shopper is there, and leave no connection open that a fork would share."""
    with application().app_context():
        try:
            heartbeats.beat(Heart.SHOPPER)
        except SQLAlchemyError as error:
            _log.warning("shopper_heartbeat_failed", error=type(error).__name__)
        finally:
            db.engine.dispose()


def main() -> None:
    """Serve the shopping queue until told to stop."""
    app = application()
    with app.app_context():
        if provider.current().shopper is None:
            sys.exit("No browser: install chromium-headless-shell or Chromium, or set BROWSER_EXECUTABLE.")
        custody.assert_network()
        db.engine.dispose(close=False)
        redis = Redis.from_url(provider.settings().redis_url.get_secret_value())
    wait_for(redis)
    queues = [Queue(QueueName.SHOPPING.value, connection=redis, serializer=JSONSerializer)]
    # macOS kills forks that use its frameworks.
    worker_class = _Spawning if sys.platform == "darwin" else _Forking
    worker = worker_class(
        queues,
        connection=redis,
        serializer=JSONSerializer,
        worker_ttl=60,
        maintenance_interval=60,
        log_job_description=False,
    )
    worker.max_connection_wait_time = RECONNECT_SECONDS
    worker.work(with_scheduler=False, logging_level="WARNING")


if __name__ == "__main__":
    main()
