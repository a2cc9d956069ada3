"""Processes of a gateway that are killed and started again."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_START_SECONDS = 300.0


@dataclass
class Program:
    """A command in a process group, which can be killed as a whole."""

    command: Sequence[str]
    settings: Mapping[str, str]
    log: Path
    port: int = 0
    folder: str = "/"
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it, without waiting for it."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - a program of the crash test
                self.command, cwd=self.folder, env={"PATH": os.environ.get("PATH", os.defpath), **self.settings},
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """End the whole group with SIGKILL."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def await_port(self) -> None:
        """Wait until it accepts connections. Raises: RuntimeError when it ends, or does not start."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.command[0]} did not start:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)


def start_all(programs: Sequence[Program]) -> None:
    """Start them, and wait for those with a port."""
    for program in programs:
        program.start()
    for program in programs:
        if program.port:
            program.await_port()


def restart_all(programs: Sequence[Program]) -> None:
    """Kill all of them, then start all of them."""
    for program in programs:
        program.kill()
    start_all(programs)
