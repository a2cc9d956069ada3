"""Attempts to get more output than the credits cover; the upstream writes as much as the request allows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from flask import Flask

from app.credits import accounts as credit_accounts
from app.db.unit_of_work import unit_of_work
from tests.support.gateway import QUESTION, Stage, gateway_stage
from tests.support.upstreams import Exchange, chat_answer, chat_chunks

TOP_UP_NANOS = 3_000_000
UNBOUNDED = 128_000


def written(exchange: Exchange) -> int:
    body = exchange.asked.json()
    return int(body.get("max_completion_tokens") or body.get("max_tokens") or UNBOUNDED)


def write_all(exchange: Exchange) -> None:
    """Write as many tokens as the request allows."""
    exchange.json(chat_answer(tokens_in=10, tokens_out=written(exchange)))


def stream_all(exchange: Exchange) -> None:
    exchange.start_stream()
    for frame in chat_chunks("Hello", tokens_in=10, tokens_out=written(exchange)):
        exchange.chunk(frame)
    exchange.end_stream()


def top_up(stage: Stage, number: int, nanos: int) -> None:
    with unit_of_work() as session:
        credit_accounts.grant(session, stage.agent.id, nanos, reference=f"granted:{number}")


def worth_nanos(stage: Stage) -> int:
    """Return the cost of what the upstream wrote, at gpt-5's 1.25 and 10 USD a million."""
    asked = [each.json() for each in stage.upstream.asked]
    bounds = [body.get("max_completion_tokens") or body.get("max_tokens") or UNBOUNDED for body in asked]
    return sum(10 * 1_250 + bound * 10_000 for bound in bounds)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("bound", [{"max_completion_tokens": 128_000, "max_tokens": None}, {"max_tokens": None}])
def test_small_top_ups_do_not_each_buy_a_large_response(
    build_app: Callable[..., Flask], sqlite_url: str, bound: dict[str, int | None], *, stream: bool
) -> None:
    with gateway_stage(build_app, sqlite_url, initial_credits_usd="0") as stage:
        stage.behave(stream_all if stream else write_all)
        for number in range(3):
            top_up(stage, number, TOP_UP_NANOS)
            answer = stage.chat(**bound, stream=stream)
            assert answer.status_code == 200
            assert answer.data
            applied = int(answer.headers["X-Max-Tokens-Applied"])
            assert stage.upstream.asked[-1].json()["max_completion_tokens"] == applied
        assert worth_nanos(stage) == stage.spent_nanos() <= 3 * TOP_UP_NANOS
        stage.assert_nothing_held()


def test_a_key_cannot_spend_more_than_its_credits(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url) as stage:
        stage.behave(write_all)
        answers = [stage.chat(max_tokens=128_000) for _ in range(9)]
        assert [answer.status_code for answer in answers] == [200] * 8 + [402]
        # The first seven are as large as requested, the eighth is limited to the credits left.
        lowered = [answer.headers.get("X-Max-Tokens-Applied") for answer in answers[:8]]
        assert lowered[:7] == [None] * 7
        assert 0 < int(lowered[7] or 0) < 128_000
        assert answers[8].get_json()["details"]["affordable_max_tokens"] < 256
        assert worth_nanos(stage) == stage.spent_nanos() <= 10 * 10**9


@pytest.mark.postgres
def test_concurrent_calls_are_bounded_together(postgres_url: str, build_app: Callable[..., Flask]) -> None:
    with gateway_stage(build_app, postgres_url, database_pool_size="12") as stage:
        stage.behave(write_all)
        with ThreadPoolExecutor(12) as threads:
            calls = [threads.submit(stage.chat, max_tokens=100_000) for _ in range(24)]
            statuses = {call.result().status_code for call in calls}
        assert statuses == {200, 402}
        assert worth_nanos(stage) == stage.spent_nanos() <= 10 * 10**9
        stage.assert_nothing_held()


