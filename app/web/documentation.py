"""The OpenAPI 3.1 document: made from the blueprints, the schemas and the error classes, never by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apispec.ext.marshmallow import MarshmallowPlugin
from flask import Flask
from flask_smorest import Api
from marshmallow import Schema

from app.web import fields
from app.web.schemas import ErrorBody

_WIRE_TYPES: tuple[tuple[type[Any], str, str | None], ...] = (
    (fields.Amount, "string", None),
    (fields.Usd, "number", None),
    (fields.UsdText, "string", None),
    (fields.Instant, "string", "date-time"),
    (fields.Count, "integer", None),
    (fields.Name, "string", None),
    (fields.Email, "string", "email"),
    (fields.Address, "string", None),
    (fields.Domain, "string", "hostname"),
    (fields.Text, "string", None),
)


def spec_options(public_url: str, security_schemes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands in the document besides the operations."""
    return {
        "info": {
            "description": (
                "Agents register themselves and get an API key, a wallet on Ethereum, Base and Solana, spending "
                "controls and credits. Amounts are decimal strings, dollars are numbers, times are ISO 8601 in UTC. "
                "Every failure has the same body: `error`, `code`, `details`, `request_id`."
            ),
            "license": {"name": "Proprietary", "identifier": "LicenseRef-Proprietary"},
        },
        "servers": [{"url": public_url}],
        "components": {"securitySchemes": dict(security_schemes)},
    }


def bind(app: Flask, api: Api) -> None:
    """Bind the document to the application, with our fields and our one error body."""
    api.ERROR_SCHEMA = ErrorBody
    api.init_app(app, spec_kwargs={"marshmallow_plugin": MarshmallowPlugin(schema_name_resolver=_name_of)})
    for field, type_, format_ in _WIRE_TYPES:
        api.register_field(field, type_, format_)


def complete(api: Api) -> None:
    """Add what no operation names by itself, once all rooms are registered."""
    if "Error" not in api.spec.components.schemas:
        api.spec.components.schema("Error", schema=ErrorBody)


def _name_of(schema: type[Schema] | Schema) -> str:
    cls = schema if isinstance(schema, type) else type(schema)
    name = "Error" if cls is ErrorBody else cls.__name__.removesuffix("Shape")
    return name
