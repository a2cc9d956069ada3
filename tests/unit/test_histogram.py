from __future__ import annotations

import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.catalog import histogram


@given(st.lists(st.integers(min_value=1_000, max_value=3_600_000_000), min_size=1, max_size=60))
def test_a_median_is_at_most_a_tenth_off_and_a_rounding(latencies: list[int]) -> None:
    found = histogram.median_milliseconds(Counter(histogram.bar_of(each) for each in latencies))
    true = statistics.median_low(latencies) / 1000
    assert found is not None
    assert abs(found - true) <= true * 0.1 + 0.5


def test_nothing_has_no_median() -> None:
    assert histogram.median_milliseconds({}) is None


@pytest.mark.parametrize("microseconds", [0, 1, 400, 999])
def test_less_than_a_millisecond_is_shown_as_one(microseconds: int) -> None:
    assert histogram.median_milliseconds({histogram.bar_of(microseconds): 1}) == 1


def test_there_are_few_bars_however_long_an_answer_takes() -> None:
    assert histogram.bar_of(10**15) == len(histogram.BOUNDS) < 100
