"""The endpoints of a valid document, and an example request for the first of them."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from app.adapters.openapi_reader.limits import METHODS, InvalidDocumentError, json_pointer, resolve

_MAX_TEXT = 200
_MAX_PATH = 500
_MAX_BODY = 1_000
_MAX_MEMBERS = 12
_MAX_DEPTH = 4
_SAMPLES = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}


def list_endpoints(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each operation with its parameters, in the document's order. Raises: InvalidDocumentError."""
    return [
        {
            "method": method.upper(),
            "path": path,
            "summary": _summary(operation),
            "parameters": [
                {
                    "name": _single_line(parameter["name"]),
                    "in": parameter["in"],
                    "required": parameter.get("required") is True,
                }
                for parameter in _parameters(document, item, operation)
            ],
        }
        for path, item, method, operation in _operations(document)
    ]


def example_request(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a request for the endpoint with the fewest required values; the first of those. None without endpoints."""
    chosen = min(_operations(document), key=lambda found: _required_inputs(document, found[1], found[3]), default=None)
    if chosen is None:
        return None
    path, item, method, operation = chosen
    query: list[str] = []
    for parameter in _parameters(document, item, operation):
        sample = parameter.get("example")
        if "example" not in parameter:
            sample = _sample(document, parameter.get("schema", {}), 0, name=str(parameter["name"]))
        value = _single_line(sample if isinstance(sample, str) else json.dumps(sample))
        if parameter["in"] == "path":
            path = path.replace("{" + parameter["name"] + "}", quote(value, safe=""))
        elif parameter["in"] == "query" and parameter.get("required") is True and len(query) < _MAX_MEMBERS:
            query.append(f"{quote(parameter['name'], safe='')}={quote(value, safe='')}")
    target = f"{path}?{'&'.join(query)}" if query else path
    return {
        "method": method.upper(),
        "target": quote(target, safe="/?&=%:@!*+,;~-._"),
        "body": _body(document, operation),
    }


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str, Mapping[str, Any]]]:
    for path, raw in (document.get("paths") or {}).items():
        place = json_pointer(("paths", path))
        if len(path) > _MAX_PATH or any(unicodedata.category(letter)[0] == "C" for letter in path):
            raise InvalidDocumentError(f"A path has at most {_MAX_PATH} printable characters.", place)
        item = resolve(document, raw)
        for method in METHODS:
            operation = item.get(method)
            if isinstance(operation, dict):
                yield path, item, method, operation


def _parameters(
    document: Mapping[str, Any], item: Mapping[str, Any], operation: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return an operation's parameters; its own replace those of the path with the same name and location."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for raw in (*item.get("parameters", ()), *operation.get("parameters", ())):
        parameter = resolve(document, raw)
        found[parameter["name"], parameter["in"]] = parameter
    return list(found.values())


def _summary(operation: Mapping[str, Any]) -> str:
    for name in ("summary", "description", "operationId"):
        text = operation.get(name)
        if isinstance(text, str) and (line := _single_line(text.strip().split("\n")[0])):
            return line
    return ""


def _required_inputs(
    document: Mapping[str, Any], item: Mapping[str, Any], operation: Mapping[str, Any]
) -> tuple[bool, int]:
    needed = [parameter for parameter in _parameters(document, item, operation) if parameter.get("required") is True]
    return "requestBody" in operation, len(needed)


def _body(document: Mapping[str, Any], operation: Mapping[str, Any]) -> str | None:
    content = resolve(document, operation.get("requestBody", {})).get("content", {})
    media = content.get("application/json")
    if not isinstance(media, dict):
        return None
    sample = media["example"] if "example" in media else _sample(document, media.get("schema", {}), 0)
    text = json.dumps(sample, ensure_ascii=False)
    return text if len(text) <= _MAX_BODY else "{}"


def _sample(document: Mapping[str, Any], raw: Any, depth: int, *, name: str = "text") -> Any:
    schema = resolve(document, raw)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    for key in ("example", "default", "const"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    members = schema.get("properties")
    if isinstance(members, dict) and members:
        required = schema.get("required")
        names = required if isinstance(required, list) and required else list(members)
        return {
            member: _sample(document, members[member], depth + 1, name=member)
            for member in names[:_MAX_MEMBERS]
            if member in members
        }
    kind = schema.get("type")
    kind = next(iter(kind), None) if isinstance(kind, list) else kind
    return _SAMPLES.get(kind, f"<{_single_line(name)}>") if isinstance(kind, str) else f"<{_single_line(name)}>"


def _single_line(text: str) -> str:
    """Return a text on one line, without control and bidirectional characters."""
    return "".join(letter if unicodedata.category(letter)[0] != "C" else " " for letter in text)[:_MAX_TEXT]
