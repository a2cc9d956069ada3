"""Schemas shared by all features: the base, the error body, pages; and the canonical form of request bodies.

Two bodies share that form exactly if they request the same. It is what a schema has validated, as JSON that the schema
loads again: aliases are resolved, unknown fields and defaults are left out, members are sorted, and numbers, amounts,
symbols and addresses have one spelling.
"""

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import marshmallow as ma
from marshmallow import fields, post_load

from app.core.checks import CheckedStep
from app.core.pagination import PageRequest
from app.core.strict_json import JsonNumber
from app.errors import InvalidInput
from app.web.fields import Moment, QueryCount

EXAMPLE_ID = "5f0f6c1e-3b9c-4f0e-9a55-0d6a6a3c8a10"
_AFTER = (
    "The `id` of the last entry of the page before. Unlike with `offset`, no entry is repeated or missed if entries "
    "are added in the meantime."
)
# A JSON integer that is read exactly has no more digits.
_MAX_ZEROS = 1000


class Schema(ma.Schema):
    """The base of all schemas: unknown fields are ignored, fields keep their order."""

    class Meta:
        """Options of every schema."""

        unknown = ma.EXCLUDE

    def get_attribute(self, obj: Any, attr: str, default: Any) -> Any:
        """Return what a field shows of an object or dictionary: never a method of a dictionary, such as `keys`."""
        name, _, rest = attr.partition(".")
        found = obj.get(name, default) if isinstance(obj, dict) else getattr(obj, name, default)
        return self.get_attribute(found, rest, default) if rest else found


class AcceptsCamelCase(Schema):
    """A body with fields that may also be spelled in camelCase."""

    @ma.pre_load
    def _to_snake_case(self, body: Any, **_kwargs: object) -> Any:
        if not isinstance(body, dict):
            return body
        renamed = dict(body)
        for other, name in self._aliases().items():
            if other not in renamed:
                continue
            value = renamed.pop(other)
            if name in renamed and renamed[name] != value:
                msg = f"is also spelled {other} with another value"
                raise ma.ValidationError({name: [msg]})
            renamed[name] = value
        return renamed

    def _aliases(self) -> Mapping[str, str]:
        spelled = {"".join(word.capitalize() for word in name.split("_")): name for name in self.fields}
        return {other[0].lower() + other[1:]: name for other, name in spelled.items() if "_" in name}


class ErrorBody(Schema):
    """The one body of every status ≥ 400."""

    error = fields.String(required=True)
    code = fields.String(required=True)
    details = fields.Dict()
    request_id = fields.String(required=True)


class CheckedStepShape(Schema):
    """A step of a purchase, whether it succeeds, and why."""

    step = fields.String(required=True)
    ok = fields.Boolean(required=True)
    required = fields.Boolean(required=True)
    detail = fields.String(required=True)


class PurchaseCheck(Schema):
    """Whether something can be bought: the steps up to the first that fails."""

    valid = fields.Boolean(required=True)
    steps = fields.List(fields.Nested(CheckedStepShape), required=True)


def checked(steps: Iterable[CheckedStep]) -> dict[str, Any]:
    """Return the check with these steps: it succeeds if all do that are required."""
    found = list(steps)
    return {"valid": all(each.ok for each in found if each.required), "steps": found}


def assert_any_field(body: dict[str, Any], schema: type[Schema]) -> None:
    """Refuse a body without any field to set. Raises: InvalidInput."""
    if not body:
        known = ", ".join(schema().fields)
        raise InvalidInput(f"Send at least one of {known}.", details={"fields": {"body": ["has no field to set"]}})


def _moment(description: str) -> Moment:
    return Moment(load_default=None, metadata={"format": "date-time", "description": description})


