"""What is refused although the upstream would do it: everybody shares the operator's account there.

A denied path or field would show what somebody else stored, hand out a key, or bill outside of the answer.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, unquote_plus

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
# An item of a conversation that is nothing but the name of a stored one; OpenAI lets its type be left out.
_ITEM_REFERENCE = "item_reference"
_HINTS = {_ITEM_REFERENCE: '"input"'}
_BLANKS = re.compile(r"[\x00-\x20]+")


@dataclass(frozen=True, slots=True)
class FieldDenial:
    """A field that is refused wherever it refers to something; with a pattern, only where its text has it."""

    name: str
    pattern: re.Pattern[str] | None = None
    is_of_objects: bool = False

    @classmethod
    def parse(cls, text: str) -> FieldDenial:
        """Read `name`, `name{}` (refused as an object only) or `name=pattern` (in any case). Raises: re.error."""
        name, equals, pattern = text.partition("=")
        if equals:
            return cls(name, re.compile(pattern, re.IGNORECASE))
        return cls(name.removesuffix("{}"), is_of_objects=name.endswith("{}"))

    def refuses(self, value: Any) -> bool:
        """Tell whether a value refers to something; null, false, empty ones and plain settings do not."""
        if self.pattern is not None:
            texts = _forms(value)
            return any(self.pattern.search(text) for text in texts)
        if isinstance(value, dict):
            return any(value.get(name) for name in _REFERENCES)
        return bool(value) and not self.is_of_objects


def check_route(denied: Iterable[re.Pattern[str]], method: str, path: str) -> None:
    """Refuse `METHOD path` if a pattern matches all of it. Raises: RouteNotAllowed."""
    # Parameters of segments are ignored by some servers, and a slash at the end by most.
    plain = "/".join(segment.split(";", 1)[0] for segment in path.split("/")).strip("/ ")
    if any(pattern.fullmatch(f"{method.upper()} {plain}") for pattern in denied):
        raise RouteNotAllowed(
            "This route is not offered: all callers share one account at the provider, and it would show or bill "
            "beyond this one answer."
        )


def check_parameters(
    denied: Iterable[re.Pattern[str]], query: str, headers: Iterable[tuple[str, str]]
) -> None:
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


def check_methods(
    methods: Iterable[str], *, denied: re.Pattern[str] | None, allowed: re.Pattern[str] | None
) -> None:
    """Refuse a JSON-RPC body if one of its calls is denied, or is none of those allowed. Raises: RouteNotAllowed."""
    for method in methods:
        if (denied is not None and denied.fullmatch(method)) or (
            allowed is not None and not allowed.fullmatch(method)
        ):
            raise RouteNotAllowed(
                f"The JSON-RPC method {method[:100]!r} is not offered here: reads and signed transactions are.",
                details={"fields": {"method": ["is not offered here"]}},
            )


def check_fields(denied: tuple[FieldDenial, ...], body: bytes) -> None:
    """Refuse a JSON body that names a denied field. Bodies that are no JSON have no fields.

    Raises: RouteNotAllowed with `details.fields`.
    """
    if (
        not any(_HINTS.get(denial.name, denial.name).encode() in body for denial in denied)
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


def _forms(value: Any) -> tuple[str, ...]:
    """Return a text as it is, and as a reader of addresses may take it; of a list, how many items it has."""
    if isinstance(value, list):
        return (f"{len(value)} items",)
    if not isinstance(value, str):
        return () if value is None or isinstance(value, dict) else (json.dumps(value),)
    text = value
    decoded = unicodedata.normalize("NFKC", unquote(text))
    return text, _BLANKS.sub("", decoded)


def _references(node: Mapping[str, Any]) -> Iterator[Any]:
    items = node.get("input")
    for item in items if isinstance(items, list) else [items]:
        if isinstance(item, dict) and (
            item.get("type") == _ITEM_REFERENCE or not {name for name in item if item[name]} - {"id"}
        ):
            yield item.get("id")


def _members(parsed: Any) -> Iterator[tuple[str, Any]]:
    waiting = [parsed]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, Mapping):
            yield from node.items()
            is_tool_call = node.get("type") in _TOOL_CALLS if isinstance(node.get("type"), str) else False
            for item in () if is_tool_call else _references(node):
                yield _ITEM_REFERENCE, item
            waiting.extend(
                inner
                for name, inner in node.items()
                if name not in _OPAQUE and not (is_tool_call and name == "input")
            )