def test_the_body_is_unchanged_for_an_account_that_can_pay_for_it(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    with gateway_stage(build_app, sqlite_url) as stage:
        stage.behave(write_all)
        unbounded = {name: value for name, value in QUESTION.items() if name != "max_tokens"}
        for body in (QUESTION, unbounded):
            answer = stage.call("/v1/gateway/openai/chat/completions", "POST", json=body)
            assert "X-Max-Tokens-Applied" not in answer.headers
            assert stage.upstream.asked[-1].json() == body


def test_the_output_of_a_model_without_a_price_is_limited_to_the_maximum_cost_of_a_call(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    with gateway_stage(build_app, sqlite_url) as stage:
        stage.behave(write_all)
        path = "/v1/gateway/openrouter/chat/completions"
        body = {"model": "openrouter/auto", "messages": [{"role": "user", "content": "Hi"}]}
        answer = stage.call(path, "POST", json=body)
        assert answer.status_code == 200
        applied = int(answer.headers["X-Max-Tokens-Applied"])
        # 5 USD at OpenRouter's highest rates, 150 and 600 USD a million, less a hundred tokens of input.
        assert 8_200 < applied < 8_334
        assert stage.upstream.asked[-1].json() == {"max_completion_tokens": applied, **body}
        # A bound that the client set is refused, and the error names the one that fits.
        refused = stage.call(path, "POST", json={**body, "max_tokens": 16_000})
        assert (refused.status_code, refused.get_json()["code"]) == (400, "INVALID_INPUT")
        assert applied - 20 < refused.get_json()["details"]["affordable_max_tokens"] <= applied
        assert len(stage.upstream.asked) == 1
        stage.assert_nothing_held()


def test_a_bound_that_cannot_be_lowered_is_refused_with_the_numbers(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    with gateway_stage(build_app, sqlite_url, initial_credits_usd="0.1") as stage:
        body = {
            "model": "claude-sonnet-4-5", "messages": [], "max_tokens": 30_000,
            "thinking": {"type": "enabled", "budget_tokens": 20_000},
        }  # fmt: skip
        refused = stage.call("/v1/gateway/anthropic/v1/messages", "POST", json=body)
        assert (refused.status_code, refused.get_json()["code"]) == (402, "INSUFFICIENT_CREDITS")
        affordable = refused.get_json()["details"]["affordable_max_tokens"]
        assert 6_000 < affordable < 7_000
        assert f"{affordable} tokens, and a thinking budget to less" in refused.get_json()["error"]
        body = {**body, "max_tokens": affordable, "thinking": {"type": "enabled", "budget_tokens": affordable - 1}}
        assert stage.call("/v1/gateway/anthropic/v1/messages", "POST", json=body).status_code == 200
        # What an image costs does not depend on any bound.
        image = {"model": "gpt-image-1", "prompt": "a cat", "n": 5}
        refused = stage.call("/v1/gateway/openai/images/generations", "POST", json=image)
        assert (refused.status_code, refused.get_json()["code"]) == (402, "INSUFFICIENT_CREDITS")
        assert len(stage.upstream.asked) == 1


IMAGE_TOOL = {"type": "image_generation", "model": "gpt-image-1.5", "quality": "medium", "size": "1024x1024"}
DRAWING = {"model": "gpt-5-mini", "input": "Draw a cat.", "tools": [IMAGE_TOOL]}
DRAWN = {
    "model": "gpt-5-mini",
    "usage": {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110},
    "tool_usage": {"image_gen": {"input_tokens": 50, "output_tokens": 1_056}},
    "output": [{"type": "image_generation_call", "id": "ig_1", "status": "completed"}],
}


@pytest.mark.parametrize("credits_usd", ["100", "1", "0.40"])
def test_image_generation_without_a_limit_gets_the_largest_one_that_the_credits_cover(
    build_app: Callable[..., Flask], sqlite_url: str, credits_usd: str
) -> None:
    with gateway_stage(build_app, sqlite_url, initial_credits_usd=credits_usd) as stage:
        stage.behave(lambda exchange: exchange.json(DRAWN))
        answer = stage.call("/v1/gateway/openai/responses", "POST", json=DRAWING)
        assert answer.status_code == 200, answer.get_json()
        applied = int(answer.headers["X-Max-Tool-Calls-Applied"])
        sent = stage.upstream.asked[-1].json()
        assert sent["max_tool_calls"] == applied >= 1
        assert {name: sent[name] for name in DRAWING} == DRAWING
        # One image costs up to 0.08 USD, and a call at most 5.
        assert applied <= min(float(credits_usd), 5) / 0.03
        stated = stage.call("/v1/gateway/openai/responses", "POST", json={**DRAWING, "max_tool_calls": 1})
        assert "X-Max-Tool-Calls-Applied" not in stated.headers
        stage.assert_nothing_held()


def test_a_tool_is_refused_with_the_numbers_if_its_smallest_limit_costs_too_much(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    with gateway_stage(build_app, sqlite_url, gateway_max_call_usd="0.01") as stage:
        refused = stage.call("/v1/gateway/openai/responses", "POST", json=DRAWING)
        body = refused.get_json()
        assert (refused.status_code, body["code"]) == (400, "INVALID_INPUT")
        assert body["details"]["limit_usd"] == 0.01
        assert 0.01 < body["details"]["worst_case_usd"] < 0.5
        assert not stage.upstream.asked
    with gateway_stage(build_app, sqlite_url, initial_credits_usd="0.01") as stage:
        refused = stage.call("/v1/gateway/openai/responses", "POST", json=DRAWING)
        body = refused.get_json()
        assert (refused.status_code, body["code"]) == (402, "INSUFFICIENT_CREDITS")
        assert body["details"]["credits_usd"] == 0.01
        assert not stage.upstream.asked
        stage.assert_nothing_held()
