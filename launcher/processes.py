"""Inspection of processes, and termination of exactly those that this launcher started.

A process is ours if its environment contains our marker (readable on Linux), if its id and start time match the record,
or if it belongs to the session of such a process, because processes that hold secrets hide their environment. An id
alone proves nothing: the system reuses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

MARKER_VARIABLE = "PURSER_LAUNCHER"
"""The environment variable that every process started here inherits; its value identifies the launcher."""

_PROC = Path("/proc")
_ON_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4  # prctl(2)
_KILL_SECONDS = 5.0  # the system needs a moment to end a killed process
_SESSION_AFTER_NAME = 3  # proc_pid_stat(5): field 6, counted from the one after the name
_START_TIME_AFTER_NAME = 19  # field 22


def harden() -> None:
    """Forbid core dumps and, on Linux, reading this process's memory and environment without CAP_SYS_PTRACE."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if _ON_LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def start_time(pid: int) -> str | None:
    """Return when a process started, in the format of this system; None when it has ended."""
    if _ON_LINUX:
        try:
            after_name = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if after_name[0] in "ZX" else after_name[_START_TIME_AFTER_NAME]
    listing = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],  # noqa: S607 - a system program
        capture_output=True, text=True, check=False,
    ).stdout.split(maxsplit=1)  # fmt: skip
    return listing[1].strip() if len(listing) == 2 and "Z" not in listing[0] else None  # noqa: PLR2004


def pids_in_sessions(leaders: Collection[int]) -> set[int]:
    """Return the living processes of these sessions (Linux).

    The system reuses the id of a session only after its last process has ended.
    """
    found = set()
    for stat in _PROC.glob("[0-9]*/stat") if _ON_LINUX else ():
        with contextlib.suppress(OSError):
            # A name is cut after 15 bytes, possibly within a character.
            after_name = stat.read_text(errors="replace").rpartition(")")[2].split()
            if after_name[0] not in "ZX" and int(after_name[_SESSION_AFTER_NAME]) in leaders:
                found.add(int(stat.parent.name))
    return found - {os.getpid()}


def pids_with_marker(marker: str) -> set[int]:
    """Return the living processes with this marker, on systems where environments are readable."""
    if not _ON_LINUX:
        return set()
    wanted = f"{MARKER_VARIABLE}={marker}".encode()
    found = set()
    for folder in _PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0") and start_time(int(folder.name)):
                found.add(int(folder.name))
    return found


def terminate(
    pids: Callable[[], Iterable[int]], *, grace_seconds: float, skip_grace: Callable[[], bool] = lambda: False
) -> None:
    """Terminate the processes, and kill those that have not ended after the grace (or once `skip_grace`).

    `pids` is called again each time, so that children of a process that just ended are also found.
    """
    signalled: set[int] = set()
    deadline = time.monotonic() + grace_seconds
    while (remaining := set(pids())) and time.monotonic() < deadline + _KILL_SECONDS:
        overdue = time.monotonic() > deadline or skip_grace()
        for pid in remaining if overdue else remaining - signalled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if overdue else signal.SIGTERM)
        signalled |= remaining
        time.sleep(0.02)


def parent_death_hook() -> Callable[[], None] | None:
    """Return what a child runs before its program so that it ends when the launcher is killed (Linux).

    The signal follows the end of the forking thread, so children must be started from the main thread.
    """
    if not _ON_LINUX:
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return set_death_signal
