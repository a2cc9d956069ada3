"""Forks of the launcher that run the Procfile's Python programs, with the application loaded once.

Loading it takes two seconds of a processor and about 120 MB; forks share most of it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

# Fork: frameworks of macOS abort a forked process that uses them. Libraries: none starts a thread when imported.
CAN_FORK = sys.platform == "linux"
SERVICE_MODULES = ("app.factory", "app.wiring", "server.worker", "workers.job_worker", "wsgi")
_PR_SET_NAME = 15  # prctl(2)
_FIRST_INHERITED = 3


def preload(modules: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Import modules in an environment, one by one, so that the caller can stop in between."""
    # There is next to no garbage, and looking for it takes a sixth of the time.
    gc.disable()
    own_environment = dict(os.environ)
    os.environ.update(environment)
    try:
        for name in modules:
            importlib.import_module(name)
            yield name
    finally:
        gc.enable()
        os.environ.clear()
        os.environ.update(own_environment)
    # The garbage collector of a fork would write to the pages of all objects.
    gc.collect()
    gc.freeze()


def entry_point(command: Sequence[str]) -> Callable[[], object] | None:
    """Return the function that a command of this Python environment runs; None for another program."""
    program, *arguments = command
    if not CAN_FORK or Path(program).parent != Path(sys.executable).parent:
        return None
    name = Path(program).name
    if name.startswith("python") and arguments[:1] == ["-m"]:
        return lambda: _run_module(*arguments[1:])
    return next((_runner(script) for script in entry_points(group="console_scripts", name=name)), None)


def _run_module(module: str, *arguments: str) -> None:
    sys.path.insert(0, str(Path.cwd()))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _runner(script: EntryPoint) -> Callable[[], object]:
    return lambda: sys.exit(script.load()())


class Fork:
    """A fork of this process that runs a function, with the attributes of a `Popen` that a supervisor needs."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        run: Callable[[], object],
        *,
        folder: Path,
        environment: Mapping[str, str],
        parent_death_hook: Callable[[], None] | None,
        listener: int | None = None,
    ) -> None:
        """Fork. A listening socket becomes its descriptor 3, as from systemd (sd_listen_fds(3))."""
        output = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                _detach(name, output[1], parent_death_hook, listener)
                os.chdir(folder)
                os.environ.clear()
                os.environ.update(environment)
                if listener is not None:
                    os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
                sys.argv = list(command)
                status = _exit_status(run)
            except BaseException:
                traceback.print_exc()
            finally:
                # Returning would run the launcher's own cleanup.
                os._exit(status)
        os.close(output[1])
        self.stdout: io.FileIO | None = io.FileIO(output[0])

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        """Wait for the end; return the exit status."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


def _detach(name: str, output: int, parent_death_hook: Callable[[], None] | None, listener: int | None) -> None:
    """Give a fork its own session, signals, files and name, like a program that was executed."""
    os.setsid()
    if parent_death_hook is not None:
        parent_death_hook()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # The lock of the launcher's folder among them, which must end with the launcher.
    # Not up to SC_OPEN_MAX, which may be a thousand million: some builds of Python close one by one.
    inherited = _FIRST_INHERITED
    if listener is not None:
        os.dup2(listener, inherited)
        inherited += 1
    os.closerange(inherited, max(int(file.name) for file in Path("/proc/self/fd").iterdir()) + 1)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _exit_status(run: Callable[[], object]) -> int:
    try:
        run()
        status: object = 0
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()  # noqa: SLF001 - what the interpreter does at its end
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    return status or 0
