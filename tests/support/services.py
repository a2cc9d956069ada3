"""The service under its real server, for what a test client cannot do: hang up, be killed, be many at once."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.applications import key_of
from tests.support.servers import _tie_to_the_tests, free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class WebService:
    """A running gunicorn and its address."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Make one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
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
        """End it and all that it has forked at once, as if the power went."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def web_service(
    database_url: str, settings: Mapping[str, Any] | None = None, *, workers: int = 2, threads: int = 300
) -> Iterator[WebService]:
    """Run the service's web processes as the Procfile does, until the block ends."""
    port = free_port()
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(ROOT),
        "NETWORK": "sandbox",
        "DATABASE_URL": database_url,
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "SECRET_KEY": "s" * 32,
        "CODE_PEPPERS": key_of("p1"),
        "ENCRYPTION_KEYS": key_of("k1"),
        "PRICE_OVERRIDES": "ETH:3000,SOL:150",
        "WEB_CONCURRENCY": str(workers),
        "WEB_THREADS": str(threads),
        "PORT": str(port),
        **{name.upper(): str(value) for name, value in (settings or {}).items()},
    }
    with tempfile.TemporaryDirectory(prefix="purser-test-web-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *_tie_to_the_tests(), str(Path(sys.executable).parent / "gunicorn"), "wsgi:app",
                    "--bind", f"127.0.0.1:{port}",
                ],
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        service = WebService(port, process, log)

        def answers() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"the service did not start:\n{log.read_text()[-3000:]}")
            try:
                return service.ask("GET", "/v1/health")[0] in (200, 503)
            except OSError:
                return False

        try:
            wait_until(answers, _START_SECONDS, what="an answer of the service")
            yield service
        finally:
            if process.poll() is None:
                service.kill()
