from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launcher import processes
from tests.support.servers import free_port
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("fake_service.py")

WEB = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(str(os.getpid()).encode())
    def log_message(self, *_): pass
print("web pid", os.getpid())
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""

WORKER = """
import os, subprocess, sys, time
# A job process that leaves its parent's group, as those of RQ do.
job = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print("worker pid", os.getpid(), "job", job.pid)
time.sleep(600)
"""


@dataclass
class Launcher:
    """A launcher in a separate process, and its output."""

    root: Path
    port: int
    settings: dict[str, str]
    log: str = "output"
    process: subprocess.Popen[bytes] | None = None
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        command = [sys.executable, str(DRIVER), str(self.root)]
        command += [f"{name}={value}" for name, value in self.settings.items()]
        with (self.root / self.log).open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
            )
        self.started.append(self.process)

    def start_and_wait(self) -> None:
        self.start()
        wait_until(lambda: "Purser runs on" in self.output(), 20, what="the launcher's welcome")

    def output(self) -> str:
        return (self.root / self.log).read_text()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, timeout: float = 20) -> int:
        assert self.process is not None
        return self.process.wait(timeout)

    def pid_of(self, name: str) -> int:
        """Return the process id that the newest process of this name has printed."""

        def printed() -> int:
            lines = [line for line in self.output().splitlines() if f"{name} pid" in line]
            return int(lines[-1].split()[-1 if name == "web" else 4]) if lines else 0

        return wait_until(printed, what=f"a line of {name}")

    def mark(self) -> str:
        record = (self.root / "var" / "launcher.json").read_text()
        return record.split('"mark": "')[1].split('"')[0]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Yield a launcher of a fake work tree: a web process that answers, a worker with a job, no servers.

    On Linux the worker is a fork of the launcher; the web process is a program of its own everywhere.
    """
    (tmp_path / "web.py").write_text(WEB)
    (tmp_path / "worker.py").write_text(WORKER)
    python = shlex.quote(sys.executable)
    (tmp_path / "Procfile").write_text(
        f"release: {python} -c \"print('released')\"\nweb: {python} web.py\nworker: {python} -m worker\n"
    )
    port = free_port()
    settings = {
        "PORT": str(port),
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "ETHEREUM_RPC_URL": "http://127.0.0.1:1",
        "BASE_RPC_URL": "http://127.0.0.1:1",
        "SOLANA_RPC_URL": "http://127.0.0.1:1",
    }
    launcher = Launcher(tmp_path, port, settings)
    yield launcher
    for process in launcher.started:
        # The second signal kills programs that ignore the first.
        for _ in range(2):
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(2)
        process.wait(20)
    if (tmp_path / "var" / "launcher.json").exists():
        processes.terminate(lambda: processes.pids_with_marker(launcher.mark()), grace_seconds=0)
