"""Figures as they are printed: what was measured, what was promised, whether it holds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """A measured figure beside the one that was promised."""

    name: str
    measured: float
    promised: float
    unit: str
    at_least: bool

    @property
    def holds(self) -> bool:
        """Tell whether the figure is as promised."""
        return self.measured >= self.promised if self.at_least else self.measured <= self.promised

    def line(self) -> str:
        """Return one line for the table."""
        sign = "≥" if self.at_least else "≤"
        verdict = "holds" if self.holds else "MISSED"
        return f"{verdict:7} {self.name:58} {self.measured:9.2f} {sign} {self.promised:g} {self.unit}"


def at_least(name: str, measured: float, promised: float, unit: str) -> Promise:
    """Make the line of a figure that must not be lower."""
    return Promise(name, measured, promised, unit, at_least=True)


def at_most(name: str, measured: float, promised: float, unit: str) -> Promise:
    """Make the line of a figure that must not be higher."""
    return Promise(name, measured, promised, unit, at_least=False)


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def heading(text: str) -> None:
    """Begin a benchmark's section."""
    print(f"\n== {text}", flush=True)


def note(text: str) -> None:
    """Print one line of a section."""
    print(f"   {text}", flush=True)
