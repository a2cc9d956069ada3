"""The arithmetic of tokens: counts times rates, in nano-dollars and their fractions, exact, rounded up once.

All of it runs under `EXACT`, a decimal context that refuses to round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal, Inexact, InvalidOperation

from app.gateway.dialects.bounds import likely_tokens
from app.gateway.dialects.facts import CallFacts, Surface
from app.gateway.dialects.usage import Reading, Usage
from app.gateway.price_table import Rates

EXACT = Context(prec=120, traps=[Inexact, InvalidOperation])
_ZERO = Decimal(0)
_SECONDS_PER_HOUR = 3600
# Other answers have bytes that are no words: vectors, pictures, sound.
_WRITING = frozenset(
    {Surface.CHAT, Surface.COMPLETIONS, Surface.RESPONSES, Surface.MESSAGES, Surface.GENERATE}
)


@dataclass(frozen=True, slots=True)
class Fallback:
    """What is charged where the table says nothing: for a token, and for a call that has no tokens (a picture, say)."""

    input_nanos_each: int = 5_000
    output_nanos_each: int = 25_000
    search_nanos_each: int = 35_000_000
    call_nanos: int = 100_000_000

    def fill(self, rates: Rates, *, is_free: bool = False) -> Rates:
        """Put the fallback where the table has no price, or zero; a free model's searches are not free."""
        if is_free:
            return replace(rates, search=rates.search or Decimal(self.search_nanos_each))
        spoken = rates.character or rates.audio_hour
        return Rates(
            **{
                **{name: getattr(rates, name) for name in Rates.__slots__},
                "input": rates.input or (_ZERO if spoken else Decimal(self.input_nanos_each)),
                "output": rates.output or (_ZERO if spoken else Decimal(self.output_nanos_each)),
                "search": rates.search or Decimal(self.search_nanos_each),
            }
        )


def cost(usage: Usage, rates: Rates, characters: int = 0) -> Decimal:
    """Multiply: every token has one price, that of the narrowest kind that it belongs to. In nano-dollars, exact."""
    read = min(usage.cache_read, usage.tokens_in)
    written = min(usage.cache_write, usage.tokens_in - read)
    hour = min(usage.cache_write_1h, written)
    short = min(usage.cache_write_5m, written - hour)
    sound_read = min(usage.audio_cached, read)
    sound = min(max(0, usage.audio_in - sound_read), usage.tokens_in - read - written)
    seen = min(usage.image_in, usage.tokens_in - read - written - sound)
    fresh = usage.tokens_in - read - written - sound - seen
    spoken = min(usage.audio_out, usage.tokens_out)
    drawn = min(usage.image_out, usage.tokens_out - spoken)
    thought = min(usage.reasoning, usage.tokens_out - spoken - drawn)
    told = usage.tokens_out - spoken - drawn - thought
    base_in, base_out = rates.input or _ZERO, rates.output or _ZERO
    for_read = _or(rates.cache_read, base_in)
    for_written = _or(rates.cache_write, base_in)
    seconds = usage.audio_seconds * (rates.audio_hour or _ZERO)
    return (
        fresh * base_in
        + (read - sound_read) * for_read
        + sound_read * _or(rates.audio_cached, for_read)
        + (written - hour - short) * for_written
        + short * _or(rates.cache_write_5m, for_written)
        + hour * _or(rates.cache_write_1h, for_written)
        + sound * _or(rates.audio_in, base_in)
        + seen * _or(rates.image_in, base_in)
        + told * base_out
        + spoken * _or(rates.audio_out, base_out)
        + drawn * _or(rates.image_out, base_out)
        + thought * _or(rates.reasoning, base_out)
        + usage.searches * (rates.search or _ZERO)
        + characters * (rates.character or _ZERO)
        # A whole nano-dollar at least as large: an hour does not divide by 3600 without a rest.
        + _ceiling_of(seconds, _SECONDS_PER_HOUR)
    )


def estimated(facts: CallFacts, reading: Reading) -> Usage:
    """Guess from what was seen pass: the counts told so far, else the request's likely input and the answer's words."""
    told = reading.usage or Usage()
    written = likely_tokens(reading.streamed_bytes)
    if is_silent_on_output(facts, reading):
        # Thoughts and words that were not told: no more than the bytes that came, nor than was held for them.
        written = max(written, min(reading.tokens_unread, facts.tokens_out))
    if facts.tokens_out_is_stated:
        written = min(written, facts.tokens_out)
    return Usage(
        **{
            **{name: getattr(told, name) for name in Usage.__slots__},
            "tokens_in": told.tokens_in or facts.tokens_in_likely,
            "tokens_out": max(told.tokens_out, written),
        }
    )


def is_silent_on_output(facts: CallFacts, reading: Reading) -> bool:
    """Tell whether an answer has written something and said nothing of what that comes to."""
    if facts.surface not in _WRITING:
        return False
    return reading.usage is None or (reading.usage.tokens_out == 0 and reading.streamed_bytes > 0)


def _or(rate: Decimal | None, broader: Decimal) -> Decimal:
    return broader if rate is None else rate


def _ceiling_of(amount: Decimal, divisor: int) -> Decimal:
    return Decimal(-(-up(amount) // divisor))


def up(nanos: Decimal) -> int:
    """Round a cost to nano-dollars: once, up."""
    return int(nanos.to_integral_value(rounding=ROUND_CEILING))
