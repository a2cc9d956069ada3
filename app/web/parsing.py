"""Parsing of request bodies and queries: strict JSON, exact numbers, one form of error.

webargs handles malformed JSON without `handle_error`, and `float` would lose digits of amounts; both are replaced here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

import marshmallow as ma
from flask import Request
from webargs.flaskparser import FlaskParser

from app.core import strict_json
from app.core.strict_json import MAX_DEPTH, MAX_VALUES
from app.errors import InvalidInput
from app.web import request_bodies
from app.web.client_request import ClientRequest, current_request

MAX_KEYLESS_VALUES = 20_000
"""Names and values of a body that is sent without a key, or to one of our own routes."""
_PARSED_KEY = "purser.parsed_body"


def parse_json(
    request: ClientRequest, body: bytes, *, max_depth: int = MAX_DEPTH, max_values: int | None = None
) -> Any:
    """Parse a JSON body of a request, for which memory is reserved before anything is decoded.

    `max_values` is MAX_VALUES, or MAX_KEYLESS_VALUES while the request may send no more than is read without a key.

    Raises: what `strict_json.parse_json` does; PayloadTooLarge and Overloaded if there is no memory for it.
    """
    if max_values is None:
        max_values = MAX_KEYLESS_VALUES if request_bodies.is_limited_to_keyless(request) else MAX_VALUES
    with request_bodies.serialize_decoding(request, len(body)):
        return strict_json.parse_json(
            body,
            max_depth=max_depth,
            max_values=max_values,
            reserve=partial(request_bodies.reserve_memory, request),
        )


def parsed_body(
    request: ClientRequest, *, max_depth: int = MAX_DEPTH, max_values: int = MAX_KEYLESS_VALUES
) -> dict[str, Any]:
    """Parse the JSON object in a request's body, once for all callers; an empty body is an empty object.

    Raises: what `decoded_body` and `parse_json` do; InvalidInput for another value.
    """
    if _PARSED_KEY not in request.environ:
        body = request_bodies.decoded_body(request)
        parsed = parse_json(request, body, max_depth=max_depth, max_values=max_values) if body.strip() else {}
        if not isinstance(parsed, dict):
            raise InvalidInput("The request body must be a JSON object.")
        request.environ[_PARSED_KEY] = parsed
    found: dict[str, Any] = request.environ[_PARSED_KEY]
    return found


def parsed_body_environ(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a WSGI environment for a body that is parsed already; equal bodies have equal bytes."""
    text = json.dumps(body, sort_keys=True, default=repr).encode()
    return {**request_bodies.body_environ(text), _PARSED_KEY: dict(body)}


def flatten_errors(messages: Any) -> dict[str, list[str]]:
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
    """The parser of all routes: unknown fields are ignored, a body needs no content type, errors are InvalidInput."""

    DEFAULT_UNKNOWN_BY_LOCATION = {  # noqa: RUF012 - webargs declares it so
        **FlaskParser.DEFAULT_UNKNOWN_BY_LOCATION,
        "json": ma.EXCLUDE,
    }
    DEFAULT_VALIDATION_STATUS = 400
    MAX_DEPTH = MAX_DEPTH
    MAX_VALUES = MAX_KEYLESS_VALUES

    def _raw_load_json(self, req: Request) -> Any:  # noqa: ARG002 - Flask's, which is the same one
        return parsed_body(current_request(), max_depth=self.MAX_DEPTH, max_values=self.MAX_VALUES)

    def handle_error(self, error: ma.ValidationError, *_args: object, **_kwargs: object) -> NoReturn:
        """Convert marshmallow's messages. Raises: InvalidInput always."""
        messages = error.messages  # webargs nests them under the name of the location
        if (
            isinstance(messages, dict)
            and len(messages) == 1
            and next(iter(messages)) in self.DEFAULT_UNKNOWN_BY_LOCATION
        ):
            messages = next(iter(messages.values()))
        fields = flatten_errors(messages)
        if len(fields) == 1:
            name, problems = next(iter(fields.items()))
            message = f"{name}: {problems[0]}"
        else:
            message = f"Several fields are not valid: {', '.join(sorted(fields))}."
        raise InvalidInput(message, details={"fields": fields}) from None
