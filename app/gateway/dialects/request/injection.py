"""Changes of a JSON body that keep all other bytes: usage in streams, limits on the output and on hosted tools."""

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from app.errors import InvalidInput
from app.gateway.dialects.request.cost_params import CostParams, Surface, ToolLimit
from app.gateway.dialects.request.input_bounds import HOSTED_TOOL_LIKELY_TOKENS, HOSTED_TOOL_TOKENS

# Fields in which an upstream reads the limit on the output; the first is added if a body has none of them.
OUTPUT_LIMIT_FIELDS: Mapping[Surface, tuple[str, ...]] = {
    Surface.CHAT: ("max_completion_tokens", "max_tokens"),
    Surface.COMPLETIONS: ("max_tokens",),
    Surface.RESPONSES: ("max_output_tokens",),
    Surface.MESSAGES: ("max_tokens",),
    Surface.GENERATE: ("maxOutputTokens", "max_output_tokens"),
}
# The object that contains it, on surfaces that do not have it in the body itself.
CONFIG_FIELDS: Mapping[Surface, tuple[str, ...]] = {Surface.GENERATE: ("generationConfig", "generation_config")}
_BLANK = " \t\r\n"
_DECODER = json.JSONDecoder()
_STREAM_OPTIONS = b'"stream_options":{"include_usage":true}'


def request_usage(params: CostParams, parsed: Mapping[str, Any]) -> CostParams:
    """Return the parameters with a body that requests usage, unless it does already. All other bytes stay.

    Raises: InvalidInput if `stream_options` is not an object of booleans.
    """
    options = parsed.get("stream_options")
    if "stream_options" not in parsed:
        start = params.body.index(b"{") + 1
        comma = b"," if parsed else b""
        spliced = params.body[:start] + _STREAM_OPTIONS + comma + params.body[start:]
        return params._replace(body=spliced, usage_injected=True)
    if options is not None and not isinstance(options, dict):
        raise InvalidInput.field("stream_options", "must be an object")
    stream_options = (options or {}).get("include_usage")
    if stream_options is True:
        return params
    if stream_options is not None and stream_options is not False:
        raise InvalidInput.field("stream_options.include_usage", "must be true or false")
    text = params.body.decode("utf-8-sig", "surrogatepass")
    start, end = _value_spans(text)["stream_options"]
    value = _with_member(text[start:end] if options else "{}", "include_usage", "true")
    spliced = (text[:start] + value + text[end:]).encode("utf-8", "surrogatepass")
    return params._replace(body=spliced, usage_injected=True)


def limit_output(params: CostParams, tokens: int) -> CostParams:
    """Return the parameters with a body that limits the output of each candidate. All other bytes stay.

    Lower limits in the body are kept, and a body without content, which no upstream serves, is not changed.
    """
    text = params.body.decode("utf-8", "surrogatepass")
    if not text.strip():
        return params
    names, configs = OUTPUT_LIMIT_FIELDS[params.surface], CONFIG_FIELDS.get(params.surface)
    if params.output_limit_field in names:
        names = (params.output_limit_field, *names)
    if configs is None:
        text = _with_output_limit(text, names, tokens)
    else:
        given = {name: text[slice(*span)] for name, span in _value_spans(text).items() if name in configs}
        config = next((name for name, value in given.items() if value != "null"), configs[0])
        value = given.get(config, "null")
        text = _with_member(text, config, _with_output_limit("{}" if value == "null" else value, names, tokens))
    return params._replace(
        body=text.encode("utf-8", "surrogatepass"), tokens_out=min(params.tokens_out, tokens * params.candidates),
        is_tokens_out_set=True, applied_max_tokens=tokens,
    )  # fmt: skip


def limit_calls(params: CostParams, most: int) -> CostParams:
    """Return the parameters with each limit that was added to hosted tools at most this number; the body stays."""
    if params.tools.bounded is None:
        return params
    tools = params.tools.bounded(most)
    readers = tools.readers - params.tools.readers
    return params._replace(
        # Summaries of the conversation are calls without a limit.
        tools=tools._replace(sub_calls=tools.sub_calls + params.tools.sub_calls[len(tools.sub_calls) :]),
        searches=tools.searches,
        tokens_in=params.tokens_in + readers * HOSTED_TOOL_TOKENS,
        tokens_in_likely=params.tokens_in_likely + readers * HOSTED_TOOL_LIKELY_TOKENS,
    )


def limit_tools(body: bytes, limits: Sequence[ToolLimit]) -> bytes:
    """Return a body with these limits on hosted tools. All other bytes stay."""
    if not limits:
        return body
    return _with_limits(body.decode("utf-8", "surrogatepass"), limits).encode("utf-8", "surrogatepass")


