"""Parsing of the parameters that determine the cost of a request; unbounded cost is refused."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from app.core.strict_json import JsonNumber
from app.errors import InvalidInput
from app.gateway.dialects.request import cost_params, hosted_tools, injection, input_bounds, tool_costs
from app.gateway.dialects.request.cost_params import MAX_TOKENS_OUT, CostParams, Dialect, Surface

_MAX_ALTERNATIVES = 20
_MAX_COUNT = 10_000
_TIERS = frozenset(cost_params.WORDS["tiers"])
_GEMINI_CANDIDATES = ("candidateCount", "candidate_count")
# Thinking counts as output, and its budget must be below the limit on the output (Anthropic, OpenRouter) or leaves
# nothing for the output (Gemini).
_THINKING = ("thinking", "reasoning", "thinkingConfig", "thinking_config")
_THINKING_BUDGETS = ("budget_tokens", "max_tokens", "thinkingBudget", "thinking_budget")
_IMAGE_COUNT_FIELDS, _DEFAULT_IMAGES = ("sampleCount", "sample_count", "numberOfImages"), 4
_SURFACES_WITHOUT_OUTPUT = frozenset({Surface.EMBEDDINGS, Surface.EMBED_CONTENT, Surface.FREE})


def read_cost_params(
    params: CostParams,
    parsed: Mapping[str, Any],
    *,
    is_form: bool = False,
    files: Sequence[memoryview] = (),
    is_streaming_path: bool = False,
    requests_usage: bool = True,
) -> CostParams:
    """Read the cost parameters of a request into those of its route: the model and `is_streaming_path` of its path.

    Without `requests_usage`, the body of a stream is not changed to ask for its usage.

    `parsed` contains the members of its JSON object, or the text fields of its form; `files` those of its form.

    Raises: InvalidInput if limits are not counts; RouteNotAllowed for a hosted tool that is not offered.
    """
    dialect, surface = params.dialect, params.surface
    if surface is Surface.FREE:
        return params
    if is_form and parsed.get("url"):
        # Groq accepts the URL of a recording of 100 MB, which may be days of speech.
        raise InvalidInput.field("url", "is not forwarded: send the file in the form, because its length is billed")
    is_streamed = is_streaming_path or (surface is not Surface.GENERATE and _flag(parsed, "stream", is_form=is_form))
    params = params._replace(is_streamed=is_streamed)
    if surface in tool_costs.SEARCH_SURFACES:
        return params._replace(max_nanos=tool_costs.max_nanos(dialect, surface, parsed))
    params = params._replace(model=params.model or _text(parsed, "model"))
    if surface in input_bounds.MEDIA_SURFACES:
        params = input_bounds.with_media_bound(params, parsed, files)
        candidates = _candidates(surface, parsed)
        return params._replace(
            # Each image is billed separately.
            tokens_in=params.tokens_in * candidates, tokens_in_likely=params.tokens_in,
            tokens_out=params.tokens_out * candidates, candidates=candidates,
            has_media=surface is not Surface.SPEECH,
        )  # fmt: skip
    alternatives = _alternatives(dialect, parsed)
    hosted = hosted_tools.read_hosted_tools(dialect, surface, (params.model, *alternatives), parsed)
    if is_form:
        params = input_bounds.with_opaque_input_bound(params)
    else:
        params = input_bounds.with_input_bound(params, parsed, hosted)
    if surface is Surface.MESSAGES:
        summaries = hosted_tools.compaction_calls(parsed, params.model, params.tokens_in)
        hosted = hosted._replace(sub_calls=(*hosted.sub_calls, *summaries))
    candidates = _candidates(surface, parsed)
    explicit_tokens_out = _output_bound(surface, parsed)
    min_tokens_out = cost_params.MIN_TOKENS_OUT + _thinking_budget(surface, parsed)
    each = max(cost_params.DEFAULT_TOKENS_OUT, min_tokens_out) if explicit_tokens_out is None else explicit_tokens_out
    each = 0 if surface in _SURFACES_WITHOUT_OUTPUT else each
    params = params._replace(
        alternatives=alternatives, tokens_out=each * candidates, is_tokens_out_set=explicit_tokens_out is not None,
        min_tokens_out=min_tokens_out, candidates=candidates, searches=hosted.searches,
        characters=len(spoken) if isinstance(spoken := parsed.get("input"), str) else 0, tier=_tier(parsed),
        speed=_string(parsed, "speed"), region=_string(parsed, "inference_geo"), tools=hosted,
        body=injection.limit_tools(params.body, hosted.limits),
    )  # fmt: skip
    # OpenRouter and Groq report the usage of every stream anyway.
    omits_usage = surface in {Surface.CHAT, Surface.COMPLETIONS} and dialect not in {Dialect.OPENROUTER, Dialect.GROQ}
    if requests_usage and is_streamed and omits_usage:
        return injection.request_usage(params, parsed)
    return params


def _output_bound(surface: Surface, parsed: Mapping[str, Any]) -> int | None:
    # An unknown surface may use any of these fields, or none.
    names = injection.OUTPUT_LIMIT_FIELDS.get(surface, ("max_tokens", "max_completion_tokens", "max_output_tokens"))
    # With both spellings, the upstream may read either. Some upstreams treat zero as no limit.
    counts = _counts(surface, parsed, names)
    return min(max(counts), MAX_TOKENS_OUT) if counts and all(counts) else None


def _thinking_budget(surface: Surface, parsed: Mapping[str, Any]) -> int:
    """Return the largest thinking budget that a request states, 0 if it states none."""
    budgets = [
        config.get(name)
        for _, place in _generation_configs(surface, parsed)
        for field in _THINKING
        if isinstance(config := place.get(field), dict)
        for name in _THINKING_BUDGETS
    ]
    counts = [count for count in budgets if isinstance(count, int) and not isinstance(count, bool)]
    return min(max([0, *counts]), MAX_TOKENS_OUT)


def _candidates(surface: Surface, parsed: Mapping[str, Any]) -> int:
    names = _GEMINI_CANDIDATES if surface is Surface.GENERATE else ("n", "best_of")
    counts: Sequence[int | None] = _counts(surface, parsed, names)
    listed, default = None, 1
    if surface is Surface.OPAQUE and "instances" in parsed:
        # A call of `:predict` generates images for each of its instances.
        parameters, listed, default = parsed.get("parameters"), parsed["instances"], _DEFAULT_IMAGES
        counts = [_count(parameters, name) for name in _IMAGE_COUNT_FIELDS] if isinstance(parameters, dict) else []
    elif surface is Surface.COMPLETIONS and isinstance(prompts := parsed.get("prompt"), list):
        # Each prompt of a list gets its own completion; a list of numbers is one prompt in tokens.
        listed = prompts if isinstance(next(iter(prompts), None), str | list) else None
    many = len(listed) if isinstance(listed, list) and listed else 1
    return min(max(filter(None, counts), default=default), _MAX_COUNT) * min(many, _MAX_COUNT)


def _counts(surface: Surface, parsed: Mapping[str, Any], names: Sequence[str]) -> list[int]:
    """Return those of the counts that a request states."""
    return [
        count
        for at, place in _generation_configs(surface, parsed)
        for name in names
        if name in place and (count := _count(place, name, f"{at}.{name}" if at else name)) is not None
    ]


def _generation_configs(surface: Surface, parsed: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects that may limit the output, and their names: usually the body itself."""
    if surface is not Surface.GENERATE:
        return [("", parsed)]
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name in injection.CONFIG_FIELDS[Surface.GENERATE]:
        config = parsed.get(name)
        if config is None:
            continue
        if not isinstance(config, dict):
            raise InvalidInput.field(name, "must be an object")
        found.append((name, config))
    if len(found) > 1:
        raise InvalidInput.field(found[1][0], f"must not be given together with {found[0][0]}")
    return found


