"""Prices: exact, rounded up once, never zero by ignorance, and never above what was announced."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from typing import Any

import genai_prices
import pytest
from genai_prices import data_snapshot
from hypothesis import assume, given
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.gateway import price_table
from app.gateway.dialects.answers import open_answer
from app.gateway.dialects.facts import CallFacts, Dialect, Surface
from app.gateway.dialects.requests import read_call
from app.gateway.dialects.usage import Reading, Usage
from app.gateway.pricing import (
    FixedPrice,
    PerPath,
    PerRpcMethod,
    Quote,
    Request,
    TokenPrices,
    rule_from,
)
from app.gateway.token_cost import Fallback
from app.usage.service import Metered
from tests.support import recorded_answers as recorded

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
VERSION = price_table.VERSION
OPENAI, ANTHROPIC, GOOGLE = TokenPrices("openai"), TokenPrices("anthropic"), TokenPrices("google")
OPENROUTER = TokenPrices("openrouter")


def chat(**more: Any) -> CallFacts:
    return CallFacts(
        **{
            "surface": Surface.CHAT,
            "dialect": Dialect.OPENAI,
            "model": "gpt-5",
            "tokens_in_likely": 10,
            **more,
        }
    )


def quote(rule: TokenPrices, facts: CallFacts) -> Quote:
    return rule.quote(Request(at=AT, facts=facts))


def answered(facts: CallFacts, body: Any, content_type: str = "application/json") -> Reading:
    answer = open_answer(facts, status=200, content_type=content_type)
    answer.feed(body if isinstance(body, bytes) else json.dumps(body).encode())
    answer.flush()
    return answer.finish()


@pytest.mark.parametrize(
    ("rule", "facts", "body", "metered"),
    [
        (OPENAI, chat(), recorded.CHAT, Metered(3_348_000, 1200, 300, VERSION)),
        (
            OPENAI,
            chat(surface=Surface.RESPONSES),
            {"model": "gpt-5", "usage": recorded.RESPONSES_USAGE},
            Metered(3_348_000, 1200, 300, VERSION),
        ),
        (OPENAI, chat(surface=Surface.EMBEDDINGS), recorded.EMBEDDINGS, Metered(160, 8, 0, VERSION)),
        (
            ANTHROPIC,
            chat(surface=Surface.MESSAGES, dialect=Dialect.ANTHROPIC),
            recorded.MESSAGE,
            Metered(36_425_000, 7100, 400, VERSION),
        ),
        (
            GOOGLE,
            chat(surface=Surface.GENERATE, dialect=Dialect.GEMINI),
            recorded.GEMINI,
            Metered(1_078_750, 15, 106, VERSION),
        ),
        (
            OPENROUTER,
            chat(dialect=Dialect.OPENROUTER),
            recorded.OPENROUTER,
            Metered(950_000, 194, 2, "reported"),
        ),
        # The answer's model wins over the request's; where the table does not know it, the request's counts.
        (OPENAI, chat(model="gpt-5-mini"), recorded.CHAT, Metered(3_348_000, 1200, 300, VERSION)),
        (
            OPENAI,
            chat(),
            {**recorded.CHAT, "model": "gpt-5-from-home"},
            Metered(3_348_000, 1200, 300, VERSION),
        ),
        # Neither is known: 1200 * 5 + 300 * 25 micro-dollars.
        (
            OPENAI,
            chat(model="x"),
            {**recorded.CHAT, "model": "y"},
            Metered(13_500_000, 1200, 300, "fallback"),
        ),
    ],
)
def test_an_answer_costs_what_its_provider_s_price_list_says(
    rule: TokenPrices, facts: CallFacts, body: Any, metered: Metered
) -> None:
    assert rule.settle(facts, answered(facts, body), AT) == metered


def test_a_stream_costs_what_its_plain_answer_does() -> None:
    facts = chat(surface=Surface.MESSAGES, dialect=Dialect.ANTHROPIC, is_streamed=True)
    reading = answered(facts, recorded.message_stream(), "text/event-stream")
    # 25 fresh at 3, 1000 from the cache at 0.3, 15 written at 15 dollars a million.
    assert ANTHROPIC.settle(facts, reading, AT) == Metered(600_000, 1025, 15, VERSION)


def test_a_dearer_tier_costs_its_price() -> None:
    plain = OPENAI.settle(chat(), answered(chat(), recorded.CHAT), AT)
    dear = OPENAI.settle(chat(), answered(chat(), {**recorded.CHAT, "service_tier": "priority"}), AT)
    assert dear.cost_nanos == 2 * plain.cost_nanos
    asked = quote(OPENAI, chat(tokens_in=10, tokens_out=10, tier="priority"))
    assert asked.worst.cost_nanos == 2 * quote(OPENAI, chat(tokens_in=10, tokens_out=10)).worst.cost_nanos


MODELS = [
    (provider.id, model)
    for provider in data_snapshot.get_snapshot().providers
    if provider.id in {"openai", "anthropic", "google", "groq", "openrouter", "mistral", "x-ai", "deepseek"}
    for model in provider.models
]
COUNTS = st.integers(min_value=0, max_value=2_000_000)


@given(st.sampled_from(MODELS), COUNTS, COUNTS, st.integers(0, 100), COUNTS, COUNTS, COUNTS)
def test_our_arithmetic_agrees_with_the_table_s_own(
    named: tuple[str, Any], tokens_in: int, tokens_out: int, searches: int, read: int, written: int, hour: int
) -> None:
    table, model = named
    read = min(read, tokens_in)
    written = min(written, tokens_in - read)
    hour = min(hour, written)
    provider = next(each for each in data_snapshot.get_snapshot().providers if each.id == table)
    theirs = model.calc_price(
        genai_prices.Usage(
            input_tokens=tokens_in, output_tokens=tokens_out, web_searches=searches, cache_read_tokens=read,
            cache_write_tokens=written, cache_write_1h_tokens=hour,
        ),
        provider,
        genai_request_timestamp=AT,
    )  # fmt: skip
    prices = model.get_prices(AT)
    ours = TokenPrices(table).settle(
        chat(model=model.id),
        Reading(
            usage=Usage(
                tokens_in,
                tokens_out,
                cache_read=read,
                cache_write=written,
                cache_write_1h=hour,
                searches=searches,
            ),
            is_complete=True,
            model=model.id,
        ),
        AT,
    )
    found = price_table.find(table, model.id)
    assume(found is not None and found.id == model.id and ours.price_version == VERSION)
    exact = (theirs.total_price * 10**9).to_integral_value(rounding=ROUND_CEILING)
    if prices.input_mtok and prices.output_mtok and prices.web_searches_kcount:
        assert ours.cost_nanos == exact
    else:
        # Where the table says nothing, ours has the fallback.
        assert ours.cost_nanos >= exact


@given(
    st.sampled_from(MODELS),
    st.integers(0, 600_000),
    st.integers(0, 100_000),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.integers(0, 20),
    st.sampled_from([None, "flex", "priority", "fast"]),
    st.data(),
)
def test_no_call_costs_more_than_was_announced(
    named: tuple[str, Any],
    tokens_in: int,
    tokens_out: int,
    candidates: int,
    has_media: bool,  # noqa: FBT001
    writes_cache: bool,  # noqa: FBT001
    searches: int,
    tier: str | None,
    data: st.DataObject,
) -> None:
    table, model = named
    facts = chat(
        model=model.id, tokens_in=tokens_in, tokens_in_likely=tokens_in // 2, tokens_out=tokens_out * candidates,
        candidates=candidates, has_media=has_media, writes_cache=writes_cache, searches=searches, tier=tier, speed=tier,
    )  # fmt: skip
    rule = TokenPrices(table)
    announced = rule.quote(Request(at=AT, facts=facts))

    def part(most: int, *, said: bool = True) -> int:
        return data.draw(st.integers(0, max(0, most))) if said else 0

    used = Usage(
        tokens_in=part(tokens_in),
        tokens_out=part(tokens_out * candidates),
        cache_read=part(tokens_in),
        cache_write=part(tokens_in),
        cache_write_5m=part(tokens_in),
        cache_write_1h=part(tokens_in, said=writes_cache),
        audio_in=part(tokens_in, said=has_media),
        audio_cached=part(tokens_in, said=has_media),
        audio_out=part(tokens_out),
        image_in=part(tokens_in, said=has_media),
        image_out=part(tokens_out),
        reasoning=part(tokens_out),
        searches=part(searches),
    )
    reading = Reading(
        usage=used, is_complete=True, model=model.id, tier=data.draw(st.sampled_from([None, tier]))
    )
    cost = rule.settle(facts, reading, AT)
    assert 0 <= cost.cost_nanos <= announced.worst.cost_nanos
    assert announced.minimum_nanos <= announced.worst.cost_nanos
    assert announced.estimate.cost_nanos <= announced.worst.cost_nanos
    if (used.tokens_in or used.tokens_out) and not model.id.endswith(":free"):
        assert cost.cost_nanos > 0


ALL_OF_ONE_KIND = [
    *({name: 300_000} for name in ("cache_read", "cache_write", "cache_write_1h")),
    *({name: 300_000} for name in ("audio_in", "audio_cached", "image_in")),
    {"cache_write": 300_000, "cache_write_5m": 300_000},
    {"cache_write": 300_000, "cache_write_1h": 300_000},
    {"cache_read": 300_000, "audio_cached": 300_000},
    *({name: 1000} for name in ("audio_out", "image_out", "reasoning")),
    {},
]  # fmt: skip


@pytest.mark.parametrize("table", sorted({table for table, _ in MODELS}))
def test_the_worst_case_covers_every_kind_of_token_of_every_model(table: str) -> None:
    rule = TokenPrices(table)
    by_prices = {repr(model.get_prices(AT)): model for provider, model in MODELS if provider == table}
    for model in by_prices.values():
        facts = chat(model=model.id, tokens_in=300_000, tokens_out=1000, has_media=True, writes_cache=True)
        worst_nanos = quote(rule, facts).worst.cost_nanos
        for kinds in ALL_OF_ONE_KIND:
            reading = Reading(usage=Usage(300_000, 1000, **kinds), is_complete=True, model=model.id)
            assert rule.settle(facts, reading, AT).cost_nanos <= worst_nanos, (model.id, kinds)


@given(
    named=st.sampled_from(MODELS),
    tokens_in=st.integers(0, 500_000),
    candidates=st.integers(1, 5),
    each=st.integers(1, 15_000),
    spare=st.integers(0, 10**6),
)
def test_the_affordable_output_is_the_most_that_fits(
    named: tuple[str, Any], tokens_in: int, candidates: int, each: int, spare: int
) -> None:
    table, model = named
    facts = chat(model=model.id, tokens_in=tokens_in, candidates=candidates, tokens_out=16_000 * candidates)
    rule = TokenPrices(table)

    def worst(most: int) -> int:
        return quote(rule, replace(facts, tokens_out=most * candidates)).worst.cost_nanos

    available_nanos = worst(each) + spare
    fitting = quote(rule, facts).affordable(available_nanos).get("affordable_max_tokens")
    assume(fitting)  # some models are priced by other things than output
    assert fitting is not None
    assert fitting >= each
    assert worst(fitting) <= available_nanos
    assert worst(fitting + 1) > available_nanos - 1


def test_a_call_without_a_bound_is_held_for_sixteen_thousand_tokens() -> None:
    facts = read_call(Dialect.OPENAI, "POST", "chat/completions", body=b'{"model":"gpt-5"}')
    announced = quote(OPENAI, facts)
    assert announced.worst.tokens_out == 16_000
    # 16 000 at ten dollars a million, and the input at 1.25.
    assert announced.worst.cost_nanos == 160_000_000 + facts.tokens_in * 1_250
    assert announced.minimum_nanos == 2_560_000 + facts.tokens_in * 1_250
    assert announced.estimate.cost_nanos == facts.tokens_in_likely * 1_250
    assert announced.estimate.price_version == VERSION + "+estimate"
    assert not announced.is_fixed


def test_the_dearest_of_several_models_is_announced() -> None:
    facts = chat(
        model="openai/gpt-5-mini", dialect=Dialect.OPENROUTER, tokens_in=100, tokens_out=100,
        alternatives=("anthropic/claude-opus-4", "openai/gpt-5"),
    )  # fmt: skip
    dearest = quote(OPENROUTER, replace(facts, model="anthropic/claude-opus-4", alternatives=()))
    assert quote(OPENROUTER, facts).worst.cost_nanos == dearest.worst.cost_nanos
    assert quote(OPENROUTER, facts).model == "openai/gpt-5-mini"


def test_a_stream_that_broke_off_costs_its_likely_input_and_what_was_written() -> None:
    facts = chat(tokens_in=500, tokens_in_likely=100, tokens_out=1000, tokens_out_is_stated=True)
    cost = OPENAI.settle(facts, Reading(streamed_bytes=401), AT)
    assert cost == Metered(100 * 1_250 + 101 * 10_000, 100, 101, VERSION + "+estimate")
    # What it was told to write at most is not passed by a guess.
    assert OPENAI.settle(facts, Reading(streamed_bytes=10**6), AT).tokens_out == 1000


def test_a_message_that_broke_off_costs_what_it_told_and_what_was_written_since() -> None:
    facts = chat(surface=Surface.MESSAGES, model="claude-sonnet-4-5", tokens_in_likely=9)
    reading = Reading(usage=Usage(1025, 1, cache_read=1000), streamed_bytes=40)
    assert ANTHROPIC.settle(facts, reading, AT) == Metered(
        25 * 3_000 + 1000 * 300 + 10 * 15_000, 1025, 10, VERSION + "+estimate"
    )


@pytest.mark.parametrize("status", [200, 201])
def test_a_good_answer_without_usage_is_not_free(status: int) -> None:
    for surface in (Surface.CHAT, Surface.EMBEDDINGS, Surface.OPAQUE, Surface.GENERATE):
        for model in ("gpt-5", "unheard-of", "text-embedding-3-small", "dall-e-3", ""):
            facts = chat(surface=surface, model=model)
            assert OPENAI.settle(facts, Reading(status=status), AT).cost_nanos > 0


def test_a_whole_answer_that_tells_no_usage_costs_its_bytes() -> None:
    asked = chat(surface=Surface.GENERATE, dialect=Dialect.GEMINI, model="gemini-2.5-pro", tokens_out=10_000)
    whole = json.dumps({"candidates": [{"content": {"parts": [{"text": "a" * 400}]}}]}).encode()
    for body in (whole, b"/**/f(" + whole + b")", bytes(len(whole)), whole[:-9] + b' "usageMetadata": 1}'):
        metered = GOOGLE.settle(asked, answered(asked, body), AT)
        assert metered.tokens_out == len(body)
    # A count of the input alone says nothing of what was written.
    half = {**json.loads(whole), "usageMetadata": {"promptTokenCount": 5}}
    assert GOOGLE.settle(asked, answered(asked, half), AT).tokens_out > 400


def test_an_answer_that_cannot_be_read_at_all_costs_what_was_held() -> None:
    asked = chat(tokens_out=10_000)
    answer = open_answer(asked, status=200, content_type="application/json", content_encoding="br")
    answer.feed(b"abc")
    assert OPENAI.settle(asked, answer.finish(), AT).tokens_out == 10_000


def test_a_picture_without_usage_costs_the_fallback_for_each() -> None:
    facts = read_call(
        Dialect.OPENAI, "POST", "images/generations", body=b'{"model":"dall-e-3","prompt":"x","n":2}'
    )
    assert quote(OPENAI, facts).worst.cost_nanos >= 200_000_000
    assert OPENAI.settle(facts, Reading(), AT).cost_nanos == 200_000_000


def test_speech_costs_its_letters() -> None:
    body = json.dumps({"model": "tts-1", "input": "a" * 1000}).encode()
    facts = read_call(Dialect.OPENAI, "POST", "audio/speech", body=body)
    # Fifteen dollars a million.
    assert OPENAI.settle(facts, Reading(), AT) == Metered(
        15_000_000, facts.tokens_in_likely, 0, VERSION + "+estimate"
    )
    assert quote(OPENAI, facts).worst.cost_nanos == 15_000_000


def test_speech_of_an_unknown_voice_costs_the_fallback() -> None:
    body = json.dumps({"model": "tts-9", "input": "a" * 1000}).encode()
    facts = read_call(Dialect.OPENAI, "POST", "audio/speech", body=body)
    assert OPENAI.settle(facts, Reading(), AT).cost_nanos == 100_000_000


def test_tokens_of_what_is_sold_by_the_hour_are_not_free() -> None:
    reading = Reading(usage=Usage(100, 10), is_complete=True, model="whisper-1")
    assert OPENAI.settle(chat(surface=Surface.OPAQUE), reading, AT) == Metered(750_000, 100, 10, "fallback")


def test_a_recording_costs_its_seconds_rounded_up() -> None:
    facts = chat(surface=Surface.OPAQUE, model="whisper-1")
    reading = Reading(usage=Usage(audio_seconds=7), is_complete=True)
    # 0.36 dollars an hour.
    assert OPENAI.settle(facts, reading, AT).cost_nanos == 700_000


@pytest.mark.parametrize("status", [301, 400, 401, 404, 429, 500, 529])
def test_a_failure_without_usage_costs_nothing(status: int) -> None:
    for surface in Surface:
        assert OPENAI.settle(chat(surface=surface), Reading(status=status), AT) == Metered(0)


def test_a_stream_that_fails_before_its_first_word_costs_nothing_and_later_what_it_wrote() -> None:
    assert OPENAI.settle(chat(), Reading(has_failed=True), AT).cost_nanos == 0
    assert OPENAI.settle(chat(), Reading(has_failed=True, streamed_bytes=1), AT).cost_nanos > 0


def test_free_calls_and_free_models_cost_nothing() -> None:
    facts = read_call(Dialect.ANTHROPIC, "POST", "v1/messages/count_tokens", body=b"{}")
    assert (quote(ANTHROPIC, facts).worst.cost_nanos, quote(ANTHROPIC, facts).is_fixed) == (0, True)
    assert ANTHROPIC.settle(facts, Reading(usage=Usage(10, 0)), AT) == Metered(0)
    told_free = Reading(usage=Usage(5, 5, cost_nanos=0), is_complete=True)
    assert OPENROUTER.settle(chat(model="openai/gpt-oss-20b:free"), told_free, AT).cost_nanos == 0
    listed_free = Reading(usage=Usage(5, 5), is_complete=True)
    assert OPENROUTER.settle(chat(model="openai/gpt-oss-20b:free"), listed_free, AT).cost_nanos == 0


@pytest.mark.parametrize("name", ["gpt-5:free", "gpt-9x:free", ":free"])
def test_nothing_is_free_by_its_name_but_at_openrouter(name: str) -> None:
    facts = chat(model=name, tokens_in=100, tokens_out=100)
    told = Reading(usage=Usage(100, 100), is_complete=True, model=name)
    for rule in (OPENAI, GOOGLE, ANTHROPIC, TokenPrices("groq")):
        assert quote(rule, facts).minimum_nanos > 0
        assert rule.settle(facts, told, AT).cost_nanos > 0
    assert quote(OPENROUTER, facts).worst.cost_nanos == 0


def test_the_searches_of_a_free_model_are_held_and_charged() -> None:
    body = b'{"model":"openai/gpt-oss-20b:free","plugins":[{"id":"web"}]}'
    facts = read_call(Dialect.OPENROUTER, "POST", "chat/completions", body=body)
    assert quote(OPENROUTER, facts).minimum_nanos == 10 * Fallback().search_nanos_each
    searched = Reading(usage=Usage(5, 5, searches=1), is_complete=True)
    assert OPENROUTER.settle(facts, searched, AT).cost_nanos == Fallback().search_nanos_each


def test_a_model_priced_at_nothing_by_the_table_costs_the_fallback() -> None:
    reading = Reading(usage=Usage(1000, 10), is_complete=True, model="gemma-3")
    assert GOOGLE.settle(chat(model="gemma-3"), reading, AT).cost_nanos == 1000 * 5_000 + 10 * 25_000


def test_a_fraction_of_a_nano_dollar_is_rounded_up_once() -> None:
    # 0.02 dollars a million: 20 nano-dollars each; llama at 0.59 and 0.79 has fractions of ten.
    rule = TokenPrices("groq")
    facts = chat(model="llama-3.3-70b-versatile", dialect=Dialect.GROQ)
    assert rule.settle(facts, Reading(usage=Usage(1, 1), is_complete=True), AT).cost_nanos == 590 + 790
    rates = price_table.find("openrouter", "openai/gpt-oss-20b")
    assert rates is not None
    each = rates.rates(AT, 3).input
    assert each is not None
    cost = OPENROUTER.settle(
        chat(model="openai/gpt-oss-20b"), Reading(usage=Usage(3, 0), is_complete=True), AT
    )
    assert cost.cost_nanos == int((3 * each).to_integral_value(rounding=ROUND_CEILING))


def test_one_call_never_costs_more_than_one_call_may() -> None:
    lie = Reading(usage=Usage(10**9, 10**9, cost_nanos=10**15), is_complete=True)
    assert OPENAI.settle(chat(), lie, AT, most_nanos=5 * 10**9).cost_nanos == 5 * 10**9
    lie = Reading(usage=Usage(10**9, 10**9), is_complete=True)
    assert OPENAI.settle(chat(model="o1-pro"), lie, AT).cost_nanos < 2**63


def test_a_call_that_may_cost_too_much_is_refused_with_what_would_fit() -> None:
    facts = chat(model="o1-pro", tokens_in=1000, tokens_out=16_000)
    announced = quote(OPENAI, facts)
    with pytest.raises(InvalidInput) as refusal:
        announced.check(5 * 10**9)
    fitting = refusal.value.details["affordable_max_tokens"]
    assert fitting == (5 * 10**9 - 150_000_000) // 600_000
    quote(OPENAI, replace(facts, tokens_out=fitting)).check(5 * 10**9)
    with pytest.raises(InvalidInput):
        FixedPrice(2).quote(Request(at=AT)).check(1)


def rpc(body: Any) -> Request:
    return Request(at=AT, body=body if isinstance(body, bytes) else json.dumps(body).encode())


RPC = PerRpcMethod(100, {"eth_chainId": 0, "debug_*": 5000, "debug_trace*": 9000})


@pytest.mark.parametrize(
    ("body", "nanos", "model"),
    [
        ({"method": "eth_call"}, 100, "eth_call"),
        ({"method": "eth_chainId"}, 0, "eth_chainId"),
        ({"method": "debug_traceCall"}, 9000, "debug_traceCall"),
        ({"method": "debug_x"}, 5000, "debug_x"),
        ([{"method": "eth_call"}, {"method": "eth_call"}], 200, "eth_call"),
        ([{"method": "eth_call"}, {"method": "debug_x"}, {}, 5, None, []], 5500, "batch"),
        ([], 100, ""),
        ({}, 100, ""),
        (b"", 100, ""),
        ({"method": ["eth_chainId"]}, 100, ""),
        ("eth_chainId", 100, ""),
    ],
)
def test_a_batch_costs_the_sum_of_its_calls(body: Any, nanos: int, model: str) -> None:
    announced = RPC.quote(rpc(body))
    assert (announced.worst.cost_nanos, announced.model, announced.is_fixed) == (nanos, model, True)
    assert announced.minimum_nanos == announced.estimate.cost_nanos == nanos


@pytest.mark.parametrize(
    "body", [b"{", b'{"method":"eth_chainId","method":"debug_x"}', b"[" * 100 + b"]" * 100, [{}] * 1001]
)
def test_a_body_that_hides_its_methods_is_refused(body: Any) -> None:
    with pytest.raises(InvalidInput):
        RPC.quote(rpc(body))


@pytest.mark.parametrize(
    ("path", "nanos"),
    [("search", 5), ("/search/", 5), ("search/deep", 9), ("search/deep/x", 9), ("searching", 1), ("", 1)],
)
def test_a_path_costs_its_longest_beginning(path: str, nanos: int) -> None:
    assert (
        PerPath({"search": 5, "/search/deep/": 9}, 1).quote(Request(at=AT, path=path)).worst.cost_nanos
        == nanos
    )


def test_a_rule_is_read_from_a_providers_file() -> None:
    assert rule_from({"type": "fixed", "usd": "0.005"}) == FixedPrice(5_000_000)
    assert rule_from({"type": "path", "usd": "1", "usd_by_path": {"a": "0.5"}}) == PerPath(
        {"a": 500_000_000}, 10**9
    )
    assert rule_from({"type": "rpc", "usd": "0.0001", "usd_by_method": {"x_*": "0"}}) == PerRpcMethod(
        100_000, {"x_*": 0}
    )
    assert rule_from({"type": "tokens", "table": "mistral"}) == TokenPrices("mistral")
    row = {"type": "tokens", "table": "x-ai", "fallback_input_usd_per_million": "3.5", "fallback_usd": "0.02"}
    assert rule_from(row) == TokenPrices("x-ai", Fallback(input_nanos_each=3_500, call_nanos=20_000_000))


@pytest.mark.parametrize(
    "row",
    [
        {}, {"type": "barter"}, {"type": ["fixed"]}, {"type": "fixed"}, {"type": "fixed", "usd": 1},
        {"type": "fixed", "usd": "-1"}, {"type": "fixed", "usd": "1e3"}, {"type": "fixed", "usd": "1", "surplus": 1},
        {"type": "path", "usd": "1", "usd_by_path": []}, {"type": "tokens", "table": "nobody"},
        {"type": "tokens", "table": "openai", "fallback_input_usd_per_million": "0.0001"},
        {"type": "tokens", "table": "openai", "fallback_output_usd_per_million": "0"},
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_read_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="price"):
        rule_from(row)


def test_the_table_is_the_one_that_came_with_the_service() -> None:
    assert not data_snapshot.get_snapshot().from_auto_update
    assert VERSION.removeprefix("genai-prices/") == genai_prices.__version__
    assert {"openai", "anthropic", "google", "openrouter", "groq"} <= price_table.tables()


def test_long_prompts_never_cost_less_where_prices_rise() -> None:
    known = [found for table, model in MODELS if (found := price_table.find(table, model.id)) is not None]
    assert len(known) > len(MODELS) * 9 // 10
    for found in known:
        for tokens in (0, 128_001, 200_001, 272_001, 10**6):
            now, dearest = found.rates(AT, tokens), found.dearest_rates(AT, tokens)
            for name in price_table.Rates.__slots__:
                rate, most = getattr(now, name), getattr(dearest, name)
                assert (rate is None) is (most is None)
                assert rate is None or Decimal(0) <= rate <= most


@pytest.mark.parametrize(("parameters", "count"), [({}, 4), ({"sampleCount": 1}, 1), ({"sampleCount": 8}, 8)])
def test_each_picture_of_a_prediction_is_priced(parameters: dict[str, int], count: int) -> None:
    body = json.dumps({"instances": [{"prompt": "x"}], "parameters": parameters}).encode()
    facts = read_call(Dialect.GEMINI, "POST", "v1beta/models/imagen-9:predict", body=body)
    assert GOOGLE.settle(facts, Reading(), AT).cost_nanos == count * 100_000_000
