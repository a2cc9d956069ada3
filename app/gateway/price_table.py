"""Prices of models from the bundled table of `genai-prices`: looked up here, multiplied by us, exactly.

The table is never updated over the network: what callers pay changes with a version of the service, and that version
is in every row of the usage log.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache, lru_cache

import genai_prices
from genai_prices import data_snapshot
from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices

VERSION = f"genai-prices/{genai_prices.__version__}"

# How OpenRouter names what costs nothing.
FREE = ":free"
OPENROUTER = "openrouter"
_MOST_MODEL_LETTERS = 200
_ZERO = Decimal(0)
# Of a dollar per million to nano-dollars each; likewise per thousand, and per hour to a second.
_NANOS_PER_ONE_OF_A_MILLION = 10**3
_NANOS_PER_ONE_OF_A_THOUSAND = 10**6


@dataclass(frozen=True, slots=True)
class Rates:
    """What one unit costs, in nano-dollars and their fractions. None: the table says nothing of its own about it."""

    input: Decimal | None = None
    output: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    cache_write_5m: Decimal | None = None
    cache_write_1h: Decimal | None = None
    audio_in: Decimal | None = None
    audio_cached: Decimal | None = None
    audio_out: Decimal | None = None
    image_in: Decimal | None = None
    image_out: Decimal | None = None
    reasoning: Decimal | None = None
    search: Decimal | None = None
    character: Decimal | None = None
    audio_hour: Decimal | None = None


_KEYS = {
    "input": ("input_mtok", _NANOS_PER_ONE_OF_A_MILLION),
    "output": ("output_mtok", _NANOS_PER_ONE_OF_A_MILLION),
    "cache_read": ("cache_read_mtok", _NANOS_PER_ONE_OF_A_MILLION),
    "cache_write": ("cache_write_mtok", _NANOS_PER_ONE_OF_A_MILLION),
    "cache_write_5m": ("cache_write_5m_mtok", _NANOS_PER_ONE_OF_A_MILLION),
    "cache_write_1h": ("cache_write_1h_mtok", _NANOS_PER_ONE_OF_A_MILLION),
    "audio_in": ("input_audio_mtok", _NANOS_PER_ONE_OF_A_MILLION),
    "audio_cached": ("cache_audio_read_mtok", _NANOS_PER_ONE_OF_A_MILLION),
    "audio_out": ("output_audio_mtok", _NANOS_PER_ONE_OF_A_MILLION),
    "image_in": ("input_image_mtok", _NANOS_PER_ONE_OF_A_MILLION),
    "image_out": ("output_image_mtok", _NANOS_PER_ONE_OF_A_MILLION),
    "reasoning": ("output_reasoning_mtok", _NANOS_PER_ONE_OF_A_MILLION),
    "search": ("web_searches_kcount", _NANOS_PER_ONE_OF_A_THOUSAND),
    "character": ("input_mchars", _NANOS_PER_ONE_OF_A_MILLION),
    # Of an hour: divided where seconds are multiplied, so that no fraction is cut here.
    "audio_hour": ("audio_hours", 10**9),
}


@dataclass(frozen=True, slots=True)
class TableModel:
    """A model that the table knows."""

    id: str
    _model: ModelInfo
    _is_own: bool

    def rates(
        self, at: datetime, tokens_in: int, *, tier: str | None = None, speed: str | None = None
    ) -> Rates:
        """Return the rates at a time for a prompt of so many tokens: long prompts cost more with some models."""
        prices = self._prices(at, tier, speed)
        return Rates(**{name: _rate(prices, key, scale, tokens_in) for name, (key, scale) in _KEYS.items()})

    def dearest_rates(
        self, at: datetime, tokens_in: int, *, tier: str | None = None, speed: str | None = None
    ) -> Rates:
        """Return the highest rates that any prompt of up to so many tokens can meet."""
        prices = self._prices(at, tier, speed)
        return Rates(
            **{name: _dearest(prices, key, scale, tokens_in) for name, (key, scale) in _KEYS.items()}
        )

    def _prices(self, at: datetime, tier: str | None, speed: str | None) -> ModelPrice:
        named = {"service_tier": tier, "speed": speed}
        context = {name: value for name, value in named.items() if value is not None} if self._is_own else {}
        return self._model.get_prices(at, context)


def find(table: str, model: str) -> TableModel | None:
    """Find a model by the name under which it is called; None for one that the table does not know."""
    return _find(table, model[:_MOST_MODEL_LETTERS])


# Callers choose the names: what is remembered is bounded, unlike in the library's own lookup.
@lru_cache(maxsize=4096)
def _find(table: str, model: str) -> TableModel | None:
    provider = _providers().get(table)
    if provider is None or not model:
        return None
    found = provider.find_model(model, all_providers=list(_providers().values()))
    return (
        None if found is None else TableModel(found.id, found, any(found is own for own in provider.models))
    )


@cache
def _providers() -> dict[str, Provider]:
    return {provider.id: provider for provider in data_snapshot.get_snapshot().providers}


def tables() -> frozenset[str]:
    """Return the names of the providers of which the table has prices."""
    return frozenset(_providers())


def _rate(prices: ModelPrice, key: str, scale: int, tokens_in: int) -> Decimal | None:
    price = getattr(prices, key)
    if isinstance(price, TieredPrices):
        reached = [tier.price for tier in price.tiers if tokens_in > tier.start]
        price = reached[-1] if reached else price.base
    return None if price is None else price * scale


def _dearest(prices: ModelPrice, key: str, scale: int, tokens_in: int) -> Decimal | None:
    price = getattr(prices, key)
    if isinstance(price, TieredPrices):
        price = max(price.base, *(tier.price for tier in price.tiers if tokens_in > tier.start), _ZERO)
    return None if price is None else price * scale
