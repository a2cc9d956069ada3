"""Waiting for Redis, which may start after the workers or be down for a while."""

import time

import structlog
from redis import Redis
from redis.exceptions import RedisError

RECONNECT_SECONDS = 2
"""RQ's own pauses grow to a minute, during which a recovered Redis has no worker."""

_log = structlog.get_logger(__name__)


def wait_for_redis(redis: Redis) -> None:
    """Return once Redis answers. RQ ends immediately if Redis is not up."""
    has_warned = False
    while True:
        try:
            redis.ping()
        except RedisError as error:
            if not has_warned:
                _log.warning("waiting_for_redis", error=type(error).__name__)
            has_warned = True
            time.sleep(RECONNECT_SECONDS)
        else:
            return
