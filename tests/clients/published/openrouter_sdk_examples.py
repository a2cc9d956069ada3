"""OpenRouter's own package, given this service's base URL instead of OpenRouter's.

Its list of models needs what only OpenRouter states of each model (modalities, links, moderation), and is not used.
"""

from __future__ import annotations

from examples import Gateway, raises
from openrouter import OpenRouter, errors

PACKAGE = "openrouter"
MODEL, OTHER = "openai/gpt-5", "groq/llama-3.3-70b-versatile"
MESSAGES = [{"role": "user", "content": "Say hello."}]


def client_of(gateway: Gateway) -> OpenRouter:
    return OpenRouter(api_key=gateway.key, server_url=f"{gateway.url}/v1")


def example_chat(gateway: Gateway) -> None:
    with client_of(gateway) as client:
        answer = client.chat.send(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello there"
    assert answer.usage.cost > 0


def example_chat_with_fallbacks(gateway: Gateway) -> None:
    with client_of(gateway) as client:
        answer = client.chat.send(model=MODEL, models=[MODEL, OTHER], messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello there"


def example_chat_stream(gateway: Gateway) -> None:
    with client_of(gateway) as client, client.chat.send(model=MODEL, messages=MESSAGES, stream=True) as stream:
        words = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
    assert "".join(words) == "Hello there"


def example_embeddings(gateway: Gateway) -> None:
    with client_of(gateway) as client:
        answer = client.embeddings.generate(model="openai/text-embedding-3-small", input=["a", "b"])
    assert answer.data[1].embedding == [0.5, -0.25]


def example_errors(gateway: Gateway) -> None:
    with OpenRouter(api_key="ak_wrong", server_url=f"{gateway.url}/v1") as client:
        # It expects an object as `error`, and reports the body as unexpected, with its status.
        error = raises(errors.OpenRouterError, lambda: client.chat.send(model=MODEL, messages=MESSAGES))
    assert error.status_code == 401
