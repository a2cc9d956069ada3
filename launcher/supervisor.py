"""Supervision of processes: starts them, prints their output, restarts those that end, and terminates all.

One thread with one event loop: signals, output and restarts never race, and children depend on a thread that lives as
long as the launcher.
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

from launcher import forks, processes
from launcher.forks import Fork
from launcher.starting import StartingListener

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 15.0
_STABLE_SECONDS = 30.0
"""A process that ran this long is healthy: after its end the delays start over."""

_CHUNK_BYTES = 65_536
_TICK_SECONDS = 0.1
_REST_SECONDS = 60.0
_MAX_EARLY_EXITS = 3
_MAX_KEPT_LINES = 100
_NAME_WIDTH = 9
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Program:
    """A command to run. Programs of a higher `tier` depend on those of a lower one and are stopped first."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    tier: int = 0
    grace_seconds: float = 10.0
    is_service: bool = False
    """Whether it runs the service's code, so that a fork which has loaded that can run it."""
    is_quiet: bool = False
    """Whether its output is printed only when it fails."""
    listener: StartingListener | None = None
    """The socket that a fork inherits."""


@dataclass(slots=True)
class _Child:
    program: Program
    process: subprocess.Popen[bytes] | Fork
    started: float
    restart_delay: float
    partial_line: bytes = b""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_KEPT_LINES))


