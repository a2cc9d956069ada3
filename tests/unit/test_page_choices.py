"""What a model answered about the elements of a page: exactly one number of an offered element is a choice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.shopping.page_choices import parse_choice


def parsed(content: Any) -> int | None:
    body = {"choices": [{"message": {"role": "assistant", "content": content}}]}
    return parse_choice(json.dumps(body).encode(), 2)


def test_the_number_of_an_offered_element_is_the_choice() -> None:
    assert (parsed('{"choice": 1}'), parsed(' {"choice" : 2}\n')) == (0, 1)


@pytest.mark.parametrize(
    "content",
    [
        '{"choice": 0}', '{"choice": 3}', '{"choice": -1}', '{"choice": true}', '{"choice": 1.0}', '{"choice": "1"}',
        '{"choice": [1]}', '{"choice": 1, "click": "Place order"}', '{"choice": "Place order"}', "1", "[1]",
        'The first one: {"choice": 1}', '{"choice": 1}' + " " * 200 + "x" * 50_000, '{"choice": 1', "[" * 5000,
        "", None, {"choice": 1}, ["1"],
    ],
)  # fmt: skip
def test_any_other_answer_is_no_choice(content: Any) -> None:
    assert parsed(content) is None


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{}]}'])
def test_a_body_that_is_no_completion_is_no_choice(body: bytes) -> None:
    assert parse_choice(body, 2) is None