def page_query(*, default: int, maximum: int, has_after: bool = False, has_period: bool = False) -> type[Schema]:
    """Return the query schema of a list: a `limit` above the maximum is clamped, below 1 refused.

    With `has_after`, a page may also begin behind an entry; with `has_period`, be limited to some time, too.
    """

    class PageQuery(Schema):
        limit = QueryCount(
            load_default=default,
            validate=ma.validate.Range(min=1, error="must be at least 1"),
            metadata={"description": f"Rows per page, at most {maximum}.", "default": default},
        )
        offset = QueryCount(
            load_default=0,
            validate=ma.validate.Range(min=0, error="must not be negative"),
            metadata={"description": "Rows to skip.", "default": 0},
        )

        @post_load
        def _clamp(self, values: dict[str, Any], **_kwargs: object) -> dict[str, Any]:
            after = values.pop("after", None)
            period = values.pop("created_after", None), values.pop("created_before", None)
            page = PageRequest(min(values.pop("limit"), maximum), values.pop("offset"), after and str(after), *period)
            if page.after and page.offset:
                raise ma.ValidationError({"after": ["cannot be combined with offset"]})
            return {**values, "page": page}

    class FollowingQuery(PageQuery):
        after = fields.UUID(
            load_default=None,
            error_messages={"invalid_uuid": "must be the id of an entry of this list"},
            metadata={"description": _AFTER},
        )

    class PeriodQuery(FollowingQuery):
        created_after = _moment("Only entries created at or after this time (ISO 8601 with an offset).")
        created_before = _moment("Only entries created before this time (ISO 8601 with an offset).")

    return PeriodQuery if has_period else FollowingQuery if has_after else PageQuery


PageQuery = page_query(default=50, maximum=200)
FollowingQuery = page_query(default=50, maximum=200, has_after=True)


class Pagination(Schema):
    """The position of a page in its list; made from a `Page`, which is its own pagination."""

    total = fields.Integer(required=True)
    limit = fields.Integer(required=True, attribute="request.limit")
    offset = fields.Integer(required=True, attribute="request.offset")
    has_more = fields.Boolean(required=True)


def page_schema(name: str, items: str, shape: type[Schema], description: str) -> type[Schema]:
    page = {
        items: fields.List(fields.Nested(shape), required=True, attribute="items"),
        "pagination": fields.Nested(Pagination, required=True),
    }
    generated: type[Schema] = type(name, (Schema,), {"__doc__": description, **page})
    return generated


def canonical_body(schema: ma.Schema, body: Any) -> bytes:
    """Return the canonical form of a parsed body. Raises: ma.ValidationError."""
    return canonical_json(validated_fields(schema, schema.load(body)))


def validated_fields(schema: ma.Schema, loaded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a loaded body as they are sent, without those at their defaults."""
    found = {}
    for name, field in schema.load_fields.items():
        value = loaded.get(field.attribute or name, ma.missing)
        default = field.load_default() if callable(field.load_default) else field.load_default
        if value is not ma.missing and (default is ma.missing or value != default):
            found[field.data_key or name] = _as_sent(field, value)
    return found


def canonical_json(value: Any) -> bytes:
    """Return a JSON value with sorted members and one spelling of each number, whatever its size.

    Raises: TypeError for what is no JSON value.
    """
    return _text(value).encode()


def _as_sent(field: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(field, fields.Nested):
        return validated_fields(field.schema, value)
    if isinstance(field, fields.List):
        return [_as_sent(field.inner, each) for each in value]
    if hasattr(field, "canonical"):
        return field.canonical(value)
    return field._serialize(value, None, None)  # noqa: SLF001 - what `dump` calls, for one value


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool | str):
        return json.dumps(value)
    if isinstance(value, int | Decimal | JsonNumber):
        return _number_text(value)
    if isinstance(value, Mapping):
        members = sorted((json.dumps(name), _text(each)) for name, each in value.items())
        return "{" + ",".join(f"{name}:{each}" for name, each in members) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    msg = f"{type(value).__name__} is no JSON value"
    raise TypeError(msg)


def _number_text(value: int | Decimal | JsonNumber) -> str:
    # By its digits: arithmetic of decimals rounds.
    number = value.decimal if isinstance(value, JsonNumber) else Decimal(value)
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise TypeError("not a finite number")
    text = "".join(map(str, digits)).lstrip("0")
    significant = text.rstrip("0")
    if not significant:
        return "0"
    exponent += len(text) - len(significant)
    shown = f"{significant}e{exponent}" if not 0 <= exponent <= _MAX_ZEROS else significant + "0" * exponent
    return f"-{shown}" if sign else shown
