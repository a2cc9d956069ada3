"""Facts about processes, and ending exactly those that are ours.

A process is ours when it carries our mark in its environment (Linux lets us look), or when its id and its
start time are the ones we wrote down; an id alone proves nothing, the system gives it to others later.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

MARK = "PURSER_LAUNCHER"
"""The environment variable that every process started here inherits; its value is one launcher's own."""

_PROC = Path("/proc")
_ON_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1  # prctl(2)
_KILL_SECONDS = 5.0  # the system needs a moment to end a killed process; one that it cannot end is left
_START_TIME_AFTER_NAME = 19  # proc_pid_stat(5): field 22, counted from the one after the name


def start_time(pid: int) -> str | None:
    """Return when a process started, in whatever form this system has; None when it has ended."""
    if _ON_LINUX:
        try:
            after_name = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if after_name[0] in "ZX" else after_name[_START_TIME_AFTER_NAME]
    listing = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],  # noqa: S607 - it stands where the system put it
        capture_output=True, text=True, check=False,
    ).stdout.split(maxsplit=1)  # fmt: skip
    return listing[1].strip() if len(listing) == 2 and "Z" not in listing[0] else None  # noqa: PLR2004


def marked(mark: str) -> set[int]:
    """Return the living processes that carry this mark, on systems that show environments to their owner."""
    if not _ON_LINUX:
        return set()
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for folder in _PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0") and start_time(int(folder.name)):
                found.add(int(folder.name))
    return found


def end(
    pids: Callable[[], Iterable[int]],
    *,
    grace_seconds: float,
    impatient: Callable[[], bool] = lambda: False,
) -> None:
    """Ask the processes to end, and kill those that have not after the grace (or once `impatient`).

    `pids` is asked again each time, so that children of a process that just ended are found too.
    """
    asked: set[int] = set()
    deadline = time.monotonic() + grace_seconds
    while (remaining := set(pids())) and time.monotonic() < deadline + _KILL_SECONDS:
        overdue = time.monotonic() > deadline or impatient()
        for pid in remaining if overdue else remaining - asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if overdue else signal.SIGTERM)
        asked |= remaining
        time.sleep(0.02)


def tie_to_parent() -> Callable[[], None] | None:
    """Return what a child runs before its program so that it ends when the launcher is killed (Linux).

    The tie is to the thread that forks, so children must be started from the main thread.
    """
    if not _ON_LINUX:
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return tie
