"""Collection in the processes of pytest-xdist: each begins at another place, and all get the same order.

Every process imports every test. What takes longest in a fresh clone, compiling with pytest's assertions, is cached
for the others: at different places, each compiles its share instead of the same files at the same time.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any

import pytest

# With Python's 700, every thirtieth test of an application waited a second for a pass over all that the process holds.
_ALLOCATIONS_BETWEEN_PASSES = 10_000


class SharedCollection:
    """The pytest plugin of one process of pytest-xdist."""

    def __init__(self, workerinput: dict[str, Any]) -> None:
        number, self._processes = int(workerinput["workerid"].removeprefix("gw")), workerinput["workercount"]
        self._number = number % self._processes

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if isinstance(collector, pytest.Directory):
            first = len(report.result) * self._number // self._processes
            report.result = report.result[first:] + report.result[:first]
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Restore the order, before it is made random: the same in each process."""
        items.sort(key=lambda item: item.path)
        yield


class RareGarbageCollection:
    """The pytest plugin of each process that runs tests: the garbage collector rarely searches what stays."""

    def __init__(self) -> None:
        # Nothing that is imported and collected becomes garbage.
        gc.disable()

    def pytest_collection_finish(self) -> None:
        """Exclude what was imported and collected from the passes of the garbage collector, and begin them.

        The little garbage among it stays as well: searching for it takes a second of each process.
        """
        gc.freeze()
        gc.set_threshold(_ALLOCATIONS_BETWEEN_PASSES)
        gc.enable()
