"""From a request to the facts that price it. What would leave its cost unbounded is refused as INVALID_INPUT."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from app.errors import InvalidInput
from app.gateway.dialects import bounds, injection
from app.gateway.dialects.facts import (
    DEFAULT_TOKENS_OUT,
    MOST_TOKENS_OUT,
    CallFacts,
    Dialect,
    Surface,
)
from app.web.parsing import parse_json

_MAX_DEPTH = 200
_MAX_ALTERNATIVES = 20
_MAX_COUNT = 10_000
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})

_OPENAI_SURFACES = {
    "chat/completions": Surface.CHAT,
    "completions": Surface.COMPLETIONS,
    "responses": Surface.RESPONSES,
    "embeddings": Surface.EMBEDDINGS,
    "messages": Surface.MESSAGES,
    "messages/count_tokens": Surface.FREE,
    "responses/input_tokens": Surface.FREE,
    "moderations": Surface.FREE,
}
_GEMINI_CALL = re.compile(r"(?:^|/)(?:models|tunedModels)/(?P<model>[^/:]+):(?P<verb>[A-Za-z]+)$")
_GEMINI_SURFACES = {
    "generateContent": Surface.GENERATE,
    "streamGenerateContent": Surface.GENERATE,
    "embedContent": Surface.EMBED_CONTENT,
    "batchEmbedContents": Surface.EMBED_CONTENT,
    "countTokens": Surface.FREE,
}
_VERSION = re.compile(r"^(?:v1(?:beta|alpha)?/)?(?:openai/)?")

# Each surface's own names: a bound under a name that the upstream does not read would bound nothing.
_OUTPUT_BOUNDS: Mapping[Surface, tuple[str, ...]] = {
    Surface.CHAT: ("max_tokens", "max_completion_tokens"),
    Surface.COMPLETIONS: ("max_tokens",),
    Surface.RESPONSES: ("max_output_tokens",),
    Surface.MESSAGES: ("max_tokens",),
}
_GENERATION = ("generationConfig", "generation_config")
_GEMINI_BOUNDS = ("maxOutputTokens", "max_output_tokens")
_GEMINI_CANDIDATES = ("candidateCount", "candidate_count")
# A form is read no further than this for its model, line by line.
_MOST_FORM_HEAD = 8 * 1024
_MODEL_FIELD = re.compile(rb"name=(?:\"model\"|model)(?=[\r\n;])")
_MODEL_NAME = re.compile(rb"[\x21-\x7e]{1,200}")
_PICTURES, _PICTURES_UNLESS_SAID = ("sampleCount", "sample_count", "numberOfImages"), 4
_SILENT = frozenset({Surface.EMBEDDINGS, Surface.EMBED_CONTENT, Surface.FREE})


def read_call(
    dialect: Dialect, method: str, path: str, *, body: bytes, content_type: str | None = None
) -> CallFacts:
    """Read what a request says about its cost. `path` is the upstream's, without a query.

    Raises: InvalidInput for a body that is not JSON where the surface needs it, names a field twice, is nested too
    deeply, or whose bounds are no counts.
    """
    surface, model = _surface(dialect, method, path.strip("/"))
    if surface is Surface.FREE:
        return CallFacts(surface, dialect, model, body=body)
    if surface is Surface.OPAQUE and not _is_json(body, content_type):
        return _unread(dialect, body, model)
    parsed = _object(body)
    model = model or _text(parsed, "model")
    bound = bounds.input_bound(body, parsed, model)
    candidates = _candidates(surface, parsed)
    stated = _output_bound(surface, parsed)
    each = 0 if surface in _SILENT else DEFAULT_TOKENS_OUT if stated is None else stated
    is_streamed = path.endswith(":streamGenerateContent") or (
        surface is not Surface.GENERATE and _flag(parsed, "stream")
    )
    facts = CallFacts(
        surface=surface,
        dialect=dialect,
        model=model,
        alternatives=_alternatives(dialect, parsed),
        tokens_in=bound.at_most,
        tokens_in_likely=bound.likely,
        tokens_out=each * candidates,
        tokens_out_is_stated=stated is not None,
        candidates=candidates,
        is_streamed=is_streamed,
        has_media=bound.has_media,
        writes_cache=bound.writes_cache,
        searches=bound.searches,
        characters=len(spoken) if isinstance(spoken := parsed.get("input"), str) else 0,
        tier=_word(parsed, "service_tier"),
        speed=_word(parsed, "speed"),
        body=body,
    )
    return injection.ask_for_usage(facts, parsed) if _needs_asking(facts) else facts


def _surface(dialect: Dialect, method: str, path: str) -> tuple[Surface, str]:
    found = _GEMINI_CALL.search(path) if dialect is Dialect.GEMINI else None
    if found:
        surface, model = _GEMINI_SURFACES.get(found["verb"], Surface.OPAQUE), found["model"]
    else:
        surface, model = _OPENAI_SURFACES.get(_VERSION.sub("", path), Surface.OPAQUE), ""
    # Reading is free where nothing is known that could be billed; an upstream may let a GET stand for a POST.
    if surface is Surface.OPAQUE and method.upper() in _READING_METHODS:
        return Surface.FREE, model
    return surface, model


def _needs_asking(facts: CallFacts) -> bool:
    # OpenRouter and Groq tell the usage of every stream unasked.
    return (
        facts.is_streamed
        and facts.surface in {Surface.CHAT, Surface.COMPLETIONS}
        and facts.dialect in {Dialect.OPENAI, Dialect.GEMINI}
    )


def _is_json(body: bytes, content_type: str | None) -> bool:
    if content_type is not None and content_type.split(";")[0].strip().lower() == "application/json":
        return True
    return body.lstrip()[:1] == b"{"


def _unread(dialect: Dialect, body: bytes, model: str) -> CallFacts:
    bound = bounds.unread_bound(body)
    return CallFacts(
        Surface.OPAQUE,
        dialect,
        model or _model_of_form(body),
        tokens_in=bound.at_most,
        tokens_in_likely=bound.likely,
        tokens_out=DEFAULT_TOKENS_OUT,
        has_media=True,
        body=body,
    )


def _model_of_form(body: bytes) -> str:
    """Return the model that a form names near its beginning; nothing where it names several, or none there."""
    if len(_MODEL_FIELD.findall(body)) != 1:
        return ""
    lines = iter(body[:_MOST_FORM_HEAD].splitlines())
    if not any(_MODEL_FIELD.search(line + b"\n") for line in lines):
        return ""
    # Headers of the part end with a blank line.
    if all(line for line in lines):
        return ""
    value = next(lines, b"")
    return value.decode("ascii") if _MODEL_NAME.fullmatch(value) else ""


def _object(body: bytes) -> dict[str, Any]:
    # JSON in UTF-16 would be read here and spliced wrongly; UTF-8 has no zero bytes.
    if b"\x00" in body:
        raise InvalidInput("The request body must be JSON in UTF-8.")
    parsed = parse_json(body, max_depth=_MAX_DEPTH) if body.strip() else {}
    if not isinstance(parsed, dict):
        raise InvalidInput("The request body must be a JSON object.")
    return parsed


def _output_bound(surface: Surface, parsed: Mapping[str, Any]) -> int | None:
    if surface is Surface.GENERATE:
        named = [
            _count(config, name, f"{at}.{name}")
            for at, config in _generation(parsed)
            for name in _GEMINI_BOUNDS
        ]
    else:
        # An unknown surface is bounded by whatever it says: the default where it says nothing.
        names = _OUTPUT_BOUNDS.get(surface, ("max_tokens", "max_completion_tokens", "max_output_tokens"))
        named = [_count(parsed, name) for name in names]
    # Where both spellings stand, the upstream may read either. Zero is no bound: some read it as none.
    stated = max((count for count in named if count), default=0)
    return min(stated, MOST_TOKENS_OUT) or None


def _candidates(surface: Surface, parsed: Mapping[str, Any]) -> int:
    if surface is Surface.GENERATE:
        named = [
            _count(config, name, f"{at}.{name}")
            for at, config in _generation(parsed)
            for name in _GEMINI_CANDIDATES
        ]
    else:
        named = [_count(parsed, name) for name in ("n", "best_of")]
    if surface is Surface.OPAQUE and "instances" in parsed:
        return _pictures(parsed)
    each = max((count for count in named if count), default=1)
    prompts = parsed.get("prompt") if surface is Surface.COMPLETIONS else None
    # A list of prompts is answered one by one; a list of numbers is one prompt in tokens.
    many = len(prompts) if isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list) else 1
    return min(each, _MAX_COUNT) * min(many, _MAX_COUNT)


def _pictures(parsed: Mapping[str, Any]) -> int:
    """Count the pictures that a call of `:predict` asks for, as many for each of its instances."""
    parameters, instances = parsed.get("parameters"), parsed.get("instances")
    given = parameters if isinstance(parameters, dict) else {}
    counts = [_count(given, name) for name in _PICTURES]
    each = max((count for count in counts if count), default=_PICTURES_UNLESS_SAID)
    many = len(instances) if isinstance(instances, list) and instances else 1
    return min(each, _MAX_COUNT) * min(many, _MAX_COUNT)


def _generation(parsed: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name in _GENERATION:
        config = parsed.get(name)
        if config is None:
            continue
        if not isinstance(config, dict):
            raise _invalid(name, "must be an object")
        found.append((name, config))
    return found


def _alternatives(dialect: Dialect, parsed: Mapping[str, Any]) -> tuple[str, ...]:
    named = parsed.get("models") if dialect is Dialect.OPENROUTER else None
    if named is None:
        return ()
    if (
        not isinstance(named, list)
        or len(named) > _MAX_ALTERNATIVES
        or not all(isinstance(m, str) for m in named)
    ):
        raise _invalid("models", f"must be a list of at most {_MAX_ALTERNATIVES} names")
    return tuple(named)


def _count(parsed: Mapping[str, Any], name: str, shown: str | None = None) -> int | None:
    """Read a count of zero or more, however large; digits in a string too, which protobuf's JSON allows."""
    value = parsed.get(name)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
        value = int(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _invalid(shown or name, "must be a whole number")
    if value < 0:
        raise _invalid(shown or name, "must not be negative")
    # Compared before it is converted: the integer of 1e999999 has a million digits.
    if value >= MOST_TOKENS_OUT:
        return MOST_TOKENS_OUT
    if value != int(value):
        raise _invalid(shown or name, "must be a whole number")
    return int(value)


def _text(parsed: Mapping[str, Any], name: str) -> str:
    value = parsed.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _invalid(name, "must be a string")
    return value


def _word(parsed: Mapping[str, Any], name: str) -> str | None:
    value = parsed.get(name)
    return value[:40] if isinstance(value, str) else None


def _flag(parsed: Mapping[str, Any], name: str) -> bool:
    value = parsed.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _invalid(name, "must be true or false")
    return value


def _invalid(name: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{name}: {problem}", details={"fields": {name: [problem]}})
