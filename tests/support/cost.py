"""A pytest plugin that prints the processor seconds of the tests by folder: `./test -p tests.support.cost`.

They depend little on what else the machine does, and include the processes that a test started: servers, browsers.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")
_KEY = "cost"


class Cost:
    """Sums for each folder: tests, processor seconds by phase."""

    def __init__(self) -> None:
        self.sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.sums[_folder(item)][0] += 1
        return (yield from self._measured(item, 1))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._measured(item, 2))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._measured(item, 3))

    def _measured(self, item: pytest.Item, phase: int) -> Generator[None, Any, Any]:
        before = _processor_seconds()
        try:
            return (yield)
        finally:
            self.sums[_folder(item)][phase] += max(0.0, _processor_seconds() - before)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output[_KEY] = dict(self.sums)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for folder, sums in getattr(node, "workeroutput", {}).get(_KEY, {}).items():
            self.sums[folder] = [one + other for one, other in zip(self.sums[folder], sums, strict=True)]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self.sums["all"] = [sum(column) for column in zip(*self.sums.values(), strict=True)]
        terminalreporter.write_line("| Folder | Tests | Processor seconds | Setup | Call | Teardown |")
        terminalreporter.write_line("|---|---:|---:|---:|---:|---:|")
        for folder, (tests, *phases) in sorted(self.sums.items(), key=lambda row: -sum(row[1][1:])):
            row = [f"{tests:.0f}", f"{sum(phases):.0f}", *(f"{seconds:.0f}" for seconds in phases)]
            terminalreporter.write_line(f"| {folder} | {' | '.join(row)} |")


def pytest_configure(config: pytest.Config) -> None:
    """Measure in this process, and in those of pytest-xdist."""
    config.pluginmanager.register(Cost())


def _folder(item: pytest.Item) -> str:
    return item.nodeid.split("/")[1].partition("::")[0]


def _processor_seconds() -> float:
    """Return what this process, its living children and the children that it awaited have used."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_used_by, _children(os.getpid())))


def _children(pid: int | str) -> list[str]:
    found: list[str] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [child, *_children(child)]
    return found


def _used_by(pid: str) -> float:
    with suppress(OSError):
        # After the name, which may contain spaces: user and system time, and those of its children.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    return 0.0
