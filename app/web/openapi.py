"""The OpenAPI 3.1 document of an application, generated from the blueprints, the schemas and the error classes."""

import copy
import inspect
import json
import re
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from apispec import BasePlugin
from apispec.ext.marshmallow import MarshmallowPlugin
from apispec.ext.marshmallow.common import resolve_schema_cls
from flask import Flask
from flask_smorest import Api
from marshmallow import Schema
from werkzeug.utils import cached_property

from app.config import Settings
from app.errors import Overloaded, PayloadTooLarge, RequestTimeout, ServiceError
from app.web import fields
from app.web.schemas import ErrorBody


class OpenApiDocument:
    """The document of one application, generated when first read: that takes longer than all else at start."""

    def __init__(self, api: Api) -> None:
        self.spec = api.spec
        self.deferred: list[Callable[[], None]] = []
        self.additions: list[Callable[[dict[str, Any]], None]] = []
        """What adds operations that no view of their own serves."""
        self._lock = threading.Lock()
        self._generated: dict[str, Any] | None = None

    def generated(self) -> dict[str, Any]:
        """Return what the views and schemas declare. It is shared and must not be changed."""
        with self._lock:
            if self._generated is None:
                for describe in self.deferred:
                    describe()
                schemas = self.spec.components.schemas
                if "ErrorBody" not in schemas:
                    # Operations refer to it by its name only.
                    self.spec.components.schema("ErrorBody", schema=ErrorBody)
                # flask-smorest's own paging, which no route uses.
                schemas.pop("PaginationMetadataSchema", None)
                self._generated = self.spec.to_dict()
        return self._generated

    @cached_property
    def published(self) -> dict[str, Any]:
        """The document as it is published. It is shared and must not be changed."""
        return publish(self.generated(), self.additions)

    @cached_property
    def text(self) -> str:
        return json.dumps(self.published, separators=(",", ":"))


_FOLDER = Path(__file__).parent
CODES = re.compile(r"^`([A-Z_0-9]+)`: (.*)", re.MULTILINE)
"""The codes in the description of a response, with their meanings."""
_ERROR = {"$ref": "#/components/schemas/ErrorBody"}
_REQUEST_ID = "0b0c5d0e-3c5b-4a52-9f0e-6a1f1d2b7c11"


@cache
def texts() -> dict[str, Any]:
    """Return the descriptions, by the kind of what they describe."""
    return tomllib.loads((_FOLDER / "descriptions.toml").read_text("utf-8"))


@cache
def reference_texts() -> dict[str, dict[str, Any]]:
    """Return what the reference shows besides the document: texts, and examples of requests."""
    return tomllib.loads((_FOLDER / "reference.toml").read_text("utf-8"))


@cache
def examples() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((_FOLDER / "examples.json").read_text("utf-8"))
    return found


