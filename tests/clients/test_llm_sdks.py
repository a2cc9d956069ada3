"""The OpenAI and Anthropic SDKs as they are published, given nothing but a base URL and a key."""

from __future__ import annotations

import json

import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.clients.conftest import Scene
from tests.support.upstreams import Exchange, chat_answer, chat_chunks
from tests.support.waiting import wait_until

MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6",
    "content": [{"type": "text", "text": "Hello there"}], "stop_reason": "end_turn", "stop_sequence": None,
    "usage": {
        "input_tokens": 25, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1000, "output_tokens": 15,
    },
}  # fmt: skip
_STARTED = {**MESSAGE, "content": [], "stop_reason": None, "usage": {**MESSAGE["usage"], "output_tokens": 1}}  # type: ignore[dict-item]
EVENTS: list[dict[str, object]] = [
    {"type": "message_start", "message": _STARTED},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 15},
    },
    {"type": "message_stop"},
]  # fmt: skip
ANTHROPIC_STREAM = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in EVENTS]
CLAUDE_NANOS = 25 * 3_000 + 1_000 * 300 + 15 * 15_000


def openai_client(scene: Scene, **more: object) -> OpenAI:
    return OpenAI(base_url=scene.gateway("openai"), api_key=scene.key, max_retries=0, **more)  # type: ignore[arg-type]


def stream_chat(exchange: Exchange) -> None:
    exchange.start_stream()
    for frame in chat_chunks("Hel", "lo"):
        exchange.chunk(frame)
    exchange.end_stream()


def answer_message(exchange: Exchange) -> None:
    if not exchange.asked.json().get("stream"):
        exchange.json(MESSAGE)
        return
    exchange.start_stream()
    for frame in ANTHROPIC_STREAM:
        exchange.chunk(frame.encode())
    exchange.end_stream()


def test_the_openai_sdk_chats(scene: Scene) -> None:
    scene.upstream.behave = lambda exchange: exchange.json(chat_answer())
    with openai_client(scene) as client:
        answer = client.chat.completions.create(
            model="gpt-5", messages=[{"role": "user", "content": "Hello"}], max_completion_tokens=100
        )
    assert answer.choices[0].message.content == "Hello there"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 500
    assert scene.upstream.asked[0].header("authorization") == "Bearer sk-operator-openai"
    assert scene.upstream.asked[0].target == "/v1/chat/completions"
    assert scene.usage()[0]["cost_usd"] == 0.00625


@pytest.mark.parametrize("wants_usage", [False, True])
def test_the_openai_sdk_streams_and_sees_usage_only_if_it_asked(scene: Scene, *, wants_usage: bool) -> None:
    scene.upstream.behave = stream_chat
    options = {"stream_options": {"include_usage": True}} if wants_usage else {}
    with openai_client(scene) as client:
        stream = client.chat.completions.create(
            model="gpt-5", messages=[{"role": "user", "content": "Hello"}], stream=True, **options
        )  # type: ignore[call-overload]
        chunks = list(stream)
    words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(filter(None, words)) == "Hello"
    assert any(chunk.usage for chunk in chunks) is wants_usage
    assert any(not chunk.choices for chunk in chunks) is wants_usage
    wait_until(lambda: scene.service.get("/v1/balance", scene.key)["total_spent"] == 0.00625)


def test_the_openai_sdk_raises_its_own_errors_for_ours(scene: Scene) -> None:
    stranger = OpenAI(base_url=scene.gateway("openai"), api_key="ak_wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with openai_client(scene) as client, pytest.raises(openai.PermissionDeniedError) as refused:
        client.files.list()
    assert refused.value.response.json()["code"] == "ROUTE_NOT_ALLOWED"


def test_the_anthropic_sdk_sends_a_message(scene: Scene) -> None:
    scene.upstream.behave = answer_message
    with Anthropic(base_url=scene.gateway("anthropic"), api_key=scene.key, max_retries=0) as client:
        answer = client.messages.create(
            model="claude-sonnet-4-6", max_tokens=100, messages=[{"role": "user", "content": "Hello"}]
        )
    assert answer.content[0].text == "Hello there"  # type: ignore[union-attr]
    asked = scene.upstream.asked[0]
    assert (asked.header("x-api-key"), asked.header("authorization")) == ("sk-operator-anthropic", None)
    assert scene.usage()[0]["cost_usd"] == CLAUDE_NANOS / 10**9
    assert scene.usage()[0]["tokens_in"] == 1025


def test_the_anthropic_sdk_streams(scene: Scene) -> None:
    scene.upstream.behave = answer_message
    client = Anthropic(base_url=scene.gateway("anthropic"), api_key=scene.key, max_retries=0)
    with (
        client,
        client.messages.stream(
            model="claude-sonnet-4-6", max_tokens=100, messages=[{"role": "user", "content": "Hello"}]
        ) as stream,
    ):
        assert "".join(stream.text_stream) == "Hello"
    wait_until(lambda: scene.service.get("/v1/balance", scene.key)["total_spent"] == CLAUDE_NANOS / 10**9)
