"""Asking an OpenAI stream for its usage on the caller's behalf: the caller's body, with one option spliced in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.errors import InvalidInput
from app.gateway.dialects.facts import CallFacts
from app.gateway.dialects.members import value_span

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


def _invalid(name: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{name}: {problem}", details={"fields": {name: [problem]}})
