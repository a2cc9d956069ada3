"""The process that reads one document: `python -m app.adapters.openapi_reader.child`.

It reports that it is ready, reads a document to the end of its input, and writes one JSON object in a line. Before it
parses the document it drops the right to open anything, and to use more than a little memory and time. The document is
validated by OpenAPI's official schemas, then by the rules that no schema can express; its own patterns and defaults
are never executed, because an untrusted pattern may run forever.
"""

import importlib.util
import json
import os
import re
import resource
import sys
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jsonschema_rs import Draft4Validator, Draft202012Validator, Registry, ValidationError

from app.adapters.openapi_reader import limits
from app.adapters.openapi_reader.limits import InvalidDocumentError, json_pointer, resolve
from app.ports.specifications import MAX_SECONDS

_PLACEHOLDER = re.compile(r"{([^{}]*)}")
_MAX_DESCENT = 40


class OpenApiSchemas:
    """The official schemas, compiled. They come with openapi-spec-validator, which itself is far too slow."""

    def __init__(self) -> None:
        self._v30 = Draft4Validator(_resource("openapi_spec_validator", "resources/schemas/v3.0/schema.json"))
        document = _resource("openapi_spec_validator", "resources/schemas/v3.1/schema.json")
        dialect = _resource("openapi_schema_validator", "schemas/oas3.1/metaschema.json")
        vocabulary = _resource("openapi_schema_validator", "schemas/oas3.1/vocabularies/base")
        # Like the official "schema-base": every schema in the document has to be one of OpenAPI's dialect.
        with_dialect = {
            "$schema": document["$schema"],
            "$id": "urn:purser:openapi",
            "$ref": document["$id"],
            "$defs": {"schema": {"$dynamicAnchor": "meta", "$ref": dialect["$id"]}},
        }
        known = Registry([(part["$id"], part) for part in (document, dialect, vocabulary)])
        self._v31 = Draft202012Validator(with_dialect, registry=known)

    def check(self, document: Mapping[str, Any]) -> None:
        """Validate a document against the schema of its version. Raises: InvalidDocumentError."""
        schema = self._v30 if str(document["openapi"]).startswith("3.0") else self._v31
        problem = next(iter(schema.iter_errors(document)), None)
        if problem is not None:
            deepest = _most_specific_error(problem)
            raise InvalidDocumentError(deepest.message, json_pointer(deepest.instance_path))


def check_rules(document: dict[str, Any]) -> None:
    """Refuse duplicate operation ids and parameters, and undeclared path parameters. Raises: InvalidDocumentError."""
    ids: set[object] = set()
    for path, item, method, operation in limits.operations(document):
        place = ("paths", path, method)
        if len(path) > _MAX_PATH or any(unicodedata.category(letter)[0] == "C" for letter in path):
            problem = f"A path has at most {_MAX_PATH} printable characters."
            raise InvalidDocumentError(problem, json_pointer(place[:2]))
        declared = {each["name"] for each in _parameters(document, item, operation, place) if each["in"] == "path"}
        missing = set(_PLACEHOLDER.findall(path)) - declared
        if missing:
            raise InvalidDocumentError(f"The path parameter {min(missing)} is not declared.", json_pointer(place))
        name = operation.get("operationId")
        if name is not None and name in ids:
            raise InvalidDocumentError("Another operation has this operationId.", json_pointer((*place, "operationId")))
        ids.add(name)


def _parameters(
    document: Mapping[str, Any], item: Mapping[str, Any], operation: Mapping[str, Any], place: tuple[str, ...] = ()
) -> list[Mapping[str, Any]]:
    """Return an operation's parameters; its own replace those of the path with the same name and location.

    Raises: InvalidDocumentError for two of one holder with the same.
    """
    shared = _own_parameters(document, item, place[:2])
    return list({**shared, **_own_parameters(document, operation, place)}.values())


