"""Prices: exact, rounded up once, never zero for lack of data, and never above the quote."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from typing import Any

import genai_prices
import pytest
from genai_prices import data_snapshot
from hypothesis import assume, given
from hypothesis import strategies as st

from app.errors import InvalidInput, RouteNotAllowed
from app.gateway.dialects.request.cost_params import CostParams, Dialect, HostedTools, Surface
from app.gateway.dialects.response.usage_readers import Usage, UsageReading
from app.gateway.pricing import charges, price_table, rates
from app.gateway.pricing.quotes import CallQuote, FixedPrice, PerRpcMethod, PricedRequest, TokenPrices, rpc_methods
from app.gateway.pricing.rates import FallbackRates
from app.gateway.providers.table import PriceRow
from app.gateway.validation.rules import Pattern
from app.usage.service import MeteredUsage
from tests.support import recorded_answers as recorded
from tests.support.provider_rows import place, read_request
from tests.support.response_readers import reader_of

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
VERSION = price_table.VERSION
OPENAI, ANTHROPIC, GOOGLE = TokenPrices("openai"), TokenPrices("anthropic"), TokenPrices("google")
OPENROUTER = TokenPrices("openrouter")


def chat(**more: Any) -> CostParams:
    return CostParams(
        **{"surface": Surface.CHAT, "dialect": Dialect.OPENAI, "model": "gpt-5", "tokens_in_likely": 10, **more}
    )


def quote(rule: TokenPrices, params: CostParams) -> CallQuote:
    return rule.quote(PricedRequest(at=AT, params=params))


def answered(params: CostParams, body: Any, content_type: str = "application/json") -> UsageReading:
    answer = reader_of(params, status=200, content_type=content_type)
    answer.feed(body if isinstance(body, bytes) else json.dumps(body).encode())
    answer.flush()
    return answer.finish()


@pytest.mark.parametrize(
    ("rule", "params", "body", "metered"),
    [
        (OPENAI, chat(), recorded.CHAT, MeteredUsage(3_348_000, 1200, 300, VERSION, 1024, 128)),
        (
            OPENAI,
            chat(surface=Surface.RESPONSES),
            {"model": "gpt-5", "usage": recorded.RESPONSES_USAGE},
            MeteredUsage(3_348_000, 1200, 300, VERSION, 1024, 128),
        ),
        (OPENAI, chat(surface=Surface.EMBEDDINGS), recorded.EMBEDDINGS, MeteredUsage(160, 8, 0, VERSION)),
        (
            ANTHROPIC,
            chat(surface=Surface.MESSAGES, dialect=Dialect.ANTHROPIC),
            recorded.MESSAGE,
            MeteredUsage(36_425_000, 7100, 400, VERSION, 5000),
        ),
        (
            GOOGLE,
            chat(surface=Surface.GENERATE, dialect=Dialect.GEMINI),
            recorded.GEMINI,
            MeteredUsage(1_078_750, 15, 106, VERSION, 0, 100),
        ),
        (OPENROUTER, chat(dialect=Dialect.OPENROUTER), recorded.OPENROUTER, MeteredUsage(950_000, 194, 2, "reported")),
        # The response's model takes precedence; if the table does not have it, the request's model counts.
        (OPENAI, chat(model="gpt-5-mini"), recorded.CHAT, MeteredUsage(3_348_000, 1200, 300, VERSION, 1024, 128)),
        (
            OPENAI,
            chat(),
            {**recorded.CHAT, "model": "gpt-5-from-home"},
            MeteredUsage(3_348_000, 1200, 300, VERSION, 1024, 128),
        ),
        # Neither is known: the provider's highest rates, 1200 * 150 + 300 * 600 micro-dollars.
        (
            OPENAI,
            chat(model="x"),
            {**recorded.CHAT, "model": "y"},
            MeteredUsage(360_000_000, 1200, 300, "fallback", 1024, 128),
        ),
    ],
)
def test_a_response_costs_the_list_price(
    rule: TokenPrices, params: CostParams, body: Any, metered: MeteredUsage
) -> None:
    assert rule.settle(params, answered(params, body), AT) == metered


def test_a_stream_costs_the_same_as_a_plain_response() -> None:
    params = chat(surface=Surface.MESSAGES, dialect=Dialect.ANTHROPIC, is_streamed=True)
    reading = answered(params, recorded.message_stream(), "text/event-stream")
    # 25 uncached at 3, 1000 from the cache at 0.3, 15 written at 15 dollars a million.
    assert ANTHROPIC.settle(params, reading, AT) == MeteredUsage(600_000, 1025, 15, VERSION, 1000)


def test_a_more_expensive_tier_costs_its_price() -> None:
    plain = OPENAI.settle(chat(), answered(chat(), recorded.CHAT), AT)
    dear = OPENAI.settle(chat(), answered(chat(), {**recorded.CHAT, "service_tier": "priority"}), AT)
    assert dear.cost_nanos == 2 * plain.cost_nanos
    asked = quote(OPENAI, chat(tokens_in=10, tokens_out=10, tier="priority"))
    assert asked.worst_case.cost_nanos == 2 * quote(OPENAI, chat(tokens_in=10, tokens_out=10)).worst_case.cost_nanos


MODELS = [
    (provider.id, model)
    for provider in data_snapshot.get_snapshot().providers
    if provider.id in {"openai", "anthropic", "google", "groq", "openrouter", "mistral", "x-ai", "deepseek"}
    for model in provider.models
]
COUNTS = st.integers(min_value=0, max_value=2_000_000)


@given(st.sampled_from(MODELS), COUNTS, COUNTS, st.integers(0, 100), COUNTS, COUNTS, COUNTS)
def test_the_arithmetic_agrees_with_genai_prices(
    named: tuple[str, Any], tokens_in: int, tokens_out: int, searches: int, read: int, written: int, hour: int
) -> None:
    table, model = named
    read = min(read, tokens_in)
    written = min(written, tokens_in - read)
    # OpenAI's long writes cost twice the others, which the table does not have.
    hour = 0 if table == "openai" else min(hour, written)
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
        UsageReading(
            usage=Usage(
                tokens_in, tokens_out, cache_read=read, cache_write=written, cache_write_1h=hour, searches=searches
            ),
            is_complete=True,
            model=model.id,
        ),
        AT,
    )
    found = price_table.find_model(table, model.id)
    assume(found is not None and found.model.id == model.id and ours.price_version == VERSION)
    exact = (theirs.total_price * 10**9).to_integral_value(rounding=ROUND_CEILING)
    knows_hours = not hour or getattr(prices, "cache_write_1h_mtok", None)
    if prices.input_mtok and prices.output_mtok and prices.web_searches_kcount and knows_hours:
        assert ours.cost_nanos == exact
    else:
        # Where the table has no rate, the fallback applies.
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
def test_no_call_costs_more_than_its_quote(
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
    params = chat(
        model=model.id, tokens_in=tokens_in, tokens_in_likely=tokens_in // 2, tokens_out=tokens_out * candidates,
        candidates=candidates, has_media=has_media, writes_cache=writes_cache, searches=searches, tier=tier, speed=tier,
    )  # fmt: skip
    rule = TokenPrices(table)
    announced = rule.quote(PricedRequest(at=AT, params=params))

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
    reading = UsageReading(usage=used, is_complete=True, model=model.id, tier=data.draw(st.sampled_from([None, tier])))
    cost = rule.settle(params, reading, AT)
    assert 0 <= cost.cost_nanos <= announced.worst_case.cost_nanos
    assert announced.minimum_nanos <= announced.worst_case.cost_nanos
    assert announced.estimate.cost_nanos <= announced.worst_case.cost_nanos
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
        params = chat(model=model.id, tokens_in=300_000, tokens_out=1000, has_media=True, writes_cache=True)
        worst_nanos = quote(rule, params).worst_case.cost_nanos
        for kinds in ALL_OF_ONE_KIND:
            reading = UsageReading(usage=Usage(300_000, 1000, **kinds), is_complete=True, model=model.id)
            assert rule.settle(params, reading, AT).cost_nanos <= worst_nanos, (model.id, kinds)


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
    params = chat(model=model.id, tokens_in=tokens_in, candidates=candidates, tokens_out=16_000 * candidates)
    rule = TokenPrices(table)

    def worst(most: int) -> int:
        return quote(rule, params._replace(tokens_out=most * candidates)).worst_case.cost_nanos

    available_nanos = worst(each) + spare
    fitting = quote(rule, params).affordable(available_nanos).get("affordable_max_tokens")
    assume(fitting)  # some models are priced by other things than output
    assert fitting is not None
    assert fitting >= each
    assert worst(fitting) <= available_nanos
    assert worst(fitting + 1) > available_nanos - 1


@pytest.mark.parametrize(("factor", "cached"), [("0.5", "10"), ("1", "10"), ("1.1", "11"), ("2", "20")], ids=str)
def test_a_surcharge_applies_to_cached_tokens_and_a_discount_does_not(factor: str, cached: str) -> None:
    listed = price_table.Rates(input=Decimal(100), cache_read=Decimal(10), search=Decimal(5))
    scaled = rates._scale_rates(listed, Decimal(factor))
    assert scaled == replace(listed, input=100 * Decimal(factor), cache_read=Decimal(cached))


def test_a_call_without_a_limit_is_held_for_sixteen_thousand_tokens() -> None:
    params = read_request(Dialect.OPENAI, "POST", "chat/completions", body=b'{"model":"gpt-5"}')
    announced = quote(OPENAI, params)
    assert announced.worst_case.tokens_out == 16_000
    # 16 000 at ten dollars per million, and the input at 1.25.
    assert announced.worst_case.cost_nanos == 160_000_000 + params.tokens_in * 1_250
    assert announced.minimum_nanos == 2_560_000 + params.tokens_in * 1_250
    likely = params.tokens_in_likely
    assert announced.estimate == MeteredUsage(likely * 1_250, likely, 0, VERSION + "+estimate")
    assert announced.rule is OPENAI


def test_the_estimate_contains_the_fee_of_a_container() -> None:
    params = chat(tokens_in=10, tools=HostedTools(container_nanos=7))
    assert quote(OPENAI, params).estimate.cost_nanos == 10 * 1_250 + 7


# gpt-4: a context window of 8 192 tokens, 30 000 nano-dollars in, 60 000 out; gpt-5: 400 000 tokens.
@pytest.mark.parametrize(("model", "most"), [("gpt-4", 8_192), ("gpt-5", 128_000)])
def test_output_without_a_limit_is_at_most_the_context_window(model: str, most: int) -> None:
    nanos = {"gpt-4": (30_000, 60_000), "gpt-5": (1_250, 10_000)}[model]
    params = chat(model=model, tokens_in=10, tokens_out=1_000, candidates=2)
    unlimited = quote(OPENAI, params)
    assert unlimited.unbounded_nanos == 10 * nanos[0] + 2 * most * nanos[1]
    limited = quote(OPENAI, params._replace(is_tokens_out_set=True))
    assert limited.unbounded_nanos == limited.worst_case.cost_nanos == 10 * nanos[0] + 1_000 * nanos[1]


# A price of zero for a kind of token that a call does not have must not hide a token of it.
@pytest.mark.parametrize(
    ("params", "reading", "usage"),
    [
        (
            chat(surface=Surface.IMAGES, tokens_in=40, tokens_out=900),
            UsageReading(),
            Usage(40, 900, image_in=40, image_out=900),
        ),
        (
            chat(surface=Surface.TRANSCRIPTION, tokens_in=40, tokens_out=900, audio_seconds=4),
            UsageReading(bytes_unread=94, streamed_bytes=7),
            Usage(40, 51, audio_in=40, audio_seconds=4),
        ),
        (
            chat(surface=Surface.TRANSCRIPTION, tokens_in=40, tokens_out=30, audio_seconds=4),
            UsageReading(bytes_unread=7, streamed_bytes=101),
            Usage(40, 30, audio_in=40, audio_seconds=4),
        ),
        (chat(surface=Surface.SPEECH, tokens_in=40, tokens_out=900), UsageReading(), Usage(40, 900)),
    ],
)
def test_a_media_call_without_usage_is_charged_its_maximum(
    params: CostParams, reading: UsageReading, usage: Usage
) -> None:
    assert charges.estimate_usage(params, reading, 10**6) == usage


@pytest.mark.parametrize(
    ("params", "reading", "usage"),
    [
        # Input as likely; output as relayed: a token for four bytes.
        (chat(), UsageReading(streamed_bytes=400), Usage(10, 100)),
        (chat(), UsageReading(usage=Usage(25, 3), streamed_bytes=400), Usage(25, 100)),
        (chat(), UsageReading(usage=Usage(25, 300), streamed_bytes=400), Usage(25, 300)),
        (chat(tokens_out=60, is_tokens_out_set=True), UsageReading(streamed_bytes=400), Usage(10, 60)),
        (chat(tokens_out=60), UsageReading(streamed_bytes=400), Usage(10, 100)),
        # Without a limit in the request: at most what models write.
        (chat(tokens_out=60), UsageReading(streamed_bytes=10**7), Usage(10, 128_000)),
        # A body in an unknown format is text.
        (chat(tokens_out=60), UsageReading(bytes_unread=200), Usage(10, 50)),
        (chat(tokens_out=60), UsageReading(bytes_unread=10**9), Usage(10, 60)),
        (chat(), UsageReading(usage=Usage(25, 0), streamed_bytes=4), Usage(25, 1)),
        (chat(), UsageReading(usage=Usage(25, 1), bytes_unread=70), Usage(25, 1)),
        # Vectors are no text.
        (chat(surface=Surface.EMBEDDINGS, tokens_out=60), UsageReading(bytes_unread=70), Usage(10, 0)),
        (chat(), UsageReading(tool_calls={"web_search": 3, "other": 4}), Usage(10, 0, searches=3)),
        (chat(), UsageReading(usage=Usage(25, 3, searches=1, runs=((None, Usage(25, 3)),))), Usage(25, 3, searches=1)),
    ],
)
def test_an_incomplete_response_is_charged_what_it_shows(
    params: CostParams, reading: UsageReading, usage: Usage
) -> None:
    most = params.tokens_out if params.is_tokens_out_set else 128_000
    assert charges.estimate_usage(params, reading, most) == usage


def test_the_quote_covers_the_most_expensive_model() -> None:
    params = chat(
        model="openai/gpt-5-mini", dialect=Dialect.OPENROUTER, tokens_in=100, tokens_out=100,
        alternatives=("anthropic/claude-opus-4", "openai/gpt-5"),
    )  # fmt: skip
    dearest = quote(OPENROUTER, params._replace(model="anthropic/claude-opus-4", alternatives=()))
    assert quote(OPENROUTER, params).worst_case.cost_nanos == dearest.worst_case.cost_nanos
    assert quote(OPENROUTER, params).model == "openai/gpt-5-mini"


def test_an_interrupted_stream_costs_its_likely_input_and_content() -> None:
    params = chat(tokens_in=500, tokens_in_likely=100, tokens_out=1000, is_tokens_out_set=True)
    cost = OPENAI.settle(params, UsageReading(streamed_bytes=401), AT)
    assert cost == MeteredUsage(100 * 1_250 + 101 * 10_000, 100, 101, VERSION + "+estimate")
    # An estimate does not exceed the limit in the request.
    assert OPENAI.settle(params, UsageReading(streamed_bytes=10**6), AT).tokens_out == 1000


def test_an_interrupted_message_costs_its_reported_usage_and_later_content() -> None:
    params = chat(surface=Surface.MESSAGES, model="claude-sonnet-4-5", tokens_in_likely=9)
    reading = UsageReading(usage=Usage(1025, 1, cache_read=1000), streamed_bytes=40)
    assert ANTHROPIC.settle(params, reading, AT) == MeteredUsage(
        25 * 3_000 + 1000 * 300 + 10 * 15_000, 1025, 10, VERSION + "+estimate", 1000
    )


@pytest.mark.parametrize("status", [200, 201])
def test_a_successful_response_without_usage_is_not_free(status: int) -> None:
    for surface in (Surface.CHAT, Surface.EMBEDDINGS, Surface.OPAQUE, Surface.GENERATE):
        for model in ("gpt-5", "unheard-of", "text-embedding-3-small", "dall-e-3", ""):
            params = chat(surface=surface, model=model)
            assert OPENAI.settle(params, UsageReading(status=status), AT).cost_nanos > 0


def test_a_complete_response_without_usage_costs_its_content() -> None:
    asked = chat(surface=Surface.GENERATE, dialect=Dialect.GEMINI, model="gemini-2.5-pro", tokens_out=10_000)
    content = {"candidates": [{"content": {"parts": [{"text": "a" * 400}]}}]}
    whole = json.dumps(content).encode()
    assert GOOGLE.settle(asked, answered(asked, whole), AT).tokens_out == 100
    # In an unknown format all of it may be content.
    for body in (b"/**/f(" + whole + b")", bytes(len(whole)), whole[:-9] + b' "usageMetadata": 1}'):
        assert GOOGLE.settle(asked, answered(asked, body), AT).tokens_out == -(-len(body) // 4)
    # A count of only the input does not include the output.
    half = {**content, "usageMetadata": {"promptTokenCount": 5}}
    assert GOOGLE.settle(asked, answered(asked, half), AT).tokens_out == 100


def test_an_unreadable_response_costs_the_hold() -> None:
    asked = chat(tokens_out=10_000)
    answer = reader_of(asked, status=200, content_type="application/json", content_encoding="br")
    answer.feed(b"abc")
    assert OPENAI.settle(asked, answer.finish(), AT).tokens_out == 10_000


def test_an_image_without_usage_costs_its_configured_price() -> None:
    params = read_request(Dialect.OPENAI, "POST", "images/generations", body=b'{"model":"dall-e-3","prompt":"x","n":2}')
    prices = place("openai", "POST", "images/generations").match.route.rule
    assert isinstance(prices, TokenPrices)
    assert quote(prices, params).worst_case.cost_nanos == 240_000_000
    assert prices.settle(params, UsageReading(), AT).cost_nanos == 240_000_000


def test_speech_costs_its_characters() -> None:
    body = json.dumps({"model": "tts-1", "input": "a" * 1000}).encode()
    params = read_request(Dialect.OPENAI, "POST", "audio/speech", body=body)
    # Fifteen dollars a million.
    assert OPENAI.settle(params, UsageReading(), AT) == MeteredUsage(
        15_000_000, params.tokens_in, params.tokens_out, VERSION + "+estimate"
    )
    assert quote(OPENAI, params).worst_case.cost_nanos == 15_000_000


def test_speech_of_an_unknown_model_costs_at_least_the_highest_price() -> None:
    body = json.dumps({"model": "tts-9", "input": "a" * 1000}).encode()
    params = read_request(Dialect.OPENAI, "POST", "audio/speech", body=body)
    # tts-1-hd: thirty dollars per million characters.
    assert (
        OPENAI.settle(params, UsageReading(), AT).cost_nanos
        == quote(OPENAI, params).worst_case.cost_nanos
        >= 30_000_000
    )


def test_tokens_of_what_is_sold_by_the_hour_are_not_free() -> None:
    reading = UsageReading(usage=Usage(100, 10), is_complete=True, model="whisper-1")
    assert OPENAI.settle(chat(surface=Surface.OPAQUE), reading, AT) == MeteredUsage(750_000, 100, 10, "fallback")


def test_a_recording_costs_its_seconds_rounded_up() -> None:
    params = chat(surface=Surface.OPAQUE, model="whisper-1")
    reading = UsageReading(usage=Usage(audio_seconds=7), is_complete=True)
    # 0.36 dollars an hour.
    assert OPENAI.settle(params, reading, AT).cost_nanos == 700_000


@pytest.mark.parametrize("status", [301, 400, 401, 404, 429, 500, 529])
def test_a_failure_without_usage_costs_nothing(status: int) -> None:
    for surface in Surface:
        assert OPENAI.settle(chat(surface=surface), UsageReading(status=status), AT) == MeteredUsage(0)


def test_a_failing_stream_costs_nothing_before_and_its_content_after_its_first_word() -> None:
    assert OPENAI.settle(chat(), UsageReading(has_failed=True), AT).cost_nanos == 0
    assert OPENAI.settle(chat(), UsageReading(has_failed=True, streamed_bytes=1), AT).cost_nanos > 0


def test_free_calls_and_free_models_cost_nothing() -> None:
    params = read_request(Dialect.ANTHROPIC, "POST", "v1/messages/count_tokens", body=b"{}")
    assert (quote(ANTHROPIC, params).worst_case.cost_nanos, quote(ANTHROPIC, params).rule) == (0, None)
    assert ANTHROPIC.settle(params, UsageReading(usage=Usage(10, 0)), AT) == MeteredUsage(0)
    reported_free = UsageReading(usage=Usage(5, 5, cost_nanos=0), is_complete=True)
    assert OPENROUTER.settle(chat(model="openai/gpt-oss-20b:free"), reported_free, AT).cost_nanos == 0
    listed_free = UsageReading(usage=Usage(5, 5), is_complete=True)
    assert OPENROUTER.settle(chat(model="openai/gpt-oss-20b:free"), listed_free, AT).cost_nanos == 0


@pytest.mark.parametrize("name", ["gpt-5:free", "gpt-9x:free", ":free"])
def test_free_names_count_only_at_openrouter(name: str) -> None:
    params = chat(model=name, tokens_in=100, tokens_out=100)
    reading = UsageReading(usage=Usage(100, 100), is_complete=True, model=name)
    for rule in (OPENAI, GOOGLE, ANTHROPIC, TokenPrices("groq")):
        assert quote(rule, params).minimum_nanos > 0
        assert rule.settle(params, reading, AT).cost_nanos > 0
    assert quote(OPENROUTER, params).worst_case.cost_nanos == 0


def test_the_searches_of_a_free_model_are_held_and_charged() -> None:
    body = b'{"model":"openai/gpt-oss-20b:free","plugins":[{"id":"web"}]}'
    params = read_request(Dialect.OPENROUTER, "POST", "chat/completions", body=body)
    assert quote(OPENROUTER, params).minimum_nanos == 10 * FallbackRates().search_nanos_each
    searched = UsageReading(usage=Usage(5, 5, searches=1), is_complete=True)
    assert OPENROUTER.settle(params, searched, AT).cost_nanos == FallbackRates().search_nanos_each


def test_a_fraction_of_a_nano_dollar_is_rounded_up_once() -> None:
    # 0.02 dollars a million: 20 nano-dollars each; llama at 0.59 and 0.79 has fractions of ten.
    rule = TokenPrices("groq")
    params = chat(model="llama-3.3-70b-versatile", dialect=Dialect.GROQ)
    assert rule.settle(params, UsageReading(usage=Usage(1, 1), is_complete=True), AT).cost_nanos == 590 + 790
    rates = price_table.find_model("openrouter", "openai/gpt-oss-20b")
    assert rates is not None
    each = rates.rates(AT, 3).input
    assert each is not None
    cost = OPENROUTER.settle(chat(model="openai/gpt-oss-20b"), UsageReading(usage=Usage(3, 0), is_complete=True), AT)
    assert cost.cost_nanos == int((3 * each).to_integral_value(rounding=ROUND_CEILING))


def test_the_largest_plausible_usage_costs_what_a_column_can_hold() -> None:
    lie = UsageReading(usage=Usage(10**9, 10**9), is_complete=True)
    assert OPENAI.settle(chat(model="o1-pro"), lie, AT).cost_nanos < 2**63


def test_a_call_above_the_maximum_is_refused_with_the_affordable_output() -> None:
    params = chat(model="o1-pro", tokens_in=1000, tokens_out=16_000)
    # The request has no limit: the gateway lowers its own.
    quote(OPENAI, params).check(5 * 10**9)
    params = params._replace(is_tokens_out_set=True)
    announced = quote(OPENAI, params)
    with pytest.raises(InvalidInput) as refusal:
        announced.check(5 * 10**9)
    fitting = refusal.value.details["affordable_max_tokens"]
    assert fitting == (5 * 10**9 - 150_000_000) // 600_000
    quote(OPENAI, params._replace(tokens_out=fitting)).check(5 * 10**9)
    with pytest.raises(InvalidInput):
        FixedPrice(2).quote(PricedRequest(at=AT)).check(1)


def rpc(parsed: Any) -> PricedRequest:
    return PricedRequest(at=AT, methods=tuple(rpc_methods(parsed)))


RPC = PerRpcMethod(
    (
        (Pattern.parse("eth_{call|blockNumber}"), 100),
        (Pattern.parse("debug_trace{Name}"), 9000),
        (Pattern.parse("eth_chainId"), 0),
    )
)


@pytest.mark.parametrize(
    ("body", "nanos", "model"),
    [
        ({"method": "eth_call"}, 100, "eth_call"),
        ({"method": "eth_chainId"}, 0, "eth_chainId"),
        ({"method": "debug_traceCall"}, 9000, "debug_traceCall"),
        ([{"method": "eth_call"}, {"method": "eth_call"}], 200, "eth_call"),
        ([{"method": "eth_call"}, {"method": "debug_traceX"}], 9100, "batch"),
    ],
)
def test_a_batch_costs_the_sum_of_its_calls(body: Any, nanos: int, model: str) -> None:
    announced = RPC.quote(rpc(body))
    assert (announced.worst_case.cost_nanos, announced.model, announced.rule) == (nanos, model, None)
    assert announced.minimum_nanos == announced.estimate.cost_nanos == nanos


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        [],
        "eth_call",
        5,
        {"method": ["eth_call"]},
        {"method": None},
        [{"method": "eth_call"}, {}],
        [[]],
        [{}] * 1001,
    ],
)
def test_a_body_without_a_method_in_each_call_is_refused(body: Any) -> None:
    with pytest.raises(InvalidInput):
        RPC.quote(rpc(body))


@pytest.mark.parametrize(
    "method", ["", "debug_x", "ETH_CALL", "eth_call\n", "eth_call ", "eth_sendTransaction", "xeth_call"]
)
def test_a_method_that_is_not_listed_is_refused_also_in_a_batch(method: str) -> None:
    for body in ({"method": method}, [{"method": "eth_call"}, {"method": method}]):
        with pytest.raises(RouteNotAllowed) as refused:
            RPC.quote(rpc(body))
        assert "eth_{call|blockNumber}" in refused.value.details["allowed"]


def test_a_rule_is_parsed_from_a_providers_file() -> None:
    assert asdict(PriceRow.model_validate({"type": "tokens", "table": "mistral"}).rule()) == asdict(
        TokenPrices("mistral")
    )
    row = {"type": "tokens", "table": "x-ai", "fallback_input_usd_per_million": "3.5", "fallback_usd": "0.02"}
    fallback = FallbackRates(input_nanos_each=3_500, call_nanos=20_000_000)
    assert asdict(PriceRow.model_validate(row).rule()) == asdict(TokenPrices("x-ai", fallback))


@pytest.mark.parametrize(
    "row",
    [
        {}, {"type": "barter"}, {"type": ["tokens"]}, {"type": "fixed", "usd": "1"}, {"type": "tokens", "table": "x"},
        {"type": "tokens", "table": "openai", "surplus": 1},
        {"type": "tokens", "table": "openai", "fallback_input_usd_per_million": "0.0001"},
        {"type": "tokens", "table": "openai", "fallback_output_usd_per_million": "0"},
    ],
)  # fmt: skip
def test_an_invalid_rule_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"PriceRow|price\.table"):
        PriceRow.model_validate(row).rule()


def test_the_price_table_is_the_bundled_one() -> None:
    assert not data_snapshot.get_snapshot().from_auto_update
    assert VERSION.removeprefix("genai-prices/") == genai_prices.__version__
    assert {"openai", "anthropic", "google", "openrouter", "groq"} <= price_table.table_names()


def test_long_prompts_never_cost_less_where_prices_rise() -> None:
    known = [found for table, model in MODELS if (found := price_table.find_model(table, model.id)) is not None]
    assert len(known) > len(MODELS) * 9 // 10
    for found in known:
        for tokens in (0, 128_001, 200_001, 272_001, 10**6):
            now, dearest = found.rates(AT, tokens), found.rates(AT, tokens, maximum=True)
            for name in price_table.Rates.__slots__:
                rate, most = getattr(now, name), getattr(dearest, name)
                assert (rate is None) is (most is None)
                assert rate is None or Decimal(0) <= rate <= most


@pytest.mark.parametrize(("parameters", "count"), [({}, 4), ({"sampleCount": 1}, 1), ({"sampleCount": 8}, 8)])
def test_each_image_of_a_prediction_is_priced(parameters: dict[str, int], count: int) -> None:
    body = json.dumps({"instances": [{"prompt": "x"}], "parameters": parameters}).encode()
    params = read_request(Dialect.GEMINI, "POST", "v1beta/models/imagen-9:predict", body=body)
    assert GOOGLE.settle(params, UsageReading(), AT).cost_nanos == count * 100_000_000
