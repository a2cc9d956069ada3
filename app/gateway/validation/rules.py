"""Checks of paths, JSON-RPC methods, query parameters and body fields on forwarded routes.

All clients share the operator's account at the provider: a field may not refer to what another client stored
there, and a parameter may not change what the response reports about its cost.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any
from urllib.parse import unquote, unquote_plus

from app.errors import InvalidInput, RouteNotAllowed
from app.gateway.dialects.request.cost_params import FIELDS, is_tool_call, objects_in

_TOKEN = re.compile(r"\{(?P<name>[A-Za-z]+)(?P<stars>\*{0,2})\}|\{(?P<words>[^{}]*\|[^{}]*)\}|(?P<word>[^{}]+)")
_LITERAL = re.compile(r"[A-Za-z0-9._~:/-]*", re.ASCII)
# No dot at either end, so neither a dot segment nor a variant that some servers treat as the plain name.
_SEGMENT = r"[A-Za-z0-9_-](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?"
_WIDE_SEGMENT = r"[A-Za-z0-9_-](?:[A-Za-z0-9._:,@+~-]*[A-Za-z0-9_-])?"
_PLACEHOLDERS = {"": _SEGMENT, "*": _WIDE_SEGMENT, "**": f"{_WIDE_SEGMENT}(?:/{_WIDE_SEGMENT})*"}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A path or a method name with placeholders, matched as a whole and case-sensitively.

    `{name}` is a segment of letters, digits, hyphens, underscores and inner dots; `{name*}` may also hold `:,@+~`;
    `{name**}` is one or several of those; `{a|b}` is one of the words.
    """

    text: str
    regex: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read a pattern. Raises: ValueError."""
        tokens = list(_TOKEN.finditer(text))
        words = [word for token in tokens for word in (token["words"] or token["word"] or "").split("|")]
        is_read = "".join(token[0] for token in tokens) == text and all(map(_LITERAL.fullmatch, words))
        if not is_read or text.startswith("/") or text.endswith("/") or "//" in text:
            raise ValueError(f"{text!r} is not a pattern such as models/{{model}} or images/{{edits|variations}}")
        return cls(text, re.compile("".join(map(_regex, tokens)), re.ASCII))

    @property
    def breadth(self) -> tuple[int, int]:
        """The number of placeholders for several segments, and of all placeholders: fewer are narrower."""
        stars = [piece["stars"] for piece in _TOKEN.finditer(self.text) if piece["name"]]
        return stars.count("**"), len(stars)

    def variants(self) -> list[Pattern]:
        """Return one pattern for each choice of words."""
        choices = [piece["words"].split("|") if piece["words"] else [piece[0]] for piece in _TOKEN.finditer(self.text)]
        return [Pattern.parse("".join(words)) for words in product(*choices)]


def _regex(piece: re.Match[str]) -> str:
    if piece["name"]:
        return f"(?P<{piece['name']}>{_PLACEHOLDERS[piece['stars']]})"
    return f"(?:{'|'.join(map(re.escape, (piece['words'] or piece['word']).split('|')))})"


def not_allowed_error(requested: str, allowed: Iterable[str]) -> RouteNotAllowed:
    """Return the error for a route or method that is not listed, with those that are."""
    return RouteNotAllowed(
        f"{requested[:200]!r} is not forwarded. All clients share one account at the provider, so only calls that "
        "have a price and store nothing are forwarded; details.allowed lists them.",
        details={"allowed": list(allowed)},
    )


_REFERENCES = ("id", "name")
# An item of a conversation that only refers to a stored one; OpenAI allows it without a type.
_ITEM_REFERENCE = "item_reference"
_CONTROL_AND_SPACE = re.compile(r"[\x00-\x20]+")
_FIELD_NAME = re.compile(r"[A-Za-z0-9_$-]+", re.ASCII)
_CONFIG_FIELDS = ("generationConfig", "generation_config")


@dataclass(frozen=True, slots=True, eq=False)
class FieldRule:
    """A field that is refused if it refers to something; with a pattern, only if its text matches."""

    name: str
    pattern: re.Pattern[str] | None = None
    objects_only: bool = False

    @classmethod
    def parse(cls, text: str) -> FieldRule:
        """Read `name`, `name{}` (refused as an object only) or `name=pattern` (in any case). Raises: ValueError."""
        name, equals, pattern = text.partition("=")
        plain = name if equals else name.removesuffix("{}")
        if not _FIELD_NAME.fullmatch(plain):
            raise ValueError(f'{text!r} is not like "name", "name{{}}" or "name=pattern"')
        try:
            return cls(plain, re.compile(pattern, re.IGNORECASE) if equals else None, plain != name)
        except re.error as error:
            raise ValueError(f"{text!r} is not a regular expression: {error}") from None

    def rejects(self, value: Any) -> bool:
        """Return whether a value refers to something; null, false, empty values and plain settings do not."""
        if self.pattern is not None:
            return any(self.pattern.search(text) for text in _normalized_texts(value))
        if isinstance(value, dict):
            return any(value.get(name) for name in _REFERENCES) or (bool(value) and not self.objects_only)
        return bool(value) and not self.objects_only


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """A query parameter that is forwarded with any value, or with one of a list."""

    text: str
    name: str
    values: frozenset[str] | None = None

    @classmethod
    def parse(cls, text: str) -> QueryParameter:
        """Read `name` or `name=value|value`."""
        name, equals, values = text.partition("=")
        return cls(text, name, frozenset(values.split("|")) if equals else None)


def check_parameters(allowed: Sequence[QueryParameter] | None, query: str) -> None:
    """Refuse a query with a parameter that is not listed; without a list, all are forwarded.

    Raises: RouteNotAllowed with `details.fields` and `details.allowed`.
    """
    if allowed is None or not query:
        return
    # Some servers treat a semicolon as an ampersand.
    for part in re.split("[&;]", query):
        name, _, value = (unquote_plus(text) for text in part.partition("="))
        if part and not any(name == one.name and (one.values is None or value in one.values) for one in allowed):
            raise RouteNotAllowed(
                f"The query parameter {part[:100]} is not forwarded; details.allowed lists those that are.",
                details={"fields": {name[:100]: ["is not forwarded"]}, "allowed": [one.text for one in allowed]},
            )


def check_fields(rules: Sequence[FieldRule], limits: Mapping[str, int], parsed: Any) -> None:
    """Refuse a body that refers to a stored object, exceeds a limit, or spells a name in another case.

    Raises: RouteNotAllowed, InvalidInput, both with `details.fields`.
    """
    _check_spelling(parsed)
    if not rules and not limits:
        return
    checked = _by_name(tuple(rules), tuple(limits.items()))
    for node in objects_in(parsed):
        for name, value in node.items():
            if (found := checked.get(_normalized_name(name))) is not None:
                _check_field(name, value, *found)
        if "input" in node and not is_tool_call(node):
            refused, most = checked.get(_normalized_name(_ITEM_REFERENCE), ((), None))
            for item in node["input"] if isinstance(node["input"], list) else [node["input"]]:
                if isinstance(item, dict) and (
                    item.get("type") == _ITEM_REFERENCE or not {name for name in item if item[name]} - {"id"}
                ):
                    _check_field(_ITEM_REFERENCE, item.get("id"), refused, most)


def _check_field(name: str, value: Any, refused: Sequence[FieldRule], most: int | None) -> None:
    if any(rule.rejects(value) for rule in refused):
        raise RouteNotAllowed(
            f"{name} is not forwarded: it is a credential, or refers to something stored with the provider, where all"
            " clients share one account. Send your key in a header, and the content itself instead of a reference.",
            details={"fields": {name: ["is not forwarded"]}},
        )
    if most is not None and not _is_within(value, most):
        raise InvalidInput.field(name, f"must be at most {most}, because the price of the call covers no more")


@lru_cache(maxsize=256)
def _by_name(
    rules: tuple[FieldRule, ...], limits: tuple[tuple[str, int], ...]
) -> Mapping[str, tuple[Sequence[FieldRule], int | None]]:
    """Return rules and limits by normalized name, once for each provider: rules are compared by identity."""
    most = {_normalized_name(name): number for name, number in limits}
    refused: dict[str, list[FieldRule]] = {name: [] for name in most}
    for rule in rules:
        refused.setdefault(_normalized_name(rule.name), []).append(rule)
    return {name: (found, most.get(name)) for name, found in refused.items()}


def _normalized_name(name: str) -> str:
    return name.casefold().replace("_", "")


_SPELLINGS: dict[str, set[str]] = {}
for _name in FIELDS["priced"]:
    _SPELLINGS.setdefault(_name.casefold(), set()).add(_name)


def _check_spelling(parsed: Any) -> None:
    calls = parsed if isinstance(parsed, list) else [parsed]
    objects = [call for call in calls if isinstance(call, dict)]
    objects += [call[name] for call in objects for name in _CONFIG_FIELDS if isinstance(call.get(name), dict)]
    for each in objects:
        for name in each:
            known = _SPELLINGS.get(name.casefold())
            if known is not None and name not in known:
                raise InvalidInput.field(name[:100], f"must be written {' or '.join(sorted(known))}")


def _is_within(value: Any, most: int) -> bool:
    if value is None:
        return True
    if isinstance(value, list):
        return len(value) <= most
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _normalized_texts(value: Any) -> Iterator[str]:
    """Yield a text as it is and as a URL parser may read it; of a list, those of its items."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, str):
            yield each
            yield _CONTROL_AND_SPACE.sub("", unicodedata.normalize("NFKC", unquote(each)))
        elif isinstance(each, bool):
            yield json.dumps(each)
