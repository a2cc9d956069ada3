"""The usage of a call as the upstream reports it: readers of the providers' formats.

Values that are not plausible counts are treated as absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Context, Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

from app.core.money import NANOS_PER_USD
from app.gateway.dialects.request import tool_costs

# The key of searches in `UsageReading.tool_calls`.
WEB_SEARCH = "web_search"


class Usage(NamedTuple):
    """Tokens as billed: `tokens_in` includes cached tokens, `tokens_out` includes reasoning.

    The other counts are parts of those two with their own prices. `cost_nanos` is the cost that the upstream itself
    reports, rounded up; it takes precedence over every price table.
    """

    tokens_in: int = 0
    tokens_out: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    audio_in: int = 0
    audio_cached: int = 0
    audio_out: int = 0
    image_in: int = 0
    image_cached: int = 0
    image_out: int = 0
    video_in: int = 0
    video_out: int = 0
    reasoning: int = 0
    # Input tokens that the response does not assign to text, audio, images or video; whether it assigns no output.
    undivided_in: int = 0
    is_undivided: bool = False
    searches: int = 0
    audio_seconds: int = 0
    cost_nanos: int | None = None
    # Each billed run of a model, with its name (None: the one that answered), if there were several. The counts above
    # are their sums; `searches` is only counted there.
    runs: tuple[tuple[str | None, Usage], ...] = ()


class UsageReading(NamedTuple):
    """The usage read from one response; `usage` is None if it reported none.

    `is_complete` is false if the response ended before its last count: then `streamed_bytes`, the content that was
    relayed, limits what the model wrote after the last count.
    """

    status: int = 200
    usage: Usage | None = None
    is_complete: bool = False
    # Bytes of the response as received, and of the content in it (text, reasoning, tool arguments).
    bytes_received: int = 0
    streamed_bytes: int = 0
    # Bytes of a body in an unknown format; all may be content.
    bytes_unread: int = 0
    model: str | None = None
    tier: str | None = None
    speed: str | None = None
    # Where inference ran, as the upstream reports it.
    region: str | None = None
    # How often the response shows each hosted tool in use.
    tool_calls: Mapping[str, int] = MappingProxyType({})
    # The upstream reported an error after a successful status (a stream that fails midway).
    has_failed: bool = False
    # Some audio was streamed.
    has_audio: bool = False
    # There is neither an object nor content: an empty body, a page in HTML, a stream of comments.
    is_blank: bool = False

    @property
    def has_content(self) -> bool:
        return self.streamed_bytes > 0 or self.has_audio


# No call has a billion tokens or costs a million dollars: larger values are errors, and exceed the columns.
MAX_TOKENS = 10**9
MAX_NANOS = 10**6 * NANOS_PER_USD
# xAI reports costs in ticks of 10^-10 dollars.
_TICKS_PER_NANO = 10
# The default context rounds at 28 digits, and to the nearest.
_ROUND_UP = Context(prec=60, rounding=ROUND_CEILING)
_MODALITIES = {"AUDIO": "audio", "IMAGE": "image", "DOCUMENT": "image", "VIDEO": "video"}
# The counts in `usage` are the sums of these entries of `usage.iterations`; all others are added to them.
_MESSAGES = frozenset({"message", "fallback_message"})
_TOKEN_FIELDS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def openai_usage(reported: Mapping[str, Any], *, reports_cost: bool) -> Usage | None:
    """Read `usage` of chat, completions, embeddings, responses, images, transcriptions and Gemini's interactions."""
    tokens_in = _first_count(reported, "prompt_tokens", "input_tokens", "total_input_tokens")
    tokens_out = _first_count(reported, "completion_tokens", "output_tokens", "total_output_tokens")
    total = _count(reported, "total_tokens")
    seconds = _seconds(reported)
    cost_nanos = _reported_nanos(reported) if reports_cost else _nanos_from_ticks(reported)
    if tokens_in is tokens_out is total is seconds is cost_nanos is None:
        return None
    if tokens_in is None:
        tokens_in = max(0, (total or 0) - (tokens_out or 0))
    if tokens_out is not None and total is not None:
        # Where the completion count omits reasoning, the total includes it (xAI, Gemini's OpenAI surface).
        tokens_out = max(tokens_out, total - tokens_in)
    # Transcriptions use the singular.
    details_in = _nested(reported, "prompt_tokens_details", "input_tokens_details", "input_token_details")
    details_out = _nested(reported, "completion_tokens_details", "output_tokens_details")
    within, beyond = _counts(details_in), _counts(details_out)
    by_age = _counts(_nested(details_in, "cache_write_tokens_details"))
    by_kind = _counts(_nested(reported, "cached_tokens_details") or _nested(details_in, "cached_tokens_details"))
    cached = _first_count(reported, "prompt_cache_hit_tokens", "total_cached_tokens", "cached_tokens")
    return Usage(
        tokens_in=tokens_in, tokens_out=tokens_out or 0, cache_read=within.get("cached_tokens") or cached or 0,
        cache_write=within.get("cache_write_tokens", 0), cache_write_1h=by_age.get("ttl_12h_tokens", 0),
        audio_in=within.get("audio_tokens", 0), audio_cached=by_kind.get("audio_tokens", 0),
        audio_out=beyond.get("audio_tokens", 0), image_in=within.get("image_tokens", 0),
        image_cached=by_kind.get("cached_image_tokens") or by_kind.get("image_tokens", 0),
        image_out=beyond.get("image_tokens", 0),
        reasoning=beyond.get("reasoning_tokens") or _number(reported, "total_thought_tokens"),
        undivided_in=0 if "audio_tokens" in within or "text_tokens" in within else tokens_in,
        is_undivided=not details_out, audio_seconds=seconds or 0, cost_nanos=cost_nanos,
    )  # fmt: skip


