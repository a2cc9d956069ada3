"""Claim codes as people read and type them, and the locks that make guessing hopeless."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agents import claim_codes
from app.device import lockout
from app.device.lockout import Counter, MissLimit, after_miss

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_LIMIT = MissLimit(5, timedelta(hours=1))

_codes = st.builds(
    "{}-{}".format,
    st.text(claim_codes.LETTERS, min_size=4, max_size=4),
    st.from_regex(r"[0-9]{4}", fullmatch=True),
)


def test_a_drawn_code_never_holds_a_letter_that_reads_as_a_digit() -> None:
    drawn = [claim_codes.draw() for _ in range(500)]
    assert all(claim_codes.normalise(code) == code for code in drawn)
    letters = {letter for code in drawn for letter in code[:4]}
    assert letters == set(claim_codes.LETTERS)
    assert not letters & {"I", "O"}
    assert len(set(drawn)) == 500


@given(
    code=_codes,
    gap=st.sampled_from(
        ["", " ", "-", "\u2013", "\u2014", "\u2011", "\u2212", " - ", "\u00a0", ".", "_", "\u200b"]
    ),
    lower=st.booleans(),
)
def test_a_code_is_understood_in_any_case_and_with_any_dash(code: str, gap: str, *, lower: bool) -> None:
    typed = code.replace("-", gap)
    assert claim_codes.normalise(f"  {typed.lower() if lower else typed}\n") == code


@pytest.mark.parametrize(
    "typed",
    ["", "ABCD", "ABCD-123", "ABCD-12345", "ABC-1234", "1234-ABCD", "ABID-1234", "ABOD-1234", "ÄBCD-1234",
     "ABCD+1234", "ABCD-12x4", "ABCD-1234" + " " * 60, "ABCD-١٢٣٤", "\ud800"],
)  # fmt: skip
def test_what_is_no_code_is_never_looked_up(typed: str) -> None:
    assert claim_codes.normalise(typed) is None


def test_a_stolen_table_does_not_give_codes_away_without_the_pepper() -> None:
    one, other = claim_codes.keyed_hashes("ABCD-1234", [("new", b"n" * 32), ("old", b"o" * 32)])
    assert one == claim_codes.keyed_hash("ABCD-1234", b"n" * 32)
    assert one != other
    assert "1234" not in one[:8]
    assert claim_codes.keyed_hash("ABCD-1235", b"n" * 32) != one


def test_the_last_miss_of_an_hour_locks_for_an_hour() -> None:
    counter = Counter(_NOW)
    for _ in range(4):
        counter = after_miss(counter, _LIMIT, _NOW)
        assert counter.seconds_locked(_NOW) == 0
    counter = after_miss(counter, _LIMIT, _NOW)
    assert counter.seconds_locked(_NOW) == 3600
    assert counter.seconds_locked(_NOW + timedelta(minutes=59, seconds=59, milliseconds=1)) == 1
    assert counter.seconds_locked(_NOW + timedelta(hours=1)) == 0


def test_misses_spread_over_hours_never_lock() -> None:
    counter = Counter(_NOW)
    for step in range(50):
        counter = after_miss(counter, _LIMIT, _NOW + timedelta(minutes=16) * step)
    assert counter.locked_until is None


def test_a_stubborn_guesser_is_locked_twice_as_long_each_time_up_to_a_day() -> None:
    counter, now, locks = Counter(_NOW), _NOW, []
    for _ in range(40):
        for _ in range(5):
            counter = after_miss(counter, _LIMIT, now)
        locks.append(counter.seconds_locked(now))
        now += timedelta(seconds=locks[-1])
    hours = [seconds // 3600 for seconds in locks]
    assert hours[:6] == [1, 2, 4, 8, 16, 24]
    assert set(hours[6:]) == {24}


def test_a_quiet_day_after_a_lock_is_forgiven() -> None:
    counter = Counter(_NOW, strikes=3, locked_until=_NOW)
    later = _NOW + lockout.FORGIVEN_AFTER
    for _ in range(5):
        counter = after_miss(counter, _LIMIT, later)
    assert counter.seconds_locked(later) == 3600