def _alternatives(dialect: Dialect, parsed: Mapping[str, Any]) -> tuple[str, ...]:
    named = parsed.get("models") if dialect is Dialect.OPENROUTER else None
    fallbacks = parsed.get("fallbacks") if dialect is Dialect.ANTHROPIC else None
    if isinstance(fallbacks, list):
        # The limit of the request applies to every attempt.
        if any(isinstance(each, dict) and each.get("max_tokens") is not None for each in fallbacks):
            raise InvalidInput.field("fallbacks", "must not have max_tokens")
        named = [each.get("model") if isinstance(each, dict) else None for each in fallbacks]
    if named is None:
        return ()
    if not isinstance(named, list) or len(named) > _MAX_ALTERNATIVES or not all(isinstance(m, str) for m in named):
        where = "models" if fallbacks is None else "fallbacks"
        raise InvalidInput.field(where, f"must be a list of at most {_MAX_ALTERNATIVES} names")
    return tuple(named)


def _count(parsed: Mapping[str, Any], name: str, display_name: str | None = None) -> int | None:
    """Read a count of zero or more, however large; also digits in a string, which protobuf's JSON allows."""
    value = parsed.get(name)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
        value = int(value)
    if value is None:
        return None
    if isinstance(value, JsonNumber):
        value = value.decimal
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise InvalidInput.field(display_name or name, "must be a whole number")
    if value < 0:
        raise InvalidInput.field(display_name or name, "must not be negative")
    # Compared before it is converted: the integer of 1e999999 has a million digits.
    if value >= MAX_TOKENS_OUT:
        return MAX_TOKENS_OUT
    if value != int(value):
        raise InvalidInput.field(display_name or name, "must be a whole number")
    return int(value)


def _text(parsed: Mapping[str, Any], name: str) -> str:
    value = parsed.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidInput.field(name, "must be a string")
    return value


def _string(parsed: Mapping[str, Any], name: str) -> str | None:
    value = parsed.get(name)
    return value[:40] if isinstance(value, str) else None


def _tier(parsed: Mapping[str, Any]) -> str | None:
    """Return the requested service tier, in Google's spelling too: with both, the more expensive one."""
    named = {name: tier.lower() for name in ("service_tier", "serviceTier") if (tier := _string(parsed, name))}
    for name, tier in named.items():
        if tier not in _TIERS and tier != "unspecified":
            raise InvalidInput.field(name, f"must be one of {', '.join(sorted(_TIERS))}")
    return "priority" if "priority" in named.values() else next(iter(named.values()), None)


def _flag(parsed: Mapping[str, Any], name: str, *, is_form: bool = False) -> bool:
    value = parsed.get(name)
    if is_form:
        return isinstance(value, str) and value.lower() in {"true", "1"}
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidInput.field(name, "must be true or false")
    return value
