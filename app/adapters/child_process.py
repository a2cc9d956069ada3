"""Processes for hostile content: without secrets, with bounded waits and output, and killed with their children."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CHUNK_BYTES = 65_536


class ChildEndedError(Exception):
    """The process has ended or closed its pipe, or its line is too long."""


class ChildTimeoutError(Exception):
    """The process exceeded its time limit."""


class ChildProcess:
    """A running process that is sent bytes and answers with lines."""

    def __init__(self, process: subprocess.Popen[bytes], max_line: int) -> None:
        assert process.stdin is not None  # noqa: S101 - asked for below
        assert process.stdout is not None  # noqa: S101 - as above
        self.pid = process.pid
        self._max_line = max_line
        self._buffer = bytearray()
        self._input, self._output = process.stdin, process.stdout
        os.set_blocking(self._input.fileno(), False)

    def write(self, data: bytes, *, deadline: float) -> None:
        """Send bytes. Raises: ChildEndedError, ChildTimeoutError."""
        remaining = memoryview(data)
        while remaining:
            _wait(self._input.fileno(), select.POLLOUT, deadline)
            try:
                remaining = remaining[os.write(self._input.fileno(), remaining[:_CHUNK_BYTES]) :]
            except BrokenPipeError:
                raise ChildEndedError from None

    def close_input(self) -> None:
        self._input.close()

    def read_line(self, *, deadline: float) -> bytes:
        """Return the next line. Raises: ChildEndedError, ChildTimeoutError."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            _wait(self._output.fileno(), select.POLLIN, deadline)
            chunk = os.read(self._output.fileno(), _CHUNK_BYTES)
            if not chunk or searched > self._max_line:
                raise ChildEndedError
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line


@contextmanager
def run(
    *arguments: str, environment: Mapping[str, str], max_line: int, user: int | None = None
) -> Iterator[ChildProcess]:
    """Run Python with these arguments, and with nothing of our own environment, which holds the service's secrets."""
    with subprocess.Popen(  # noqa: S603 - our own modules
        [sys.executable, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        cwd=ROOT, env=dict(environment), start_new_session=True,
        user=user, group=user, extra_groups=None if user is None else (),
    ) as process:  # fmt: skip
        try:
            yield ChildProcess(process, max_line)
        finally:
            _kill(process.pid)


def _kill(leader: int) -> None:
    """Kill a session, and on Linux those that began in it: Playwright gives each browser a session of its own."""
    table: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            after_name = stat.read_text(errors="replace").rpartition(")")[2].split()
            table[int(stat.parent.name)] = int(after_name[1]), int(after_name[3])  # parent, session
    sessions = {leader}
    while more := {own for parent, own in table.values() if table.get(parent, (0, 0))[1] in sessions} - sessions:
        sessions |= more
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    for pid in (pid for pid, (_, session) in table.items() if session in sessions):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _wait(descriptor: int, event: int, deadline: float) -> None:
    # Not select(), which does not support descriptors above 1023.
    poll = select.poll()
    poll.register(descriptor, event)
    remaining_seconds = deadline - time.monotonic()
    if remaining_seconds <= 0 or not poll.poll(remaining_seconds * 1000):
        raise ChildTimeoutError