class Supervisor:
    """The processes of one launcher. Use as a context manager: leaving it stops everything."""

    def __init__(
        self, *, folder: Path, marker: str, output: TextIO, on_spawn: Callable[[int], None] = lambda _pid: None
    ) -> None:
        """Children run in `folder` with `marker` in their environment; `on_spawn` gets the id of each."""
        self._folder = folder
        self._marker = marker
        self._output = output
        self._on_spawn = on_spawn
        self._selector = selectors.DefaultSelector()
        self._children: dict[str, _Child] = {}
        self._pending_restarts: dict[str, tuple[float, float, Program]] = {}  # name: (when, delay, program)
        self._early_exits: dict[str, int] = {}
        self._stop_requests = 0
        self._parent_death_hook = processes.parent_death_hook()

    def __enter__(self) -> Self:
        """Install the signal handlers."""
        self._wakeup_read, wakeup_end = socket.socketpair()
        for end in (self._wakeup_read, wakeup_end):
            end.settimeout(0)
        self._wakeup_write = wakeup_end
        self._selector.register(self._wakeup_read, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(wakeup_end.fileno(), warn_on_full_buffer=False)
        for number in _STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, self._on_signal)
        # The handler does nothing: the signal wakes the event loop, which then sees the child's end.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop everything. Signals stay ignored, because the launcher ends next."""
        self.stop()
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._wakeup_read.close()
        self._wakeup_write.close()

    @property
    def stopping(self) -> bool:
        """Return whether a signal has requested the end."""
        return self._stop_requests > 0

    def start(self, program: Program) -> None:
        """Start a program and keep it running until `stop`.

        Raises: FileNotFoundError when there is no such program.
        """
        self._spawn(program, delay=FIRST_DELAY_SECONDS)

    def run(self, program: Program) -> int:
        """Run a program to its end; return its exit status, or -15 if a signal stops the service."""
        child = self._spawn(program, delay=0)
        while (status := child.process.poll()) is None:
            if self.stopping:
                self._end_group(child)
                return -signal.SIGTERM
            self._tick()
        self._collect_output(child)
        if status:
            self._show_quiet(child)
        return status

    def watch(self, listener: StartingListener) -> None:
        """Let a listener answer its clients, until a program inherits it."""
        self._selector.register(listener, selectors.EVENT_READ, listener.answer)

    def show_quiet(self) -> None:
        """Print what quiet programs have printed."""
        for child in self._children.values():
            self._show_quiet(child)

    @property
    def crash_looping(self) -> str | None:
        """The name of a program that ended early too often; None without one."""
        return next((name for name, count in self._early_exits.items() if count >= _MAX_EARLY_EXITS), None)

    def wait(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Serve the children until the condition holds.

        Return False after `timeout` seconds, after a stop signal, or when a program crashes repeatedly.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not condition():
            timed_out = deadline is not None and time.monotonic() > deadline
            if self.stopping or timed_out or self.crash_looping:
                return False
            self._tick()
        return True

    def serve(self) -> None:
        """Keep the programs running until a signal stops the service."""
        while not self.stopping:
            # Output, the end of a child and other signals end the wait.
            self._tick(_TICK_SECONDS if self._pending_restarts else _REST_SECONDS)

    def recent_output(self, name: str) -> list[str]:
        """Return the last lines that the running process of this name has printed."""
        child = self._children.get(name)
        return list(child.lines) if child is not None else []

    def stop(self) -> None:
        """Stop all programs, highest tier first, each with its grace period; a second signal skips it."""
        self._pending_restarts.clear()
        sessions = {child.process.pid for child in self._children.values()}
        requests_before = self._stop_requests

        def stop_requested_again() -> bool:
            return self._stop_requests > requests_before

        for tier in sorted({child.program.tier for child in self._children.values()}, reverse=True):
            members = [child for child in self._children.values() if child.program.tier == tier]
            for child in members:
                with contextlib.suppress(ProcessLookupError):
                    child.process.terminate()
            deadline = time.monotonic() + max(child.program.grace_seconds for child in members)
            while any(child.process.poll() is None for child in members):
                if stop_requested_again() or time.monotonic() > deadline:
                    break
                self._process_events(_TICK_SECONDS)
            for child in members:
                self._end_group(child)
        # A process that left its group is still in its session, or has the marker in its environment.
        processes.terminate(
            lambda: processes.pids_with_marker(self._marker) | processes.pids_in_sessions(sessions),
            grace_seconds=2,
            skip_grace=stop_requested_again,
        )

    def print_line(self, line: str) -> None:
        """Print a line of the launcher."""
        with contextlib.suppress(OSError):  # the reader of the output is gone; the service continues
            print(line, file=self._output, flush=True)

    def _tick(self, timeout: float = _TICK_SECONDS) -> None:
        self._process_events(timeout)
        now = time.monotonic()
        for child in list(self._children.values()):
            if child.restart_delay and child.process.poll() is not None:
                self._handle_exit(child, now)
        for name, (when, delay, program) in list(self._pending_restarts.items()):
            if now >= when and not self.stopping:
                del self._pending_restarts[name]
                self._restart(program, delay)

    def _spawn(self, program: Program, *, delay: float) -> _Child:
        environment = {**program.environment, processes.MARKER_VARIABLE: self._marker, "PYTHONUNBUFFERED": "1"}
        # Each runs in its own session: the terminal's Ctrl-C reaches only the launcher.
        entry_point = forks.entry_point(program.command) if program.is_service else None
        process: subprocess.Popen[bytes] | Fork
        if entry_point is not None:
            if program.listener is not None and program.listener.fileno() in self._selector.get_map():
                self._selector.unregister(program.listener)
            process = Fork(
                program.name, program.command, entry_point,
                folder=self._folder, environment=environment, parent_death_hook=self._parent_death_hook,
                listener=None if program.listener is None else program.listener.fileno(),
            )  # fmt: skip
        else:
            process = subprocess.Popen(
                program.command, cwd=self._folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=self._parent_death_hook,  # noqa: PLW1509 - safe here: this process has one thread
            )  # fmt: skip
        assert process.stdout is not None  # noqa: S101 - PIPE above
        os.set_blocking(process.stdout.fileno(), False)
        child = _Child(program, process, time.monotonic(), delay)
        self._children[program.name] = child
        self._selector.register(process.stdout, selectors.EVENT_READ, child)
        self._on_spawn(process.pid)
        return child

    def _restart(self, program: Program, delay: float) -> None:
        try:
            self._spawn(program, delay=delay)
        except OSError as error:  # its file is being replaced, or a resource is exhausted
            self._show(program.name, f"could not be started: {error.strerror}")
            self._pending_restarts[program.name] = (
                time.monotonic() + delay,
                min(delay * 2, LONGEST_DELAY_SECONDS),
                program,
            )

    def _handle_exit(self, child: _Child, now: float) -> None:
        self._end_group(child)
        self._show_quiet(child)
        program = child.program
        was_stable = now - child.started > _STABLE_SECONDS
        delay = FIRST_DELAY_SECONDS if was_stable else child.restart_delay
        self._early_exits[program.name] = 1 if was_stable else self._early_exits.get(program.name, 0) + 1
        self._pending_restarts[program.name] = (now + delay, min(delay * 2, LONGEST_DELAY_SECONDS), program)
        status = child.process.wait()
        description = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        self._show(program.name, f"{description}; starting it again in {delay:g} s")

    def _end_group(self, child: _Child) -> None:
        """Kill the rest of a child's process group: workers of a dead master would keep its port."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()
        self._collect_output(child)

    def _collect_output(self, child: _Child) -> None:
        while self._read(child):
            pass
        if child.partial_line:
            self._record_line(child, child.partial_line)
            child.partial_line = b""
        self._close(child)
        if self._children.get(child.program.name) is child:
            del self._children[child.program.name]

    def _process_events(self, timeout: float) -> None:
        for key, _events in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._wakeup_read.recv(_CHUNK_BYTES)
            elif callable(key.data):
                key.data()
            else:
                self._read(key.data)

    def _read(self, child: _Child) -> bool:
        """Print the output of a child; return whether there was any."""
        stream = child.process.stdout
        if stream is None or stream.closed:
            return False
        try:
            chunk = os.read(stream.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._close(child)
            return False
        *lines, child.partial_line = (child.partial_line + chunk).split(b"\n")
        if len(child.partial_line) > _CHUNK_BYTES:
            lines, child.partial_line = [*lines, child.partial_line], b""
        for line in lines:
            self._record_line(child, line)
        return True

    def _close(self, child: _Child) -> None:
        stream = child.process.stdout
        if stream is not None and not stream.closed:
            self._selector.unregister(stream)
            stream.close()

    def _record_line(self, child: _Child, raw: bytes) -> None:
        line = raw.decode(errors="replace").rstrip()
        child.lines.append(line)
        if not child.program.is_quiet:
            self._show(child.program.name, line)

    def _show_quiet(self, child: _Child) -> None:
        if child.program.is_quiet:
            for line in child.lines:
                self._show(child.program.name, line)

    def _show(self, name: str, line: str) -> None:
        self.print_line(f"{name:<{_NAME_WIDTH}} | {line}")

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._stop_requests += 1
