"""The cost of tokens and of hosted tools, before and after a call: counts times rates, rounded up once.

All arithmetic is exact, in fractions of nano-dollars: it runs under `EXACT_CONTEXT`, which forbids rounding.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from decimal import ROUND_CEILING, Context, Decimal, Inexact, InvalidOperation

from app.gateway.dialects.request.cost_params import NO_TOOLS, CostParams, Dialect, SubCall, Surface
from app.gateway.dialects.request.input_bounds import BYTES_PER_TOKEN, likely_tokens
from app.gateway.dialects.request.media_bounds import MEDIA_SURFACES
from app.gateway.dialects.response.usage import WEB_SEARCH, Usage, UsageReading
from app.gateway.pricing.price_table import Rates, highest_rates
from app.gateway.pricing.rates import FALLBACK, PricingMode, RateBook

EXACT_CONTEXT = Context(prec=120, traps=[Inexact, InvalidOperation])
_ZERO = Decimal(0)
_SECONDS_PER_HOUR = 3600
# Responses of other surfaces contain bytes that are not text: vectors, images, audio.
_TEXT_SURFACES = frozenset(
    {Surface.CHAT, Surface.COMPLETIONS, Surface.RESPONSES, Surface.MESSAGES, Surface.GENERATE}
)
# The account's default region may cost more.
_ANY_REGION = "any"
_IMAGE_CALLS = "image_generation"
# A surface that does not support a tier ignores it and bills the standard rates, so a discount needs confirmation by
# the response. Only Gemini's own surface reports the tier in a header.
_DISCOUNTED = frozenset({"flex"})
# Parts of a larger response may not have been read.
_UNREAD_THRESHOLD_BYTES = 4 * 1024 * 1024
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
        nanos += _ceil_div(usage.audio_seconds * (rates.audio_hour or _ZERO), _SECONDS_PER_HOUR)
    return nanos


def _input_cost(usage: Usage, rates: Rates) -> Decimal:
    base = rates.input or _ZERO
    if not (usage.cache_read or usage.cache_write or usage.audio_in or usage.image_in):
        return usage.tokens_in * base
    cache_read = min(usage.cache_read, usage.tokens_in)
    cache_written = min(usage.cache_write, usage.tokens_in - cache_read)
    cache_written_1h = min(usage.cache_write_1h, cache_written)
    cache_written_5m = min(usage.cache_write_5m, cache_written - cache_written_1h)
    cached_audio = min(usage.audio_cached, cache_read)
    cached_image = min(usage.image_cached, cache_read - cached_audio)
    audio_in = min(max(0, usage.audio_in - cached_audio), usage.tokens_in - cache_read - cache_written)
    image_in = min(
        max(0, usage.image_in - cached_image), usage.tokens_in - cache_read - cache_written - audio_in
    )
    uncached = usage.tokens_in - cache_read - cache_written - audio_in - image_in
    cache_read_rate = _rate_or(rates.cache_read, base)
    cache_write_rate = _rate_or(rates.cache_write, base)
    return (
        uncached * base
        + (cache_read - cached_audio - cached_image) * cache_read_rate
        + cached_image * _rate_or(rates.image_cached, cache_read_rate)
        + cached_audio * _rate_or(rates.audio_cached, cache_read_rate)
        + (cache_written - cache_written_1h - cache_written_5m) * cache_write_rate
        + cache_written_5m * _rate_or(rates.cache_write_5m, cache_write_rate)
        + cache_written_1h * _rate_or(rates.cache_write_1h, cache_write_rate)
        + audio_in * _rate_or(rates.audio_in, base)
        + image_in * _rate_or(rates.image_in, base)
    )


def _output_cost(usage: Usage, rates: Rates) -> Decimal:
    base = text_rate = rates.output or _ZERO
    if usage.is_undivided:
        # Any of it may be audio or images, which cost up to thirty times as much.
        text_rate = max(filter(None, (base, rates.audio_out, rates.image_out)), default=_ZERO)
    audio_out = min(usage.audio_out, usage.tokens_out)
    image_out = min(usage.image_out, usage.tokens_out - audio_out)
    reasoning = min(usage.reasoning, usage.tokens_out - audio_out - image_out)
    text_out = usage.tokens_out - audio_out - image_out - reasoning
    return (
        text_out * text_rate
        + audio_out * _rate_or(rates.audio_out, base)
        + image_out * _rate_or(rates.image_out, base)
        + reasoning * _rate_or(rates.reasoning, base)
    )


def estimate_usage(params: CostParams, reading: UsageReading) -> Usage:
    """Estimate the usage of an incomplete response: counts reported so far, likely input, and relayed content."""
    if reading.usage is None and params.surface in MEDIA_SURFACES:
        return _estimate_media_usage(params, reading)
    reported = reading.usage or Usage(searches=reading.tool_calls.get(WEB_SEARCH, 0))
    tokens_written = likely_tokens(reading.streamed_bytes)
    if lacks_output_count(params, reading):
        # Unreported output: at most one token per received byte, and at most what was held.
        tokens_written = max(tokens_written, min(reading.tokens_unread, params.tokens_out))
    if params.is_tokens_out_set:
        tokens_written = min(tokens_written, params.tokens_out)
    return reported._replace(
        tokens_in=reported.tokens_in or params.tokens_in_likely,
        tokens_out=max(reported.tokens_out, tokens_written),
        runs=(),
    )


def _estimate_media_usage(params: CostParams, reading: UsageReading) -> Usage:
    """Return the maximum usage of a media call; for a transcript, the recording and one token per two bytes."""
    tokens_out = params.tokens_out
    if params.audio_seconds:
        tokens_out = min(
            tokens_out, -(-max(reading.tokens_unread, reading.streamed_bytes) // BYTES_PER_TOKEN)
        )
    return Usage(
        tokens_in=params.tokens_in,
        tokens_out=tokens_out,
        audio_in=params.tokens_in if params.audio_seconds else 0,
        image_out=tokens_out if params.surface is Surface.IMAGES else 0,
        image_in=params.tokens_in if params.surface is Surface.IMAGES else 0,
        audio_seconds=params.audio_seconds,
    )


def lacks_output_count(params: CostParams, reading: UsageReading) -> bool:
    """Return whether a response has content and no count of output tokens."""
    if params.surface not in _TEXT_SURFACES:
        return False
    return reading.usage is None or (reading.usage.tokens_out == 0 and reading.streamed_bytes > 0)


def _rate_or(rate: Decimal | None, broader: Decimal) -> Decimal:
    return broader if rate is None else rate


def _ceil_div(amount: Decimal, divisor: int) -> Decimal:
    return Decimal(-(-round_up(amount) // divisor))


def round_up(nanos: Decimal) -> int:
    """Round a cost to nano-dollars: once, up."""
    return int(nanos.to_integral_value(rounding=ROUND_CEILING))


def max_rates(book: RateBook, params: CostParams, name: str, at: datetime) -> tuple[Rates, str]:
    """Return the highest rates that a model can have in this call, and their source."""
    region = params.region or _ANY_REGION
    requested_rates, version = book.rates_for(
        name, at, params.tokens_in, PricingMode(params.tier, params.speed, region), maximum=True
    )
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
    inputs += (
        [rates.audio_in, rates.image_in, rates.audio_cached, rates.image_cached]
        if params.has_media or params.searches
        else []
    )
    outputs = [rates.output, rates.audio_out, rates.image_out, rates.reasoning]
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
    mode = PricingMode(
        reading.tier or requested_tier, reading.speed or params.speed, reading.region or params.region
    )
    nanos, versions = _ZERO, []
    for name, run in usage.runs or ((None, usage),):
        model = name or _billed_model(book, params, reading)
        rates, version = book.rates_for(model, at, run.tokens_in, mode)
        if run.is_undivided and params.has_audio:
            rates = replace(rates, input=max(filter(None, (rates.input, rates.audio_in)), default=None))
        seconds = run.audio_seconds
        if book.table == _GROQ and seconds:
            seconds = max(seconds, _MIN_SECONDS)
        billed = run if seconds == run.audio_seconds else run._replace(audio_seconds=seconds)
        cost_nanos = usage_cost(billed, rates, params.characters)
        if not cost_nanos and not book.is_free(model, at):
            # Sold by the second or character but reported in tokens: the table does not fit the response.
            cost_nanos, version = usage_cost(billed, book.fallback.fill_missing(Rates())), FALLBACK
        nanos += cost_nanos
        versions.append(version)
    return nanos, FALLBACK if FALLBACK in versions else versions[0]


def price_fees(
    book: RateBook, params: CostParams, reading: UsageReading, usage: Usage, at: datetime
) -> Decimal:
    """Return the cost of hosted tools beyond tokens: for an incomplete response, of all that it may have used."""
    tools = params.tools
    nanos = Decimal(tools.container_nanos)
    searches = max(usage.searches, tools.searches_unreported)
    if searches:
        rates, _ = book.rates_for(_billed_model(book, params, reading), at, usage.tokens_in)
        nanos += searches * _search_rate(params, rates)
    nanos += sum(
        each for kind, each in tools.use_nanos if reading.tool_calls.get(kind) or not reading.is_complete
    )
    image = tools.image
    if image is not None and not any(name == image.model and run.tokens_out for name, run in usage.runs):
        # Images were generated, or may be in an unread part, and their usage was not reported.
        calls = reading.tool_calls.get(_IMAGE_CALLS, 0)
        if not calls and (reading.usage is None or reading.bytes_received > _UNREAD_THRESHOLD_BYTES):
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
