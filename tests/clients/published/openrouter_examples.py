"""The examples of OpenRouter's documentation with `requests` and OpenAI's package; see `openrouter_sdk_examples`."""

from __future__ import annotations

import json
from functools import cache

import openai
import requests
from examples import Gateway, raises
from openai import OpenAI

PACKAGE = "requests"
MODEL = "openai/gpt-5"
MESSAGES = [{"role": "user", "content": "Say hello."}]
SITE = {"HTTP-Referer": "https://example.com", "X-Title": "Example"}


@cache
def client_of(gateway: Gateway) -> OpenAI:
    return OpenAI(base_url=gateway.base("openrouter"), api_key=gateway.key, max_retries=0)


def post(gateway: Gateway, **more: object) -> requests.Response:
    return requests.post(
        url=f"{gateway.base('openrouter')}/chat/completions",
        headers={"Authorization": f"Bearer {gateway.key}", **SITE},
        data=json.dumps({"model": MODEL, "messages": MESSAGES, **more}),
        timeout=30,
        stream=bool(more.get("stream")),
    )


def example_OpenRouter_chat_with_requests(gateway: Gateway) -> None:  # noqa: N802 - a title
    answer = post(gateway)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello there"


def example_OpenRouter_stream_with_requests(gateway: Gateway) -> None:  # noqa: N802 - a title
    words = []
    with post(gateway, stream=True) as answer:
        for line in answer.iter_lines():
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                words += [choice["delta"]["content"] for choice in json.loads(line[6:])["choices"]]
    assert "".join(words) == "Hello there"


def example_OpenRouter_models_with_requests(gateway: Gateway) -> None:  # noqa: N802 - a title
    answer = requests.get(
        f"{gateway.base('openrouter')}/models", headers={"Authorization": f"Bearer {gateway.key}"}, timeout=30
    )
    assert [model["id"] for model in answer.json()["data"]] == [MODEL]


def example_OpenRouter_chat_with_openai(gateway: Gateway) -> None:  # noqa: N802 - a title
    answer = client_of(gateway).chat.completions.create(
        model=MODEL, messages=MESSAGES, extra_headers=SITE, extra_body={"provider": {"sort": "price"}}
    )
    assert answer.choices[0].message.content == "Hello there"


def example_OpenRouter_stream_with_openai(gateway: Gateway) -> None:  # noqa: N802 - a title
    chunks = client_of(gateway).chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    words = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(words) == "Hello there"


def example_OpenRouter_errors(gateway: Gateway) -> None:  # noqa: N802 - a title
    message = {"role": "user", "content": "answer 429"}
    raises(openai.RateLimitError, lambda: client_of(gateway).chat.completions.create(model=MODEL, messages=[message]))
