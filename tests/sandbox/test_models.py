"""The stand-in for a provider of language models, with the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from sandbox.models import ModelServer

if TYPE_CHECKING:
    import openai  # takes a second, which each process of the suite would need to collect these tests

MODEL = "gpt-4o-mini"
QUESTION = "Which balances do I have?"


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    import openai  # noqa: PLC0415

    server = ModelServer()
    server.start()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sandbox", max_retries=0) as client:
        yield client
    server.stop()


def tool(name: str, description: str, *required: str) -> Any:
    properties = {name: {"type": "string"} for name in (*required, "chain")}
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "name": name, "description": description, "parameters": parameters}


TOOLS = [tool("get_balances", "List the wallets."), tool("transfer", "Send money of wallets I have.", "to", "amount")]
CHAT_TOOLS: Any = [{"type": "function", "function": {k: v for k, v in each.items() if k != "type"}} for each in TOOLS]


def chat(client: openai.OpenAI, *messages: Any, **options: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=list(messages), **options)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_text_repeats_the_message_and_is_cut_at_the_limit(client: openai.OpenAI) -> None:
    answer = chat(client, user("Hello"))
    assert answer.choices[0].message.content == "This is the sandbox's model. You said: Hello"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    cut = chat(client, user("Hello"), max_completion_tokens=1).choices[0]
    assert (cut.message.content, cut.finish_reason) == ("This", "length")
    assert chat(client, user("Hello")).id == answer.id


def test_a_stream_has_the_same_text_and_usage(client: openai.OpenAI) -> None:
    whole = chat(client, user("Hello  there"))
    chunks = list(chat(client, user("Hello  there"), stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_tool_that_fits_is_called_and_its_result_repeated(client: openai.OpenAI) -> None:
    [call] = chat(client, user(QUESTION), tools=CHAT_TOOLS).choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_balances", "{}")
    result = {"role": "tool", "tool_call_id": call.id, "content": "5 USDC"}
    asked = {"role": "assistant", "tool_calls": [call.model_dump()]}
    answer = chat(client, user(QUESTION), asked, result, tools=CHAT_TOOLS).choices[0]
    assert (answer.message.content, answer.finish_reason) == ("The tool returned: 5 USDC", "stop")
    assert chat(client, user("Good morning"), tools=CHAT_TOOLS).choices[0].message.tool_calls is None
    assert chat(client, user(QUESTION), tools=CHAT_TOOLS, tool_choice="none").choices[0].message.tool_calls is None


def test_money_is_sent_only_with_arguments_from_the_message(client: openai.OpenAI) -> None:
    message = user("Transfer what I have")
    assert chat(client, message, tools=CHAT_TOOLS[1:]).choices[0].message.tool_calls is None
    given = {"to": "0xabc", "amount": "1"}
    [call] = chat(client, user(f"Transfer {json.dumps(given)}"), tools=CHAT_TOOLS).choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("transfer", given)


def test_a_forced_tool_gets_examples_for_what_it_requires(client: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "transfer"}}
    [call] = chat(client, user("Hi"), tools=CHAT_TOOLS, tool_choice=choice).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"amount": "example", "to": "example"}


def test_a_response_can_be_streamed_and_calls_tools(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="Hello")
    assert answer.output_text == "This is the sandbox's model. You said: Hello"
    with client.responses.stream(model=MODEL, input="Hello") as stream:
        assert (
            "".join(event.delta for event in stream if event.type == "response.output_text.delta") == answer.output_text
        )
        assert stream.get_final_response().output_text == answer.output_text
    called = client.responses.create(model=MODEL, input=QUESTION, tools=TOOLS).output[0]
    assert called.type == "function_call"
    assert called.name == "get_balances"
    items: Any = [
        user(QUESTION),
        called.model_dump(),
        {"type": "function_call_output", "call_id": called.call_id, "output": "5"},
    ]
    assert client.responses.create(model=MODEL, input=items, tools=TOOLS).output_text == "The tool returned: 5"


def test_embeddings_and_models_have_the_documented_form(client: openai.OpenAI) -> None:
    first, same, other = client.embeddings.create(model="text-embedding-3-small", input=["a", "a", "b"]).data
    assert first.embedding == same.embedding != other.embedding
    assert len(first.embedding) == 1536
    assert MODEL in {model.id for model in client.models.list()}
    assert client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize("body", [{}, {"model": MODEL, "messages": []}, {"model": MODEL, "messages": "no"}])
def test_a_body_of_another_form_is_refused(client: openai.OpenAI, body: Any) -> None:
    import openai  # noqa: PLC0415

    with pytest.raises(openai.BadRequestError, match="documented form"):
        client.post("/chat/completions", body=body, cast_to=object)
    with pytest.raises(openai.NotFoundError):
        client.post("/nowhere", body=body, cast_to=object)
