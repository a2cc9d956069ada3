"""How deep a JSON text is: found whatever the text, in time that grows with its length only."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.json_depth import is_nested_too_deeply

_MEBIBYTE = 1024 * 1024
_VALUES = st.recursive(
    st.none() | st.text('"\\[]{}a', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('"\\{a', max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max((_depth(inner) for inner in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((_depth(inner) for inner in value), default=0)
    return 0


@given(_VALUES, st.integers(0, 6))
def test_depth_is_that_of_the_value_and_brackets_in_texts_are_none(value: object, most: int) -> None:
    assert is_nested_too_deeply(json.dumps(value).encode(), most) is (_depth(value) > most)


# Each took hours where an unclosed text was looked at anew from every quote in it: the time limit of tests is the test.
@pytest.mark.parametrize(
    "unit", [b'\\"', b'"\\', b"\\", b'"', b'[\\"', b'{"\\"'], ids=lambda unit: unit.decode()
)
@pytest.mark.parametrize("start", [b'"', b"", b"\\"], ids=["in a text", "outside", "escaped"])
def test_a_hostile_text_of_a_mebibyte_is_looked_through_once(unit: bytes, start: bytes) -> None:
    is_nested_too_deeply(b"[" * 33 + start + unit * (_MEBIBYTE // len(unit)), 32)


def test_a_text_that_is_not_closed_hides_no_depth_before_it() -> None:
    assert is_nested_too_deeply(b"[" * 33 + b'"\\', 32)
    assert not is_nested_too_deeply(b"[" * 32 + b'"[[[[[[', 32)
