"""Accumulation of the usage in a response: the largest counts, and the size of its content."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from app.gateway.dialects.request import input_bounds, tool_costs
from app.gateway.dialects.request.cost_params import FIELDS, CostParams, Dialect, Surface
from app.gateway.dialects.response import usage_readers
from app.gateway.dialects.response.usage_readers import WEB_SEARCH, Usage, UsageReading

_TEXT_FIELDS, _OTHER_FIELDS, _MORE_THAN_CONTENT = FIELDS["text"], FIELDS["not_text"], FIELDS["more_than_content"]
_CONTAINERS = (dict, list)
_ARGUMENT_FIELDS = frozenset({"args", "input", "executableCode"})
_REPEATED, _REASONING_PARTS = "reasoning_content", "reasoning_details"
_RESULT = "_result"
_ARGUMENTS = json.JSONEncoder(default=str, ensure_ascii=False, separators=(",", ":"))
_AUDIO = "audio.delta"
_SPEECH = "speech.audio.delta"
_DELTA_EVENTS = ("response.", "transcript.")
_BASE64 = re.compile(r"data:[\w/+.-]*;base64,[A-Za-z0-9+/=_-]*")
_MIN_BASE64_CHARS = 200
_MAX_NODES = 100_000
_MAX_TOOL_CALLS = 10_000
# Actions of a search call that are not billed.
_UNBILLED_ACTIONS = frozenset({"open_page", "find_in_page"})
_FAILURES = ("error", "response.failed")
# Only Anthropic's usage has them.
_CACHE_COUNTS = frozenset({"cache_read_input_tokens", "cache_creation_input_tokens"})
_IMAGE_EVENTS = ("image_generation.", "image_edit.")


class UsageAccumulator:
    """Accumulates the objects of one response in the order of arrival."""

    def __init__(self, params: CostParams) -> None:
        self._surface = params.surface
        self._reports_cost = params.dialect is Dialect.OPENROUTER
        self._duration: Any = None
        self._image_model = params.tools.image.model if params.tools.image else None
        self._reported: dict[str, Any] = {}
        self._is_gemini = False
        self._has_counts = False
        self._has_ended = False
        self.content_bytes = 0
        self._searches: int | None = None
        self._tool_calls: dict[tuple[str, str], str] = {}
        self._images: Mapping[str, Any] = {}
        self._has_images = False
        # The model, tier, speed and region that were reported last.
        self._named: dict[str, str] = {}
        self.has_failed = False
        self._search_nanos: int | None = None
        self._is_blank = True
        self._has_audio = False

    def add(self, payload: Mapping[str, Any], omitted: Mapping[str, int] | None = None) -> None:
        """Add an object: a whole response, or an event of a stream; `omitted`: the size of text left out, by field."""
        self._is_blank = False
        kind = payload.get("type")
        delta = payload.get("delta")
        if delta is not None and not payload.keys() & _MORE_THAN_CONTENT:
            self._add_content(payload, payload, omitted)
            return
        inner = payload
        is_usual = "choices" in payload or "candidates" in payload
        for name in () if is_usual else ("message", "response", "interaction"):
            if isinstance(payload.get(name), dict):
                inner = payload[name]
        self._name(model=_text(inner, "model") or _text(inner, "modelVersion"), tier=_text(inner, "service_tier"))
        if not is_usual:
            self._has_images = self._has_images or _is_image_event(payload)
            self._add_tool_calls(payload, inner)
        elif "candidates" in payload:
            self._add_candidates(payload["candidates"])
        if payload.get("error") or inner.get("error") or kind in _FAILURES or _is_failed(payload):
            self.has_failed = True
        self._add_content(payload, inner, omitted)
        self._merge_usage(payload, inner)
        self._duration = payload.get("duration", self._duration)
        if self._surface in tool_costs.SEARCH_SURFACES:
            self._search_nanos = usage_readers.search_nanos(payload, self._search_nanos)

    def reading(self, *, status: int, bytes_received: int, is_broken: bool, bytes_unread: int) -> UsageReading:
        # Gemini reports running counts with every event; all others report once, at the end.
        has_last_counts = self._has_ended or not self._is_gemini or not (is_broken or self.has_failed)
        return UsageReading(
            status=status, usage=self._usage(), is_complete=self._has_counts and has_last_counts,
            bytes_received=bytes_received, bytes_unread=bytes_unread, streamed_bytes=self.content_bytes,
            tool_calls=Counter(self._tool_calls.values()), has_failed=self.has_failed, has_audio=self._has_audio,
            is_blank=self._is_blank and not bytes_unread, **self._named,
        )  # fmt: skip

    def _usage(self) -> Usage | None:
        if self._surface in tool_costs.SEARCH_SURFACES:
            return None if self._search_nanos is None else Usage(cost_nanos=self._search_nanos)
        is_transcript = self._surface in input_bounds.TRANSCRIPT_SURFACES
        if is_transcript and not self._reported and self._duration is not None:
            return usage_readers.duration_usage(self._duration)
        is_opaque_message = self._surface is Surface.OPAQUE and bool(_CACHE_COUNTS & self._reported.keys())
        if self._is_gemini:
            usage = usage_readers.gemini_usage(self._reported)
        elif self._surface is Surface.MESSAGES or is_opaque_message:
            usage = usage_readers.anthropic_usage(self._reported, reports_cost=self._reports_cost)
        elif self._has_images:
            usage = usage_readers.image_usage(self._reported)
        else:
            usage = usage_readers.openai_usage(self._reported, reports_cost=self._reports_cost)
        images = usage_readers.image_usage(self._images) if self._images else None
        if usage is None:
            usage = images
        elif images is not None:
            runs = usage.runs or ((None, usage),)
            tokens_in, tokens_out = usage.tokens_in + images.tokens_in, usage.tokens_out + images.tokens_out
            runs = (*runs, (self._image_model, images))
            usage = usage._replace(tokens_in=tokens_in, tokens_out=tokens_out, runs=runs)
        if usage is None:
            return None
        searches = self._searches
        if searches is None:
            searches = usage.searches or sum(kind == WEB_SEARCH for kind in self._tool_calls.values())
        searches = min(searches, usage_readers.MAX_TOKENS)
        return usage if searches == usage.searches else usage._replace(searches=searches)

    def _name(self, **reported: str | None) -> None:
        self._named |= {name: text for name, text in reported.items() if text}

    def _merge_usage(self, payload: Mapping[str, Any], inner: Mapping[str, Any]) -> None:
        found = inner.get("usage") or payload.get("usage")
        if not found and (counts := inner.get("usageMetadata") or payload.get("usageMetadata")):
            found, self._is_gemini = counts, self._is_gemini or isinstance(counts, dict)
        if not isinstance(found, dict):
            # Groq always reports it here.
            extra = payload.get("x_groq")
            found = extra.get("usage") if isinstance(extra, dict) else None
            if not isinstance(found, dict):
                return
        for name, value in found.items():
            known = self._reported.get(name)
            if known is None or (type(known) is type(value) is int and value > known):
                self._reported[name] = value
            elif value != known:
                self._reported[name] = _larger(known, value)
        tier = (_text(found, "service_tier") or _text(found, "serviceTier") or "").lower()
        self._name(speed=_text(found, "speed"), region=_text(found, "inference_geo"), tier=tier)
        # The first event of a message has the input count; only a later one has the output count.
        self._has_counts = payload.get("type") != "message_start"

    def _add_content(
        self, payload: Mapping[str, Any], inner: Mapping[str, Any], omitted: Mapping[str, int] | None
    ) -> None:
        kind = _text(payload, "type") or ""
        is_event = kind.startswith(_DELTA_EVENTS)
        delta = payload.get("delta")
        if is_event and isinstance(delta, str):
            if kind.endswith(_AUDIO):
                self._has_audio = True
            else:
                self.content_bytes += _utf8_size(delta)
                self.content_bytes += omitted.get("delta", 0) if omitted else 0
            return
        self._has_audio = self._has_audio or kind == _SPEECH
        size = 0
        if is_event:
            # The events that close a part repeat its whole content.
            if inner is not payload or kind.endswith("text.done"):
                size = _text_bytes({"output": inner.get("output"), "text": payload.get("text")})
        elif self._surface is not Surface.RESPONSES or "output" in payload:
            size = _text_bytes(payload)
        if omitted and (size or not is_event):
            size += sum(omitted.get(name, 0) for name in _TEXT_FIELDS)
        self.content_bytes = max(self.content_bytes, size) if is_event else self.content_bytes + size

    def _add_tool_calls(self, event: Mapping[str, Any], inner: Mapping[str, Any]) -> None:
        """Count the hosted tools in use: each item once, however often the events of a stream repeat it."""
        for listed in (inner.get("output"), inner.get("content")):
            for index, item in enumerate(listed if isinstance(listed, list) else []):
                self._add_item(item, index)
        for name, at in (("item", "output_index"), ("content_block", "index")):
            self._add_item(event.get(name), event.get(at))
        used = inner.get("tool_usage")
        if isinstance(used, dict):
            searched, self._images = (used.get("web_search"), _larger(self._images, used.get("image_gen") or {}))
            requests = searched.get("num_requests") if isinstance(searched, dict) else None
            if isinstance(requests, int) and not isinstance(requests, bool) and requests >= 0:
                self._searches = max(requests, self._searches or 0)
        self._add_candidates(inner.get("candidates"))

    def _add_candidates(self, candidates: Any) -> None:
        for candidate in candidates if isinstance(candidates, list) else []:
            if isinstance(candidate, dict):
                self._has_ended = self._has_ended or bool(candidate.get("finishReason"))
                self._add_grounding(candidate.get("groundingMetadata"))

    def _add_item(self, item: Any, index: Any) -> None:
        kind = _text(item, "type") if isinstance(item, dict) else None
        if kind is None or len(self._tool_calls) >= _MAX_TOOL_CALLS:
            return
        key = (kind, _text(item, "id") or str(index))
        if kind == "server_tool_use":
            name = _text(item, "name") or ""
            self._tool_calls[key] = tool_costs.CODE_EXECUTION if name.endswith(tool_costs.CODE_EXECUTION) else name
        elif kind.endswith("_call"):
            name = kind.removesuffix("_call")
            action = item.get("action")
            if isinstance(action, dict) and action.get("type") in _UNBILLED_ACTIONS:
                # The event that opened the item had no action yet.
                self._tool_calls.pop(key, None)
            else:
                self._tool_calls[key] = name

    def _add_grounding(self, grounding: Any) -> None:
        if not isinstance(grounding, dict):
            return
        for name in ("webSearchQueries", "imageSearchQueries"):
            queries = grounding.get(name)
            billed = queries if isinstance(queries, list) else []
            if self._named.get("model", "").startswith(tool_costs.SEARCH_PER_PROMPT):
                # Billed per prompt, whatever the number of queries.
                billed, name = billed[:1], ""  # noqa: PLW2901 - one entry for both kinds
            for index in range(min(len(billed), _MAX_TOOL_CALLS)):
                self._tool_calls[name, str(index)] = WEB_SEARCH
        chunks = grounding.get("groundingChunks")
        listed = chunks if isinstance(chunks, list) else []
        if any(isinstance(chunk, dict) and "maps" in chunk for chunk in listed):
            self._tool_calls["maps", ""] = tool_costs.GOOGLE_MAPS


def _larger(earlier: Any, later: Any) -> Any:
    """Merge two reports of counts: they are cumulative, so the larger of each is right."""
    if isinstance(earlier, dict):
        if not isinstance(later, dict):
            return earlier
        merged = {name: _larger(earlier.get(name), value) for name, value in later.items() if value is not None}
        return {**earlier, **merged}
    if _is_number(earlier):
        return max(earlier, later) if _is_number(later) else earlier
    return earlier if later is None else later


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _is_failed(event: Mapping[str, Any]) -> bool:
    """Return whether this is an error in one of the rarer forms: of vLLM, of Groq, or of OpenRouter."""
    if event.get("object") == "error":
        return True
    if "x_groq" in event and isinstance(event["x_groq"], dict) and event["x_groq"].get("error"):
        return True
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and (first.get("finish_reason") == "error" or bool(first.get("error")))


def _is_image_event(event: Mapping[str, Any]) -> bool:
    kind = event.get("type")
    if isinstance(kind, str) and kind.startswith(_IMAGE_EVENTS):
        return True
    listed = event.get("data")
    first = listed[0] if isinstance(listed, list) and listed else None
    return isinstance(first, dict) and ("b64_json" in first or "url" in first)


def _text_bytes(payload: Mapping[str, Any]) -> int:
    stack: list[Any] = [payload]
    size = node_count = 0
    while stack and node_count < _MAX_NODES:
        node_count += 1
        node = stack.pop()
        if isinstance(node, list):
            stack += [each for each in node if isinstance(each, _CONTAINERS)]
        # What a hosted tool returned was not written by the model.
        elif not str(node.get("type")).endswith(_RESULT):
            for name, value in node.items():
                if isinstance(value, str):
                    # Some servers have the same text in two fields.
                    if name in _TEXT_FIELDS and (name != _REPEATED or node.get("reasoning") != value):
                        size += _utf8_size(value)
                elif isinstance(value, _CONTAINERS) and value:
                    if name in _ARGUMENT_FIELDS and isinstance(value, dict):
                        size += _utf8_size(_ARGUMENTS.encode(value))
                    elif name not in _OTHER_FIELDS or (name == _REASONING_PARTS and not node.get("reasoning")):
                        stack.append(value)
    return size


def _utf8_size(text: str) -> int:
    if len(text) > _MIN_BASE64_CHARS and ";base64," in text:
        text = _BASE64.sub("", text)
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _text(payload: Mapping[str, Any], name: str) -> str | None:
    value = payload.get(name)
    return value[:200] if isinstance(value, str) and value else None
