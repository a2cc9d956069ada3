"""The usage that language model APIs report, in the forms of their documentation and packages.

Read on 2026-11-23: the types of `openai` 3.54.0 (`completion_usage.py`, `response_usage.py`, `images_response.py`,
`transcription.py`), `anthropic` 2.12.0 (`usage.py`, `message_delta_usage.py`, `beta_iterations_usage.py`),
`google-genai` 3.4.0 (`GenerateContentResponseUsageMetadata`, `interactions/usage.py`), `groq` 1.7.0
(`completion_usage.py`, `chat_completion.py`); https://openrouter.ai/docs/use-cases/usage-accounting.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.errors import InvalidInput
from app.gateway.dialects.request import input_bounds
from app.gateway.dialects.request.cost_params import CostParams, Dialect, Surface
from app.gateway.dialects.response.usage_readers import Usage, UsageReading
from tests.support.response_readers import reader_of

TIMES = {"queue_time": 0.01, "prompt_time": 0.02, "completion_time": 0.3, "total_time": 0.32}


def _read(dialect: Dialect, surface: Surface, *bodies: Any) -> UsageReading:
    """Return what is read from one body, or from several events of a stream."""
    is_streamed = len(bodies) > 1
    params = CostParams(surface, dialect, model="m", is_streamed=is_streamed)
    kind = "text/event-stream" if is_streamed else "application/json"
    reader = reader_of(params, status=200, content_type=kind)
    for body in bodies:
        text = json.dumps(body).encode()
        reader.feed(b"data: " + text + b"\n\n" if is_streamed else text)
    reader.flush()
    reading = reader.finish(is_broken=False)
    # Whether the tokens are divided by kind matters for their price only.
    usage = None if reading.usage is None else reading.usage._replace(is_undivided=False, undivided_in=0)
    return reading._replace(usage=usage)


USAGES: list[tuple[str, Dialect, Surface, list[Any], Usage]] = [
    (
        "openai chat",
        Dialect.OPENAI,
        Surface.CHAT,
        [
            {
                "usage": {
                    "prompt_tokens": 1200, "completion_tokens": 300, "total_tokens": 1500,
                    "prompt_tokens_details": {
                        "cached_tokens": 1024, "cache_write_tokens": 100, "audio_tokens": 10, "image_tokens": 20,
                        "text_tokens": 1170,
                    },
                    "completion_tokens_details": {
                        "reasoning_tokens": 128, "audio_tokens": 5, "accepted_prediction_tokens": 7,
                        "rejected_prediction_tokens": 9, "text_tokens": 295,
                    },
                }
            }
        ],
        Usage(
            1200, 300, cache_read=1024, cache_write=100, audio_in=10, image_in=20, audio_out=5, reasoning=128
        ),
    ),
    (
        "openai responses",
        Dialect.OPENAI,
        Surface.RESPONSES,
        [
            {
                "object": "response",
                "usage": {
                    "input_tokens": 1200, "output_tokens": 300, "total_tokens": 1500,
                    "input_tokens_details": {
                        "cached_tokens": 1024, "cache_write_tokens": 100,
                        "cache_write_tokens_details": {"ttl_30m_tokens": 60, "ttl_12h_tokens": 40},
                    },
                    "output_tokens_details": {"reasoning_tokens": 128},
                },
            }
        ],
        Usage(1200, 300, cache_read=1024, cache_write=100, cache_write_1h=40, reasoning=128),
    ),
    (
        "openai images",
        Dialect.OPENAI,
        Surface.IMAGES,
        [
            {
                "created": 1, "data": [{"b64_json": "AA=="}],
                "usage": {
                    "input_tokens": 50, "output_tokens": 4160, "total_tokens": 4210,
                    "input_tokens_details": {"text_tokens": 10, "image_tokens": 40},
                    "output_tokens_details": {"text_tokens": 0, "image_tokens": 4160},
                },
            }
        ],
        Usage(50, 4160, image_in=40, image_out=4160),
    ),
    (
        "openai transcription, tokens",
        Dialect.OPENAI,
        Surface.TRANSCRIPTION,
        [
            {
                "text": "Hi",
                "usage": {
                    "type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59,
                    "input_token_details": {"text_tokens": 4, "audio_tokens": 10},
                },
            }
        ],
        Usage(14, 45, audio_in=10),
    ),
    (
        "openai transcription, seconds",
        Dialect.OPENAI,
        Surface.TRANSCRIPTION,
        [{"text": "Hi", "usage": {"type": "duration", "seconds": 3.2}}],
        Usage(audio_seconds=4),
    ),
    (
        "openai embeddings",
        Dialect.OPENAI,
        Surface.EMBEDDINGS,
        [{"object": "list", "data": [], "usage": {"prompt_tokens": 8, "total_tokens": 8}}],
        Usage(8, 0),
    ),
    (
        "anthropic",
        Dialect.ANTHROPIC,
        Surface.MESSAGES,
        [
            {
                "type": "message",
                "usage": {
                    "input_tokens": 100, "cache_creation_input_tokens": 2000, "cache_read_input_tokens": 5000,
                    "cache_creation": {"ephemeral_5m_input_tokens": 1500, "ephemeral_1h_input_tokens": 500},
                    "output_tokens": 400, "output_tokens_details": {"thinking_tokens": 90},
                    "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 1},
                    "service_tier": "standard", "speed": "standard", "inference_geo": "us",
                },
            }
        ],
        Usage(
            7100, 400, cache_read=5000, cache_write=2000, cache_write_5m=1500, cache_write_1h=500, searches=2,
            reasoning=90,
        ),
    ),
    (
        "anthropic stream: the last counts replace the first",
        Dialect.ANTHROPIC,
        Surface.MESSAGES,
        [
            {"type": "message_start", "message": {"usage": {"input_tokens": 25, "output_tokens": 1}}},
            {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 9}},
            {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 15, "cache_read_input_tokens": 30}},
        ],
        Usage(55, 15, cache_read=30),
    ),
    (
        "gemini",
        Dialect.GEMINI,
        Surface.GENERATE,
        [
            {
                "candidates": [{"finishReason": "STOP"}],
                "usageMetadata": {
                    "promptTokenCount": 115, "cachedContentTokenCount": 40, "candidatesTokenCount": 6,
                    "thoughtsTokenCount": 100, "toolUsePromptTokenCount": 7, "totalTokenCount": 228,
                    "promptTokensDetails": [
                        {"modality": "TEXT", "tokenCount": 15}, {"modality": "AUDIO", "tokenCount": 100},
                    ],
                    "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 40}],
                    "candidatesTokensDetails": [{"modality": "TEXT", "tokenCount": 6}],
                    "toolUsePromptTokensDetails": [{"modality": "TEXT", "tokenCount": 7}],
                    "trafficType": "ON_DEMAND",
                },
            }
        ],
        Usage(122, 106, cache_read=40, audio_in=100, audio_cached=40, reasoning=100),
    ),
    (
        "gemini interactions",
        Dialect.GEMINI,
        Surface.OPAQUE,
        [
            {
                "usage": {
                    "total_input_tokens": 15, "total_output_tokens": 6, "total_thought_tokens": 100,
                    "total_cached_tokens": 4, "total_tool_use_tokens": 0, "total_tokens": 121,
                    "input_tokens_by_modality": [{"modality": "text", "tokens": 15}],
                }
            }
        ],
        Usage(15, 106, cache_read=4, reasoning=100),
    ),
    (
        "openrouter",
        Dialect.OPENROUTER,
        Surface.CHAT,
        [
            {
                "usage": {
                    "prompt_tokens": 194, "completion_tokens": 2, "total_tokens": 196, "cost": 0.95,
                    "cost_details": {"upstream_inference_cost": 19}, "is_byok": False,
                    "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 100, "audio_tokens": 0},
                    "completion_tokens_details": {"reasoning_tokens": 0},
                }
            }
        ],
        Usage(194, 2, cache_write=100, cost_nanos=950_000_000),
    ),
    (
        "openrouter with the operator's own key",
        Dialect.OPENROUTER,
        Surface.CHAT,
        [
            {
                "usage": {
                    "prompt_tokens": 194, "completion_tokens": 2, "total_tokens": 196, "cost": 0.95,
                    "cost_details": {"upstream_inference_cost": 19}, "is_byok": True,
                }
            }
        ],
        Usage(194, 2, cost_nanos=19_950_000_000),
    ),
    (
        "groq",
        Dialect.GROQ,
        Surface.CHAT,
        [
            {
                "usage": {
                    "prompt_tokens": 1200, "completion_tokens": 300, "total_tokens": 1500, **TIMES,
                    "prompt_tokens_details": {"cached_tokens": 1024},
                    "completion_tokens_details": {"reasoning_tokens": 128},
                },
                "x_groq": {"id": "req_1", "usage": {"dram_cached_tokens": 1, "sram_cached_tokens": 2}},
            }
        ],
        Usage(1200, 300, cache_read=1024, reasoning=128),
    ),
    (
        "groq stream: usage apart from the chunks",
        Dialect.GROQ,
        Surface.CHAT,
        [
            {"choices": [{"delta": {"content": "Hi"}}], "x_groq": {"id": "req_1"}},
            {
                "choices": [{"delta": {}, "finish_reason": "stop"}],
                "x_groq": {
                    "id": "req_1",
                    "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15, **TIMES},
                },
            },
        ],
        Usage(12, 3),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "surface", "bodies", "usage"), [row[1:] for row in USAGES], ids=[row[0] for row in USAGES]
)
def test_every_billed_token_is_counted(dialect: Dialect, surface: Surface, bodies: list[Any], usage: Usage) -> None:
    reading = _read(dialect, surface, *bodies)
    assert (reading.usage, reading.is_complete) == (usage, True)


def test_what_changes_the_price_of_a_token_is_read() -> None:
    usage = {"input_tokens": 1, "output_tokens": 1, "speed": "fast", "inference_geo": "us", "service_tier": "priority"}
    reading = _read(Dialect.ANTHROPIC, Surface.MESSAGES, {"type": "message", "usage": usage})
    assert (reading.speed, reading.region, reading.tier) == ("fast", "us", "priority")
    for tier in ("flex", "priority", "default"):
        reading = _read(Dialect.OPENAI, Surface.CHAT, {"service_tier": tier, "usage": {"prompt_tokens": 1}})
        assert reading.tier == tier


def test_compaction_and_advice_are_billed_apart_from_the_message() -> None:
    def counts(kind: str, read: int, written: int, **more: Any) -> dict[str, Any]:
        cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        return {"type": kind, "input_tokens": read, "output_tokens": written, **cache, **more}

    usage = counts("usage", 23_000, 1_000) | {
        "iterations": [
            counts("compaction", 180_000, 3_500),
            counts("message", 23_000, 1_000),
            counts("advisor_message", 100_000, 10_000, model="claude-opus-5"),
        ]
    }
    read = _read(Dialect.ANTHROPIC, Surface.MESSAGES, {"type": "message", "usage": usage}).usage
    assert read is not None
    assert (read.tokens_in, read.tokens_out) == (303_000, 14_500)
    assert [model for model, _ in read.runs] == [None, None, "claude-opus-5"]


@pytest.mark.parametrize("output_format", ["svg", "SVG", ["png"], ""])
def test_an_image_written_by_another_model_is_refused(output_format: object) -> None:
    """`svg_usage` reports tokens of a model that the price of an image does not include."""
    params = CostParams(Surface.IMAGES, Dialect.OPENAI, "gpt-image-2")
    for accepted in ({}, *({"output_format": each} for each in ("png", "webp", "jpeg", "gif"))):
        input_bounds.with_media_bound(params, {"prompt": "A cat", **accepted}, ())
    request = {"prompt": "A cat", "output_format": output_format}
    with pytest.raises(InvalidInput, match="output_format"):
        input_bounds.with_media_bound(params, request, ())
