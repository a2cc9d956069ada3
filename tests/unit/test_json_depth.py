"""Measurement of JSON texts: depth and number of values, for any text, in linear time."""

from __future__ import annotations

import json
import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core import json_limits
from app.core.json_limits import JsonLimitError, measure_json
from app.core.strict_json import parse_response

_MEBIBYTE = 1024 * 1024
_VALUES = st.recursive(
    st.none() | st.text('"\\[]{},:a', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('"\\{a', max_size=3), inner, max_size=3),
    max_leaves=12,
)


def is_nested_too_deeply(text: bytes, max_depth: int) -> bool:
    try:
        measure_json(text, max_depth=max_depth)
    except JsonLimitError:
        return True
    return False


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max((_depth(inner) for inner in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((_depth(inner) for inner in value), default=0)
    return 0


def _count(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(1 + _count(inner) for inner in value.values())
    if isinstance(value, list):
        return 1 + sum(_count(inner) for inner in value)
    return 1


@given(_VALUES, st.integers(0, 6))
def test_depth_ignores_brackets_inside_strings(value: object, most: int) -> None:
    assert is_nested_too_deeply(json.dumps(value).encode(), most) is (_depth(value) > most)


@given(_VALUES, st.integers(0, 6))
def test_strings_and_escapes_may_span_two_pieces(value: object, padding: int) -> None:
    text = json.dumps(["p" * (json_limits._PIECE_BYTES - padding), value]).encode()
    assert is_nested_too_deeply(text, 2) is (_depth(value) > 1)
    assert (
        measure_json(text, max_depth=50).values == measure_json(json.dumps(["p", value]).encode(), max_depth=50).values
    )


@given(_VALUES)
def test_the_count_is_never_below_the_number_of_values(value: object) -> None:
    found = measure_json(json.dumps(value).encode(), max_depth=50).values
    # An object or list that is not empty has one comma less than members.
    assert _count(value) <= found <= 2 * _count(value)


def test_a_text_with_too_many_values_is_not_read_to_its_end() -> None:
    with pytest.raises(JsonLimitError) as error:
        measure_json(b"[" + b"0," * _MEBIBYTE, max_depth=32, max_values=1000)
    allowed, found, read = map(int, re.findall("[0-9]+", str(error.value)))
    assert allowed == 1000 < found
    assert read < _MEBIBYTE


# A scan that restarts at every quote would take hours, more than the tests' timeout.
@pytest.mark.parametrize("unit", [b'\\"', b'"\\', b"\\", b'"', b'[\\"', b'{"\\"'], ids=lambda unit: unit.decode())
@pytest.mark.parametrize("start", [b'"', b"", b"\\"], ids=["in a text", "outside", "escaped"])
def test_a_hostile_text_of_a_mebibyte_is_scanned_once(unit: bytes, start: bytes) -> None:
    text = start + unit * (_MEBIBYTE // len(unit))
    # A depth that is never exceeded, so that the scan reaches the end.
    found = measure_json(text, max_depth=len(text))
    assert found.memory_bytes >= len(text)
    assert 1 <= found.values <= 1 + text.count(b"[") + text.count(b"{")


def test_an_unterminated_string_hides_no_depth_before_it() -> None:
    assert is_nested_too_deeply(b"[" * 33 + b'"\\', 32)
    assert not is_nested_too_deeply(b"[" * 32 + b'"[[[[[[', 32)


def test_unmatched_closing_brackets_hide_no_depth() -> None:
    assert not is_nested_too_deeply(b"]" * 40 + b"[" * 40, 32)
    assert is_nested_too_deeply(b"[" * 33 + b"]" * 40, 32)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 65 + b"]" * 65,
        b"[" * 100_000,
        b"NaN",
        b'{"a": -Infinity}',
        b"1e99999999999999999999",
        # Their conversion to an integer takes seconds.
        b"1e200000",
        b"-0.1e-99999",
        "[]".encode("utf-16"),
        b"[] []",
        b"\xff",
    ],
)
def test_a_response_that_is_not_json_of_a_limited_depth_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - one class for all
        parse_response(text)


def test_fractions_of_a_response_are_exact() -> None:
    assert parse_response(b'\xef\xbb\xbf{"a": [0.1, 3]}') == {"a": [Decimal("0.1"), 3]}
    assert parse_response(b"[" * 64 + b"]" * 64)
    assert parse_response(b"[NaN]", parse_constant=str) == ["NaN"]
