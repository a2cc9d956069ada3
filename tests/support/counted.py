"""What the counters of this process grow by."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter


def growth_of(counter: Counter) -> Callable[[], float]:
    """Return a function that returns by how much a counter has grown since, with all its labels."""

    def total() -> float:
        return sum(sample.value for metric in counter.collect() for sample in metric.samples)

    before = total()
    return lambda: total() - before