def _own_parameters(
    document: Mapping[str, Any], holder: Mapping[str, Any], place: tuple[str, ...]
) -> dict[tuple[str, str], Mapping[str, Any]]:
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for index, raw in enumerate(holder.get("parameters", ())):
        parameter = resolve(document, raw)
        where = json_pointer((*place, "parameters", str(index)))
        if not isinstance(parameter, dict) or {type(parameter.get(each)) for each in ("name", "in")} != {str}:
            # A reference to another kind of object: the schema does not check the target.
            raise InvalidDocumentError("This is not a parameter object.", where)
        key = parameter["name"], parameter["in"]
        if key in found:
            raise InvalidDocumentError("Another parameter has this name and location.", where)
        found[key] = parameter
    return found


def _most_specific_error(problem: ValidationError) -> ValidationError:
    """If no alternative fits, return the error of the closest one."""
    for _ in range(_MAX_DESCENT):
        branches = getattr(problem.kind, "context", None)
        inner = [error for branch in branches or () for error in branch if "$ref" not in error.message]
        if not inner:
            break
        problem = max(inner, key=lambda error: len(error.instance_path))
    return problem


def _resource(package: str, name: str) -> dict[str, Any]:
    # The package itself is not imported: that takes most of a second.
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(package)
    found: dict[str, Any] = json.loads((Path(spec.origin).parent / name).read_text())
    return found


_MAX_PATH = 500
_MAX_BODY = 1_000
_MAX_MEMBERS = 12
_MAX_DEPTH = 4
_SAMPLES = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}


def list_endpoints(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each operation with its parameters, in the document's order. Raises: InvalidDocumentError."""
    return [
        {
            "method": method.upper(),
            "path": path,
            "summary": _summary(operation),
            "parameters": [
                {"name": _single_line(each["name"]), "in": each["in"], "required": each.get("required") is True}
                for each in _parameters(document, item, operation)
            ],
        }
        for path, item, method, operation in limits.operations(document)
    ]


def example_request(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return a request for the endpoint with the fewest required values; the first of those. None without endpoints."""

    def required_inputs(found: tuple[str, dict[str, Any], str, dict[str, Any]]) -> tuple[bool, int]:
        _path, item, _method, operation = found
        needed = [each for each in _parameters(document, item, operation) if each.get("required") is True]
        return "requestBody" in operation, len(needed)

    chosen = min(limits.operations(document), key=required_inputs, default=None)
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


def _summary(operation: Mapping[str, Any]) -> str:
    for name in ("summary", "description", "operationId"):
        text = operation.get(name)
        if isinstance(text, str) and (line := _single_line(text.strip().split("\n")[0])):
            return line
    return ""


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
    return _SAMPLES.get(str(kind), f"<{_single_line(name)}>")


def _single_line(text: str) -> str:
    """Return the first 200 characters of a text on one line, without control and bidirectional ones."""
    return "".join(letter if unicodedata.category(letter)[0] != "C" else " " for letter in text)[:200]


_MAX_MEMORY = 1024**3


def main() -> None:
    sys.setrecursionlimit(3_000)
    schemas = OpenApiSchemas()
    # What libraries load at their first use has to be loaded now.
    read_document("\ud800", schemas)
    _drop_privileges()
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    text = sys.stdin.buffer.read().decode(errors="replace")
    sys.stdout.buffer.write(json.dumps(read_document(text, schemas)).encode() + b"\n")
    sys.stdout.buffer.flush()
    # No clean-up is needed for what the document left behind.
    os._exit(0)


def read_document(text: str, schemas: OpenApiSchemas) -> dict[str, Any]:
    try:
        document = limits.load(text)
        schemas.check(document)
        check_rules(document)
        return {
            "document": json.dumps(document),
            "endpoints": list_endpoints(document),
            "example": example_request(document),
        }
    except InvalidDocumentError as error:
        return {"problem": error.problem[:300], "place": error.path}
    except MemoryError:
        return {"problem": "Reading the document exceeds the memory limit.", "place": "#"}
    except Exception as error:
        return {"problem": f"The document cannot be read ({type(error).__name__}).", "place": "#"}


def _drop_privileges() -> None:
    # Three descriptors are open, and no more are allowed: neither a file nor a connection, whatever a library tries.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    # If no parent is left to kill this process, the kernel does.
    used = int(sum(os.times()[:2])) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + MAX_SECONDS, used + MAX_SECONDS))
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))


if __name__ == "__main__":
    main()
