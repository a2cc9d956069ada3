"""Programs of this environment in forks of a process that has imported the service, which takes two seconds each time.

They behave like programs that were executed (`launcher/forks.py`, `tests/launcher/test_forks.py`). What tests about
starting are about is executed.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

from launcher import forks

_PR_SET_PDEATHSIG = 1  # prctl(2)


def fork_server() -> ForkServerContext:
    """Return the context of a fork server that has imported the service."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.processes", "tests.support.warm"])
    return context


class ForkedProgram:
    """A program in a fork, in a session of its own, with the attributes of a `Popen` that tests need."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> None:
        arguments = (list(command), dict(environment), str(folder), str(log))
        self._process = fork_server().Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status. Raises: subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(command: list[str], environment: dict[str, str], folder: str, log: str) -> None:
    # No stack of the fork server is returned to.
    status = 1
    try:
        run = forks.entry_point(command)
        assert run is not None, f"no program of this environment: {command}"
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        forks._detach(Path(command[0]).name, output, _end_with_the_tests, None)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = command
        status = forks._exit_status(run)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_with_the_tests() -> None:
    """End with the fork server, which ends with its test process (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
