"""What is refused although the upstream would do it: everybody shares the operator's account there.

A denied path or field would show what somebody else stored, hand out a key, or bill outside of the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from app.errors import RouteNotAllowed

# Schemas of the caller's tools and the arguments that a model gave them: names in there are the caller's own.
_OPAQUE = frozenset(
    {
        "parameters", "input_schema", "inputSchema", "parametersJsonSchema", "schema", "json_schema",
        "responseSchema", "response_schema", "responseJsonSchema", "args", "arguments", "response", "metadata",
    }
)  # fmt: skip
_TOOL_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_REFERENCES = ("id", "name")


@dataclass(frozen=True, slots=True)
class FieldDenial:
    """A field that is refused wherever it refers to something; with a pattern, only where its text has it."""

    name: str
    pattern: re.Pattern[str] | None = None

    @classmethod
    def parse(cls, text: str) -> FieldDenial:
        """Read `name` or `name=pattern`. Raises: re.error."""
        name, equals, pattern = text.partition("=")
        return cls(name, re.compile(pattern) if equals else None)

    def refuses(self, value: Any) -> bool:
        """Tell whether a value refers to something; null, false, empty ones and plain settings do not."""
        if self.pattern is not None:
            return isinstance(value, str) and self.pattern.search(value) is not None
        if isinstance(value, dict):
            return any(value.get(name) for name in _REFERENCES)
        return bool(value)


def check_route(denied: Iterable[re.Pattern[str]], method: str, path: str) -> None:
    """Refuse `METHOD path` if a pattern matches all of it. Raises: RouteNotAllowed."""
    # Parameters of segments are ignored by some servers, and a slash at the end by most.
    plain = "/".join(segment.split(";", 1)[0] for segment in path.split("/")).strip("/ ")
    if any(pattern.fullmatch(f"{method.upper()} {plain}") for pattern in denied):
        raise RouteNotAllowed(
            "This route is not offered: all callers share one account at the provider, and it would show or bill "
            "beyond this one answer."
        )


def check_parameters(denied: Iterable[re.Pattern[str]], query: str, headers: Iterable[tuple[str, str]]) -> None:
    """Refuse a parameter or header if a pattern matches all of its `name=value`.

    Raises: RouteNotAllowed with `details.fields`.
    """
    patterns = tuple(denied)
    if not patterns:
        return
    # Some servers take a semicolon for an ampersand.
    parts = [part.partition("=") for part in re.split("[&;]", query) if part]
    given = [(unquote_plus(name).strip(), unquote_plus(value).strip()) for name, _, value in parts]
    for name, value in [*given, *headers]:
        if any(pattern.fullmatch(f"{name}={value}") for pattern in patterns):
            raise RouteNotAllowed(
                f"{name} is not offered here: it would take the usage out of the answer.",
                details={"fields": {name: ["is not offered here"]}},
            )


def check_fields(denied: tuple[FieldDenial, ...], body: bytes) -> None:
    """Refuse a JSON body that names a denied field. Bodies that are no JSON have no fields.

    Raises: RouteNotAllowed with `details.fields`.
    """
    if (
        not any(denial.name.encode() in body for denial in denied)
        and b"\\u" not in body
        and b"\0" not in body
    ):
        return
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        # Read strictly, and refused, where it is priced; a form is no JSON either.
        return
    names = {denial.name: denial for denial in denied}
    for name, value in _members(parsed):
        denial = names.get(name)
        if denial is not None and denial.refuses(value):
            raise RouteNotAllowed(
                f"{name} is not offered here: all callers share one account at the provider.",
                details={"fields": {name: ["is not offered here"]}},
            )


def _members(parsed: Any) -> Iterator[tuple[str, Any]]:
    waiting = [parsed]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, Mapping):
            yield from node.items()
            is_tool_call = node.get("type") in _TOOL_CALLS if isinstance(node.get("type"), str) else False
            waiting.extend(
                inner
                for name, inner in node.items()
                if name not in _OPAQUE and not (is_tool_call and name == "input")
            )
