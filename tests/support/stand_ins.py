"""Stand-ins for the model providers: each answers in its provider's documented form, chosen by the credential.

The request decides the response: tools are called once, a schema is filled in, a prompt with `answer 429` gets that
status, and everything else gets "Hello there", for 20 tokens in and 10 out.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Mapping
from typing import Any

from tests.support.gateway import BASES, KEYS
from tests.support.upstreams import Exchange

WORDS = ("Hello", " there")
EVENT = '{"name": "Fair", "day": "Friday"}'
_ARGUMENTS = '{"city": "Paris"}'
_MODELS = {
    "openai": "gpt-5", "anthropic": "claude-sonnet-4-6", "gemini": "gemini-2.5-flash",
    "openrouter": "openai/gpt-5", "groq": "llama-3.3-70b-versatile",
}  # fmt: skip
_USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}
_IMAGE_USAGE = {
    "total_tokens": 282, "input_tokens": 10, "output_tokens": 272,
    "input_tokens_details": {"text_tokens": 10, "image_tokens": 0},
}  # fmt: skip
_WORDS_OF_ERRORS = {400: "invalid_request_error", 429: "rate_limit_error", 500: "api_error", 529: "overloaded_error"}
_GOOGLE_STATUSES = {400: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL"}
_STATUS = re.compile(rb"answer (\d{3})( once)?")


class StandIns:
    """A behaviour of an upstream."""

    def __init__(self) -> None:
        self._answered_once = False

    def __call__(self, exchange: Exchange) -> None:
        """Answer as the provider of the credential does."""
        provider = _provider_of(exchange)
        path = exchange.asked.target.removeprefix(BASES[provider]).removeprefix("/").partition("?")[0]
        if (asked := _STATUS.search(exchange.asked.body)) and not (asked[2] and self._answered_once):
            self._answered_once = bool(asked[2])
            _refuse(exchange, provider, int(asked[1]))
        else:
            {"anthropic": _anthropic, "gemini": _gemini}.get(provider, _openai)(exchange, provider, path)


def _provider_of(exchange: Exchange) -> str:
    sent = [exchange.asked.header(name) for name in ("authorization", "x-api-key", "x-goog-api-key")]
    (credential,) = filter(None, sent)
    (provider,) = (name for name, key in KEYS.items() if credential.removeprefix("Bearer ") == key)
    assert exchange.asked.target.startswith(BASES[provider]), exchange.asked
    return provider


def _refuse(exchange: Exchange, provider: str, status: int) -> None:
    error: dict[str, Any] = {"message": "As asked for.", "type": _WORDS_OF_ERRORS[status]}
    if provider == "gemini":
        error = {"code": status, "message": "As asked for.", "status": _GOOGLE_STATUSES[status]}
    elif provider == "openrouter":
        error = {"code": status, "message": "As asked for."}
    body = {"error": error}
    if provider == "anthropic":
        body = {"type": "error", "error": error, "request_id": "req_1"}
    exchange.json(body, status, ("Retry-After", 0))


def _openai(exchange: Exchange, provider: str, path: str) -> None:
    model = _MODELS[provider]
    if path == "audio/transcriptions" and b"whisper" in exchange.asked.body:
        usage = {"usage": {"type": "duration", "seconds": 1}} if provider == "openai" else {}
        exchange.json({"text": "Hello there", **usage})
    elif path in _OPENAI_ANSWERS:
        exchange.json(_OPENAI_ANSWERS[path])
    elif path == "models":
        exchange.json({"object": "list", "data": [_openai_model(model)]})
    elif path == f"models/{model}":
        exchange.json(_openai_model(model))
    elif path == "audio/speech":
        exchange.answer(b"ID3 sound", 200, ("Content-Type", "audio/mpeg"))
    elif path == "embeddings":
        exchange.json(_embeddings(exchange.asked.json()))
    elif path == "responses":
        _respond(exchange)
    elif path == "chat/completions":
        _complete_chat(exchange, provider, model)
    else:
        exchange.json({"error": {"message": f"Invalid URL {path}", "type": "invalid_request_error"}}, 404)


_OPENAI_ANSWERS: Mapping[str, Any] = {
    "responses/input_tokens": {"object": "response.input_tokens", "input_tokens": 20},
    "audio/transcriptions": {
        "text": "Hello there",
        "usage": {
            "type": "tokens", "input_tokens": 14, "input_token_details": {"text_tokens": 0, "audio_tokens": 14},
            "output_tokens": 3, "total_tokens": 17,
        },
    },
    "audio/translations": {"text": "Hello there"},
    "images/generations": {"created": 1, "data": [{"b64_json": "aGVsbG8="}], "usage": _IMAGE_USAGE},
    "images/edits": {"created": 1, "data": [{"b64_json": "aGVsbG8="}], "usage": _IMAGE_USAGE},
    "moderations": {
        "id": "modr-1", "model": "omni-moderation-latest",
        "results": [{"flagged": False, "categories": {}, "category_scores": {}, "category_applied_input_types": {}}],
    },
}  # fmt: skip


def _openai_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1, "owned_by": "system", "active": True, "context_window": 1}


def _embeddings(body: Mapping[str, Any]) -> dict[str, Any]:
    vector: Any = [0.5, -0.25]
    if body.get("encoding_format") == "base64":
        vector = base64.b64encode(struct.pack("<2f", *vector)).decode()
    count = len(body["input"]) if isinstance(body["input"], list) else 1
    data = [{"object": "embedding", "index": index, "embedding": vector} for index in range(count)]
    return {
        "object": "list", "data": data, "model": body["model"], "usage": {"prompt_tokens": 8, "total_tokens": 8}
    }  # fmt: skip


def _complete_chat(exchange: Exchange, provider: str, model: str) -> None:
    body = exchange.asked.json()
    shape = {"id": "chatcmpl-1", "created": 1, "model": model, "service_tier": "default", "system_fingerprint": "fp_1"}
    if not body.get("stream"):
        message, end = _message(body)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": end}
        exchange.json({**shape, "object": "chat.completion", "choices": [choice], "usage": _USAGE})
        return
    shape["object"] = "chat.completion.chunk"
    exchange.start_stream()
    if provider == "openrouter":
        exchange.chunk(b": OPENROUTER PROCESSING\n\n")
    asked = (body.get("stream_options") or {}).get("include_usage", False)
    extra = {"usage": None} if asked and provider == "openai" else {}
    for word in WORDS:
        choice = {"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None}
        _event(exchange, {**shape, "choices": [choice], **extra})
    last = {**shape, "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}], **extra}
    if provider == "groq":
        last["x_groq"] = {"id": "req_1", "usage": _USAGE}
    _event(exchange, last)
    if provider == "openrouter" or (asked and provider == "openai"):
        _event(exchange, {**shape, "choices": [], "usage": _USAGE})
    exchange.chunk(b"data: [DONE]\n\n")
    exchange.end_stream()


def _message(body: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    message: dict[str, Any] = {"role": "assistant", "content": _text(body.get("response_format")), "refusal": None}
    if body.get("tools") and body["messages"][-1]["role"] != "tool":
        function = {"name": "get_weather", "arguments": _ARGUMENTS}
        calls = [{"id": "call_1", "type": "function", "function": function}]
        return {**message, "content": None, "tool_calls": calls}, "tool_calls"
    return message, "stop"


def _text(wanted_format: Any) -> str:
    return EVENT if wanted_format else "".join(WORDS)


def _respond(exchange: Exchange) -> None:
    body = exchange.asked.json()
    if body.get("tools"):
        output: dict[str, Any] = {
            "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_weather",
            "arguments": _ARGUMENTS, "status": "completed",
        }  # fmt: skip
    else:
        part = {"type": "output_text", "text": _text(body.get("text", {}).get("format")), "annotations": []}
        output = {
            "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]
        }  # fmt: skip
    answer = {
        "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "gpt-5",
        "output": [output], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None,
        "incomplete_details": None, "instructions": None, "metadata": {}, "temperature": 1.0, "top_p": 1.0,
        "store": False,
        "usage": {
            "input_tokens": 20, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 10,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 30,
        },
    }  # fmt: skip
    if not body.get("stream"):
        exchange.json(answer)
        return
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    text = {"type": "output_text", "text": "", "annotations": []}
    begun = {**answer, "status": "in_progress", "output": [], "usage": None}
    events = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {
            "type": "response.output_item.added", "output_index": 0,
            "item": {**output, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": text},
        *({"type": "response.output_text.delta", **place, "delta": word, "logprobs": []} for word in WORDS),
        {"type": "response.output_text.done", **place, "text": "".join(WORDS), "logprobs": []},
        {"type": "response.content_part.done", **place, "part": {**text, "text": "".join(WORDS)}},
        {"type": "response.output_item.done", "output_index": 0, "item": output},
        {"type": "response.completed", "response": answer},
    ]  # fmt: skip
    exchange.start_stream()
    for number, event in enumerate(events):
        _event(exchange, {**event, "sequence_number": number}, named=True)
    exchange.end_stream()


def _anthropic(exchange: Exchange, _provider: str, path: str) -> None:
    model = {
        "type": "model", "id": "claude-sonnet-4-6", "display_name": "Claude", "created_at": "2026-01-01T00:00:00Z"
    }  # fmt: skip
    if path == "v1/messages":
        _answer_message(exchange)
    elif path == "v1/messages/count_tokens":
        exchange.json({"input_tokens": 20})
    elif path == "v1/models":
        exchange.json({"data": [model], "has_more": False, "first_id": model["id"], "last_id": model["id"]})
    elif path == f"v1/models/{model['id']}":
        exchange.json(model)
    else:
        exchange.json({"type": "error", "error": {"type": "not_found_error", "message": path}}, 404)


def _answer_message(exchange: Exchange) -> None:
    body = exchange.asked.json()
    last = body["messages"][-1]["content"]
    text = {"type": "text", "text": _text(body.get("output_config", body.get("output_format")))}
    content: dict[str, Any] = text
    if body.get("tools") and not (isinstance(last, list) and last[0]["type"] == "tool_result"):
        content = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": json.loads(_ARGUMENTS)}
    usage = {
        "input_tokens": 20, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 10
    }  # fmt: skip
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6", "content": [content],
        "stop_reason": "tool_use" if content is not text else "end_turn", "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    if not body.get("stream"):
        exchange.json(message)
        return
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
            for word in WORDS
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 10},
        },
        {"type": "message_stop"},
    ]  # fmt: skip
    exchange.start_stream()
    for event in events:
        _event(exchange, event, named=True)
    exchange.end_stream()


def _gemini(exchange: Exchange, _provider: str, path: str) -> None:
    model = {
        "name": "models/gemini-2.5-flash", "version": "001", "displayName": "Gemini", "inputTokenLimit": 1_048_576,
        "outputTokenLimit": 65_536, "supportedGenerationMethods": ["generateContent", "countTokens"],
    }  # fmt: skip
    path, _, verb = path.partition("/")[2].partition(":")  # v1 or v1beta
    vector = {"values": [0.5, -0.25]}
    if verb == "generateContent":
        exchange.json(_gemini_answer(_gemini_part(exchange.asked.json()), end="STOP"))
    elif verb == "streamGenerateContent":
        exchange.start_stream()
        for word in WORDS:
            _event(exchange, _gemini_answer({"text": word}, end="STOP" if word == WORDS[-1] else None))
        exchange.end_stream()
    elif verb == "countTokens":
        exchange.json({"totalTokens": 20})
    elif verb == "embedContent":
        exchange.json({"embedding": vector})
    elif verb == "batchEmbedContents":
        exchange.json({"embeddings": [vector for _ in exchange.asked.json()["requests"]]})
    elif path == "models":
        exchange.json({"models": [model]})
    elif path == model["name"]:
        exchange.json(model)
    else:
        exchange.json({"error": {"code": 404, "message": path, "status": "NOT_FOUND"}}, 404)


def _gemini_part(body: Mapping[str, Any]) -> dict[str, Any]:
    parts = body["contents"][-1]["parts"]
    if body.get("tools") and "functionResponse" not in parts[0] and "function_response" not in parts[0]:
        declared = [each for tool in body["tools"] for each in _either(tool, "functionDeclarations")]
        for each in declared:
            _check_gemini_schema(each.get("parameters", {"type": "OBJECT"}))
        named = [each["name"] for each in declared if each["name"] in str(parts[0].get("text"))]
        args = {} if named else json.loads(_ARGUMENTS)
        return {"functionCall": {"name": named[0] if named else "get_weather", "args": args}}
    wanted = body.get("generationConfig", {})
    if kinds := wanted.get("responseModalities"):
        kind = {"AUDIO": "audio/L16;codec=pcm;rate=24000", "IMAGE": "image/png"}[kinds[0]]
        return {"inlineData": {"mimeType": kind, "data": "aGVsbG8="}}
    return {"text": _text(wanted.get("responseMimeType") or wanted.get("response_mime_type"))}


def _either(of: Mapping[str, Any], name: str) -> Any:
    """Return a member by its name in JSON or in Protocol Buffers; Gemini reads both."""
    return of.get(name) or of[re.sub("([A-Z])", r"_\1", name).lower()]


def _check_gemini_schema(schema: Mapping[str, Any]) -> None:
    """Check what Gemini refuses: a schema without a type, and formats of texts other than two."""
    kind = schema["type"].upper()
    assert kind in {"STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT"}, schema
    assert kind != "STRING" or schema.get("format", "enum") in {"enum", "date-time"}, schema
    for each in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
        _check_gemini_schema(each)


def _gemini_answer(part: Mapping[str, Any], *, end: str | None) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": [part]}, "index": 0, **({"finishReason": end} if end else {})}
    modality = part.get("inlineData", {"mimeType": "text"})["mimeType"].partition("/")[0].upper()
    return {
        "candidates": [candidate], "modelVersion": "gemini-2.5-flash", "responseId": "r1",
        "usageMetadata": {
            "promptTokenCount": 20, "candidatesTokenCount": 10, "totalTokenCount": 30,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 20}],
            "candidatesTokensDetails": [{"modality": modality, "tokenCount": 10}],
        },
    }  # fmt: skip


def _event(exchange: Exchange, event: Mapping[str, Any], *, named: bool = False) -> None:
    name = f"event: {event['type']}\n" if named else ""
    exchange.chunk(f"{name}data: {json.dumps(event)}\n\n".encode())
