"""From an upstream's own words for usage to ours. Whatever is no sensible count is taken as not said."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from app.core.money import NANOS_PER_USD
from app.gateway.dialects.usage import Usage

# No call has a thousand million tokens or costs a million dollars: such a figure is a mistake, and fits no column.
MOST_TOKENS = 10**9
MOST_NANOS = 10**6 * NANOS_PER_USD
# xAI reports costs in ticks, of which a dollar has 10^10.
_TICKS_PER_NANO = 10
# The default context rounds at 28 digits, and to the nearest.
_UPWARDS = Context(prec=60, rounding=ROUND_CEILING)
_MODALITIES = {"AUDIO": "audio", "IMAGE": "image", "DOCUMENT": "image"}


def openai_usage(told: Mapping[str, Any], *, reports_cost: bool) -> Usage | None:
    """Read `usage` of chat, completions, embeddings, responses, images, transcriptions and Gemini's interactions."""
    tokens_in = _first(told, "prompt_tokens", "input_tokens", "total_input_tokens")
    tokens_out = _first(told, "completion_tokens", "output_tokens", "total_output_tokens")
    total = _count(told, "total_tokens")
    seconds = _seconds(told)
    cost_nanos = _reported_nanos(told) if reports_cost else _ticks(told)
    if tokens_in is tokens_out is total is seconds is cost_nanos is None:
        return None
    if tokens_in is None:
        tokens_in = max(0, (total or 0) - (tokens_out or 0))
    if tokens_out is not None and total is not None:
        # Where the completion leaves reasoning out, the total has it (xAI, Gemini's OpenAI surface).
        tokens_out = max(tokens_out, total - tokens_in)
    within = _within(told, "prompt_tokens_details", "input_tokens_details")
    beyond = _within(told, "completion_tokens_details", "output_tokens_details")
    return Usage(
        tokens_in=tokens_in,
        tokens_out=tokens_out or 0,
        cache_read=_number(within, "cached_tokens")
        or _first(told, "prompt_cache_hit_tokens", "total_cached_tokens")
        or 0,
        cache_write=_number(within, "cache_write_tokens"),
        audio_in=_number(within, "audio_tokens"),
        audio_out=_number(beyond, "audio_tokens"),
        image_in=_number(within, "image_tokens"),
        image_out=_number(beyond, "image_tokens"),
        reasoning=_number(beyond, "reasoning_tokens") or _number(told, "total_thought_tokens"),
        audio_seconds=seconds or 0,
        cost_nanos=cost_nanos,
    )


def anthropic_usage(told: Mapping[str, Any], *, reports_cost: bool = False) -> Usage | None:
    """Read `usage` of a message, or of all events of a stream laid over each other; its input excludes the cache."""
    fresh, tokens_out = _count(told, "input_tokens"), _count(told, "output_tokens")
    if fresh is None and tokens_out is None:
        return None
    written, read = _number(told, "cache_creation_input_tokens"), _number(told, "cache_read_input_tokens")
    by_age = _within(told, "cache_creation")
    return Usage(
        tokens_in=(fresh or 0) + written + read,
        tokens_out=tokens_out or 0,
        cache_read=read,
        cache_write=written,
        cache_write_5m=_number(by_age, "ephemeral_5m_input_tokens"),
        cache_write_1h=_number(by_age, "ephemeral_1h_input_tokens"),
        reasoning=_number(_within(told, "output_tokens_details"), "thinking_tokens"),
        searches=_number(_within(told, "server_tool_use"), "web_search_requests"),
        cost_nanos=_reported_nanos(told) if reports_cost else None,
    )


def gemini_usage(told: Mapping[str, Any]) -> Usage | None:
    """Read `usageMetadata`; thoughts are billed as output, what tools brought in as input."""
    names = (
        "promptTokenCount",
        "candidatesTokenCount",
        "thoughtsTokenCount",
        "toolUsePromptTokenCount",
        "totalTokenCount",
    )
    prompt, written, thoughts, tools, total = (_count(told, name) for name in names)
    if prompt is written is thoughts is tools is total is None:
        return None
    tokens_in = (
        (total or 0) if prompt is written is thoughts is tools is None else (prompt or 0) + (tools or 0)
    )
    sounds_in = _by_modality(told, "promptTokensDetails", "toolUsePromptTokensDetails")
    sounds_out = _by_modality(told, "candidatesTokensDetails")
    return Usage(
        tokens_in=tokens_in,
        tokens_out=(written or 0) + (thoughts or 0),
        cache_read=_number(told, "cachedContentTokenCount"),
        audio_in=sounds_in["audio"],
        audio_cached=_by_modality(told, "cacheTokensDetails")["audio"],
        audio_out=sounds_out["audio"],
        image_in=sounds_in["image"],
        image_out=sounds_out["image"],
        reasoning=thoughts or 0,
    )


def nanos_of(dollars: object) -> int | None:
    """Read an amount of dollars as JSON has it, rounded up to a nano-dollar; None where it is none."""
    if isinstance(dollars, bool) or not isinstance(dollars, int | Decimal):
        return None
    if not 0 <= dollars <= MOST_NANOS // NANOS_PER_USD:
        return None
    scaled = _UPWARDS.scaleb(Decimal(dollars), 9)
    return int(scaled.to_integral_value(rounding=ROUND_CEILING))


def _reported_nanos(told: Mapping[str, Any]) -> int | None:
    cost = nanos_of(told.get("cost"))
    if cost is not None and told.get("is_byok") is True:
        # Billed on the operator's own key at the provider: the cost is OpenRouter's fee alone.
        cost += nanos_of(_within(told, "cost_details").get("upstream_inference_cost")) or 0
    return cost


def _ticks(told: Mapping[str, Any]) -> int | None:
    ticks = told.get("cost_in_usd_ticks")
    if (
        isinstance(ticks, bool)
        or not isinstance(ticks, int)
        or not 0 <= ticks <= MOST_NANOS * _TICKS_PER_NANO
    ):
        return None
    return -(-ticks // _TICKS_PER_NANO)


def _seconds(told: Mapping[str, Any]) -> int | None:
    seconds = told.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | Decimal) or not 0 <= seconds <= MOST_TOKENS:
        return None
    return int(Decimal(seconds).to_integral_value(rounding=ROUND_CEILING))


def _by_modality(told: Mapping[str, Any], *names: str) -> dict[str, int]:
    found = dict.fromkeys(_MODALITIES.values(), 0)
    for name in names:
        rows = told.get(name)
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict) and isinstance(row.get("modality"), str):
                kind = _MODALITIES.get(row["modality"])
                if kind is not None:
                    found[kind] += _number(row, "tokenCount")
    return found


def _within(told: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        inner = told.get(name)
        if isinstance(inner, dict):
            return inner
    return {}


def _first(told: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        count = _count(told, name)
        if count is not None:
            return count
    return None


def _number(told: Mapping[str, Any], name: str) -> int:
    return _count(told, name) or 0


def _count(told: Mapping[str, Any], name: str) -> int | None:
    value = told.get(name)
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or value < 0:
        return None
    if value >= MOST_TOKENS:
        return MOST_TOKENS
    return int(value) if value == int(value) else None
