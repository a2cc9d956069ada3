"""Processor time and memory of a process tree, from Linux's /proc."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
# proc_pid_stat(5), counted from the field after the name: ppid, then utime, stime, cutime, cstime.
_PARENT = 1
_TIMES = slice(11, 13)
_CHILDREN_TIMES = slice(13, 15)
# proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE, _WAITING = 3, 4


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one process in MB: resident now, its proportional share now, resident at its highest."""

    pid: int
    resident_mb: float
    proportional_mb: float
    peak_mb: float


def tree(root: int) -> list[int]:
    """Return a process and all its descendants, the root first."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit() and (fields := _stat(int(folder.name))):
            children.setdefault(int(fields[_PARENT]), []).append(int(folder.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def child_named(program: str, word: str) -> int:
    """Return the descendant of this name with a word in its command line. Raises: LookupError."""
    for pid in tree(os.getpid()):
        with contextlib.suppress(OSError):
            words = command_line(pid)
            if Path(words[0]).name == program and word in words:
                return pid
    raise LookupError(f"no {program} has {word}")


def command_line(pid: int) -> list[str]:
    """Return the command line of a process. Raises: OSError when it has ended."""
    return (_PROC / str(pid) / "cmdline").read_text().split("\0")


def name(pid: int) -> str:
    """Return the name of a process. Raises: OSError when it has ended."""
    return (_PROC / str(pid) / "comm").read_text().strip()


def processor_seconds(root: int) -> float:
    """Return the processor time that a program has used so far, ended children included."""
    return sum(own_seconds(pid) for pid in tree(root))


def own_seconds(pid: int) -> float:
    """Return the processor time that a process and its ended children have used so far."""
    fields = _stat(pid)
    ticks = sum(map(int, fields[_TIMES])) + sum(map(int, fields[_CHILDREN_TIMES])) if fields else 0
    return ticks * _TICK_SECONDS


def machine_seconds() -> float:
    """Return the processor time that the whole machine has used so far, steal time included."""
    fields = [int(field) for field in (_PROC / "stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[_IDLE] - fields[_WAITING]) * _TICK_SECONDS


def memory(pid: int) -> Memory:
    """Return the memory of a process. Raises: OSError when it has ended."""
    rollup = _kilobytes(_PROC / str(pid) / "smaps_rollup")
    status = _kilobytes(_PROC / str(pid) / "status")
    return Memory(pid, rollup["Rss"] / 1000, rollup["Pss"] / 1000, status["VmHWM"] / 1000)


def _stat(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return []


def _kilobytes(path: Path) -> dict[str, float]:
    """Read lines such as `Rss: 123 kB`, in units of 1000 bytes."""
    found = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB":  # noqa: PLR2004 - a figure and its unit
            found[name] = int(words[0]) * 1.024
    return found
