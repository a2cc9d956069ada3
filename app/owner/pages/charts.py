"""SVG drawn by the server: QR codes, bars, the chart of credits. No I/O; integers only, no inline styles.

The pages state the same in words; the drawings are hidden from screen readers unless they have a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import segno
from markupsafe import Markup

_BAR_WIDTH = 1000
_CHART_WIDTH = 720
_CHART_HEIGHT = 160
_COLUMN_GAP = 6
_MIN_COLUMN_HEIGHT = 3


@dataclass(frozen=True, slots=True)
class ChartDay:
    """A UTC day of an account: what was used, and the credits left at its end."""

    day: date
    calls: int
    cost_nanos: int
    credits_nanos: int


def qr_code(text: str) -> Markup:
    """Draw a QR code, black on white with the quiet zone that scanners need, regardless of the page's colors."""
    drawn = segno.make(text, error="m", micro=False).svg_inline(
        border=4, dark="#000", light="#fff", omitsize=True, svgclass="qr", lineclass=None
    )
    hidden = drawn.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)
    return Markup(hidden)  # noqa: S704 - made from the code's modules only; the text is not in it


def usage_bar(used: int, limit: int) -> Markup:
    """Draw how much of a limit is used; beyond it the bar is full."""
    width = min(_BAR_WIDTH, used * _BAR_WIDTH // limit) if limit else 0
    if used and limit and not width:
        width = 1
    kind = "full" if limit and used >= limit else "near" if limit and used * 5 >= limit * 4 else "calm"
    return Markup(
        '<svg class="bar {kind}" viewBox="0 0 {all} 10" preserveAspectRatio="none" aria-hidden="true" '
        'focusable="false"><rect class="track" width="{all}" height="10"/>'
        '<rect class="used" width="{width}" height="10"/></svg>'
    ).format(kind=kind, all=_BAR_WIDTH, width=width)


def credits_chart(days: Sequence[ChartDay], *, since: date) -> Markup:
    """Draw the cost of each day as columns, and the credits left at its end as a line, each with its own scale."""
    most_cost = max((day.cost_nanos for day in days), default=0)
    most_left = max((day.credits_nanos for day in days), default=0)
    step = _CHART_WIDTH // max(1, len(days))
    columns, points = Markup(), []
    for number, day in enumerate(days):
        height = _scaled(day.cost_nanos, most_cost, _CHART_HEIGHT - 8)
        if day.cost_nanos:
            height = max(height, _MIN_COLUMN_HEIGHT)
        columns += Markup('<rect class="column" x="{}" y="{}" width="{}" height="{}"/>').format(
            number * step + _COLUMN_GAP // 2, _CHART_HEIGHT - height, max(1, step - _COLUMN_GAP), height
        )
        if day.day >= since:
            left = _CHART_HEIGHT - 2 - _scaled(day.credits_nanos, most_left, _CHART_HEIGHT - 10)
            points += [f"{number * step},{left}", f"{(number + 1) * step},{left}"]
    grid = Markup().join(
        Markup('<line class="grid" x1="0" x2="{}" y1="{y}" y2="{y}"/>').format(_CHART_WIDTH, y=y)
        for y in (_CHART_HEIGHT // 4, _CHART_HEIGHT // 2, _CHART_HEIGHT * 3 // 4)
    )
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        '{grid}{columns}<polyline class="line" points="{points}"/>'
        '<line class="axis" x1="0" x2="{w}" y1="{h}" y2="{h}"/></svg>'
    ).format(w=_CHART_WIDTH, h=_CHART_HEIGHT, grid=grid, columns=columns, points=" ".join(points))


def _scaled(value: int, most: int, height: int) -> int:
    return max(0, value) * height // most if most else 0
