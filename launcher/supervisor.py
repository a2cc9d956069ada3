"""Start processes, show what they print, start those again that die, and leave none behind.

One thread and one event loop: signals, output and restarts never race, and children are tied to a thread that
lives as long as the launcher.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TextIO

from launcher import processes

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 15.0
_STEADY_SECONDS = 30.0
"""A process that lived this long was well: its next death starts the delays anew."""

_CHUNK = 65_536
_TICK_SECONDS = 0.1
_PATIENCE = 3
_LINES_KEPT = 100
_NAME_WIDTH = 9
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. Programs of a higher `tier` need those of a lower one, so they are stopped first."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    tier: int = 0
    grace_seconds: float = 10.0


@dataclass(slots=True)
class _Child:
    program: Program
    process: subprocess.Popen[bytes]
    started: float
    delay: float
    rest: bytes = b""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES_KEPT))


class Supervisor:
    """The processes of one launcher. Use as a context manager: leaving it stops everything."""

    def __init__(
        self,
        *,
        folder: Path,
        mark: str,
        output: TextIO,
        on_spawn: Callable[[int], None] = lambda _pid: None,
    ) -> None:
        """Run children in `folder`, marked with `mark`; tell `on_spawn` the id of each."""
        self._folder = folder
        self._mark = mark
        self._output = output
        self._on_spawn = on_spawn
        self._selector = selectors.DefaultSelector()
        self._children: dict[str, _Child] = {}
        self._waiting: dict[str, tuple[float, float, Program]] = {}  # name: (when, delay, program)
        self._deaths: dict[str, int] = {}
        self._requests = 0
        self._tie = processes.tie_to_parent()

    def __enter__(self) -> Self:
        """Take the signals that stop the service."""
        self._bell, far_end = socket.socketpair()
        for end in (self._bell, far_end):
            end.settimeout(0)
        self._far_end = far_end
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(far_end.fileno(), warn_on_full_buffer=False)
        for number in _STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup means it
                signal.signal(number, self._on_signal)
        # Only there to ring the bell: a child's death is seen at once instead of at the next tick.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop everything. The signals stay deaf: what follows is the launcher's own end."""
        self.stop()
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._bell.close()
        self._far_end.close()

    @property
    def stopping(self) -> bool:
        """Tell whether a signal has asked for the end."""
        return self._requests > 0

    def start(self, program: Program) -> None:
        """Start a program and keep it running until `stop`.

        Raises: FileNotFoundError when there is no such program.
        """
        self._spawn(program, delay=FIRST_DELAY_SECONDS)

    def run(self, program: Program) -> int:
        """Run a program to its end beside the others; return its status, -15 when asked to stop meanwhile."""
        child = self._spawn(program, delay=0)
        while child.process.poll() is None:
            if self.stopping:
                self._end_group(child)
                return -signal.SIGTERM
            self._turn()
        self._finish(child)
        return child.process.returncode

    @property
    def hopeless(self) -> str | None:
        """The name of a program that died so often that there is no use in waiting; None without one."""
        return next((name for name, count in self._deaths.items() if count >= _PATIENCE), None)

    def wait(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Serve the children until the condition holds; return False when it never will.

        That is: `timeout` seconds are over, a signal asked for the end, or a program is hopeless.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not condition():
            late = deadline is not None and time.monotonic() > deadline
            if self.stopping or late or self.hopeless:
                return False
            self._turn()
        return True

    def serve(self) -> None:
        """Keep the programs running until a signal asks for the end."""
        while not self.stopping:
            self._turn()

    def printed(self, name: str) -> list[str]:
        """Return the last lines that the running process of this name has printed."""
        child = self._children.get(name)
        return list(child.lines) if child is not None else []

    def stop(self) -> None:
        """Stop all programs, highest tier first, each with its grace; a second signal ends the patience."""
        self._waiting.clear()
        heard = self._requests

        def impatient() -> bool:
            return self._requests > heard

        for tier in sorted({child.program.tier for child in self._children.values()}, reverse=True):
            members = [child for child in self._children.values() if child.program.tier == tier]
            for child in members:
                with contextlib.suppress(ProcessLookupError):
                    child.process.terminate()
            deadline = time.monotonic() + max(child.program.grace_seconds for child in members)
            while any(child.process.poll() is None for child in members):
                if impatient() or time.monotonic() > deadline:
                    break
                self._pump(_TICK_SECONDS)
            for child in members:
                self._end_group(child)
        # What left its group (a job's own process, a node of a node) still carries the mark.
        processes.end(lambda: processes.marked(self._mark), grace_seconds=2, impatient=impatient)

    def say(self, line: str) -> None:
        """Print a line of the launcher's own."""
        with contextlib.suppress(OSError):  # whoever listened is gone; the service is not run for its output
            print(line, file=self._output, flush=True)

    def _turn(self) -> None:
        self._pump(_TICK_SECONDS)
        now = time.monotonic()
        for child in list(self._children.values()):
            if child.delay and child.process.poll() is not None:
                self._bury(child, now)
        for name, (when, delay, program) in list(self._waiting.items()):
            if now >= when and not self.stopping:
                del self._waiting[name]
                self._start_again(program, delay)

    def _spawn(self, program: Program, *, delay: float) -> _Child:
        process = subprocess.Popen(
            program.command,
            cwd=self._folder,
            env={**program.environment, processes.MARK: self._mark, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the terminal's Ctrl-C reaches the launcher alone
            preexec_fn=self._tie,  # noqa: PLW1509 - safe here: this process has one thread
        )
        assert process.stdout is not None  # noqa: S101 - asked for above
        os.set_blocking(process.stdout.fileno(), False)
        child = _Child(program, process, time.monotonic(), delay)
        self._children[program.name] = child
        self._selector.register(process.stdout, selectors.EVENT_READ, child)
        self._on_spawn(process.pid)
        return child

    def _start_again(self, program: Program, delay: float) -> None:
        try:
            self._spawn(program, delay=delay)
        except OSError as error:  # its file is being replaced, or the machine is short of something
            self._show(program.name, f"could not be started: {error.strerror}")
            self._waiting[program.name] = (
                time.monotonic() + delay,
                min(delay * 2, LONGEST_DELAY_SECONDS),
                program,
            )

    def _bury(self, child: _Child, now: float) -> None:
        self._end_group(child)
        program = child.program
        steady = now - child.started > _STEADY_SECONDS
        delay = FIRST_DELAY_SECONDS if steady else child.delay
        self._deaths[program.name] = 1 if steady else self._deaths.get(program.name, 0) + 1
        self._waiting[program.name] = (now + delay, min(delay * 2, LONGEST_DELAY_SECONDS), program)
        status = child.process.returncode
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        self._show(program.name, f"{how}; starting it again in {delay:g} s")

    def _end_group(self, child: _Child) -> None:
        """End what is left of a child's group. Workers of a dead master would keep its port."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()
        self._finish(child)

    def _finish(self, child: _Child) -> None:
        while self._read(child):
            pass
        if child.rest:
            self._take_line(child, child.rest)
            child.rest = b""
        self._close(child)
        if self._children.get(child.program.name) is child:
            del self._children[child.program.name]

    def _pump(self, timeout: float) -> None:
        for key, _events in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._bell.recv(_CHUNK)
            else:
                self._read(key.data)

    def _read(self, child: _Child) -> bool:
        """Show what a child has printed; return whether there was anything."""
        stream = child.process.stdout
        if stream is None or stream.closed:
            return False
        try:
            chunk = os.read(stream.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._close(child)
            return False
        *lines, child.rest = (child.rest + chunk).split(b"\n")
        if len(child.rest) > _CHUNK:
            lines, child.rest = [*lines, child.rest], b""
        for line in lines:
            self._take_line(child, line)
        return True

    def _close(self, child: _Child) -> None:
        stream = child.process.stdout
        if stream is not None and not stream.closed:
            self._selector.unregister(stream)
            stream.close()

    def _take_line(self, child: _Child, raw: bytes) -> None:
        line = raw.decode(errors="replace").rstrip()
        child.lines.append(line)
        self._show(child.program.name, line)

    def _show(self, name: str, line: str) -> None:
        self.say(f"{name:<{_NAME_WIDTH}} | {line}")

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._requests += 1
