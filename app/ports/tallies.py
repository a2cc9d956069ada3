"""Where the counts of all processes are added up. They are for an operator's eyes; no decision rests on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Tallies(Protocol):
    """Adds counts up by series (see `app.core.tallies`)."""

    def add(self, counts: Mapping[str, int]) -> bool:
        """Add counts; tell whether they were taken."""
        ...

    def totals(self) -> Mapping[str, int] | None:
        """Return all sums, or None while they cannot be read."""
        ...
