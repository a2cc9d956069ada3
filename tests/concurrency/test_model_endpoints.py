"""Concurrent calls with fallbacks against a small balance: together they cost at most what there is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from flask import Flask
from werkzeug.test import TestResponse

from tests.support.gateway import Stage, gateway_stage
from tests.support.upstreams import Exchange, chat_answer

CALLS = 50
CREDITS_NANOS = 20_000_000
GPT, LLAMA = "openai/gpt-5", "groq/llama-3.3-70b-versatile"
# In nano-dollars for a token of output.
PRICES = {"gpt-5": 10_000, "llama-3.3-70b-versatile": 790}
INPUT_NANOS = {"gpt-5": 10 * 1_250, "llama-3.3-70b-versatile": 10 * 590}


def test_calls_with_fallbacks_never_cost_more_than_there_is(
    each_database_url: str, build_app: Callable[..., Flask]
) -> None:
    delivered_nanos: list[int] = []
    number = count()

    def behave(exchange: Exchange) -> None:
        """Fail, or write as many tokens as the request allows."""
        body = exchange.asked.json()
        if next(number) % 2:
            exchange.json({"error": {"message": "no"}}, 503)
            return
        tokens = body["max_tokens"]
        delivered_nanos.append(INPUT_NANOS[body["model"]] + tokens * PRICES[body["model"]])
        exchange.json(chat_answer(body["model"], tokens_in=10, tokens_out=tokens))

    with gateway_stage(build_app, each_database_url, initial_credits_usd="0.02", database_pool_size="12") as stage:
        stage.behave(behave)
        with ThreadPoolExecutor(12) as threads:
            asked = [threads.submit(_ask, stage, number) for number in range(CALLS)]
            statuses = [each.result().status_code for each in asked]
        assert set(statuses) <= {200, 402, 503}
        assert {200, 402} <= set(statuses)
        assert sum(delivered_nanos) == stage.spent_nanos() <= CREDITS_NANOS
        stage.assert_nothing_held()


def _ask(stage: Stage, number: int) -> TestResponse:
    models = [GPT, LLAMA] if number % 2 else [LLAMA, GPT]
    body = {
        "model": models[0], "models": models[1:], "max_tokens": 2_000,
        "messages": [{"role": "user", "content": "Hello"}],
    }  # fmt: skip
    return stage.call("/v1/chat/completions", "POST", json=body)
