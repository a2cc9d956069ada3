"""Waiting for Redis, which may start after the workers do or be away for a while."""

from __future__ import annotations

import time

import structlog
from redis import Redis
from redis.exceptions import RedisError

RECONNECT_SECONDS = 2
"""RQ's own pauses grow to a minute, in which a Redis that is back would have jobs and no worker."""

_log = structlog.get_logger(__name__)


def wait_for(redis: Redis) -> None:
    """Return once Redis answers. RQ gives up at once when it starts before Redis does."""
    told = False
    while True:
        try:
            redis.ping()
        except RedisError as error:
            if not told:
                _log.warning("redis_awaited", error=type(error).__name__)
            told = True
            time.sleep(RECONNECT_SECONDS)
        else:
            return
