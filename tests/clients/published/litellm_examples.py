from __future__ import annotations

import os

from examples import Gateway, raises

# Its price table and its tokenizers would be downloaded.
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}

import litellm

PACKAGE = "litellm"
MESSAGES = [{"role": "user", "content": "Say hello."}]
# litellm's name of a model, and the provider of the gateway that is its `api_base`.
MODELS = {
    "openai/gpt-5": "openai",
    "anthropic/claude-sonnet-4-6": "anthropic",
    "gemini/gemini-2.5-flash": "gemini/v1beta",
    "groq/llama-3.3-70b-versatile": "groq",
    "openrouter/openai/gpt-5": "openrouter",
}
litellm.suppress_debug_info = True
litellm.num_retries = 0


def connection(gateway: Gateway, provider: str) -> dict[str, str]:
    return {"api_base": gateway.base(provider), "api_key": gateway.key}


def example_completion_of_five_providers(gateway: Gateway) -> None:
    for model, provider in MODELS.items():
        answer = litellm.completion(model=model, messages=MESSAGES, **connection(gateway, provider))
        assert answer.choices[0].message.content == "Hello there", model


def example_stream_of_five_providers(gateway: Gateway) -> None:
    for model, provider in MODELS.items():
        chunks = litellm.completion(model=model, messages=MESSAGES, stream=True, **connection(gateway, provider))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == "Hello there", model


def example_tools(gateway: Gateway) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for model in ("openai/gpt-5", "anthropic/claude-sonnet-4-6", "gemini/gemini-2.5-flash"):
        answer = litellm.completion(model=model, messages=MESSAGES, tools=[tool], **connection(gateway, MODELS[model]))
        assert answer.choices[0].message.tool_calls[0].function.name == "get_weather", model


def example_embedding(gateway: Gateway) -> None:
    answer = litellm.embedding(model="openai/text-embedding-3-small", input=["a"], **connection(gateway, "openai"))
    assert answer.data[0]["embedding"] == [0.5, -0.25]


def example_image(gateway: Gateway) -> None:
    answer = litellm.image_generation(
        model="openai/gpt-image-1", prompt="A cat", size="1024x1024", quality="low", **connection(gateway, "openai")
    )  # fmt: skip
    assert answer.data[0].b64_json == "aGVsbG8="


def example_transcription(gateway: Gateway) -> None:
    answer = litellm.transcription(
        model="openai/whisper-1", file=("speech.wav", gateway.sound), **connection(gateway, "openai")
    )
    assert answer.text == "Hello there"


def example_speech(gateway: Gateway) -> None:
    answer = litellm.speech(
        model="openai/gpt-4o-mini-tts", voice="coral", input="Hello there", **connection(gateway, "openai")
    )
    assert answer.content == b"ID3 sound"


def example_errors(gateway: Gateway) -> None:
    for model, provider in MODELS.items():
        address = gateway.base(provider)
        raises(
            litellm.AuthenticationError,
            lambda model=model, address=address: litellm.completion(
                model=model, messages=MESSAGES, api_base=address, api_key="ak_wrong"
            ),
        )
        raises(
            litellm.RateLimitError,
            lambda model=model, provider=provider: litellm.completion(
                model=model, messages=[{"role": "user", "content": "answer 429"}], **connection(gateway, provider)
            ),
        )


def example_one_base_url_for_all_models(gateway: Gateway) -> None:
    one = {"api_base": f"{gateway.url}/v1", "api_key": gateway.key}
    named = {"model": "openai/groq/llama-3.3-70b-versatile", "extra_body": {"models": ["openai/gpt-5"]}}
    answer = litellm.completion(messages=MESSAGES, **named, **one)
    assert answer.choices[0].message.content == "Hello there"
    chunks = litellm.completion(messages=MESSAGES, stream=True, **named, **one)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there"
