from __future__ import annotations

import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.catalog import statistics as counts


@given(st.lists(st.integers(min_value=1_000, max_value=3_600_000_000), min_size=1, max_size=60))
def test_a_median_is_within_ten_percent(latencies: list[int]) -> None:
    found = counts.median_milliseconds(Counter(counts.bucket_of(each) for each in latencies))
    true = statistics.median_low(latencies) / 1000
    assert found is not None
    assert abs(found - true) <= true * 0.1 + 0.5


def test_an_empty_histogram_has_no_median() -> None:
    assert counts.median_milliseconds({}) is None


@pytest.mark.parametrize("microseconds", [0, 1, 400, 999])
def test_less_than_a_millisecond_is_shown_as_one(microseconds: int) -> None:
    assert counts.median_milliseconds({counts.bucket_of(microseconds): 1}) == 1


def test_the_number_of_buckets_is_bounded() -> None:
    assert counts.bucket_of(10**15) == counts.LAST_BUCKET < 100
