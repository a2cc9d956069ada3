"""Maximum list prices of searches and of page contents, from the request.

Sources: Exa's "Pricing" (exa.ai/docs/reference/pricing) and Tavily's "Credits & Pricing" (docs.tavily.com), both of
November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.gateway.dialects.request.cost_params import Dialect, Surface

SEARCH_SURFACES = frozenset({Surface.SEARCH, Surface.CONTENTS, Surface.ANSWER})
_MILLI_USD = 1_000_000

# The price of a search includes ten results and their texts; each further result or summary costs 0.001 USD.
_EXA_SEARCH: Mapping[str | None, int] = {
    **dict.fromkeys(("lite", "instant"), 4 * _MILLI_USD),
    **dict.fromkeys((None, "auto", "fast", "neural", "keyword", "hybrid"), 7 * _MILLI_USD),
    **dict.fromkeys(("deep", "deep-lite"), 12 * _MILLI_USD),
}
_EXA_MAX_SEARCH, _EXA_ANSWER, _EXA_PER_PAGE = 15 * _MILLI_USD, 5 * _MILLI_USD, _MILLI_USD
_EXA_INCLUDED = 10
_EXA_FORMS = ("text", "highlights", "summary")

# The price of a credit without a plan. Five pages cost one credit.
TAVILY_CREDIT_NANOS = 8 * _MILLI_USD
_TAVILY_PAGES = 5
_TAVILY_BASIC_DEPTHS = frozenset({None, "basic", "fast", "ultra-fast"})


def max_nanos(dialect: Dialect, surface: Surface, parsed: Mapping[str, Any]) -> int:
    """Return the maximum list price of a call in nano-dollars."""
    if dialect is Dialect.EXA:
        return _exa_nanos(surface, parsed)
    if surface is Surface.CONTENTS:
        credits_each = 1 if _text(parsed, "extract_depth") in _TAVILY_BASIC_DEPTHS else 2
        return -(-_length(parsed.get("urls")) // _TAVILY_PAGES) * credits_each * TAVILY_CREDIT_NANOS
    is_cheap = _text(parsed, "search_depth") in _TAVILY_BASIC_DEPTHS and not parsed.get("auto_parameters")
    return (1 if is_cheap else 2) * TAVILY_CREDIT_NANOS


def _exa_nanos(surface: Surface, parsed: Mapping[str, Any]) -> int:
    if surface is Surface.ANSWER:
        return _EXA_ANSWER
    if surface is Surface.CONTENTS:
        pages = _length(parsed.get("urls")) + _length(parsed.get("ids"))
        return pages * max(1, sum(bool(parsed.get(form)) for form in _EXA_FORMS)) * _EXA_PER_PAGE
    stated = [each for name in ("numResults", "num_results") if isinstance(each := parsed.get(name), int)]
    results = max(stated, default=_EXA_INCLUDED)
    options = parsed.get("contents")
    summaries = results if isinstance(options, dict) and options.get("summary") else 0
    base = _EXA_SEARCH.get(_text(parsed, "type"), _EXA_MAX_SEARCH)
    return base + (max(0, results - _EXA_INCLUDED) + summaries) * _EXA_PER_PAGE


def _text(parsed: Mapping[str, Any], name: str) -> str | None:
    value = parsed.get(name)
    return value if value is None or isinstance(value, str) else ""


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 1 if value else 0
