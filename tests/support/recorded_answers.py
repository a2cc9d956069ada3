"""Shortened responses in the formats of upstreams, for tests of the gateway."""

from __future__ import annotations

import json
from typing import Any

CHAT_USAGE = {
    "prompt_tokens": 1200,
    "completion_tokens": 300,
    "total_tokens": 1500,
    "prompt_tokens_details": {"cached_tokens": 1024, "cache_write_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 128, "audio_tokens": 0},
}
CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "gpt-5-2025-08-07",
    "service_tier": "default",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": CHAT_USAGE,
}
RESPONSES_USAGE = {
    "input_tokens": 1200,
    "input_tokens_details": {"cached_tokens": 1024, "cache_write_tokens": 0},
    "output_tokens": 300,
    "output_tokens_details": {"reasoning_tokens": 128},
    "total_tokens": 1500,
}
EMBEDDINGS = {
    "object": "list",
    "model": "text-embedding-3-small",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}],
    "usage": {"prompt_tokens": 8, "total_tokens": 8},
}
MESSAGE_USAGE = {
    "input_tokens": 100,
    "cache_creation_input_tokens": 2000,
    "cache_read_input_tokens": 5000,
    "cache_creation": {"ephemeral_5m_input_tokens": 1500, "ephemeral_1h_input_tokens": 500},
    "output_tokens": 400,
    "server_tool_use": {"web_search_requests": 2},
    "service_tier": "standard",
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "model": "claude-sonnet-4-5-20250929",
    "content": [{"type": "text", "text": "Hello"}],
    "usage": MESSAGE_USAGE,
}
GEMINI_USAGE = {
    "promptTokenCount": 15,
    "cachedContentTokenCount": 0,
    "candidatesTokenCount": 6,
    "thoughtsTokenCount": 100,
    "toolUsePromptTokenCount": 0,
    "totalTokenCount": 121,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 15}],
}
GEMINI = {
    "candidates": [{"content": {"parts": [{"text": 'Hi {"x"}'}], "role": "model"}, "finishReason": "STOP"}],
    "usageMetadata": GEMINI_USAGE,
    "modelVersion": "gemini-2.5-pro",
}
OPENROUTER = {
    "id": "gen-1",
    "model": "openai/gpt-5-mini",
    "choices": [{"message": {"role": "assistant", "content": "Hi"}}],
    "usage": {
        "prompt_tokens": 194,
        "completion_tokens": 2,
        "total_tokens": 196,
        "cost": 0.00095,
        "cost_details": {"upstream_inference_cost": None},
    },
}


def data(event: Any, end: str = "\n") -> bytes:
    """Return a server-sent event without a name."""
    return f"data: {json.dumps(event, separators=(',', ':'), ensure_ascii=False)}{end}{end}".encode()


def named(event: dict[str, Any], end: str = "\n") -> bytes:
    """Return a server-sent event with its type as its name."""
    return f"event: {event['type']}{end}".encode() + data(event, end)


def chunk(**more: Any) -> dict[str, Any]:
    """Return a chunk of a chat stream."""
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt-5-2025-08-07", **more}


WORDS = ("Zoë ", "says 日本 ", "“usage”:null, ", '"usage":null,{}[] ', "🙂\n")


def chat_stream(end: str = "\n", *, asked: bool) -> bytes:
    """Return a chat stream of OpenAI, with or without `include_usage`."""
    extra: dict[str, Any] = {"usage": None} if asked else {}
    parts = [f": keep-alive{end}{end}".encode()]
    parts += [
        data(chunk(choices=[{"index": 0, "delta": {"content": word}}], **extra, obfuscation="aB3"), end)
        for word in WORDS
    ]
    parts += [data(chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], **extra), end)]
    if asked:
        parts += [data(chunk(choices=[], usage=CHAT_USAGE), end)]
    return b"".join([*parts, f"data: [DONE]{end}{end}".encode()])


def responses_stream(end: str = "\n") -> bytes:
    """Return a stream of the Responses API."""
    response = {"id": "resp_1", "object": "response", "model": "gpt-5-2025-08-07", "error": None}
    done = {**response, "output": [{"type": "web_search_call"}, {"type": "message"}], "usage": RESPONSES_USAGE}
    events = [
        {"type": "response.created", "response": {**response, "usage": None}},
        *({"type": "response.output_text.delta", "delta": word} for word in WORDS),
        {"type": "response.output_text.done", "text": "".join(WORDS)},
        {"type": "response.completed", "response": done},
    ]
    return b"".join(named(event, end) for event in events)


def message_stream(end: str = "\n") -> bytes:
    """Return a stream of Anthropic."""
    begun = {"input_tokens": 25, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1000, "output_tokens": 1}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"model": "claude-sonnet-4-5-20250929", "usage": begun}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": w}} for w in WORDS),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}},
        {"type": "message_stop"},
    ]
    return b"".join(named(event, end) for event in events)


def gemini_events() -> list[dict[str, Any]]:
    """Return the events of a Gemini stream: running counts, the last with the end."""
    events: list[dict[str, Any]] = [
        {
            "candidates": [{"content": {"parts": [{"text": word}]}}],
            "usageMetadata": {"promptTokenCount": 15, "candidatesTokenCount": count, "totalTokenCount": 15 + count},
            "modelVersion": "gemini-2.5-pro",
        }
        for count, word in enumerate(WORDS, 1)
    ]
    return [*events, GEMINI]


def gemini_stream(end: str = "\n") -> bytes:
    """Return Gemini's stream with `alt=sse`."""
    return b"".join(data(event, end) for event in gemini_events())


def gemini_array() -> bytes:
    """Return Gemini's stream without `alt=sse`: one JSON array."""
    return ("[" + "\n,\r\n".join(json.dumps(event, indent=2) for event in gemini_events()) + "\n]\n").encode()


def openrouter_stream(end: str = "\n") -> bytes:
    """Return a stream of OpenRouter, with its comments and cost."""
    parts = [f": OPENROUTER PROCESSING{end}{end}".encode()]
    parts += [data(chunk(choices=[{"index": 0, "delta": {"content": word}}]), end) for word in WORDS]
    parts += [data({**chunk(choices=[]), "usage": OPENROUTER["usage"]}, end)]
    return b"".join([*parts, f"data: [DONE]{end}{end}".encode()])


def groq_stream(end: str = "\n") -> bytes:
    """Return a stream of Groq, which has its usage in a separate field."""
    parts = [data(chunk(choices=[{"index": 0, "delta": {"content": word}}]), end) for word in WORDS]
    last = chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], x_groq={"id": "r", "usage": CHAT_USAGE})
    return b"".join([*parts, data(last, end), f"data: [DONE]{end}{end}".encode()])
