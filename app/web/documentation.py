"""The OpenAPI 3.1 document: made from the blueprints, the schemas and the error classes, never by hand."""

from __future__ import annotations

import functools
import inspect
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from apispec import BasePlugin
from apispec.ext.marshmallow import MarshmallowPlugin
from apispec.ext.marshmallow.common import resolve_schema_cls
from flask import Flask, current_app
from flask_smorest import Api
from marshmallow import Schema

from app.errors import PayloadTooLarge, ServiceError
from app.web import fields
from app.web.callers import RequestTimeout
from app.web.schemas import ErrorBody

_WIRE_TYPES: tuple[tuple[type[Any], str, str | None], ...] = (
    (fields.Amount, "string", None),
    (fields.Usd, "number", None),
    (fields.Flag, "boolean", None),
    (fields.UsdText, "string", None),
    (fields.Instant, "string", "date-time"),
    (fields.Count, "integer", None),
    (fields.Name, "string", None),
    (fields.Email, "string", "email"),
    (fields.Address, "string", None),
    (fields.Domain, "string", "hostname"),
    (fields.Text, "string", None),
)

_EXTENSION = "openapi_document"
_HEADERS: Mapping[str, Mapping[str, Any]] = {
    "X-Request-Id": {
        "description": "Finds the request in the logs.",
        "schema": {"type": "string", "format": "uuid"},
    },
    "Retry-After": {
        "description": "Seconds to wait before the next try.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "Idempotent-Replayed": {
        "description": "`true` where this is the stored answer to an earlier request with the same key.",
        "schema": {"type": "string", "enum": ["true"]},
    },
}
# Failure classes end by saying when not to raise them, which is nothing to a caller.
_NOT_FOR_CALLERS = re.compile(r" Not for [^\n]*")
_WAITING_HELPS = ("409", "429", "503")


def spec_options(public_url: str, security_schemes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands in the document besides the operations."""
    return {
        "info": {
            "description": (
                "Agents register themselves and get an API key, a wallet on Ethereum, Base and Solana, "
                "spending controls and credits. Amounts are decimal strings, times are ISO 8601 in UTC. Dollars "
                "are numbers, at most 1000000000 and with at most 9 decimals; what binary arithmetic adds to "
                "them (0.30000000000000004) is taken off. "
                "Every failure has the same body: `error`, `code`, `details`, `request_id`."
            ),
            "license": {"name": "Proprietary", "identifier": "LicenseRef-Proprietary"},
        },
        "servers": [{"url": public_url}],
        "components": {"securitySchemes": dict(security_schemes)},
    }


class _Document:
    """The document of one application, made when somebody first reads it: that is most of the work of a start."""

    def __init__(self, api: Api) -> None:
        self.spec = api.spec
        self.pending: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._made: dict[str, Any] | None = None

    def read(self) -> dict[str, Any]:
        with self._lock:
            if self._made is None:
                for describe in self.pending:
                    describe()
                self._complete()
                self._made = self.spec.to_dict()
        return self._made

    @functools.cached_property
    def text(self) -> str:
        return json.dumps(self.read(), separators=(",", ":"))

    def _complete(self) -> None:
        """Add what no operation names by itself."""
        schemas = self.spec.components.schemas
        if "Error" not in schemas:
            self.spec.components.schema("Error", schema=ErrorBody)
        # flask-smorest's own paging, which no route uses.
        schemas.pop("PaginationMetadataSchema", None)


def bind(app: Flask, api: Api) -> None:
    """Bind the document to the application, with our fields and our one error body."""
    api.ERROR_SCHEMA = ErrorBody
    plugins = {
        "marshmallow_plugin": MarshmallowPlugin(schema_name_resolver=_name_of),
        "extra_plugins": [_WhatAllShare()],
    }
    api.init_app(app, spec_kwargs=plugins)
    app.extensions[_EXTENSION] = _Document(api)
    for name, header in _HEADERS.items():
        api.spec.components.header(name, dict(header))
    for field, type_, format_ in _WIRE_TYPES:
        api.register_field(field, type_, format_)


def describe_later(app: Flask, describe: Callable[[], None]) -> None:
    """Have a room described when the document is made."""
    document: _Document = app.extensions[_EXTENSION]
    document.pending.append(describe)


def read() -> dict[str, Any]:
    """Return the running application's document. It is shared: not to be changed."""
    document: _Document = current_app.extensions[_EXTENSION]
    return document.read()


def text() -> str:
    """Return the running application's document as JSON."""
    document: _Document = current_app.extensions[_EXTENSION]
    return document.text


def _name_of(schema: type[Schema] | Schema) -> str:
    cls = schema if isinstance(schema, type) else type(schema)
    return "Error" if cls is ErrorBody else cls.__name__.removesuffix("Shape")


class _WhatAllShare(BasePlugin):  # type: ignore[misc, unused-ignore]
    """Adds to operations and schemas what follows from their kind, so that no room has to say it."""

    def schema_helper(
        self,
        name: str,
        definition: dict[str, Any],
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Describe a schema by the docstring of its class."""
        doc = inspect.getdoc(resolve_schema_cls(kwargs["schema"])) if kwargs.get("schema") else None
        return {"description": doc} if doc else {}

    def operation_helper(
        self,
        path: str | None = None,
        operations: dict[str, Any] | None = None,
        **_kwargs: Any,
    ) -> None:
        """Complete the operations of a path."""
        for operation in (operations or {}).values():
            parameters = operation.get("parameters", [])
            for parameter in parameters:
                _without_null(parameter)
            places = {parameter["in"] for parameter in parameters}
            if "requestBody" in operation:
                for failure in (PayloadTooLarge, RequestTimeout):
                    operation["responses"][str(failure().status)] = _failure_of_bodies(failure)
            elif not places & {"query", "header"}:
                del operation["responses"]["400"]
            repeatable = any(parameter["name"] == "Idempotency-Key" for parameter in parameters)
            for status, response in operation["responses"].items():
                if not isinstance(response, str):  # the name of a shared one
                    response["description"] = _NOT_FOR_CALLERS.sub("", response.get("description", ""))
                    response["headers"] = dict(_headers(str(status), repeatable=repeatable))


def _without_null(parameter: dict[str, Any]) -> None:
    """Take null out of a parameter's values: it is left out instead, whatever its field loads as."""
    schema = parameter.get("schema", {})
    if isinstance(schema.get("type"), list):
        schema["type"] = next(kind for kind in schema["type"] if kind != "null")
    if "enum" in schema:
        schema["enum"] = [value for value in schema["enum"] if value is not None]
    if schema.get("default", "") is None:
        del schema["default"]


def _failure_of_bodies(failure: type[ServiceError]) -> dict[str, Any]:
    reason = inspect.getdoc(failure)
    schema = {"$ref": "#/components/schemas/Error"}
    return {
        "description": f"`{failure.code}`: {reason}",
        "content": {"application/json": {"schema": schema}},
    }


def _headers(status: str, *, repeatable: bool) -> Iterator[tuple[str, dict[str, str]]]:
    names = ["X-Request-Id"]
    if status in _WAITING_HELPS:
        names.append("Retry-After")
    if repeatable and status.startswith("2"):
        names.append("Idempotent-Replayed")
    for name in names:
        yield name, {"$ref": f"#/components/headers/{name}"}
