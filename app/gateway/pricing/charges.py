"""The cost of tokens and of hosted tools, before and after a call: counts times rates, rounded up once.

All arithmetic is exact, in fractions of nano-dollars: it runs under `EXACT_CONTEXT`, which forbids rounding.
"""

import json
from datetime import datetime
from decimal import ROUND_CEILING, Context, Decimal, Inexact, InvalidOperation

from app.gateway.dialects.request.cost_params import NO_TOOLS, TEXT_SURFACES, CostParams, Dialect, SubCall, Surface
from app.gateway.dialects.request.input_bounds import BYTES_PER_TOKEN, MEDIA_SURFACES, likely_tokens
from app.gateway.dialects.response.usage_readers import WEB_SEARCH, Usage, UsageReading
from app.gateway.pricing.price_table import Rates, highest_rates
from app.gateway.pricing.rates import FALLBACK, PricingMode, RateBook

EXACT_CONTEXT = Context(prec=120, traps=[Inexact, InvalidOperation])
_ZERO = Decimal(0)
_SECONDS_PER_HOUR = 3600
# The account's default region may cost more.
_ANY_REGION = "any"
_IMAGE_CALLS = "image_generation"
# A surface that does not support a tier ignores it and bills the standard rates, so a discount needs confirmation by
# the response. Only Gemini's own surface reports the tier in a header.
_DISCOUNTED = frozenset({"flex"})
# Providers that state that a response which fails is not billed: Anthropic's help page on failed requests, the billing
# page of the Gemini API (status 400 and 500), OpenRouter's zero completion insurance.
_FREE_FAILURES = frozenset({Dialect.ANTHROPIC, Dialect.GEMINI, Dialect.OPENROUTER})
_SUCCESS_STATUSES = range(200, 300)
_LONG_CACHE = '"ttl": "1h"'
# Groq bills at least ten seconds of a recording.
_GROQ, _MIN_SECONDS = "groq", 10


