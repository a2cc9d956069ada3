"""What the objects of an answer add up to: later counts replace earlier ones, written content is counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.gateway.dialects import counts
from app.gateway.dialects.facts import Dialect, Surface
from app.gateway.dialects.usage import Reading, Usage

# Fields in which a model's own words arrive, in all dialects.
_WRITTEN = frozenset(
    {"content", "text", "refusal", "reasoning", "reasoning_content", "thinking", "partial_json", "arguments"}
)
_ARGUMENTS = frozenset({"args", "input"})
_MOST_NODES = 100_000
_SEARCH_PER_PROMPT = ("gemini-1", "gemini-2")


class Tally:
    """Adds up the objects of one answer, in the order in which they came."""

    def __init__(self, surface: Surface, dialect: Dialect) -> None:
        """Start at nothing."""
        self._surface = surface
        self._reports_cost = dialect is Dialect.OPENROUTER
        self._told: dict[str, Any] = {}
        self._is_gemini = False
        self._has_counts = False
        self._has_ended = False
        self._written = 0
        self._searches = 0
        self._model: str | None = None
        self._tier: str | None = None
        self._speed: str | None = None
        self._has_failed = False

    def note(self, told: Mapping[str, Any]) -> None:
        """Add an object of the answer: a whole one, or an event of a stream."""
        inner = told
        for name in ("message", "response", "interaction"):
            if isinstance(told.get(name), dict):
                inner = told[name]
        self._model = _text(inner, "model") or _text(inner, "modelVersion") or self._model
        self._tier = _text(inner, "service_tier") or self._tier
        if told.get("error") or inner.get("error") or told.get("type") == "error":
            self._has_failed = True
        self._written += self._words_of(told)
        self._searches = max(self._searches, self._searches_of(inner))
        self._merge(told, inner)

    def skip(self, size: int) -> None:
        """Count an event that was too large to be read: all of it may have been written content."""
        self._written += size

    def reading(self, *, status: int, bytes_received: int, is_broken: bool) -> Reading:
        """Return what was told."""
        return Reading(
            status=status,
            usage=self._usage(),
            # Gemini tells running counts with every event; all others tell theirs once, at the end.
            is_complete=self._has_counts and (self._has_ended or not (is_broken and self._is_gemini)),
            bytes_received=bytes_received,
            streamed_bytes=self._written,
            model=self._model,
            tier=self._tier,
            speed=self._speed,
            has_failed=self._has_failed,
        )

    def _usage(self) -> Usage | None:
        if self._is_gemini:
            usage = counts.gemini_usage(self._told)
        elif self._is_anthropic():
            usage = counts.anthropic_usage(self._told, reports_cost=self._reports_cost)
        else:
            usage = counts.openai_usage(self._told, reports_cost=self._reports_cost)
        if usage is not None and self._searches > usage.searches:
            usage = replace(usage, searches=min(self._searches, counts.MOST_TOKENS))
        return usage

    def _is_anthropic(self) -> bool:
        if self._surface is Surface.OPAQUE:
            return "cache_read_input_tokens" in self._told or "cache_creation_input_tokens" in self._told
        return self._surface is Surface.MESSAGES

    def _merge(self, told: Mapping[str, Any], inner: Mapping[str, Any]) -> None:
        found = inner.get("usage", told.get("usage"))
        if not isinstance(found, dict):
            # Groq tells it here, asked or unasked.
            extra = told.get("x_groq")
            found = extra.get("usage") if isinstance(extra, dict) else None
        if isinstance(told.get("usageMetadata"), dict):
            found, self._is_gemini = told["usageMetadata"], True
        if not isinstance(found, dict):
            return
        self._told.update({name: value for name, value in found.items() if value is not None})
        self._speed = _text(found, "speed") or self._speed
        self._tier = _text(found, "service_tier") or self._tier
        # A message's first event tells what it begins with; only the later one tells how much was written.
        self._has_counts = told.get("type") != "message_start"

    def _words_of(self, told: Mapping[str, Any]) -> int:
        kind = told.get("type")
        if self._surface is Surface.RESPONSES or (isinstance(kind, str) and kind.startswith("response.")):
            # The events that close a part repeat all of it.
            delta = told.get("delta")
            return _size(delta) if isinstance(delta, str) else _words(told) if "output" in told else 0
        return _words(told)

    def _searches_of(self, inner: Mapping[str, Any]) -> int:
        items = inner.get("output")
        listed = items if isinstance(items, list) else []
        found = len(
            [each for each in listed if isinstance(each, dict) and each.get("type") == "web_search_call"]
        )
        candidates = inner.get("candidates")
        for candidate in candidates if isinstance(candidates, list) else []:
            if isinstance(candidate, dict) and candidate.get("finishReason"):
                self._has_ended = True
            grounding = candidate.get("groundingMetadata") if isinstance(candidate, dict) else None
            queries = grounding.get("webSearchQueries") if isinstance(grounding, dict) else None
            if isinstance(queries, list) and queries:
                found += 1 if (self._model or "").startswith(_SEARCH_PER_PROMPT) else len(queries)
        return found


def _words(told: Mapping[str, Any]) -> int:
    """Count the bytes of what a model wrote in this object."""
    waiting: list[Any] = [told]
    size = seen = 0
    while waiting and seen < _MOST_NODES:
        seen += 1
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(each for each in node if isinstance(each, dict | list))
        elif isinstance(node, dict):
            for name, value in node.items():
                if isinstance(value, str):
                    size += _size(value) if name in _WRITTEN else 0
                elif name in _ARGUMENTS and isinstance(value, dict):
                    size += len(json.dumps(value, default=str))
                elif isinstance(value, dict | list):
                    waiting.append(value)
    return size


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _text(told: Mapping[str, Any], name: str) -> str | None:
    value = told.get(name)
    return value[:200] if isinstance(value, str) and value else None
