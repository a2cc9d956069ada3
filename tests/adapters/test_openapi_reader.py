"""Untrusted OpenAPI documents: what is refused and where, what is never fetched, and the time limit."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from app.adapters import child_process
from app.adapters.openapi_reader import child, reader
from app.adapters.openapi_reader.child import OpenApiSchemas
from app.adapters.openapi_reader.reader import OpenApiReader
from app.ports.errors import Rejected, Unreachable
from tests.support.loopback_http import RecordingServer, Reply, serve
from tests.support.market import SPEC

INFO = {"title": "t", "version": "1"}
ANSWER = {"responses": {"200": {"description": "d"}}}


@pytest.fixture(scope="module")
def documents() -> OpenApiReader:
    return OpenApiReader()


@pytest.fixture
def listener() -> Iterator[RecordingServer]:
    """A server that no document may cause a request to."""
    with serve(lambda _asked: Reply(b"{}")) as server:
        yield server


def document(version: str = "3.1.0", **parts: Any) -> dict[str, Any]:
    return {"openapi": version, "info": INFO, "paths": {}, **parts}


def one(operation: dict[str, Any], *, path: str = "/x", version: str = "3.1.0", **parts: Any) -> dict[str, Any]:
    return document(version, paths={path: {"get": {**ANSWER, **operation}}}, **parts)


@pytest.fixture(scope="module")
def schemas() -> OpenApiSchemas:
    return OpenApiSchemas()


def text_of(given: object) -> str:
    return given if isinstance(given, str) else json.dumps(given)


def result(schemas: OpenApiSchemas, given: object) -> dict[str, Any]:
    """Return what the process would return, which costs a tenth of a second to start."""
    return child.read_document(text_of(given), schemas)


def refusal(documents: OpenApiReader, given: object) -> dict[str, str]:
    with pytest.raises(Rejected) as refused:
        documents.read(text_of(given))
    assert refused.value.reason == "invalid"
    return refused.value.details


def nested(depth: int, *, of: str = "object") -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value] if of == "array" else {"a": value}
    return value


INVALID: list[tuple[Any, str]] = [
    ("", "#"),
    ("no json", "#"),
    ("openapi: 3.1.0\ninfo: {}\n", "#"),
    ("&a [*a]", "#"),
    ("[]", "#"),
    ('"3.1.0"', "#"),
    ("null", "#"),
    ('{"openapi": "3.1.0", "openapi": "3.1.0"}', "#"),
    ('{"openapi": "3.1.0", "x": NaN}', "#"),
    ('{"openapi": "3.1.0", "info": {"title": "T", "version": "1", "x-a": [-1e999]}, "paths": {}}', "#/info/x-a/0"),
    ("[" * 100_000, "#"),
    ('{"a":' * 50_000, "#"),
    ({}, "#/openapi"),
    ({"swagger": "2.0", "info": INFO, "paths": {}}, "#/openapi"),
    (document("3.2.0"), "#/openapi"),
    (document("4.0.0"), "#/openapi"),
    (document("3.1"), "#/openapi"),
    ({**document(), "openapi": 3.1}, "#/openapi"),
    ({"openapi": "3.0.3", "paths": {}}, "#"),
    ({"openapi": "3.1.0", "info": INFO}, "#"),
    (document("3.0.3", paths=[]), "#/paths"),
    (document(paths={"x": {}}), "#/paths"),
    (document(paths={"/x": {"get": {"responses": {"200": {}}}}}), "#/paths/~1x/get/responses/200"),
    (document("3.0.3", paths={"/x": {"get": {"responses": {"200": {}}}}}), "#/paths/~1x/get/responses/200"),
    (one({"parameters": [{"name": "a", "in": "body", "schema": {}}]}), "#/paths/~1x/get/parameters/0/in"),
    (one({"parameters": [{"name": "a", "in": "query"}]}), "#/paths/~1x/get/parameters/0"),
    (document(components={"schemas": {"A": {"type": "strin"}}}), "#/components/schemas/A/type"),
    # Rules that no schema expresses.
    (one({}, path="/x/{id}"), "#/paths/~1x~1{id}/get"),
    (
        document(paths={path: {"get": {**ANSWER, "operationId": "same"}} for path in ("/a", "/b")}),
        "#/paths/~1b/get/operationId",
    ),
    (one({"parameters": [{"name": "q", "in": "query", "schema": {}}] * 2}), "#/paths/~1x/get/parameters/1"),
    (one({"parameters": [{"$ref": "#/info"}]}), "#/paths/~1x/get/parameters/0"),
    (
        document(
            components={"x-odd": {"name": ["q"], "in": "path"}},
            paths={"/x": {"get": {**ANSWER, "parameters": [{"$ref": "#/components/x-odd"}]}}},
        ),
        "#/paths/~1x/get/parameters/0",
    ),
    # References without a target, and circular ones.
    (document(paths={"/x": {"$ref": "#/components/pathItems/none"}}), "#/paths/~1x/$ref"),
    (document(paths={"/x": {"$ref": "#/paths/~1x"}}), "#/paths/~1x"),
    (document(paths={"/x": {"$ref": "#/paths/~1y"}, "/y": {"$ref": "#/paths/~1x"}}), "#/paths/~1y"),
    (document(components={"schemas": {"A": {"$ref": "#/components/schemas/9"}}}), "#/components/schemas/A/$ref"),
    # Limits.
    (document(info={**INFO, "x": nested(31)}), None),
    (document(info={**INFO, "x": nested(40, of="array")}), None),
    (document(paths={f"/p{number}": {"get": ANSWER} for number in range(501)}), "#/paths/~1p500"),
    (one({}, path="/" + "x" * 500), "#/paths/~1" + "x" * 490),
    (one({}, path="/\u0007"), "#/paths/~1\u0007"),
    (document(info={**INFO, "x-a": ["\ud800"]}), "#/info/x-a/0"),
    (document(info={**INFO, "x-\udfff": 1}), "#/info"),
]  # type: ignore[list-item]


def test_an_invalid_document_is_refused_with_its_position(schemas: OpenApiSchemas) -> None:
    for given, place in INVALID:
        details = result(schemas, given)
        assert details["problem"], given
        if place is not None:
            assert details["place"] == place, (str(given)[:200], details)
        assert len(details["problem"]) <= 300
        assert len(details["place"]) <= 500


def test_a_document_is_refused_by_its_size_before_it_is_read(documents: OpenApiReader) -> None:
    details = refusal(documents, document(info={**INFO, "description": "x" * 2**20}))
    assert details == {"place": "#", "problem": "The document exceeds the limit of 1 MiB."}


def test_the_process_returns_the_refusal(documents: OpenApiReader) -> None:
    assert refusal(documents, document("3.0.3", paths=[]))["place"] == "#/paths"


@pytest.mark.parametrize("name", ["$ref", "$dynamicRef", "operationRef"])
def test_no_reference_out_of_the_document_is_followed(
    schemas: OpenApiSchemas, listener: RecordingServer, tmp_path: Path, name: str
) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"type": "object", "description": "top secret"}')
    for target in (
        f"{listener.url}/schema.json",
        f"{listener.url}/schema.json#/x",
        f"//{listener.url.removeprefix('http://')}/x",
        f"file://{secret}",
        str(secret),
        "../secret.json",
        "secret.json#/a",
        "",
        "anchor",
        "#anchor",
        "urn:example:x",
        "data:application/json,{}",
    ):
        for given in (
            document(components={"schemas": {"A": {name: target}}}),
            one({"description": "d", "x-more": {name: target}}),
            document("3.0.3", components={"schemas": {"A": {"properties": {"b": {name: target}}}}}),
        ):
            details = result(schemas, given)
            assert details["place"].endswith(name), details
            assert "top secret" not in str(details)
    assert listener.asked == []


def test_external_addresses_are_never_requested(schemas: OpenApiSchemas, listener: RecordingServer) -> None:
    url = f"{listener.url}/x"
    given = one(
        {"externalDocs": {"url": url}},
        jsonSchemaDialect=url,
        servers=[{"url": url}],
        components={
            "schemas": {"A": {"$id": url, "$schema": url, "type": "object", "properties": {"b": {"$ref": "#/info"}}}},
            "examples": {"E": {"externalValue": url}},
        },
    )
    # Both results are right, a request is not.
    assert result(schemas, given).keys() & {"place", "endpoints"}
    assert listener.asked == []
    assert listener.connections == 0


HOSTILE: dict[str, dict[str, Any]] = {
    "a regular expression that never ends": document(
        components={
            "schemas": {"A": {"type": "string", "pattern": "^(a+)+$", "default": "a" * 60 + "!"}},
            "parameters": {
                "P": {
                    "name": "p",
                    "in": "query",
                    "example": "a" * 60 + "!",
                    "schema": {"type": "string", "pattern": "(a|a)*$"},
                }
            },
        }
    ),
    "references that multiply": document(
        components={
            "schemas": {
                **{
                    f"S{number}": {"allOf": [{"$ref": f"#/components/schemas/S{number + 1}"}] * 30}
                    for number in range(60)
                },
                "S60": {"type": "string", "default": 5},
            }
        }
    ),
    "schemas that contain themselves": one(
        {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/N"}}}}},
        components={
            "schemas": {
                "N": {
                    "required": ["n", "m"],
                    "properties": {"n": {"$ref": "#/components/schemas/N"}, "m": {"$ref": "#/components/schemas/N"}},
                }
            }
        },
    ),
    "alternatives of which none matches": document(
        "3.0.3",
        components={"schemas": {"A": nested(5) | {"anyOf": [{"type": "x", "anyOf": [{"type": "y"}] * 50}] * 200}}},
    ),
    "a million brackets": document(info={**INFO, "x": [[]] * 250_000}),
    "very many fields": document(info={**INFO, **{f"x-{number}": number for number in range(60_000)}}),
    "very large numbers": document(info={**INFO, "x": 10**4000}),
    "one item of very many parameters for many paths": document(
        paths={f"/p{number}": {"$ref": "#/components/pathItems/I"} for number in range(60)},
        components={
            "pathItems": {
                "I": {
                    **dict.fromkeys(("get", "put", "post", "delete", "patch"), ANSWER),
                    "parameters": [{"name": f"q{number}", "in": "query", "schema": {}} for number in range(8_000)],
                }
            }
        },
    ),
}


@pytest.mark.parametrize("danger", HOSTILE)
def test_no_document_exceeds_the_time_limit(documents: OpenApiReader, danger: str) -> None:
    started = time.monotonic()
    try:
        documents.read(json.dumps(HOSTILE[danger]))
    except Rejected as refused:
        assert refused.reason == "invalid"  # noqa: PT017 - to be read is as good as to be refused
    assert time.monotonic() - started < 20


def test_a_slow_document_is_refused_and_its_process_killed() -> None:
    before = _children()
    slow = OpenApiReader(max_seconds=0.0)
    details = refusal(slow, SPEC)
    assert "exceeds the limit of 2 seconds" in details["problem"]
    assert _children() == before


def test_excess_documents_are_queued_or_refused_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_QUEUE_SECONDS", 0.01)
    busy = OpenApiReader()
    for _ in range(2):
        busy._processes.acquire()
    with pytest.raises(Unreachable):
        busy.read(json.dumps(SPEC))
    busy._processes.release()
    assert busy.read(json.dumps(SPEC)).endpoints


def test_the_process_has_no_secrets_and_can_open_nothing(
    documents: OpenApiReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCRYPTION_KEYS", "canary-of-a-secret")
    with child_process.run(*reader._COMMAND, environment=reader._ENVIRONMENT, max_line=100) as process:
        assert process.read_line(deadline=time.monotonic() + 30) == b"ready"
        environment = Path(f"/proc/{process.pid}/environ")
        if environment.exists():
            assert b"canary-of-a-secret" not in environment.read_bytes()
            limits = Path(f"/proc/{process.pid}/limits").read_text()
            (line,) = (line for line in limits.splitlines() if line.startswith("Max open files"))
            assert line.split()[3:5] == ["3", "3"]
    assert documents.read(json.dumps(SPEC)).endpoints


def test_endpoints_and_an_example_are_read_with_references_followed(documents: OpenApiReader) -> None:
    found = documents.read(json.dumps(SPEC))
    assert json.loads(found.document) == SPEC
    assert [(each["method"], each["path"], each["summary"]) for each in found.endpoints] == [
        ("GET", "/weather/{city}", "Current weather of a city"),
        ("POST", "/reports", "Send a report."),
    ]
    assert found.endpoints[0]["parameters"] == [
        {"name": "city", "in": "path", "required": True},
        {"name": "units", "in": "query", "required": False},
    ]
    assert found.example == {"method": "GET", "target": "/weather/S%C3%A3o%20Paulo", "body": None}


def test_an_operation_s_parameter_replaces_that_of_its_path(schemas: OpenApiSchemas) -> None:
    query = {"name": "q", "in": "query", "schema": {"type": "integer"}}
    given = document(
        paths={"/x": {"parameters": [query], "get": {**ANSWER, "parameters": [{**query, "required": True}]}}}
    )
    found = result(schemas, given)
    assert found["endpoints"][0]["parameters"] == [{"name": "q", "in": "query", "required": True}]
    assert found["example"] == {"method": "GET", "target": "/x?q=1", "body": None}


def test_the_example_asks_the_endpoint_with_the_fewest_values_to_guess(schemas: OpenApiSchemas) -> None:
    # Buyers pay for calls that the seller refuses because of a made-up id.
    order_id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    body = {"content": {"application/json": {"schema": {"type": "object"}}}}
    given = document(
        paths={
            "/orders": {"post": {**ANSWER, "requestBody": body}},
            "/orders/{id}": {"get": {**ANSWER, "parameters": [order_id]}},
            "/rates": {"get": ANSWER},
            "/status": {"get": ANSWER},
        }
    )
    assert result(schemas, given)["example"] == {"method": "GET", "target": "/rates", "body": None}


VALID: list[dict[str, Any]] = [
    SPEC,
    document(),
    document("3.0.0"),
    document("3.0.3", paths={"/x": {"get": ANSWER}}),
    document(webhooks={"w": {"post": ANSWER}}),
    document(components={"schemas": {"A": True, "B": {"$ref": "#/components/schemas/A"}}}),
    document(components={"schemas": {"A": {"type": ["string", "null"]}}}),
    document("3.0.3", components={"schemas": {"A": {"type": "string", "nullable": True}}}),
    document("3.0.3", components={"schemas": {"A": {"properties": {"$ref": {"type": "string"}}}}}),
    one({"operationId": "a", "deprecated": True, "security": [], "x-anything": {"b": [1, 2.5, None]}}),
    document(paths={"/a~1b": {"get": ANSWER}, "/y": {"$ref": "#/paths/~1a~01b"}}),
]


def test_valid_documents_are_read_and_another_validator_agrees(schemas: OpenApiSchemas) -> None:
    for given in VALID:
        assert result(schemas, given)["document"]
        validate(given)


def test_the_maximum_of_operations_is_read_in_time(documents: OpenApiReader) -> None:
    paths = {
        f"/p{number}": {
            "get": {
                "operationId": f"o{number}",
                "parameters": [
                    {"name": f"q{each}", "in": "query", "schema": {"type": "string", "maxLength": each}}
                    for each in range(8)
                ],
                "responses": {
                    "200": {
                        "description": "d",
                        "content": {"application/json": {"schema": {"type": "object", "properties": {"a": {}}}}},
                    }
                },
            }
        }
        for number in range(500)
    }
    assert len(documents.read(json.dumps(document(paths=paths))).endpoints) == 500


def _children() -> set[str]:
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return set(path.read_text().split()) if path.exists() else set()