def usage_cost(usage: Usage, rates: Rates, characters: int = 0) -> Decimal:
    """Return the exact cost in nano-dollars: each token has the rate of the narrowest kind that it belongs to.

    Searches are not part of it: `price_fees` charges them.
    """
    nanos = _input_cost(usage, rates) + _output_cost(usage, rates)
    if characters:
        nanos += characters * (rates.character or _ZERO)
    if usage.audio_seconds:
        # Rounded up: the rate of an hour may not be divisible by 3600.
        nanos += -(-round_up(usage.audio_seconds * (rates.audio_hour or _ZERO)) // _SECONDS_PER_HOUR)
    return nanos


def _input_cost(usage: Usage, rates: Rates) -> Decimal:
    base = rates.input or _ZERO
    media = usage.audio_in or usage.image_in or usage.video_in
    if not (media or usage.cache_read or usage.cache_write or usage.undivided_in):
        return usage.tokens_in * base
    read = min(usage.cache_read, usage.tokens_in)
    written = min(usage.cache_write, usage.tokens_in - read)
    uncached = usage.tokens_in - read - written
    # Audio that is more than all uncached input is cached, whether or not the response divides its cached tokens.
    cached_audio = min(max(usage.audio_cached, usage.audio_in - uncached), read)
    cached_image = min(usage.image_cached, read - cached_audio)
    of_any_kind = max(filter(None, (base, rates.audio_in, rates.video_in)), default=_ZERO)
    return (
        _cost(
            uncached, base, (usage.audio_in - cached_audio, rates.audio_in),
            (usage.image_in - cached_image, rates.image_in), (usage.video_in, rates.video_in),
            (usage.undivided_in, of_any_kind),
        )
        + _cost(
            read, _rate_or(rates.cache_read, base), (cached_audio, rates.audio_cached),
            (cached_image, rates.image_cached),
        )
        + _cost(
            written, _rate_or(rates.cache_write, base), (usage.cache_write_1h, rates.cache_write_1h),
            (usage.cache_write_5m, rates.cache_write_5m),
        )
    )  # fmt: skip


def _output_cost(usage: Usage, rates: Rates) -> Decimal:
    base = text_rate = rates.output or _ZERO
    if usage.is_undivided:
        # Any of it may be audio, images or video, which cost up to thirty times as much.
        media = (rates.audio_out, rates.image_out, rates.video_out)
        text_rate = max(filter(None, (base, *media)), default=_ZERO)
    return _cost(
        usage.tokens_out, base, (usage.audio_out, rates.audio_out), (usage.image_out, rates.image_out),
        (usage.video_out, rates.video_out), (usage.reasoning, rates.reasoning), (usage.tokens_out, text_rate),
    )  # fmt: skip


def _cost(count: int, rate: Decimal, *parts: tuple[int, Decimal | None]) -> Decimal:
    """Return the cost of tokens at a rate; each part of them, as far as any are left, may have its own."""
    nanos = _ZERO
    for size, own_rate in parts:
        if size > 0:  # most are not
            taken = min(size, count)
            nanos += taken * _rate_or(own_rate, rate)
            count -= taken
    return nanos + count * rate


def costs_nothing(params: CostParams, reading: UsageReading) -> bool:
    """Return whether a response is free: a free call, no response of the model, or a failure that is not billed.

    A failure before any content is free; after some content it depends on the provider, unless the usage is reported.
    """
    usage = reading.usage
    if params.surface is Surface.FREE:
        return True
    if usage is None and (reading.is_blank or reading.status not in _SUCCESS_STATUSES):
        return True
    if not reading.has_failed or reading.status not in _SUCCESS_STATUSES or (usage and usage.cost_nanos):
        return False
    return not reading.has_content or (params.dialect in _FREE_FAILURES and not reading.is_complete)


def estimate_usage(params: CostParams, reading: UsageReading, max_tokens_out: int) -> Usage:
    """Estimate the usage of an incomplete response: counts reported so far, likely input, and its content.

    The output is at most `max_tokens_out`, for which credits are held.
    """
    if reading.usage is None and params.surface in MEDIA_SURFACES:
        return _estimate_media_usage(params, reading)
    reported = reading.usage or Usage(searches=reading.tool_calls.get(WEB_SEARCH, 0))
    tokens_written = likely_tokens(reading.streamed_bytes)
    if lacks_output_count(params, reading):
        tokens_written = max(tokens_written, min(likely_tokens(reading.bytes_unread), params.tokens_out))
    tokens_in = reported.tokens_in or params.tokens_in_likely
    tokens_out = max(reported.tokens_out, min(tokens_written, max_tokens_out))
    return reported._replace(tokens_in=tokens_in, tokens_out=tokens_out, runs=())


def _estimate_media_usage(params: CostParams, reading: UsageReading) -> Usage:
    """Return the maximum usage of a media call; for a transcript, the recording and one token per two bytes."""
    tokens_out = params.tokens_out
    if params.audio_seconds:
        tokens_out = min(tokens_out, -(-(reading.bytes_unread + reading.streamed_bytes) // BYTES_PER_TOKEN))
    return Usage(
        tokens_in=params.tokens_in, tokens_out=tokens_out, audio_in=params.tokens_in if params.audio_seconds else 0,
        image_out=tokens_out if params.surface is Surface.IMAGES else 0,
        image_in=params.tokens_in if params.surface is Surface.IMAGES else 0, audio_seconds=params.audio_seconds,
    )  # fmt: skip


def lacks_output_count(params: CostParams, reading: UsageReading) -> bool:
    """Return whether a response has content and no count of output tokens."""
    if params.surface not in TEXT_SURFACES:
        return False
    return reading.usage is None or (reading.usage.tokens_out == 0 and reading.streamed_bytes > 0)


def _rate_or(rate: Decimal | None, broader: Decimal) -> Decimal:
    return broader if rate is None else rate


def round_up(nanos: Decimal) -> int:
    """Round a cost to nano-dollars: once, up."""
    return int(nanos.to_integral_value(rounding=ROUND_CEILING))


def max_rates(book: RateBook, params: CostParams, name: str, at: datetime) -> tuple[Rates, str]:
    """Return the highest rates that a model can have in this call, and their source."""
    region = params.region or _ANY_REGION
    mode = PricingMode(params.tier, params.speed, region)
    requested_rates, version = book.rates_for(name, at, params.tokens_in, mode, maximum=True)
    if params.tier is None and params.speed is None:
        return requested_rates, version
    standard_rates, _ = book.rates_for(name, at, params.tokens_in, PricingMode(region=region), maximum=True)
    return highest_rates((requested_rates, standard_rates)), version


def max_nanos_per_token(params: CostParams, rates: Rates) -> tuple[Decimal, Decimal]:
    """Return the most that a token of this call's input and of its output can cost."""
    inputs = [rates.input, rates.cache_read]
    # Anthropic writes a cache only if the request or one of its tools requires it.
    if params.dialect is not Dialect.ANTHROPIC or params.writes_cache or params.tools != NO_TOOLS:
        inputs += [rates.cache_write, rates.cache_write_5m]
    inputs += [rates.cache_write_1h] if params.writes_cache else []
    media = [rates.audio_in, rates.image_in, rates.video_in, rates.audio_cached, rates.image_cached]
    inputs += media if params.has_media or params.searches else []
    outputs = [rates.output, rates.audio_out, rates.image_out, rates.video_out, rates.reasoning]
    return max(filter(None, inputs), default=_ZERO), max(filter(None, outputs), default=_ZERO)


def max_fees(book: RateBook, params: CostParams, rates: Rates, at: datetime) -> Decimal:
    """Return the maximum cost of hosted tools beyond the tokens of the model."""
    tools = params.tools
    calls = (*tools.sub_calls, *([tools.image] if tools.image else []))
    return (
        params.searches * _search_rate(params, rates)
        + tools.container_nanos
        + sum(nanos for _, nanos in tools.use_nanos)
        + sum((call.calls * _max_sub_call_nanos(book, params, call, at) for call in calls), _ZERO)
    )


def price_tokens(
    book: RateBook, params: CostParams, reading: UsageReading, usage: Usage, at: datetime
) -> tuple[Decimal, str]:
    """Return the cost of a call's tokens, each run of a model at its own rates, and the source of the rates."""
    is_tier_unconfirmed = params.tier in _DISCOUNTED and params.surface is not Surface.GENERATE
    requested_tier = None if is_tier_unconfirmed else params.tier
    mode = PricingMode(reading.tier or requested_tier, reading.speed or params.speed, reading.region or params.region)
    nanos, versions = _ZERO, []
    for name, run in usage.runs or ((None, usage),):
        model = name or _billed_model(book, params, reading)
        rates, version = book.rates_for(model, at, run.tokens_in, mode)
        has_more = run.undivided_in or run.audio_seconds or run.cache_write
        billed = _billed_counts(book, params, run) if has_more else run
        cost_nanos = usage_cost(billed, rates, params.characters)
        if not cost_nanos and not book.is_free(model, at):
            # Sold by the second or character but reported in tokens: the table does not fit the response.
            cost_nanos, version = usage_cost(billed, book.fallback.fill_missing(Rates())), FALLBACK
        nanos += cost_nanos
        versions.append(version)
    return nanos, FALLBACK if FALLBACK in versions else versions[0]


def _billed_counts(book: RateBook, params: CostParams, run: Usage) -> Usage:
    """Return the counts of a run as they are billed, where the response alone does not show it."""
    if run.undivided_in and not params.has_audio:
        run = run._replace(undivided_in=0)
    if book.table == _GROQ and 0 < run.audio_seconds < _MIN_SECONDS:
        run = run._replace(audio_seconds=_MIN_SECONDS)
    surplus = run.cache_write - run.cache_write_5m - run.cache_write_1h
    writes_more = surplus > 0 and params.dialect is Dialect.ANTHROPIC and params.writes_cache and params.body
    # Written anew, a name has no escapes; in a string, its quotes have.
    if writes_more and _LONG_CACHE in json.dumps(json.loads(params.body)):
        run = run._replace(cache_write_1h=run.cache_write_1h + surplus)
    return run


def price_fees(book: RateBook, params: CostParams, reading: UsageReading, usage: Usage, at: datetime) -> Decimal:
    """Return the cost of hosted tools beyond tokens: for an incomplete response, of all that it may have used."""
    tools = params.tools
    nanos = Decimal(tools.container_nanos)
    searches = max(usage.searches, tools.searches_unreported)
    if searches:
        rates, _ = book.rates_for(_billed_model(book, params, reading), at, usage.tokens_in)
        nanos += searches * _search_rate(params, rates)
    nanos += sum(each for kind, each in tools.use_nanos if reading.tool_calls.get(kind) or not reading.is_complete)
    image = tools.image
    if image is not None and not any(name == image.model and run.tokens_out for name, run in usage.runs):
        # Images were generated, or may have been, and their usage was not reported.
        calls = reading.tool_calls.get(_IMAGE_CALLS, 0)
        if not calls and reading.usage is None:
            calls = image.calls
        nanos += calls * _max_sub_call_nanos(book, params, image, at)
    return nanos


def _max_sub_call_nanos(book: RateBook, params: CostParams, call: SubCall, at: datetime) -> Decimal:
    """Return the maximum cost of a call of another model: it reads all input and output and writes up to its limit."""
    rates, _ = max_rates(book, params, call.model, at)
    input_each, output_each = max_nanos_per_token(params._replace(has_media=True), rates)
    return (params.tokens_in + params.tokens_out) * input_each + call.tokens_out * output_each


def _billed_model(book: RateBook, params: CostParams, reading: UsageReading) -> str:
    """Return the model that responded, or the requested one if the former has no price."""
    if not reading.model or reading.model == params.model:
        return params.model
    names = [name for name in (reading.model, params.model) if name]
    return next((name for name in names if book.has_model(name)), names[0])


def _search_rate(params: CostParams, rates: Rates) -> Decimal:
    each = params.tools.search_nanos
    return rates.search or _ZERO if each is None else Decimal(each)
