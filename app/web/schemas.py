"""Schemas that every room shares: the base, the error body, pages."""

from __future__ import annotations

from typing import Any

import marshmallow as ma
from marshmallow import fields, post_load

from app.core.pagination import PageRequest
from app.web.fields import Count

EXAMPLE_ID = "5f0f6c1e-3b9c-4f0e-9a55-0d6a6a3c8a10"


class Schema(ma.Schema):
    """The base of all schemas: unknown fields are ignored, fields keep their order."""

    class Meta:
        """Options of every schema."""

        unknown = ma.EXCLUDE


class EitherSpelling(Schema):
    """A body whose fields may be spelled in camelCase, too."""

    @ma.pre_load
    def _to_snake_case(self, body: Any, **_kwargs: object) -> Any:
        if not isinstance(body, dict):
            return body
        renamed = dict(body)
        for name in self.fields:
            first, *rest = name.split("_")
            other = first + "".join(word.capitalize() for word in rest)
            if other == name or other not in renamed:
                continue
            value = renamed.pop(other)
            if name in renamed and renamed[name] != value:
                msg = f"is also spelled {other} with another value"
                raise ma.ValidationError({name: [msg]})
            renamed[name] = value
        return renamed


class ErrorBody(Schema):
    """The one body of every status ≥ 400."""

    error = fields.String(required=True, metadata={"description": "A sentence that a caller can act on."})
    code = fields.String(required=True, metadata={"description": "A stable code from the error table."})
    details = fields.Dict(metadata={"description": "What exactly; `fields` names each bad field."})
    request_id = fields.String(required=True, metadata={"description": "Finds the request in the logs."})


def page_query(*, default: int, maximum: int) -> type[Schema]:
    """Make the query schema of a list: `limit` above its maximum is clamped, below 1 refused."""

    class PageQuery(Schema):
        limit = Count(
            load_default=default,
            validate=ma.validate.Range(min=1, error="must be at least 1"),
            metadata={
                "description": f"Rows per page; more than {maximum} are taken as {maximum}.",
                "default": default,
            },
        )
        offset = Count(
            load_default=0,
            validate=ma.validate.Range(min=0, error="must not be negative"),
            metadata={"description": "Rows to skip.", "default": 0},
        )

        @post_load
        def _clamp(self, values: dict[str, Any], **_kwargs: object) -> dict[str, Any]:
            values["page"] = PageRequest(min(values.pop("limit"), maximum), values.pop("offset"))
            return values

    return PageQuery


class Pagination(Schema):
    """Where a page stands in its list; made from a `Page`, which is its own pagination."""

    total = fields.Integer(required=True)
    limit = fields.Integer(required=True, attribute="request.limit")
    offset = fields.Integer(required=True, attribute="request.offset")
    has_more = fields.Boolean(required=True)
