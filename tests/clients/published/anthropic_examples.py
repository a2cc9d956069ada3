from __future__ import annotations

from functools import cache

import anthropic
from anthropic import Anthropic
from examples import Gateway, raises
from pydantic import BaseModel

PACKAGE = "anthropic"
MODEL = "claude-sonnet-4-6"
MESSAGES = [{"role": "user", "content": "Say hello."}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class Event(BaseModel):
    """The structure that an answer must have."""

    name: str
    day: str


@cache
def client_of(gateway: Gateway) -> Anthropic:
    return Anthropic(base_url=gateway.base("anthropic"), api_key=gateway.key, max_retries=0)


def example_message(gateway: Gateway) -> None:
    answer = client_of(gateway).messages.create(model=MODEL, max_tokens=100, messages=MESSAGES)
    assert answer.content[0].text == "Hello there"
    assert answer.usage.output_tokens == 10


def example_stream(gateway: Gateway) -> None:
    with client_of(gateway).messages.stream(model=MODEL, max_tokens=100, messages=MESSAGES) as stream:
        assert "".join(stream.text_stream) == "Hello there"
        assert stream.get_final_message().usage.output_tokens == 10


def example_raw_stream(gateway: Gateway) -> None:
    events = client_of(gateway).messages.create(model=MODEL, max_tokens=100, messages=MESSAGES, stream=True)
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def example_tools(gateway: Gateway) -> None:
    client = client_of(gateway)
    answer = client.messages.create(model=MODEL, max_tokens=100, messages=MESSAGES, tools=[WEATHER])
    call = answer.content[0]
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "18 C"}
    messages = [*MESSAGES, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(model=MODEL, max_tokens=100, messages=messages, tools=[WEATHER])
    assert second.content[0].text == "Hello there"


def example_structured_output(gateway: Gateway) -> None:
    answer = client_of(gateway).messages.parse(model=MODEL, max_tokens=100, messages=MESSAGES, output_format=Event)
    assert answer.parsed_output == Event(name="Fair", day="Friday")


def example_picture_and_cache_control(gateway: Gateway) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    answer = client_of(gateway).messages.create(
        model=MODEL, max_tokens=100, system=system, messages=[{"role": "user", "content": [picture]}]
    )
    assert answer.content[0].text == "Hello there"


def example_extended_thinking(gateway: Gateway) -> None:
    answer = client_of(gateway).messages.create(
        model=MODEL, max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024}, messages=MESSAGES
    )
    assert answer.content[0].text == "Hello there"


def example_token_counting(gateway: Gateway) -> None:
    assert client_of(gateway).messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens == 20


def example_models(gateway: Gateway) -> None:
    client = client_of(gateway)
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def example_errors(gateway: Gateway) -> None:
    unknown = Anthropic(base_url=gateway.base("anthropic"), api_key="ak_wrong", max_retries=0)
    raises(anthropic.AuthenticationError, unknown.models.list)
    client = client_of(gateway)
    refused = raises(anthropic.PermissionDeniedError, client.messages.batches.list)
    assert refused.response.json()["code"] == "ROUTE_NOT_ALLOWED"
    for content, kind in (
        ("answer 400", anthropic.BadRequestError),
        ("answer 429", anthropic.RateLimitError),
        ("answer 529", anthropic.InternalServerError),
    ):
        message = {"role": "user", "content": content}
        failure = raises(
            kind, lambda message=message: client.messages.create(model=MODEL, max_tokens=10, messages=[message])
        )
        assert failure.body["error"]["message"] == "As asked for."


def example_one_base_url_for_all_models(gateway: Gateway) -> None:
    client = Anthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0)
    named = {"model": f"anthropic/{MODEL}", "extra_body": {"models": ["openrouter/anthropic/claude-sonnet-4.5"]}}
    answer = client.messages.create(max_tokens=100, messages=MESSAGES, **named)
    assert answer.content[0].text == "Hello there"
    assert answer.usage.cost > 0
    with client.messages.stream(max_tokens=100, messages=MESSAGES, **named) as stream:
        assert "".join(stream.text_stream) == "Hello there"
    assert f"anthropic/{MODEL}" in [model.id for model in client.models.list()]
