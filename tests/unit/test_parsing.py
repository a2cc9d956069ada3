"""Parsing of JSON bodies: values and memory are bounded before decoding, and numbers are exact."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from werkzeug.test import EnvironBuilder

from app.core.strict_json import MAX_VALUES, JsonNumber, measure_json, parse_json
from app.errors import InvalidInput
from app.web.client_request import ClientRequest
from app.web.request_bodies import MAX_KEYLESS_VALUES, parsed_body

_MEBIBYTE = 2**20


@pytest.mark.parametrize("unit", [b"1.5", b"{}", b'""', b"[]", b"0", b"[{}]", b'{"a":0}'])
def test_a_body_of_many_small_values_is_refused_before_it_is_decoded(unit: bytes) -> None:
    body = b"[" + (unit + b",") * (_MEBIBYTE // len(unit)) + b"0]"
    tracemalloc.start()
    with pytest.raises(InvalidInput, match=f"more than {MAX_VALUES} names and values: [0-9]+ in its first"):
        parse_json(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(body)


def test_fewer_values_are_allowed_without_a_key() -> None:
    body = json.dumps([0] * MAX_KEYLESS_VALUES).encode()
    assert len(parse_json(body)) == MAX_KEYLESS_VALUES
    with pytest.raises(InvalidInput, match=f"more than {MAX_KEYLESS_VALUES} names"):
        parse_json(body, max_values=MAX_KEYLESS_VALUES)


def test_the_largest_embedding_request_is_parsed() -> None:
    tokens = [[99_999] * 1000] * 300
    assert parse_json(json.dumps(tokens).encode()) == tokens


def test_a_fraction_keeps_its_digits_and_is_not_a_string() -> None:
    parsed = parse_json(b'[1.50, "1.50", 1e3, 2]')
    assert [type(value) for value in parsed] == [JsonNumber, str, JsonNumber, int]
    assert (parsed[0].text, str(parsed[0].decimal), parsed[2].decimal) == ("1.50", "1.50", 1000)


@pytest.mark.parametrize("number", [b"1" * 1001, b"1." + b"0" * 1000, b"1e1000000", b"-1E-1000000"])
def test_a_number_that_is_too_long_to_calculate_with_is_refused(number: bytes) -> None:
    with pytest.raises(InvalidInput):
        parse_json(number)


def test_the_body_of_a_request_is_parsed_once() -> None:
    request = ClientRequest(EnvironBuilder(method="POST", data=b'{"amount": 1.5}').get_environ())
    request.max_content_length = 1000
    assert parsed_body(request) is parsed_body(request)


_LONG = st.text(st.sampled_from(['"', "\\", "/", "A", "é", "€", "😀", "\n", "\x00", ":"]), max_size=6).map(
    lambda text: text * 5000
)


@given(
    st.recursive(
        _LONG | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2) | _LONG, inner, max_size=3),
        max_leaves=6,
    ),
    st.booleans(),
)
@settings(max_examples=40)
def test_long_strings_are_read_as_they_were_written(value: object, ascii_only: object) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=bool(ascii_only)).encode()) == value


def _memory_of(body: bytes) -> int:
    tracemalloc.start()
    try:
        value = parse_json(body, max_depth=200)
        peak = tracemalloc.get_traced_memory()[1]
        del value
        return peak
    finally:
        tracemalloc.stop()


_UNITS = {
    "fractions": b"1.5,", "integers": b"99999,", "lists": b"[],", "objects": b"{},", "members": b'{"":0},',
    "nested": b'{"a":' * 30 + b"0" + b"}" * 30 + b",", "letters": '"€",'.encode(), "empty": b'"",',
}  # fmt: skip


@pytest.mark.parametrize("unit", _UNITS.values(), ids=_UNITS)
def test_the_memory_of_the_worst_bodies_is_never_above_the_estimate(unit: bytes) -> None:
    body = b"[" + unit * (30_000 // sum(unit.count(mark) for mark in b",:[{")) + b"0]"
    assert _memory_of(body) <= measure_json(body, max_depth=200).memory_bytes


@pytest.mark.parametrize("text", ["A", "A\\n", "A\\u20ac", "A€", "A😀", "A\\n😀", "A\\ud83d\\ude00"])
def test_the_memory_of_one_long_string_is_never_above_the_estimate(text: str) -> None:
    body = f'{{"x":"{"A" * _MEBIBYTE}{text}"}}'.encode()
    assert _memory_of(body) <= measure_json(body, max_depth=200).memory_bytes + 65_536


@pytest.mark.parametrize(
    "body",
    [
        f'{{"{"a" * _MEBIBYTE}": 0, "x": "😀"}}',
        "{" + ",".join(f'"{"a" * 9000}{number}" \n: 0' for number in range(100)) + "}",
        "]" + "a" * _MEBIBYTE + "😀",
        "{" + ",".join(f'"{number:x}":1.5' for number in range(30_000)) + "}",
    ],
    ids=["a long name next to a wide character", "long names", "closed early", "names and fractions"],
)
def test_names_and_invalid_texts_take_at_most_the_estimated_memory(body: str) -> None:
    text = body.encode()
    tracemalloc.start()
    with suppress(InvalidInput):
        parse_json(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= measure_json(text, max_depth=200).memory_bytes


def test_a_base64_image_next_to_an_emoji_is_in_memory_once() -> None:
    body = b'{"picture":"' + b"A" * (4 * _MEBIBYTE) + '","text":"😀"}'.encode()
    assert _memory_of(body) < 1.1 * len(body)
    assert measure_json(body, max_depth=200).memory_bytes < 1.1 * len(body)


@pytest.mark.parametrize("blanks", [b" ", b" \t\r\n" * 5])
def test_a_member_name_longer_than_a_piece_is_read(blanks: bytes) -> None:
    assert parse_json(b'{"' + b"a" * 20_000 + b'"' + blanks + b": 1}") == {"a" * 20_000: 1}
