"""Charts, bars and QR codes as SVG. Charts begin at zero, on one axis in dollars.

The pages state the same in words or in a table, so drawings are hidden from screen readers. Integers only, no inline
styles.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TypeVar

import segno
from markupsafe import Markup

from app.core.money import NANOS_PER_USD

_WIDTH, _HEIGHT, _GAP, _LEAST = 720, 200, 6, 2
_BAR_WIDTH = 1000
_MOST_SHARES = 6
_CENT = NANOS_PER_USD // 100
_SMALLEST_AXIS = 10 * _CENT

KeyT = TypeVar("KeyT")


@dataclass(frozen=True, slots=True)
class DailyChart:
    """Columns of some days, the dollars at the marks of the axis from the top to zero, and the days as a table."""

    svg: Markup
    marks_nanos: Sequence[int]
    days: Sequence[tuple[date, int]]
    total_nanos: int


def daily_chart(amounts: Iterable[tuple[date, int]], last: date, length: int) -> DailyChart:
    """Draw the sum of each of some days that end with the last one."""
    by_day = _sums(amounts)
    days = [(day, by_day[day]) for day in (last - timedelta(days=length - 1 - each) for each in range(length))]
    top, step = axis_top(max(nanos for _, nanos in days)), _WIDTH // length
    bars = Markup()
    for number, (_, nanos) in enumerate(days):
        height = max(_LEAST, nanos * _HEIGHT // top) if nanos else 0
        bars += Markup('<rect class="column" x="{}" y="{}" width="{}" height="{}"/>').format(
            number * step + _GAP // 2, _HEIGHT - height, step - _GAP, height
        )
    lines = Markup().join(
        Markup('<line class="{}" x1="0" x2="{}" y1="{y}" y2="{y}"/>').format(kind, _WIDTH, y=y)
        for kind, y in (("grid", 0), ("grid", _HEIGHT // 2), ("axis", _HEIGHT))
    )
    svg = Markup(
        '<svg class="daily" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        "{}{}</svg>"
    ).format(_WIDTH, _HEIGHT, lines, bars)
    return DailyChart(svg, (top, top // 2, 0), days, sum(nanos for _, nanos in days))


def axis_top(most_nanos: int) -> int:
    """Return the least of 10, 20 and 50 cents, 1, 2 and 5 dollars and so on that an amount does not exceed."""
    top = _SMALLEST_AXIS
    while top < most_nanos:
        top = top * 5 // 2 if str(top)[0] == "2" else top * 2
    return top


def shares(amounts: Iterable[tuple[str, int]]) -> list[tuple[str, int, Markup]]:
    """Return the largest sums by name and the sum of the others, each with its bar; they have one scale from zero."""
    ordered = sorted(_sums(amounts).items(), key=lambda each: (-each[1], each[0]))
    others = ordered[_MOST_SHARES:]
    shown = ordered[:_MOST_SHARES] + ([(f"{len(others)} others", sum(nanos for _, nanos in others))] if others else [])
    most = max((nanos for _, nanos in shown), default=0) or 1
    return [(name, nanos, bar(nanos, most)) for name, nanos in shown]


def _sums(amounts: Iterable[tuple[KeyT, int]]) -> Counter[KeyT]:
    sums = Counter[KeyT]()
    for key, nanos in amounts:
        sums[key] += nanos
    return sums


def bar(part: int, whole: int, *, warns: bool = False) -> Markup:
    """Draw how much of a whole a part is; beyond it the bar is full. One that warns does so from four fifths on."""
    width = min(_BAR_WIDTH, max(part * _BAR_WIDTH // whole, 1 if part else 0)) if whole else 0
    kind = "full" if part >= whole else "near" if part * 5 >= whole * 4 else ""
    return Markup(
        '<svg class="bar {kind}" viewBox="0 0 {all} 10" preserveAspectRatio="none" aria-hidden="true" '
        'focusable="false"><rect class="track" width="{all}" height="10"/>'
        '<rect class="used" width="{width}" height="10"/></svg>'
    ).format(kind=kind if warns else "", all=_BAR_WIDTH, width=width)


def qr_code(text: str) -> Markup:
    """Draw a QR code, black on white with the quiet zone that scanners need, regardless of the page's colors."""
    drawn = segno.make(text, error="m", micro=False).svg_inline(
        border=4, dark="#000", light="#fff", omitsize=True, svgclass="qr", lineclass=None
    )
    hidden = drawn.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)
    return Markup(hidden)  # noqa: S704 - made from the code's modules only; the text is not in it
