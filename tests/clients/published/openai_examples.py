from __future__ import annotations

import asyncio
import io
from functools import cache

import openai
from examples import Gateway, raises
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

PACKAGE = "openai"
MESSAGES = [{"role": "user", "content": "Say hello."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Event(BaseModel):
    """The structure that an answer must have."""

    name: str
    day: str


@cache
def client_of(gateway: Gateway) -> OpenAI:
    return OpenAI(base_url=gateway.base("openai"), api_key=gateway.key, max_retries=0)


def example_chat(gateway: Gateway) -> None:
    answer = client_of(gateway).chat.completions.create(model="gpt-5", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello there"
    assert answer.usage.total_tokens == 30


def example_chat_stream(gateway: Gateway) -> None:
    chunks = list(client_of(gateway).chat.completions.create(model="gpt-5", messages=MESSAGES, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there"
    assert not any(chunk.usage for chunk in chunks)  # it was not requested


def example_chat_stream_with_usage(gateway: Gateway) -> None:
    *_, last = client_of(gateway).chat.completions.create(
        model="gpt-5", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    assert (last.choices, last.usage.completion_tokens) == ([], 10)


def example_tools(gateway: Gateway) -> None:
    client = client_of(gateway)
    answer = client.chat.completions.create(model="gpt-5", messages=MESSAGES, tools=[WEATHER])
    message = answer.choices[0].message
    assert message.tool_calls[0].function.arguments == '{"city": "Paris"}'
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18 C"}
    second = client.chat.completions.create(model="gpt-5", messages=[*MESSAGES, message, result], tools=[WEATHER])
    assert second.choices[0].message.content == "Hello there"


def example_structured_output(gateway: Gateway) -> None:
    answer = client_of(gateway).chat.completions.parse(model="gpt-5", messages=MESSAGES, response_format=Event)
    assert answer.choices[0].message.parsed == Event(name="Fair", day="Friday")


def example_picture_in_a_prompt(gateway: Gateway) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
    answer = client_of(gateway).chat.completions.create(
        model="gpt-5", messages=[{"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}]
    )
    assert answer.choices[0].message.content == "Hello there"


def example_async_client(gateway: Gateway) -> None:
    async def ask() -> str | None:
        async with AsyncOpenAI(base_url=gateway.base("openai"), api_key=gateway.key) as client:
            answer = await client.chat.completions.create(model="gpt-5", messages=MESSAGES)
            return answer.choices[0].message.content

    assert asyncio.run(ask()) == "Hello there"


def example_responses(gateway: Gateway) -> None:
    answer = client_of(gateway).responses.create(model="gpt-5", input="Say hello.", store=False)
    assert answer.output_text == "Hello there"


def example_responses_stream(gateway: Gateway) -> None:
    with client_of(gateway).responses.stream(model="gpt-5", input="Say hello.", store=False) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == stream.get_final_response().output_text == "Hello there"


def example_responses_tools(gateway: Gateway) -> None:
    tool = {"type": "function", **WEATHER["function"]}
    answer = client_of(gateway).responses.create(model="gpt-5", input="Hi", tools=[tool], store=False)
    assert (answer.output[0].type, answer.output[0].name) == ("function_call", "get_weather")


def example_responses_structured_output(gateway: Gateway) -> None:
    answer = client_of(gateway).responses.parse(model="gpt-5", input="Hi", text_format=Event, store=False)
    assert answer.output_parsed == Event(name="Fair", day="Friday")


def example_token_counting(gateway: Gateway) -> None:
    counted = client_of(gateway).responses.input_tokens.count(model="gpt-5", input="Say hello.")
    assert counted.input_tokens == 20


def example_embeddings(gateway: Gateway) -> None:
    # The package asks for base64 and decodes it.
    answer = client_of(gateway).embeddings.create(model="text-embedding-3-small", input=["a", "b"])
    assert [each.embedding for each in answer.data] == [[0.5, -0.25], [0.5, -0.25]]


def example_moderation(gateway: Gateway) -> None:
    answer = client_of(gateway).moderations.create(model="omni-moderation-latest", input="Hello")
    assert answer.results[0].flagged is False


def example_image(gateway: Gateway) -> None:
    answer = client_of(gateway).images.generate(model="gpt-image-1", prompt="A cat", size="1024x1024", quality="low")
    assert answer.data[0].b64_json == "aGVsbG8="


def example_image_edit(gateway: Gateway) -> None:
    answer = client_of(gateway).images.edit(
        model="gpt-image-1", prompt="A hat", image=("a.png", b"\x89PNG\r\n\x1a\n"), size="1024x1024", quality="low"
    )  # fmt: skip
    assert answer.data[0].b64_json == "aGVsbG8="


def example_transcription(gateway: Gateway) -> None:
    sound = io.BytesIO(gateway.sound)
    sound.name = "speech.wav"
    answer = client_of(gateway).audio.transcriptions.create(model="gpt-4o-transcribe", file=sound)
    assert answer.text == "Hello there"


def example_translation(gateway: Gateway) -> None:
    answer = client_of(gateway).audio.translations.create(model="whisper-1", file=("speech.wav", gateway.sound))
    assert answer.text == "Hello there"


def example_speech(gateway: Gateway) -> None:
    with client_of(gateway).audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="coral", input="Hello there"
    ) as answer:
        assert answer.read() == b"ID3 sound"


def example_models(gateway: Gateway) -> None:
    client = client_of(gateway)
    assert [model.id for model in client.models.list()] == ["gpt-5"]
    assert client.models.retrieve("gpt-5").id == "gpt-5"


def example_errors(gateway: Gateway) -> None:
    unknown = OpenAI(base_url=gateway.base("openai"), api_key="ak_wrong", max_retries=0)
    raises(openai.AuthenticationError, unknown.models.list)
    client = client_of(gateway)
    refused = raises(openai.PermissionDeniedError, client.files.list)
    assert refused.response.json()["code"] == "ROUTE_NOT_ALLOWED"
    for content, kind in (
        ("answer 400", openai.BadRequestError),
        ("answer 429", openai.RateLimitError),
        ("answer 500", openai.InternalServerError),
    ):
        failure = raises(
            kind,
            lambda content=content: client.chat.completions.create(
                model="gpt-5", messages=[{"role": "user", "content": content}]
            ),
        )
        assert failure.body["message"] == "As asked for."
    elsewhere = OpenAI(base_url=gateway.base("no-such-provider"), api_key=gateway.key, max_retries=0)
    raises(openai.NotFoundError, elsewhere.models.list)


def example_retry_after_a_rate_limit(gateway: Gateway) -> None:
    client = OpenAI(base_url=gateway.base("openai"), api_key=gateway.key, max_retries=2)
    message = {"role": "user", "content": "answer 429 once"}
    answer = client.chat.completions.create(model="gpt-5", messages=[message])
    assert answer.choices[0].message.content == "Hello there"


def example_one_base_url_for_all_models(gateway: Gateway) -> None:
    client = OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key, max_retries=0)
    assert "groq/llama-3.3-70b-versatile" in [model.id for model in client.models.list()]
    assert client.models.retrieve("openai/gpt-5").owned_by == "openai"
    named = {"model": "openai/gpt-5", "extra_body": {"models": ["groq/llama-3.3-70b-versatile"]}}
    raw = client.chat.completions.with_raw_response.create(messages=MESSAGES, **named)
    assert raw.headers["X-Gateway-Model"] == "openai/gpt-5"
    assert raw.parse().choices[0].message.content == "Hello there"
    assert raw.parse().usage.cost == float(raw.headers["X-Cost-Usd"]) > 0
    chunks = client.chat.completions.create(messages=MESSAGES, stream=True, **named)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there"
    with client.responses.stream(model="openai/gpt-5", input="Say hello.", store=False) as stream:
        assert stream.get_final_response().output_text == "Hello there"
    embedded = client.embeddings.create(model="openai/text-embedding-3-small", input=["a", "b"])
    assert embedded.data[1].embedding == [0.5, -0.25]
    raises(openai.BadRequestError, lambda: client.chat.completions.create(model="gpt-5", messages=MESSAGES))
