"""Randomly mutated OpenAPI documents are read, or refused with a message and the place of the problem.

They are read in the test process, without the limits of the reader's process, which must not be needed.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.adapters.openapi_reader import child
from tests.support.market import SPEC

_WORDS = st.sampled_from(
    [
        "$ref", "parameters", "name", "in", "path", "query", "schema", "type", "required", "properties", "items",
        "allOf", "example", "default", "enum", "requestBody", "content", "application/json", "responses", "get",
        "#/", "#", "#/paths", "#/components/schemas/Report", "#/components/parameters/City", "#/paths/~1reports/post",
        "#/components/parameters/City/name", "3.0.3", "3.1.0", "\ud800", "\x00",
    ]
)  # fmt: skip
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**300, max_value=10**310)
    | st.floats(allow_nan=False)
    | _WORDS
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS | st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def schemas() -> child.OpenApiSchemas:
    return child.OpenApiSchemas()


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        for key in value:
            found += [(value, key), *_places(value[key])]
    elif isinstance(value, list):
        for key in range(len(value)):
            found += [(value, key), *_places(value[key])]
    return found


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """Replace, remove or add values in a valid document."""
    document = copy.deepcopy(SPEC)
    if draw(st.booleans()):
        document["openapi"] = "3.0.3"
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from(_places(document)))
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "remove" if isinstance(holder, dict):
                holder.pop(key, None)
            case "add" if isinstance(holder, dict):
                holder[draw(_WORDS)] = draw(_VALUES)
            case _:
                holder[key] = draw(_VALUES)
    return document


@example(text=json.dumps({**SPEC, "x-\ud800": "\udfff"}))
@settings(max_examples=60)
@given(text=mutated().map(json.dumps) | _VALUES.map(json.dumps) | st.text(max_size=100))
def test_a_mutated_document_is_read_or_refused_with_the_place(schemas: child.OpenApiSchemas, text: str) -> None:
    answer = child.read_document(text, schemas)
    if "problem" not in answer:
        assert json.loads(answer["document"]) == json.loads(text)
        assert json.dumps(answer["endpoints"])
        assert set(answer) == {"document", "endpoints", "example"}
        return
    assert answer["place"].startswith("#")
    # An unexpected exception is refused as well, but it is a bug.
    assert not answer["problem"].startswith("The document cannot be read"), answer
