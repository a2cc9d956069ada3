"""The health checks of compose.yaml and of the Helm chart, run beside the processes that they check."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from tests.support.applications import DEAD_REDIS
from tests.support.deployed import compose_services
from tests.support.hosts import Host, environment_of
from tests.support.servers import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]


def passes(service: str, environment: dict[str, str], port: int = 0) -> bool:
    """Return whether the check of a service passes, with the web process at another port of this machine."""
    _, _, option, program = compose_services()[service]["healthcheck"]["test"]
    program = program.replace("web:8000", "127.0.0.1:8000").replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    command = [sys.executable, option, program]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


def test_each_process_passes_its_check_while_it_works(sqlite_url: str, redis_url: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        environment = environment_of(sqlite_url, redis_url)
        # Without the workers of this machine that other tests killed.
        redis.Redis.from_url(redis_url).flushall()
        host = Host(environment, tmp_path, stack)
        assert not passes("worker", environment)
        worker = host.start("worker")
        wait_until(lambda: passes("worker", environment), 90, interval=0.3, what="a heartbeat of the worker")
        [web] = host.webs(1)
        assert passes("web", environment, web.port)
        assert not passes("scheduler", environment, web.port)
        host.start("scheduler")
        wait_until(lambda: passes("scheduler", environment, web.port), 90, interval=0.3, what="a pass of the scheduler")
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
        assert not passes("worker", environment)


def test_the_checks_fail_where_nothing_responds(sqlite_url: str) -> None:
    environment = environment_of(sqlite_url, DEAD_REDIS)
    for service in ("web", "worker", "shopper", "scheduler"):
        assert not passes(service, environment, free_port()), service
