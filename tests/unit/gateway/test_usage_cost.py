"""Each token of a response has one price: that of the narrowest kind that it belongs to."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pytest

from app.gateway.dialects.response.usage_readers import Usage
from app.gateway.pricing.charges import EXACT_CONTEXT, usage_cost
from app.gateway.pricing.price_table import Rates

KINDS = (
    "input", "output", "cache_read", "cache_write", "cache_write_5m", "cache_write_1h", "audio_in", "audio_cached",
    "audio_out", "image_in", "image_cached", "image_out", "reasoning", "character", "video_in", "video_out",
)  # fmt: skip
# With the powers of 1 000 as rates, the digits of a cost are the counts by kind.
RATES = Rates(**{kind: Decimal(1_000**place) for place, kind in enumerate(KINDS)})


def counts(usage: Usage, characters: int = 0) -> dict[str, int]:
    """Return how many units of each kind are charged."""
    with localcontext(EXACT_CONTEXT):
        cost = int(usage_cost(usage, RATES, characters))
    found = {kind: cost // 1_000**place % 1_000 for place, kind in enumerate(KINDS)}
    return {kind: count for kind, count in found.items() if count}


@pytest.mark.parametrize(
    ("usage", "charged"),
    [
        (Usage(100, 50), {"input": 100, "output": 50}),
        (
            Usage(100, 0, cache_read=30, cache_write=20, cache_write_5m=9, cache_write_1h=7),
            {"input": 50, "cache_read": 30, "cache_write": 4, "cache_write_5m": 9, "cache_write_1h": 7},
        ),
        # Of the audio and the images, those in the cache have their own prices.
        (
            Usage(100, 0, cache_read=30, audio_in=15, audio_cached=6, image_in=12, image_cached=4),
            {"input": 53, "cache_read": 20, "audio_in": 9, "audio_cached": 6, "image_in": 8, "image_cached": 4},
        ),
        (
            Usage(0, 100, audio_out=20, image_out=30, reasoning=40),
            {"output": 10, "audio_out": 20, "image_out": 30, "reasoning": 40},
        ),
        # The fees have these.
        (Usage(1, 0, searches=7), {"input": 1}),
        # Parts that exceed what they are parts of are cut, the more expensive kinds last.
        (Usage(10, 0, cache_read=11), {"cache_read": 10}),
        (Usage(10, 0, cache_read=8, cache_write=5), {"cache_read": 8, "cache_write": 2}),
        (Usage(10, 0, cache_write=5, cache_write_1h=6, cache_write_5m=6), {"input": 5, "cache_write_1h": 5}),
        (
            Usage(10, 0, cache_write=5, cache_write_1h=3, cache_write_5m=6),
            {"input": 5, "cache_write_1h": 3, "cache_write_5m": 2},
        ),
        (
            Usage(10, 0, cache_read=8, audio_cached=5, image_cached=5),
            {"input": 2, "audio_cached": 5, "image_cached": 3},
        ),
        (Usage(10, 0, cache_read=8, audio_cached=9), {"input": 2, "audio_cached": 8}),
        (Usage(10, 0, audio_in=8, image_in=8), {"audio_in": 8, "image_in": 2}),
        (Usage(10, 0, audio_in=11), {"audio_in": 10}),
        (
            # Audio that is more than the rest is in the cache.
            Usage(10, 0, cache_read=3, cache_write=2, audio_in=9),
            {"audio_cached": 3, "cache_write": 2, "audio_in": 5},
        ),
        (Usage(10, 0, cache_read=6, audio_in=5), {"audio_cached": 1, "cache_read": 5, "audio_in": 4}),
        (Usage(10, 0, video_in=4), {"video_in": 4, "input": 6}),
        (Usage(0, 10, video_out=4, reasoning=7), {"video_out": 4, "reasoning": 6}),
        (Usage(10, 0, cache_read=3, cache_write=2, audio_in=5), {"cache_read": 3, "cache_write": 2, "audio_in": 5}),
        (
            Usage(10, 0, cache_read=3, cache_write=2, audio_in=1, image_in=9),
            {"cache_read": 3, "cache_write": 2, "audio_in": 1, "image_in": 4},
        ),
        # Fewer than there are in the cache: all of them are cached.
        (
            Usage(10, 0, cache_read=6, audio_in=1, audio_cached=3, image_in=1, image_cached=2),
            {"input": 4, "cache_read": 1, "audio_cached": 3, "image_cached": 2},
        ),
        (Usage(0, 10, audio_out=4, image_out=8), {"audio_out": 4, "image_out": 6}),
        (Usage(0, 10, audio_out=11), {"audio_out": 10}),
        (Usage(0, 10, audio_out=4, image_out=4, reasoning=4), {"audio_out": 4, "image_out": 4, "reasoning": 2}),
    ],
)
def test_each_token_is_charged_once(usage: Usage, charged: dict[str, int]) -> None:
    assert counts(usage) == charged


def test_characters_are_charged_as_they_are() -> None:
    assert counts(Usage(), characters=8) == {"character": 8}


@pytest.mark.parametrize(
    ("rates", "usage", "nanos"),
    [
        # Without a rate of its own, a kind has that of the broader one.
        (Rates(input=Decimal(3)), Usage(10, 0, cache_read=2, audio_in=3, image_in=1, cache_write=2), 30),
        (Rates(output=Decimal(3)), Usage(0, 10, audio_out=2, image_out=3, reasoning=1), 30),
        (Rates(cache_read=Decimal(3)), Usage(10, 0, cache_read=10, audio_cached=4, image_cached=4), 30),
        (Rates(cache_write=Decimal(3)), Usage(10, 0, cache_write=10, cache_write_5m=4, cache_write_1h=4), 30),
        # A rate of zero is one.
        (Rates(input=Decimal(3), cache_read=Decimal(0)), Usage(10, 0, cache_read=4), 18),
        # Undivided output may be audio or images.
        (Rates(output=Decimal(3), audio_out=Decimal(5)), Usage(0, 10, is_undivided=True), 50),
        (Rates(output=Decimal(3), image_out=Decimal(7)), Usage(0, 10, is_undivided=True), 70),
        (Rates(output=Decimal(3), audio_out=Decimal(1)), Usage(0, 10, is_undivided=True), 30),
        # Undivided input may be audio or video.
        (Rates(input=Decimal(3), audio_in=Decimal(5)), Usage(10, undivided_in=4), 6 * 3 + 4 * 5),
        (Rates(input=Decimal(3), video_in=Decimal(7)), Usage(10, undivided_in=4), 6 * 3 + 4 * 7),
        (Rates(), Usage(7, 10, searches=2, is_undivided=True), 0),
        # By the hour, rounded up: 10 seconds at 1 001 nano-dollars are 2.78.
        (Rates(audio_hour=Decimal(1_001)), Usage(audio_seconds=10), 3),
        (Rates(audio_hour=Decimal(3_600)), Usage(audio_seconds=10), 10),
    ],
)
def test_a_missing_rate_is_that_of_the_broader_kind(rates: Rates, usage: Usage, nanos: int) -> None:
    with localcontext(EXACT_CONTEXT):
        assert usage_cost(usage, rates, 5) == nanos