def anthropic_usage(reported: Mapping[str, Any], *, reports_cost: bool = False) -> Usage | None:
    """Read `usage` of a message, or of the merged events of a stream; its input count excludes the cache."""
    if _count(reported, "input_tokens") is None and _count(reported, "output_tokens") is None:
        return None
    usage = _message_usage(reported)._replace(
        searches=_number(_nested(reported, "server_tool_use"), "web_search_requests"),
        cost_nanos=_reported_nanos(reported) if reports_cost else None,
    )
    listed = reported.get("iterations")
    entries = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    rounds: list[Mapping[str, Any]] = [each for each in entries if each.get("type") in _MESSAGES]
    if any(sum(_number(each, name) for each in rounds) != _number(reported, name) for name in _TOKEN_FIELDS):
        rounds = [reported]
    others = [each for each in entries if each.get("type") not in _MESSAGES]
    if not others and len(rounds) == 1 and rounds[0].get("model") is None:
        return usage
    runs = tuple((_model(each), _message_usage(each)) for each in [*rounds, *others])
    return usage._replace(
        tokens_in=min(sum(run.tokens_in for _, run in runs), MAX_TOKENS),
        tokens_out=min(sum(run.tokens_out for _, run in runs), MAX_TOKENS),
        runs=runs,
    )


def _message_usage(reported: Mapping[str, Any]) -> Usage:
    read = _number(reported, "cache_read_input_tokens")
    by_age = _nested(reported, "cache_creation")
    # The total may count rounds that its parts do not, and a server may report the parts only.
    written = max(
        _number(reported, "cache_creation_input_tokens"),
        _number(by_age, "ephemeral_5m_input_tokens") + _number(by_age, "ephemeral_1h_input_tokens"),
    )
    return Usage(
        tokens_in=_number(reported, "input_tokens") + written + read, tokens_out=_number(reported, "output_tokens"),
        cache_read=read, cache_write=written, cache_write_5m=_number(by_age, "ephemeral_5m_input_tokens"),
        cache_write_1h=_number(by_age, "ephemeral_1h_input_tokens"),
        reasoning=_number(_nested(reported, "output_tokens_details"), "thinking_tokens"),
    )  # fmt: skip


def _model(reported: Mapping[str, Any]) -> str | None:
    name = reported.get("model")
    return name if isinstance(name, str) else None


def image_usage(reported: Mapping[str, Any]) -> Usage | None:
    """Read the usage of images: without details, all of the output is images."""
    usage = openai_usage(reported, reports_cost=False)
    if usage is None or isinstance(reported.get("output_tokens_details"), dict):
        return usage
    return usage._replace(image_out=usage.tokens_out)


