"""Figures of charts and bars, which `_charts.html` draws, and QR codes. Charts begin at zero, on one axis in dollars.

The pages state the same in words or in a table, so drawings are hidden from screen readers. Integers only.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from typing import Any

import segno
from markupsafe import Markup

from app.core.money import NANOS_PER_USD

# Of a drawing that is 200 high.
_HEIGHT, _LEAST_HEIGHT = 200, 2
_MOST_SHARES = 6


@dataclass(frozen=True, slots=True)
class DailyChart:
    """Heights of columns of some days, the dollars at the marks of the axis from the top to zero, and their table."""

    heights: Sequence[int]
    marks_nanos: Sequence[int]
    days: Sequence[tuple[date, int]]
    total_nanos: int


def daily_chart(amounts: Iterable[tuple[date, int]], last: date, length: int) -> DailyChart:
    """Return the sum of each of some days that end with the last one."""
    by_day = _sums(amounts)
    days = [(day, by_day[day]) for day in (last - timedelta(days=length - 1 - each) for each in range(length))]
    top = axis_top(max(nanos for _, nanos in days))
    heights = [max(_LEAST_HEIGHT, nanos * _HEIGHT // top) if nanos else 0 for _, nanos in days]
    return DailyChart(heights, (top, top // 2, 0), days, sum(nanos for _, nanos in days))


def axis_top(most_nanos: int) -> int:
    """Return the least of 10, 20 and 50 cents, 1, 2 and 5 dollars and so on that an amount does not exceed."""
    top = NANOS_PER_USD // 10
    while top < most_nanos:
        top = top * 5 // 2 if str(top)[0] == "2" else top * 2
    return top


def shares(amounts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the largest sums by name and the sum of the others; their bars have one scale from zero."""
    ordered = sorted(_sums(amounts).items(), key=lambda each: (-each[1], each[0]))
    others = ordered[_MOST_SHARES:]
    return ordered[:_MOST_SHARES] + ([(f"{len(others)} others", sum(nanos for _, nanos in others))] if others else [])


def _sums(amounts: Iterable[tuple[Any, int]]) -> Counter[Any]:
    sums = Counter[Any]()
    for key, nanos in amounts:
        sums[key] += nanos
    return sums


@lru_cache(maxsize=512)
def qr_code(text: str) -> Markup:
    """Draw a QR code, black on white with the quiet zone that scanners need, regardless of the page's colors."""
    drawn = segno.make(text, error="m", micro=False).svg_inline(
        border=4, dark="#000", light="#fff", omitsize=True, svgclass="qr", lineclass=None
    )
    hidden = drawn.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)
    return Markup(hidden)  # noqa: S704 - made from the code's modules only; the text is not in it
