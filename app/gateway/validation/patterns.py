"""Patterns of the paths and JSON-RPC methods that are forwarded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from app.errors import RouteNotAllowed

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
        if (
            "".join(token[0] for token in tokens) != text
            or not all(_LITERAL.fullmatch(word) for word in words)
            or text.startswith("/")
            or text.endswith("/")
            or "//" in text
        ):
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
        f"{requested[:200]!r} is not forwarded: all clients share one account at the provider, so only calls "
        "that store nothing and have a price are. details.allowed lists them.",
        details={"allowed": list(allowed)},
    )
