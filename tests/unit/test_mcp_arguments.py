"""Arguments of tools as clients of language models send them."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.strict_json import JsonNumber
from app.errors import InvalidInput
from app.mcp.methods import read_arguments
from app.web.client_request import ClientRequest

_SCHEMA = {
    "type": "object",
    "properties": {
        name: {"type": type_}
        for name, type_ in (
            ("wallet_id", "string"),
            ("limit", "integer"),
            ("price", "number"),
            ("networks", "array"),
            ("headers", "object"),
            ("dry_run", "boolean"),
        )
    },
    "required": ["wallet_id"],
}


def read(**sent: Any) -> dict[str, Any]:
    return read_arguments(ClientRequest({}), sent, _SCHEMA)


@pytest.mark.parametrize(
    ("name", "sent", "found"),
    [
        ("limit", JsonNumber("5.0"), 5),
        ("limit", JsonNumber("5e1"), 50),
        ("limit", "5", 5),
        ("limit", "5.0", 5),
        ("price", "0.05", JsonNumber("0.05")),
        ("price", "2", 2),
        ("networks", '["base"]', ["base"]),
        ("headers", '{"a": "b"}', {"a": "b"}),
    ],
)
def test_a_value_that_means_the_declared_type_is_taken_as_that(name: str, sent: Any, found: Any) -> None:
    assert read(**{name: sent}) == {name: found}


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("dry_run", "true"),
        ("dry_run", 1),
        ("limit", JsonNumber("5.5")),
        ("limit", JsonNumber("1e99999")),
        ("limit", JsonNumber("1e-99999")),
        ("limit", "five"),
        ("limit", "[5]"),
        ("price", '"1"'),
        ("price", "NaN"),
        ("networks", "base"),
        ("networks", '{"base": 1}'),
        ("headers", '{"a": 1, "a": 2}'),
        ("headers", "[" * 5000),
        ("headers", "\ud800"),
        ("wallet_id", "[1]"),
        ("wallet_id", None),
    ],
)
def test_any_other_value_stays_for_the_view_to_refuse(name: str, sent: Any) -> None:
    assert read(**{name: sent}) == {name: sent}


def test_null_is_absent_for_every_optional_argument() -> None:
    assert read(limit=None, networks=None, headers=None, dry_run=None) == {}


def test_the_id_that_n8n_adds_is_ignored_and_a_misspelt_name_is_not() -> None:
    assert read(toolCallId="call_1", limit=1) == {"limit": 1}
    for name in ("dryrun", "toolcallid", "tool_call_id"):
        with pytest.raises(InvalidInput):
            read(**{name: True})
