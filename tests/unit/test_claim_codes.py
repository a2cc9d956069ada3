"""Claim codes as people type them, and the lockout after wrong ones."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits import parse

from app.agents import claims
from app.device import guess_limits
from app.device.guess_limits import GuessCounter, count_miss, retry_after_seconds

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_LIMIT = parse("5 per hour")

_codes = st.builds(
    "{}-{}".format, st.text(claims.CODE_LETTERS, min_size=4, max_size=4), st.from_regex(r"[0-9]{4}", fullmatch=True)
)


def test_a_generated_code_has_no_letter_that_looks_like_a_digit() -> None:
    drawn = [claims.generate_code() for _ in range(500)]
    assert all(claims.normalise_code(code) == code for code in drawn)
    letters = {letter for code in drawn for letter in code[:4]}
    assert letters == set(claims.CODE_LETTERS)
    assert not letters & {"I", "O"}
    assert len(set(drawn)) == 500


@given(
    code=_codes,
    gap=st.sampled_from(["", " ", "-", "\u2013", "\u2014", "\u2011", "\u2212", " - ", "\u00a0", ".", "_", "\u200b"]),
    lower=st.booleans(),
)
def test_a_code_is_accepted_in_any_case_and_with_any_dash(code: str, gap: str, *, lower: bool) -> None:
    typed = code.replace("-", gap)
    assert claims.normalise_code(f"  {typed.lower() if lower else typed}\n") == code


@pytest.mark.parametrize(
    "typed",
    ["", "ABCD", "ABCD-123", "ABCD-12345", "ABC-1234", "1234-ABCD", "ABID-1234", "ABOD-1234", "ÄBCD-1234",
     "ABCD+1234", "ABCD-12x4", "ABCD-1234" + " " * 60, "ABCD-١٢٣٤", "\ud800"],
)  # fmt: skip
def test_a_malformed_code_is_not_looked_up(typed: str) -> None:
    assert claims.normalise_code(typed) is None


def test_a_stolen_table_does_not_reveal_codes_without_the_pepper() -> None:
    one, other = claims.keyed_hashes("ABCD-1234", [("new", b"n" * 32), ("old", b"o" * 32)])
    assert one == hmac.new(b"n" * 32, b"ABCD-1234", hashlib.sha256).hexdigest()
    assert one != other
    assert "1234" not in one[:8]
    assert claims.keyed_hashes("ABCD-1235", [("new", b"n" * 32)]) != [one]


def new_counter() -> GuessCounter:
    return GuessCounter(window_start=_NOW, misses=0, strikes=0)


def test_the_last_miss_of_an_hour_locks_for_an_hour() -> None:
    counter = new_counter()
    for _ in range(4):
        count_miss(counter, _LIMIT, _NOW)
        assert retry_after_seconds(counter, _NOW) == 0
    count_miss(counter, _LIMIT, _NOW)
    assert retry_after_seconds(counter, _NOW) == 3600
    assert retry_after_seconds(counter, _NOW + timedelta(minutes=59, seconds=59, milliseconds=1)) == 1
    assert retry_after_seconds(counter, _NOW + timedelta(hours=1)) == 0


def test_misses_spread_over_hours_do_not_lock() -> None:
    counter = new_counter()
    for step in range(50):
        count_miss(counter, _LIMIT, _NOW + timedelta(minutes=16) * step)
    assert counter.locked_until is None


def test_each_lock_is_twice_as_long_up_to_a_day() -> None:
    counter, now, locks = new_counter(), _NOW, []
    for _ in range(40):
        for _ in range(5):
            count_miss(counter, _LIMIT, now)
        locks.append(retry_after_seconds(counter, now))
        now += timedelta(seconds=locks[-1])
    hours = [seconds // 3600 for seconds in locks]
    assert hours[:6] == [1, 2, 4, 8, 16, 24]
    assert set(hours[6:]) == {24}


def test_a_day_without_misses_resets_the_lock_duration() -> None:
    counter = GuessCounter(window_start=_NOW, misses=0, strikes=3, locked_until=_NOW)
    later = _NOW + guess_limits.STRIKES_EXPIRE_AFTER
    for _ in range(5):
        count_miss(counter, _LIMIT, later)
    assert retry_after_seconds(counter, later) == 3600
