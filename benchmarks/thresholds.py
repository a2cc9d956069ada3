"""Measured figures compared with their thresholds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Threshold:
    """A measured figure and its limit."""

    name: str
    measured: float
    limit: float
    unit: str
    at_least: bool

    @property
    def is_met(self) -> bool:
        """Return whether the figure is within its limit."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def line(self) -> str:
        """Return one line for the table."""
        sign = "≥" if self.at_least else "≤"
        verdict = "holds" if self.is_met else "MISSED"
        return f"{verdict:7} {self.name:58} {self.measured:9.2f} {sign} {self.limit:g} {self.unit}"


def at_least(name: str, measured: float, limit: float, unit: str) -> Threshold:
    """Return the threshold of a figure that must not be lower."""
    return Threshold(name, measured, limit, unit, at_least=True)


def at_most(name: str, measured: float, limit: float, unit: str) -> Threshold:
    """Return the threshold of a figure that must not be higher."""
    return Threshold(name, measured, limit, unit, at_least=False)


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def print_heading(text: str) -> None:
    """Print the heading of a benchmark."""
    print(f"\n== {text}", flush=True)


def print_note(text: str) -> None:
    """Print one line of a section."""
    print(f"   {text}", flush=True)
