"""Asking an OpenAI stream for its usage on the caller's behalf: the caller's body, with one option spliced in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.errors import InvalidInput
from app.gateway.dialects.facts import CallFacts, Surface
from app.gateway.dialects.members import value_span
from app.web.parsing import parse_json

# The object that holds it, if any, and the name that every upstream of the surface reads.
_BOUND_NAMES: Mapping[Surface, tuple[str | None, str]] = {
    Surface.CHAT: (None, "max_completion_tokens"),
    Surface.COMPLETIONS: (None, "max_tokens"),
    Surface.RESPONSES: (None, "max_output_tokens"),
    Surface.MESSAGES: (None, "max_tokens"),
    Surface.GENERATE: ("generationConfig", "maxOutputTokens"),
}
_MAX_DEPTH = 200
_OPTION = b'"stream_options":{"include_usage":true}'


def ask_for_usage(facts: CallFacts, parsed: Mapping[str, Any]) -> CallFacts:
    """Return the facts with a body that asks for usage, unless the caller's does. All other bytes stay.

    Raises: InvalidInput where `stream_options` is something else than an object of true and false.
    """
    options = parsed.get("stream_options")
    if "stream_options" not in parsed:
        start = facts.body.index(b"{") + 1
        comma = b"," if parsed else b""
        spliced = facts.body[:start] + _OPTION + comma + facts.body[start:]
        return replace(facts, body=spliced, usage_injected=True)
    if options is not None and not isinstance(options, dict):
        raise _invalid("stream_options", "must be an object")
    asked = (options or {}).get("include_usage")
    if asked is True:
        return facts
    if asked is not None and asked is not False:
        raise _invalid("stream_options.include_usage", "must be true or false")
    text = facts.body.decode("utf-8-sig", "surrogatepass")
    start, end = value_span(text, "stream_options")
    value = text[start:end]
    if not options:
        value = '{"include_usage":true}'
    elif asked is None and "include_usage" not in options:
        value = '{"include_usage":true,' + value[1:]
    else:
        inner_start, inner_end = value_span(value, "include_usage")
        value = value[:inner_start] + "true" + value[inner_end:]
    spliced = (text[:start] + value + text[end:]).encode("utf-8", "surrogatepass")
    return replace(facts, body=spliced, usage_injected=True)


def bound_output(facts: CallFacts, body: bytes, tokens: int) -> CallFacts:
    """Return the facts with a body that bounds its output to so many tokens, where it does not do so itself.

    For calls whose price is paid beforehand: what is not bounded could cost more. `body` is the caller's own.

    Raises: InvalidInput where no bound can be put in without touching what the caller wrote.
    """
    unbounded = not facts.tokens_out_is_stated and facts.tokens_out > 0
    if not unbounded or facts.surface is Surface.OPAQUE or not body.strip():
        return replace(facts, body=body, usage_injected=False)
    where, name = _BOUND_NAMES[facts.surface]
    parsed = parse_json(body, max_depth=_MAX_DEPTH)
    config = parsed.get(where) if where else parsed
    if (where and where in parsed and not isinstance(config, dict)) or name in (config or {}):
        raise _invalid(name, "must be a count above zero")
    bound = f'"{name}":{tokens}'.encode()
    if where and where in parsed:
        text = body.decode("utf-8-sig", "surrogatepass")
        start, end = value_span(text, where)
        value = "{" + bound.decode() + ("," if config else "") + text[start:end].lstrip()[1:].lstrip()
        spliced = (text[:start] + value + text[end:]).encode("utf-8", "surrogatepass")
    else:
        option = f'"{where}":{{'.encode() + bound + b"}" if where else bound
        start = body.index(b"{") + 1
        spliced = body[:start] + option + (b"," if parsed else b"") + body[start:]
    return replace(
        facts,
        body=spliced,
        usage_injected=False,
        tokens_out=tokens * facts.candidates,
        tokens_out_is_stated=True,
    )


def _invalid(name: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{name}: {problem}", details={"fields": {name: [problem]}})