def publish(generated: Mapping[str, Any], additions: Iterable[Callable[[dict[str, Any]], None]]) -> dict[str, Any]:
    """Return the published form of a generated document, with what each of the additions adds to it."""
    document = copy.deepcopy(dict(generated))
    for add in additions:
        add(document)
    _share_values(document)
    for tag in document["tags"]:
        _describe(tag, "tags", tag["name"])
    for name, schema in document["components"]["schemas"].items():
        members = schema.get("properties", {})
        for member, definition in members.items():
            _describe(definition, "properties", f"{name}.{member}", member)
            # In words: generators require what has a default.
            if (default := definition.pop("default", None)) is not None:
                explained = f"{definition.get('description', '')} Default: `{json.dumps(default)}`."
                definition["description"] = explained.strip()
    used: set[str] = set()
    for owner, operation in _operations(document):
        _describe(operation, "operations", owner, owner.replace("_platform", ""))
        _show_request(operation, owner)
        for status, response in operation["responses"].items():
            content, *_ = response.get("content", {"": {}}).values()
            if status in examples().get(owner, {}):
                content["example"] = examples()[owner][status]
            codes = [code for code, _ in CODES.findall(response.get("description", ""))]
            if codes and content["schema"] == _ERROR:
                content["examples"] = {code: {"$ref": f"#/components/examples/{code}"} for code in codes}
                used.update(codes)
    document["components"]["examples"] = {
        code: {"value": {"error": errors()[code]().message, "code": code, "request_id": _REQUEST_ID}}
        for code in sorted(used)
    }
    return document


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the operations by their ids, and describe the parameters of all."""
    for item in document["paths"].values():
        for operation in item.values():
            parameters = operation if isinstance(operation, list) else operation.get("parameters", ())
            for parameter in parameters:
                _describe(parameter, "parameters", parameter["name"])
            if operation is not parameters:
                yield operation["operationId"], operation


def _describe(node: dict[str, Any], kind: str, *names: str) -> None:
    found = next((text for name in names if (text := texts()[kind].get(name))), None)
    if found and not node.get("description"):
        node["description"] = found


def _share_values(document: dict[str, Any]) -> None:
    """Make components of the lists of values that several places have, so that clients get one type for each."""
    schemas, shared = document["components"]["schemas"], {}
    for name, text in texts()["values"].items():
        schema, _, member = text["from"].partition(".")
        definition = schemas[schema]["properties"][member]
        values = [each for each in definition.get("items", definition)["enum"] if each is not None]
        shared[tuple(values)] = {"$ref": f"#/components/schemas/{name}"}
        schemas[name] = {"type": "string", "enum": values, "description": text["description"]}
    for place in (document["paths"], {name: each for name, each in schemas.items() if name not in texts()["values"]}):
        _refer(place, shared)


def _refer(node: Any, shared: Mapping[tuple[str, ...], dict[str, str]]) -> None:
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _refer(each, shared)
    if isinstance(node, dict) and isinstance(node.get("enum"), list):
        values = tuple(each for each in node["enum"] if each is not None)
        if reference := shared.get(values):
            nullable = len(values) < len(node["enum"])
            node |= {"anyOf": [reference, {"type": "null"}]} if nullable else reference
            del node["enum"], node["type"]


def _show_request(operation: dict[str, Any], name: str) -> None:
    """Add an example of the request, to the first content of the body."""
    bodies, content = reference_texts()["bodies"], operation.get("requestBody", {}).get("content")
    if content:
        example = bodies.get(name, bodies.get(name.replace("_platform", ""), {}))
        (kind, first), *rest = content.items()
        # Operations share the objects of their bodies.
        shown = {kind: {**first, "example": example}, **dict(rest)}
        operation["requestBody"] = {**operation["requestBody"], "content": shown}


@cache
def errors() -> dict[str, type[ServiceError]]:
    # A subclass without a code of its own comes after the class that has it.
    return {each.code: each for each in reversed(list(_error_classes(ServiceError)))}


def _error_classes(base: type[ServiceError]) -> Iterator[type[ServiceError]]:
    for each in base.__subclasses__():
        yield each
        yield from _error_classes(each)


_WIRE_TYPES: tuple[tuple[type[Any], str, str | None], ...] = (
    (fields.AmountField, "string", None), (fields.Usd, "number", None), (fields.StrictBoolean, "boolean", None),
    (fields.UsdText, "string", None), (fields.Instant, "string", "date-time"), (fields.QueryCount, "integer", None),
    (fields.WholeNumber, "integer", None), (fields.Email, "string", "email"),
    (fields.DomainField, "string", "hostname"),
)  # fmt: skip

_ANY_OBJECT = {"schema": {"type": "object", "additionalProperties": True}}
JSON_BODY: Mapping[str, Any] = {"application/json": {"schema": {"description": "Any JSON value."}}}
MULTIPART_BODY: Mapping[str, Any] = {"multipart/form-data": _ANY_OBJECT}
OTHER_BODIES: Mapping[str, Any] = {
    "application/x-www-form-urlencoded": _ANY_OBJECT,
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
}
FREE_QUERY = {
    "in": "query", "name": "query", "description": "Any further query parameters, forwarded as they are.",
    "required": False, "style": "form", "explode": True,
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
}  # fmt: skip
"""The parameters of a query by their names; the name of this one is not sent."""


def spec_options(settings: Settings) -> dict[str, Any]:
    return {
        "info": {
            "description": texts()["info"]["description"],
            "license": {"name": "MIT", "identifier": "MIT"},
            "contact": {"name": "The operator of this service", "url": settings.support_url or settings.public_url},
            **({"termsOfService": settings.terms_url} if settings.terms_url else {}),
        },
        "servers": [{"url": settings.public_url, "description": "This service."}],
        "components": {"securitySchemes": texts()["security_schemes"]},
    }


def bind(app: Flask, api: Api) -> OpenApiDocument:
    """Bind flask-smorest to the application, with our fields and error body; return the document."""
    api.ERROR_SCHEMA = ErrorBody
    schemas = MarshmallowPlugin(schema_name_resolver=_schema_name)
    api.init_app(app, spec_kwargs={"marshmallow_plugin": schemas, "extra_plugins": [_SharedConventions()]})
    for name, header in texts()["headers"].items():
        api.spec.components.header(name, dict(header))
    for field, type_, format_ in _WIRE_TYPES:
        api.register_field(field, type_, format_)
    return OpenApiDocument(api)


def _schema_name(schema: type[Schema] | Schema) -> str:
    cls = schema if isinstance(schema, type) else type(schema)
    return cls.__name__.removesuffix("Shape")


class _SharedConventions(BasePlugin):  # type: ignore[misc, unused-ignore]
    """Adds to operations and schemas what is common to their kind."""

    def schema_helper(self, name: str, definition: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        doc = inspect.getdoc(resolve_schema_cls(kwargs["schema"])) if kwargs.get("schema") else None
        return {"description": doc} if doc else {}

    def operation_helper(
        self, path: str | None = None, operations: dict[str, Any] | None = None, **_kwargs: Any
    ) -> None:
        for operation in (operations or {}).values():
            parameters = operation.get("parameters", [])
            for parameter in parameters:
                _drop_null(parameter)
            locations = {parameter["in"] for parameter in parameters}
            if "requestBody" in operation:
                for failure in (PayloadTooLarge, RequestTimeout):
                    operation["responses"][str(failure().status)] = _body_error_response(failure)
                operation["responses"].setdefault(str(Overloaded().status), _body_error_response(Overloaded))
            elif not locations & {"query", "header"}:
                del operation["responses"]["400"]
            repeatable = any(parameter["name"] == "Idempotency-Key" for parameter in parameters)
            for code, response in operation["responses"].items():
                status = str(code)
                if not isinstance(response, str):  # a reference
                    names = ["X-Request-Id", *(["Retry-After"] if status in {"409", "429", "503"} else [])]
                    names += ["RateLimit-Policy"] if status == "429" else []
                    names += ["Idempotent-Replayed"] if repeatable and status.startswith("2") else []
                    response["headers"] = {**response_headers(*names), **response.get("headers", {})}


def _drop_null(parameter: dict[str, Any]) -> None:
    """Remove null from a parameter's values: a client omits the parameter instead."""
    schema = parameter.get("schema", {})
    if isinstance(schema.get("type"), list):
        schema["type"] = next(kind for kind in schema["type"] if kind != "null")
    if "enum" in schema:
        schema["enum"] = [value for value in schema["enum"] if value is not None]
    if schema.get("default", "") is None:
        del schema["default"]


def _body_error_response(failure: type[ServiceError]) -> dict[str, Any]:
    return dict(error_document(f"`{failure.code}`: {failure.meaning()}"))


def error_document(description: str) -> Mapping[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": dict(_ERROR)}}}


def response_headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
