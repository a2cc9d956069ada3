from __future__ import annotations

from functools import cache

import groq
from examples import Gateway, raises
from groq import Groq

PACKAGE = "groq"
MODEL = "llama-3.3-70b-versatile"
MESSAGES = [{"role": "user", "content": "Say hello."}]


@cache
def client_of(gateway: Gateway) -> Groq:
    return Groq(base_url=gateway.base("groq"), api_key=gateway.key, max_retries=0)


def example_chat(gateway: Gateway) -> None:
    answer = client_of(gateway).chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello there"


def example_chat_stream(gateway: Gateway) -> None:
    chunks = list(client_of(gateway).chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there"
    assert chunks[-1].x_groq.usage.completion_tokens == 10


def example_tools(gateway: Gateway) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    answer = client_of(gateway).chat.completions.create(model=MODEL, messages=MESSAGES, tools=[tool])
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"


def example_structured_output(gateway: Gateway) -> None:
    answer = client_of(gateway).chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format={"type": "json_object"}
    )
    assert answer.choices[0].message.content == '{"name": "Fair", "day": "Friday"}'


def example_transcription(gateway: Gateway) -> None:
    answer = client_of(gateway).audio.transcriptions.create(
        model="whisper-large-v3-turbo", file=("speech.wav", gateway.sound)
    )
    assert answer.text == "Hello there"


def example_speech(gateway: Gateway) -> None:
    answer = client_of(gateway).audio.speech.create(
        model="canopylabs/orpheus-v1-english", voice="austin", input="Hello there", response_format="wav"
    )
    assert answer.read() == b"ID3 sound"


def example_models(gateway: Gateway) -> None:
    assert [model.id for model in client_of(gateway).models.list().data] == [MODEL]


def example_errors(gateway: Gateway) -> None:
    unknown = Groq(base_url=gateway.base("groq"), api_key="ak_wrong", max_retries=0)
    raises(groq.AuthenticationError, unknown.models.list)
    client = client_of(gateway)
    raises(groq.PermissionDeniedError, client.files.list)
    message = {"role": "user", "content": "answer 429"}
    raises(groq.RateLimitError, lambda: client.chat.completions.create(model=MODEL, messages=[message]))
