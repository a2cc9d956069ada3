"""The OpenAPI 3.1 document, generated from the blueprints, the schemas and the error classes."""

import inspect
from collections.abc import Mapping
from typing import Any

from apispec import BasePlugin
from apispec.ext.marshmallow import MarshmallowPlugin
from apispec.ext.marshmallow.common import resolve_schema_cls
from flask import Flask
from flask_smorest import Api
from marshmallow import Schema

from app.config import Settings
from app.errors import Overloaded, PayloadTooLarge, RequestTimeout, ServiceError
from app.web import fields
from app.web.blueprint import error_document
from app.web.openapi_document import OpenApiDocument, texts
from app.web.schemas import ErrorBody

_WIRE_TYPES: tuple[tuple[type[Any], str, str | None], ...] = (
    (fields.AmountField, "string", None), (fields.Usd, "number", None), (fields.StrictBoolean, "boolean", None),
    (fields.UsdText, "string", None), (fields.Instant, "string", "date-time"), (fields.QueryCount, "integer", None),
    (fields.WholeNumber, "integer", None), (fields.Email, "string", "email"),
    (fields.DomainField, "string", "hostname"),
)  # fmt: skip

_RETRYABLE_STATUSES = ("409", "429", "503")
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
            for status, response in operation["responses"].items():
                if not isinstance(response, str):  # a reference
                    standard = _standard_headers(str(status), is_idempotent=repeatable)
                    response["headers"] = {**standard, **response.get("headers", {})}


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


def response_headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _standard_headers(status: str, *, is_idempotent: bool) -> dict[str, Any]:
    names = ["X-Request-Id", *(["Retry-After"] if status in _RETRYABLE_STATUSES else [])]
    names += ["RateLimit-Policy"] if status == "429" else []
    return response_headers(*names, *(["Idempotent-Replayed"] if is_idempotent and status.startswith("2") else []))
