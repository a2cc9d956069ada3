"""Charts of dollars: an axis from zero that ends above the largest amount, and bars in proportion."""

from __future__ import annotations

from datetime import date

import pytest

from app.core.money import NANOS_PER_USD
from app.owner.pages import charts

CENT = NANOS_PER_USD // 100
LAST = date(2026, 11, 27)


@pytest.mark.parametrize(
    ("most", "top"),
    [(0, 10), (1, 10), (10, 10), (11, 20), (20, 20), (21, 50), (51, 100), (101, 200), (13_951, 20_000)],
)  # fmt: skip
def test_the_axis_ends_at_the_next_round_amount_whose_half_is_whole_cents(most: int, top: int) -> None:
    assert charts.axis_top(most * CENT) == top * CENT
    assert top * CENT // 2 % CENT == 0


def test_columns_are_in_proportion_and_the_smallest_payment_is_visible() -> None:
    paid = {
        date(2026, 11, 27): 100 * CENT,
        date(2026, 11, 26): 50 * CENT,
        date(2026, 11, 25): 1,
        LAST.replace(month=9): 1,
    }
    chart = charts.daily_chart(paid.items(), LAST, 30)
    assert chart.marks_nanos == (100 * CENT, 50 * CENT, 0)
    assert chart.heights == [0] * 27 + [2, 100, 200]
    assert chart.total_nanos == 150 * CENT + 1
    assert (chart.days[0][0], chart.days[-1][0]) == (date(2026, 10, 29), LAST)


def test_parts_beyond_the_largest_six_are_one_part() -> None:
    parts = charts.shares((f"p{number}", number) for number in range(1, 10))
    assert parts == [
        ("p9", 9), ("p8", 8), ("p7", 7), ("p6", 6), ("p5", 5), ("p4", 4), ("3 others", 6),
    ]  # fmt: skip
    assert charts.shares([("<b>", 0)])[0][0] == "<b>"
    assert charts.shares([]) == []
