from __future__ import annotations

import asyncio
from functools import cache

from examples import Gateway, raises
from google import genai
from google.genai import errors, types
from pydantic import BaseModel

PACKAGE = "google-genai"
MODEL = "gemini-2.5-flash"


class Event(BaseModel):
    """The structure that an answer must have."""

    name: str
    day: str


@cache
def client_of(gateway: Gateway, key: str = "") -> genai.Client:
    return genai.Client(api_key=key or gateway.key, http_options=types.HttpOptions(base_url=gateway.base("gemini")))


def example_generate_content(gateway: Gateway) -> None:
    answer = client_of(gateway).models.generate_content(model=MODEL, contents="Say hello.")
    assert answer.text == "Hello there"
    assert answer.usage_metadata.candidates_token_count == 10


def example_stream(gateway: Gateway) -> None:
    chunks = client_of(gateway).models.generate_content_stream(model=MODEL, contents="Say hello.")
    assert "".join(chunk.text or "" for chunk in chunks) == "Hello there"


def example_chat(gateway: Gateway) -> None:
    chat = client_of(gateway).chats.create(model=MODEL)
    assert chat.send_message("Say hello.").text == "Hello there"
    assert chat.send_message("And again.").text == "Hello there"


def example_tools(gateway: Gateway) -> None:
    weather = types.FunctionDeclaration(
        name="get_weather",
        description="Get the weather of a city.",
        parameters={"type": "OBJECT", "properties": {"city": {"type": "STRING"}}},
    )
    answer = client_of(gateway).models.generate_content(
        model=MODEL,
        contents="How is the weather?",
        config=types.GenerateContentConfig(tools=[types.Tool(function_declarations=[weather])]),
    )
    assert answer.function_calls[0].name == "get_weather"
    assert answer.function_calls[0].args == {"city": "Paris"}


def example_automatic_function_calling(gateway: Gateway) -> None:
    cities = []

    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        cities.append(city)
        return "18 C"

    answer = client_of(gateway).models.generate_content(
        model=MODEL, contents="Hi", config=types.GenerateContentConfig(tools=[get_weather])
    )
    assert (cities, answer.text) == (["Paris"], "Hello there")


def example_structured_output(gateway: Gateway) -> None:
    config = types.GenerateContentConfig(response_mime_type="application/json", response_schema=Event)
    answer = client_of(gateway).models.generate_content(model=MODEL, contents="Hi", config=config)
    assert answer.parsed == Event(name="Fair", day="Friday")


def example_picture_in_a_prompt(gateway: Gateway) -> None:
    picture = types.Part.from_bytes(data=b"\x89PNG\r\n\x1a\n", mime_type="image/png")
    answer = client_of(gateway).models.generate_content(model=MODEL, contents=[picture, "What is it?"])
    assert answer.text == "Hello there"


def example_async_client(gateway: Gateway) -> None:
    async def ask() -> str | None:
        async with client_of(gateway).aio as client:
            return (await client.models.generate_content(model=MODEL, contents="Hi")).text

    assert asyncio.run(ask()) == "Hello there"


def example_token_counting(gateway: Gateway) -> None:
    assert client_of(gateway).models.count_tokens(model=MODEL, contents="Hi").total_tokens == 20


def example_embeddings(gateway: Gateway) -> None:
    answer = client_of(gateway).models.embed_content(model="gemini-embedding-001", contents=["a"])
    assert answer.embeddings[0].values == [0.5, -0.25]


def example_image(gateway: Gateway) -> None:
    answer = client_of(gateway).models.generate_content(
        model="gemini-2.5-flash-image",
        contents="A cat",
        config=types.GenerateContentConfig(response_modalities=["IMAGE"]),
    )
    assert answer.candidates[0].content.parts[0].inline_data.data == b"hello"


def example_speech(gateway: Gateway) -> None:
    voice = types.VoiceConfig(prebuilt_voice_config=types.PrebuiltVoiceConfig(voice_name="Kore"))
    config = types.GenerateContentConfig(
        response_modalities=["AUDIO"], speech_config=types.SpeechConfig(voice_config=voice)
    )
    answer = client_of(gateway).models.generate_content(
        model="gemini-2.5-flash-preview-tts", contents="Say hello.", config=config
    )
    assert answer.candidates[0].content.parts[0].inline_data.data == b"hello"


def example_models(gateway: Gateway) -> None:
    client = client_of(gateway)
    assert [model.name for model in client.models.list()] == [f"models/{MODEL}"]
    assert client.models.get(model=MODEL).name == f"models/{MODEL}"


def example_errors(gateway: Gateway) -> None:
    def ask(client: genai.Client, contents: str) -> errors.APIError:
        return raises(errors.APIError, lambda: client.models.generate_content(model=MODEL, contents=contents))

    unknown = ask(client_of(gateway, "ak_wrong"), "Hi")
    assert (type(unknown), unknown.code) == (errors.ClientError, 401)
    refused = raises(errors.ClientError, lambda: list(client_of(gateway).files.list()))
    assert (refused.code, refused.details["code"]) == (403, "ROUTE_NOT_ALLOWED")
    limited = ask(client_of(gateway), "answer 429")
    assert (type(limited), limited.code) == (errors.ClientError, 429)
    assert limited.message == "As asked for."
    broken = ask(client_of(gateway), "answer 500")
    assert (type(broken), broken.code) == (errors.ServerError, 500)
