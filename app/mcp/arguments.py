"""Arguments of tools, read as clients of language models send them: nulls, 5.0 for 5, JSON in a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.strict_json import JsonNumber
from app.errors import InvalidInput
from app.web.client_request import ClientRequest
from app.web.request_bodies import MAX_KEYLESS_VALUES, parse_json

# n8n adds it to the arguments of every call.
_IGNORED = frozenset({"toolCallId"})
_NUMBER = int | JsonNumber
_TYPES: Mapping[str, Any] = {"array": list, "object": dict, "integer": _NUMBER, "number": _NUMBER}
_MAX_INTEGER = 2**53


def read_arguments(request: ClientRequest, sent: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in the types that the schema declares; the view refuses what has another one.

    Raises: InvalidInput for an unknown name; PayloadTooLarge and Overloaded as for a body.
    """
    known, required = schema["properties"], schema.get("required", ())
    if unknown := sorted(sent.keys() - known.keys() - _IGNORED):
        # A misspelt dry_run must not move money.
        problem = f"is no argument of this tool; its arguments are {', '.join(known)}"
        raise InvalidInput.field(unknown[0][:64], problem)
    present = {name: value for name, value in sent.items() if value is not None or name in required}
    return {name: _read(request, value, known[name]["type"]) for name, value in present.items() if name in known}


def _read(request: ClientRequest, value: Any, type_: str) -> Any:
    if isinstance(value, str) and type_ in _TYPES:
        try:
            parsed = parse_json(request, value.encode("utf-8", "surrogatepass"), max_values=MAX_KEYLESS_VALUES)
        except InvalidInput:
            return value
        value = parsed if isinstance(parsed, _TYPES[type_]) else value
    if type_ == "integer" and isinstance(value, JsonNumber) and abs(value.decimal) <= _MAX_INTEGER:
        return int(value.decimal) if value.decimal == value.decimal.to_integral_value() else value
    return value
