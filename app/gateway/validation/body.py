"""Strict parsing of forwarded request bodies; what parsers could read in different ways is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from app.core import strict_json
from app.errors import InvalidInput
from app.gateway.validation import forms

_MAX_DEPTH = 200


class BodyKind(StrEnum):
    """Kinds of request body that a route accepts."""

    NONE = "none"
    JSON = "json"
    FORM = "form"
    EITHER = "json or form"


class RequestBody(NamedTuple):
    """A body as it was sent, and parsed: a JSON value, or the text fields of a form by name, and its files."""

    raw: bytes
    parsed: Any = None
    is_form: bool = False
    files: tuple[memoryview, ...] = ()

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of a JSON object or a form; empty for an empty body. Raises: InvalidInput for another value."""
        if self.parsed is None and not self.raw.strip():
            return {}
        if not isinstance(self.parsed, dict):
            raise InvalidInput("The request body must be a JSON object.")
        return self.parsed


def parse_body(
    kind: BodyKind, raw: bytes, content_type: str | None, *, parse_json: Callable[..., Any] = strict_json.parse_json
) -> RequestBody:
    """Parse a body of the kind that its route accepts. Raises: InvalidInput, and what `parse_json` raises."""
    if not raw.strip():
        return RequestBody(raw)
    if kind is BodyKind.NONE:
        raise InvalidInput("This route accepts no request body: send none.")
    boundary = forms.boundary_of(content_type or "") if kind is not BodyKind.JSON else None
    if boundary is not None:
        fields, files = forms.parse_form(raw, boundary)
        return RequestBody(raw, fields, is_form=True, files=files)
    if kind is BodyKind.FORM:
        raise InvalidInput("The request body must be a form: Content-Type: multipart/form-data with a boundary.")
    return RequestBody(raw, parse_json(raw, max_depth=_MAX_DEPTH))
