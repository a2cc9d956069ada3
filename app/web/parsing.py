"""Reading request bodies and queries: strict JSON, numbers taken by their digits, one shape of error.

webargs' own path for malformed JSON skips `handle_error`, and `float` would lose digits of amounts, so both are ours.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, NoReturn, Self

import marshmallow as ma
from flask import Request
from gunicorn.http.errors import ParseException
from webargs import core
from webargs.flaskparser import FlaskParser

from app.core.json_depth import is_nested_too_deeply
from app.errors import InvalidInput, PayloadTooLarge
from app.web import callers

_MAX_DEPTH = 32
_MESSAGE_OF_MANY = "Several fields are not valid."


class JsonNumber(Decimal):
    """A JSON number with a fraction or exponent, that still knows how it was written."""

    text: str

    def __new__(cls, text: str) -> Self:
        """Read the number."""
        number = super().__new__(cls, text)
        number.text = text
        return number


def body_of(request: Request) -> bytes:
    """Read a request's body, once for all who ask.

    Raises: PayloadTooLarge; InvalidInput when it breaks off; RequestTimeout when it takes too long; Overloaded when
    there is no memory for it.
    """
    try:
        body: bytes = request.get_data(cache=True)
    except (OSError, ParseException) as error:
        # The server's own words for a client that went away, and for chunks that are none.
        failure = callers.failure_of(error) or InvalidInput("The request body could not be read.")
        raise failure from None
    limit = request.max_content_length
    if request.content_length is None and limit is not None and len(body) >= limit:
        # A chunked body is cut off at the limit without a word (werkzeug's LimitedStream).
        raise PayloadTooLarge
    return body


def parse_json(body: bytes, *, max_depth: int = _MAX_DEPTH) -> Any:
    """Read JSON with exact numbers (fractions become Decimal). Raises: InvalidInput."""
    if is_nested_too_deeply(body, max_depth):
        raise InvalidInput(f"The request body is nested deeper than {max_depth} levels.")
    try:
        # UTF-8 and nothing else (RFC 8259 §8.1): in another encoding the look at the depth could be misled.
        text = body.decode("utf-8-sig")
        return json.loads(
            text, parse_float=JsonNumber, object_pairs_hook=_object, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError, ArithmeticError):
        # ArithmeticError: an exponent of more digits than Decimal counts.
        raise InvalidInput("The request body is not valid JSON.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # Whoever checked the request before us may have read the other one (RFC 8259 §4).
        raise InvalidInput("The request body names a field twice.")
    return found


def _refuse_constant(_name: str) -> NoReturn:
    msg = "NaN and Infinity are not JSON"
    raise ValueError(msg)


def problems_of(messages: Any) -> dict[str, list[str]]:
    """Flatten marshmallow's messages to `{"field": ["problem", …]}`; nested fields are joined with dots."""
    flat: dict[str, list[str]] = {}

    def walk(prefix: str, node: Any) -> None:
        if isinstance(node, dict):
            for name, inner in node.items():
                walk(prefix if name == "_schema" else f"{prefix}.{name}".lstrip("."), inner)
        else:
            flat.setdefault(prefix or "body", []).extend(str(text) for text in node)

    walk("", messages)
    return flat


class StrictParser(FlaskParser):  # type: ignore[misc, unused-ignore]
    """The parser of every route: unknown fields are ignored, a body needs no content type, errors are ours."""

    DEFAULT_UNKNOWN_BY_LOCATION = {  # noqa: RUF012 - webargs declares it so
        **FlaskParser.DEFAULT_UNKNOWN_BY_LOCATION,
        "json": ma.EXCLUDE,
    }
    DEFAULT_VALIDATION_STATUS = 400
    MAX_DEPTH = _MAX_DEPTH

    def _raw_load_json(self, req: Request) -> Any:
        body = body_of(req)
        if not body.strip():
            return {}
        parsed = parse_json(body, max_depth=self.MAX_DEPTH)
        if not isinstance(parsed, dict):
            raise InvalidInput("The request body must be a JSON object.")
        return parsed

    def handle_error(self, error: ma.ValidationError, *_args: object, **_kwargs: object) -> NoReturn:
        """Turn marshmallow's messages into INVALID_INPUT. Raises: InvalidInput always."""
        messages = error.messages
        if isinstance(messages, dict) and len(messages) == 1 and next(iter(messages)) in core_locations():
            messages = next(iter(messages.values()))
        fields = problems_of(messages)
        if len(fields) == 1:
            name, problems = next(iter(fields.items()))
            message = f"{name}: {problems[0]}"
        else:
            message = f"{_MESSAGE_OF_MANY[:-1]}: {', '.join(sorted(fields))}."
        raise InvalidInput(message, details={"fields": fields}) from None


def core_locations() -> frozenset[str]:
    """Return the location names under which webargs nests its messages."""
    return frozenset(core.Parser.DEFAULT_UNKNOWN_BY_LOCATION)
