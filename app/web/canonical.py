"""The canonical form of request bodies: two bodies share it exactly if they request the same.

It is what a schema has validated, as JSON that the schema loads again: aliases are resolved, unknown fields and
defaults are left out, members are sorted, and numbers, amounts, symbols and addresses have one spelling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import marshmallow as ma
from marshmallow import fields

from app.core.strict_json import JsonNumber

# A JSON integer that is read exactly has no more digits.
_MAX_ZEROS = 1000


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