def name_model(body: bytes, model: str) -> bytes:
    """Return the bytes of an object that names this model, and no list of models. All other bytes stay."""
    text = body.decode("utf-8-sig", "surrogatepass")
    if "models" in _value_spans(text):
        start, end = member_span(text, "models")
        text = text[:start] + text[end:]
    return _with_member(text, "model", json.dumps(model)).encode("utf-8", "surrogatepass")


def add_cost(body: bytes, cost: str) -> bytes:
    """Return the bytes of a response with its cost in dollars in `usage`; unchanged if it has no usage."""
    try:
        text = body.decode("utf-8")
        start, end = _value_spans(text)["usage"]
        return (text[:start] + _with_member(text[start:end], "cost", cost) + text[end:]).encode()
    except (ValueError, LookupError, RecursionError):
        return body


def _with_output_limit(text: str, names: Sequence[str], tokens: int) -> str:
    """Return the text of an object in which each of these limits is at most `tokens`, and one is set.

    An upstream may read any of the fields, and may treat zero as no limit.
    """
    found = _value_spans(text)
    stated = {name: text[slice(*found[name])] for name in names if name in found}
    stated = {name: value for name, value in stated.items() if value != "null"}
    for name, value in stated.items():
        if not 0 < Decimal(json.loads(value, parse_int=Decimal, parse_float=Decimal)) <= tokens:
            text = _with_member(text, name, str(tokens))
    return text if stated else _with_member(text, names[0], str(tokens))


def _value_spans(text: str, bracket: str = "{") -> dict[Any, tuple[int, int]]:
    """Find the values of the first object in a text, or array, by name or position. Raises: ValueError, IndexError."""
    return {name: (start, end) for _, _, name, start, end in _members(text, bracket)}


def _with_member(text: str, name: str, value: str) -> str:
    """Return a text in which a field of the first object has this value, replaced or added as the first.

    Raises: ValueError, IndexError.
    """
    start, end = _value_spans(text).get(name, (0, 0))
    if end:
        return text[:start] + value + text[end:]
    first = text.index("{") + 1
    comma = "" if text[_skip(text, first)] == "}" else ","
    return f"{text[:first]}{json.dumps(name)}:{value}{comma}{text[first:]}"


def _with_limits(text: str, limits: Sequence[ToolLimit]) -> str:
    """Return the text of an object or array with limits set at their paths; missing objects are added.

    Raises: ValueError, IndexError.
    """
    below: dict[str | int, list[ToolLimit]] = {}
    for limit in limits:
        if limit.path:
            below.setdefault(limit.path[0], []).append(limit._replace(path=limit.path[1:]))
    spans = _value_spans(text, "[" if text.lstrip()[0] == "[" else "{") if below else {}
    # From the end, so that positions stay; what is added is added at the beginning.
    for key in sorted(below, key=lambda key: spans.get(key, (0, 0)), reverse=True):
        start, end = spans.get(key, (0, 0))
        if text[start:end] in {"", "null"}:
            text = _with_member(text, str(key), _with_limits("{}", below[key]))
        else:
            text = text[:start] + _with_limits(text[start:end], below[key]) + text[end:]
    for limit in limits:
        if not limit.path:
            text = _with_member(text, limit.name, str(limit.number))
    return text


def member_span(text: str, name: str) -> tuple[int, int]:
    """Find a field with its name and the one comma that goes with it. Raises: ValueError, IndexError."""
    for before, key, found, _, end in _members(text):
        if found == name:
            if text[before] == ",":
                return before, end
            after = _skip(text, end)
            return (key, _skip(text, after + 1)) if text[after] == "," else (key, end)
    raise ValueError(name)


def _members(text: str, bracket: str = "{") -> Iterator[tuple[int, int, Any, int, int]]:
    """Yield for each field the positions of its comma or bracket and its name, the name, and the span of its value.

    An element of an array has its number for a name.
    """
    before, number, closing = text.index(bracket), 0, "}" if bracket == "{" else "]"
    if text[_skip(text, before + 1)] == closing:
        return
    while text[before] != closing:
        name, start = number, (key := _skip(text, before + 1))
        if closing == "}":
            name, at = _DECODER.raw_decode(text, key)
            start = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield before, key, name, start, end
        before, number = _skip(text, end), number + 1
        if text[before] not in f",{closing}":
            raise ValueError(name)


def _skip(text: str, at: int) -> int:
    while text[at] in _BLANK:
        at += 1
    return at
