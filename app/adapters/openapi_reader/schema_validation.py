"""Validation by OpenAPI's official schemas, then by the rules that no schema can express.

The document's own patterns and defaults are never executed: an untrusted pattern may run forever.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema_rs import Draft4Validator, Draft202012Validator, Registry, ValidationError

from app.adapters.openapi_reader.limits import METHODS, InvalidDocumentError, json_pointer, resolve

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


def check_rules(document: Mapping[str, Any]) -> None:
    """Refuse duplicate operation ids, duplicate parameters, and path parameters that are not declared.

    Raises: InvalidDocumentError.
    """
    ids: set[str] = set()
    for path, raw in (document.get("paths") or {}).items():
        item = resolve(document, raw)
        shared = _check_parameters(document, item, ("paths", path))
        for method in METHODS:
            if method not in item:
                continue
            operation, place = item[method], ("paths", path, method)
            own = _check_parameters(document, operation, place)
            declared = {name for name, where in own | shared if where == "path"}
            missing = set(_PLACEHOLDER.findall(path)) - declared
            if missing:
                raise InvalidDocumentError(f"The path parameter {min(missing)} is not declared.", json_pointer(place))
            name = operation.get("operationId")
            if name is not None and name in ids:
                raise InvalidDocumentError(
                    "Another operation has this operationId.", json_pointer((*place, "operationId"))
                )
            ids.add(name)


def _check_parameters(
    document: Mapping[str, Any], holder: Mapping[str, Any], place: tuple[str, ...]
) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for index, raw in enumerate(holder.get("parameters", ())):
        parameter = resolve(document, raw)
        where = json_pointer((*place, "parameters", str(index)))
        try:
            key = str(parameter["name"]), str(parameter["in"])
        except (TypeError, LookupError):
            # A reference to another kind of object: the schema does not check the target.
            raise InvalidDocumentError("This is not a parameter object.", where) from None
        if key in found:
            raise InvalidDocumentError("Another parameter has this name and location.", where)
        found.add(key)
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