def gemini_usage(reported: Mapping[str, Any]) -> Usage | None:
    """Read `usageMetadata`; thoughts are billed as output, tool results as input."""
    names = ("prompt", "candidates", "thoughts", "toolUsePrompt", "total")
    prompt, written, thoughts, tools, total = (_count(reported, f"{name}TokenCount") for name in names)
    if prompt is written is thoughts is tools is total is None:
        return None
    tokens_in = (prompt or 0) + (tools or 0)
    if prompt is written is thoughts is tools is None:
        tokens_in = total or 0
    tokens_out = (written or 0) + (thoughts or 0)
    media_in = _by_modality(reported, "promptTokensDetails", "toolUsePromptTokensDetails")
    media_out = _by_modality(reported, "candidatesTokensDetails")
    media_cached = _by_modality(reported, "cacheTokensDetails")
    return Usage(
        # The part of the total that no known count explains is output.
        tokens_in=tokens_in, tokens_out=max(tokens_out, (total or 0) - tokens_in),
        cache_read=_number(reported, "cachedContentTokenCount"), reasoning=thoughts or 0,
        audio_in=media_in["audio"], audio_cached=media_cached["audio"], audio_out=media_out["audio"],
        image_in=media_in["image"], image_cached=media_cached["image"], image_out=media_out["image"],
        video_in=media_in["video"], video_out=media_out["video"],
        undivided_in=max(0, tokens_in - (tools or 0) - _divided(reported, "promptTokensDetails")),
        is_undivided=not _divided(reported, "candidatesTokensDetails"),
    )  # fmt: skip


def duration_usage(duration: object) -> Usage | None:
    """Read the `duration` of a transcript, in seconds; some models report it as text."""
    if isinstance(duration, str) and re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", duration, re.ASCII):
        duration = Decimal(duration)
    seconds = _seconds({"seconds": duration})
    return None if seconds is None else Usage(audio_seconds=seconds)


def search_nanos(reported: Mapping[str, Any], default: int | None) -> int | None:
    """Return the cost that Exa reports, or the credits that Tavily reports, in nano-dollars; else `default`."""
    nanos = nanos_from_usd(_nested(reported, "costDollars").get("total"))
    credits_used = nanos_from_usd(_nested(reported, "usage").get("credits"))
    if nanos is None and credits_used is not None:
        nanos = credits_used * tool_costs.TAVILY_CREDIT_NANOS // NANOS_PER_USD
    return default if nanos is None else nanos


def nanos_from_usd(dollars: object) -> int | None:
    """Convert a JSON number of dollars to nano-dollars, rounded up; None for anything else."""
    if isinstance(dollars, bool) or not isinstance(dollars, int | Decimal):
        return None
    if not 0 <= dollars <= MAX_NANOS // NANOS_PER_USD:
        return None
    scaled = _ROUND_UP.scaleb(Decimal(dollars), 9)
    return int(scaled.to_integral_value(rounding=ROUND_CEILING))


def _reported_nanos(reported: Mapping[str, Any]) -> int | None:
    cost = nanos_from_usd(reported.get("cost"))
    if cost is not None and reported.get("is_byok") is True:
        # Billed on the operator's own key at the provider: the cost is only OpenRouter's fee.
        cost += nanos_from_usd(_nested(reported, "cost_details").get("upstream_inference_cost")) or 0
    return cost


def _nanos_from_ticks(reported: Mapping[str, Any]) -> int | None:
    ticks = reported.get("cost_in_usd_ticks")
    if isinstance(ticks, bool) or not isinstance(ticks, int) or not 0 <= ticks <= MAX_NANOS * _TICKS_PER_NANO:
        return None
    return -(-ticks // _TICKS_PER_NANO)


def _seconds(reported: Mapping[str, Any]) -> int | None:
    seconds = reported.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | Decimal) or not 0 <= seconds <= MAX_TOKENS:
        return None
    return int(Decimal(seconds).to_integral_value(rounding=ROUND_CEILING))


def _by_modality(reported: Mapping[str, Any], *names: str) -> dict[str, int]:
    found = dict.fromkeys(_MODALITIES.values(), 0)
    for row in (row for name in names for row in _rows(reported, name)):
        kind = _MODALITIES.get(row["modality"]) if isinstance(row.get("modality"), str) else None
        if kind is not None:
            found[kind] += _number(row, "tokenCount")
    return found


def _divided(reported: Mapping[str, Any], name: str) -> int:
    return sum(_number(row, "tokenCount") for row in _rows(reported, name))


def _rows(reported: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    rows = reported.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _nested(reported: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((inner for name in names if isinstance(inner := reported.get(name), dict)), {})


def _first_count(reported: Mapping[str, Any], *names: str) -> int | None:
    return next((count for name in names if (count := _count(reported, name)) is not None), None)


def _counts(details: Mapping[str, Any]) -> Mapping[str, int]:
    return {name: count for name in details if (count := _count(details, name)) is not None}


def _number(reported: Mapping[str, Any], name: str) -> int:
    return _count(reported, name) or 0


def _count(reported: Mapping[str, Any], name: str) -> int | None:
    value = reported.get(name)
    if value is None or isinstance(value, bool) or not isinstance(value, int | Decimal) or value < 0:
        return None
    if value >= MAX_TOKENS:
        return MAX_TOKENS
    return int(value) if value == int(value) else None
