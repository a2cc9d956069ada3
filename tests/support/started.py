"""The service that `./run` starts, for tests that use it as a newcomer does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.config import Settings, UpstreamAccess
from tests.support.servers import _tie_to_the_tests, free_port, redis_server
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 180.0  # the first start on a machine downloads the chain node and the contracts

# `./run` without the .env file of this work tree.
_RUN = """
import os, pathlib
from launcher import service
from launcher.settings import read_settings
service.run(read_settings(pathlib.Path.cwd(), os.environ, {}))
"""


@dataclass(frozen=True, slots=True)
class StartedService:
    """The addresses of a running service and its faucet."""

    url: str
    faucet_url: str


@contextmanager
def started_service(folder: Path) -> Iterator[StartedService]:
    """Start everything that `./run` starts, on separate ports and files."""
    port = free_port()
    with redis_server() as redis_url, (folder / "run.log").open("wb") as log:
        settings = Settings.model_fields | UpstreamAccess.model_fields
        environment = {name: value for name, value in os.environ.items() if name.lower() not in settings}
        environment |= {"PORT": str(port), "REDIS_URL": redis_url, "VAR_DIR": str(folder / "var")}
        process = subprocess.Popen(
            [*_tie_to_the_tests(), sys.executable, "-c", _RUN], cwd=ROOT, env=environment,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            _wait_for_start(process, folder / "run.log")
            chosen = json.loads((folder / "var" / "launcher.json").read_text())["settings"]
            yield StartedService(f"http://127.0.0.1:{port}", chosen["FAUCET_URL"])
        finally:
            process.terminate()
            process.wait(60)


def _wait_for_start(process: subprocess.Popen[bytes], log: Path) -> None:
    def is_up() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        return "Purser runs on" in log.read_text(errors="replace")

    wait_until(is_up, _START_SECONDS, interval=0.1, what="the start of the service")
