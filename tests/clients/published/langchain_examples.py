from __future__ import annotations

import openai
from examples import Gateway, raises
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

PACKAGE = "langchain-openai"


class Event(BaseModel):
    """The structure that an answer must have."""

    name: str
    day: str


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"18 C in {city}"


def model_of(gateway: Gateway, **more: object) -> ChatOpenAI:
    return ChatOpenAI(model="gpt-5", base_url=gateway.base("openai"), api_key=gateway.key, max_retries=0, **more)


def example_invoke(gateway: Gateway) -> None:
    answer = model_of(gateway).invoke([("system", "Be brief."), ("human", "Say hello.")])
    assert answer.content == "Hello there"
    assert answer.usage_metadata["output_tokens"] == 10


def example_stream(gateway: Gateway) -> None:
    chunks = list(model_of(gateway).stream("Say hello."))
    assert "".join(chunk.content for chunk in chunks) == "Hello there"


def example_batch(gateway: Gateway) -> None:
    assert [answer.content for answer in model_of(gateway).batch(["a", "b"])] == ["Hello there"] * 2


def example_tools(gateway: Gateway) -> None:
    answer = model_of(gateway).bind_tools([get_weather]).invoke("How is the weather?")
    assert answer.tool_calls[0]["args"] == {"city": "Paris"}


def example_structured_output(gateway: Gateway) -> None:
    answer = model_of(gateway).with_structured_output(Event).invoke("Hi")
    assert answer == Event(name="Fair", day="Friday")


def example_responses_api(gateway: Gateway) -> None:
    answer = model_of(gateway, use_responses_api=True, store=False).invoke("Say hello.")
    assert answer.text == "Hello there"


def example_embeddings(gateway: Gateway) -> None:
    # With its default the package counts tokens by a table that it fetches.
    embeddings = OpenAIEmbeddings(
        model="text-embedding-3-small",
        base_url=gateway.base("openai"),
        api_key=gateway.key,
        check_embedding_ctx_length=False,
    )
    assert embeddings.embed_query("a") == [0.5, -0.25]


def example_errors(gateway: Gateway) -> None:
    raises(openai.RateLimitError, lambda: model_of(gateway).invoke("answer 429"))
    unknown = ChatOpenAI(model="gpt-5", base_url=gateway.base("openai"), api_key="ak_wrong", max_retries=0)
    raises(openai.AuthenticationError, lambda: unknown.invoke("Hi"))


def example_one_base_url_for_all_models(gateway: Gateway) -> None:
    model = ChatOpenAI(
        model="openai/gpt-5", base_url=f"{gateway.url}/v1", api_key=gateway.key, max_retries=0,
        extra_body={"models": ["groq/llama-3.3-70b-versatile"]},
    )  # fmt: skip
    assert model.invoke("Say hello.").content == "Hello there"
    assert "".join(chunk.content for chunk in model.stream("Say hello.")) == "Hello there"
