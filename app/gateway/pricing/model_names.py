"""Names of models: routing suffixes, dated snapshots, and which of the price table's matches name the same model."""

from __future__ import annotations

import re
from collections.abc import Iterator

from genai_prices.types import (
    ClauseAnd,
    ClauseContains,
    ClauseEndsWith,
    ClauseEquals,
    ClauseOr,
    ClauseRegex,
    ClauseStartsWith,
)

_OPENROUTER = "openrouter"
# openrouter.ai/docs, "Model routing": these choose a provider or add the web plugin, for any model.
_ROUTING_SUFFIXES = frozenset({"nitro", "floor", "exacto", "online"})
# A date (2025-10-14, 20251014, 09-2025, 06-05, 0613, 2506), a release (001) or the newest one.
_MONTH, _DAY = "(?:0[1-9]|1[0-2])", "(?:0[1-9]|[12][0-9]|3[01])"
_DATE = (
    rf"(?:20\d\d-{_MONTH}-{_DAY}|20\d\d{_MONTH}{_DAY}|{_MONTH}-20\d\d|{_MONTH}-{_DAY}|{_MONTH}{_DAY}|2\d{_MONTH}|0\d\d"
    r"|latest)"
)
_DATED = re.compile(rf"(.+?)(-preview)?[-@]{_DATE}(:.*)?", re.DOTALL | re.ASCII)
_COMPACT_DATE = re.compile(r"-(20\d\d)([01]\d)([0-3]\d)(?=$|-|:)", re.ASCII)
# Variants of one model; other words, such as pro, name another.
_SAME_MODEL = rf"{_DATE}|v\d+(?:\.\d+)*|e?\d+b|preview|exp|experimental|beta|thinking|it|instruct"
_STEM = re.compile(rf"(.+?)(?:[-@:](?:{_SAME_MODEL}))*(?::.*)?", re.DOTALL | re.ASCII)


def without_routing(table: str, name: str) -> str:
    """Return a model's name without OpenRouter's routing suffixes, which do not change its price."""
    if table != _OPENROUTER or ":" not in name:
        return name
    plain, *suffixes = name.split(":")
    return ":".join([plain, *(each for each in suffixes if each.lower() not in _ROUTING_SUFFIXES)])


def candidates(table: str, name: str) -> Iterator[str]:
    """Yield the names under which a table may have a model: its own, with hyphens, and without its date or release."""
    name = without_routing(table, name)
    yield name
    if _COMPACT_DATE.search(name):
        yield _COMPACT_DATE.sub(r"-\1-\2-\3", name)
    dated = _DATED.fullmatch(name)
    if dated is not None:
        preview, more = dated[2] or "", dated[3] or ""
        # A preview may have been cheaper than the model is now.
        yield from dict.fromkeys((dated[1] + more, dated[1] + preview + more))


def is_version_of(clause: object, name: str) -> bool:
    """Return whether a clause matches a lower-case name as its model, not as the beginning of another (gpt-5-pro)."""
    match clause:
        case ClauseOr(or_=parts):
            return any(is_version_of(part, name) for part in parts)
        case ClauseAnd(and_=parts):
            return all(is_version_of(part, name) for part in parts)
        case ClauseStartsWith(starts_with=text) | ClauseContains(contains=text):
            at = name.find(text)
            stem = _STEM.fullmatch(name)
            # What precedes it is a path, not the rest of another name.
            is_whole = at == 0 or (at > 0 and name[at - 1] in "/.@:")
            return is_whole and stem is not None and text.startswith(stem[1][at:])
        case ClauseEquals() | ClauseRegex() | ClauseEndsWith():
            return clause.is_match(name)
    return False
