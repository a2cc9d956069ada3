"""The service under its real server, for tests of disconnects, kills and concurrent processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.applications import DEAD_REDIS
from tests.support.hosts import Host, Process, environment_of


@dataclass(frozen=True, slots=True)
class WebService:
    """A running gunicorn and its address."""

    port: int
    process: Process
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Make one request on a separate connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            payload = None if body is None else json.dumps(body).encode()
            sent = {"Content-Type": "application/json"} if payload is not None else {}
            connection.request(method, path, payload, {**sent, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def register(self) -> dict[str, Any]:
        status, _, body = self.ask("POST", "/v1/agents/register", {})
        assert status == 201, body
        made: dict[str, Any] = json.loads(body)
        return made

    def get(self, path: str, key: str) -> Any:
        status, _, body = self.ask("GET", path, headers={"X-API-Key": key})
        assert status == 200, body
        return json.loads(body)

    def kill(self) -> None:
        """Kill it and all its forks, like a power failure."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def web_service(
    database_url: str,
    settings: Mapping[str, Any] | None = None,
    *,
    workers: int = 2,
    threads: int = 300,
    application: str = "wsgi:app",
) -> Iterator[WebService]:
    """Run the service's web processes as the Procfile does, without Redis, until the block ends."""
    environment = environment_of(database_url, DEAD_REDIS) | {
        "WEB_CONCURRENCY": str(workers),
        "WEB_THREADS": str(threads),
        **{name.upper(): str(value) for name, value in (settings or {}).items()},
    }
    with tempfile.TemporaryDirectory(prefix="purser-test-web-") as folder, ExitStack() as stack:
        web = Host(environment, Path(folder), stack, application).web()
        yield WebService(web.port, web.process, web.log)
