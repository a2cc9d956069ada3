"""The tools are listed so that every released client and model provider can load them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.support.mcp import request_of, send

_MAX_LIST_BYTES = 20_000
# Escapes and groups that JavaScript with the flag `u`, or RE2, refuses.
_NOT_PORTABLE = re.compile(r"\\[AZzGKQE<]|\\[0-9]|\(\?(?!:)")
_MAX_REPETITIONS = 1000


@pytest.fixture
def schemas(client: FlaskClient) -> dict[str, dict[str, Any]]:
    listed = send(client, request_of("tools/list")).get_json()["result"]["tools"]
    return {tool["name"]: tool["inputSchema"] for tool in listed}


def nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for each in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
        yield from nodes(each)


def patterns(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(found := node.get("pattern"), str):
            yield found
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from patterns(each)


def test_every_argument_has_a_type_and_only_keywords_that_all_clients_read(schemas: dict[str, dict[str, Any]]) -> None:
    allowed = {
        "type", "properties", "required", "items", "enum", "default", "description", "pattern", "format",
        "minimum", "maximum", "minLength", "maxLength",
    }  # fmt: skip
    for tool, schema in schemas.items():
        for node in nodes(schema):
            assert node.get("type") in {"string", "integer", "number", "boolean", "array", "object"}, (tool, node)
            assert node.keys() <= allowed, (tool, node)
            assert node.get("format", "date-time") == "date-time", (tool, node)
            assert node.get("default", "") is not None, (tool, node)
            assert node.get("maxLength", 0) <= _MAX_REPETITIONS, (tool, node)


def test_patterns_are_anchored_and_valid_in_javascript_and_re2(
    schemas: dict[str, dict[str, Any]], client: FlaskClient
) -> None:
    found = [*patterns(schemas), *patterns(client.get("/openapi.json").get_json())]
    assert found
    for pattern in found:
        assert pattern.startswith("^"), pattern
        assert pattern.endswith("$"), pattern
        assert not _NOT_PORTABLE.search(pattern), pattern
        bounds = re.findall(r"\{[0-9,]+\}", pattern)
        assert max(map(int, re.findall("[0-9]+", "".join(bounds))), default=0) <= _MAX_REPETITIONS, pattern


def test_a_text_with_a_line_break_at_its_end_matches_no_pattern(client: FlaskClient) -> None:
    for arguments in ({"service": "brave\n"}, {"service": "brave", "path": "web/search\n"}):
        message = request_of("tools/call", name="call_service", arguments=arguments)
        result = send(client, message).get_json()["result"]
        assert result["structuredContent"]["code"] == "INVALID_INPUT", arguments


def test_the_list_is_small_and_has_the_schemas_of_results_on_request(client: FlaskClient) -> None:
    message = request_of("tools/list")
    answer = send(client, message)
    assert len(answer.data) <= _MAX_LIST_BYTES
    assert not any("outputSchema" in tool for tool in answer.get_json()["result"]["tools"])
    asked = client.post("/mcp?output_schemas=true", json=message).get_json()["result"]["tools"]
    assert all(tool["outputSchema"]["type"] == "object" for tool in asked)
