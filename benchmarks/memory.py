"""What web and worker processes hold in memory, after they have worked."""

from __future__ import annotations

import contextlib
import time

from benchmarks import figures, processes
from benchmarks.figures import Promise
from benchmarks.processes import Memory
from benchmarks.stack import Service

_MOST_MB = 200


def measure(service: Service, *, seconds: float) -> list[Promise]:
    """Look at every process of the service once, and at the worker's forks for a while."""
    figures.heading("Memory of processes that have worked (MB; PSS shares what forks have in common)")
    figures.note(f"{'':20} {'RSS':>7} {'PSS':>7} {'highest RSS':>12}")
    highest = {"web": 0.0, "worker": 0.0}
    first, *workers = processes.tree(service.web)
    rows = [("web", "web, parent", first), *(("web", "web, serving", pid) for pid in workers)]
    rows += [("worker", "worker, parent", service.worker), ("worker", "scheduler", service.scheduler)]
    for kind, name, pid in rows:
        found = processes.memory(pid)
        _print(name, found)
        highest[kind] = max(highest[kind], found.peak_mb)
    horse = _largest_fork(service.worker, seconds)
    if horse is not None:
        _print("worker, at a job", horse)
        highest["worker"] = max(highest["worker"], horse.peak_mb)
    return [
        figures.at_most("web process, resident at most", highest["web"], _MOST_MB, "MB"),
        figures.at_most("worker process, resident at most", highest["worker"], _MOST_MB, "MB"),
    ]


def _largest_fork(worker: int, seconds: float) -> Memory | None:
    """Return the largest of the worker's short-lived forks that were seen."""
    largest: Memory | None = None
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for pid in processes.tree(worker)[1:]:
            with contextlib.suppress(OSError, KeyError):
                found = processes.memory(pid)
                if largest is None or found.peak_mb > largest.peak_mb:
                    largest = found
        time.sleep(0.02)
    return largest


def _print(name: str, found: Memory) -> None:
    figures.note(f"{name:20} {found.resident_mb:7.0f} {found.proportional_mb:7.0f} {found.peak_mb:12.0f}")
