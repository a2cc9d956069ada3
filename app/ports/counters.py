"""The counters of all processes, added up. They are for operators; no decision depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class CounterStore(Protocol):
    """Adds counts up by series."""

    def add(self, counts: Mapping[str, float]) -> bool:
        """Add counts; return whether they were stored."""

    def totals(self) -> Mapping[str, float] | None:
        """Return all sums, or None while they cannot be read."""
