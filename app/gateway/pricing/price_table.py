"""Prices of models from the bundled table of `genai-prices`, which changes only with a version of the service.

Every row of the usage log records the version of the prices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from decimal import Decimal
from functools import cache, lru_cache

import genai_prices
from genai_prices import data_snapshot, types

# openrouter.ai/docs, "Model routing": these choose a provider or add the web plugin, for any model.
_ROUTING_SUFFIXES = frozenset({"nitro", "floor", "exacto", "online"})
# A date (2025-10-14, 20251014, 09-2025, 06-05, 0613, 2506), a release (001) or the newest one.
_MONTH, _DAY = "(?:0[1-9]|1[0-2])", "(?:0[1-9]|[12][0-9]|3[01])"
_DATE = (
    rf"(?:20\d\d-{_MONTH}-{_DAY}|20\d\d{_MONTH}{_DAY}|{_MONTH}-20\d\d|{_MONTH}-{_DAY}|{_MONTH}{_DAY}|2\d{_MONTH}|0\d\d"
    r"|latest)"
)
_DATED = re.compile(rf"(.+?)(-preview)?[-@]{_DATE}(:.*)?", re.DOTALL | re.ASCII)
_COMPACT_DATE = re.compile(r"-(20\d\d)([01]\d)([0-3]\d)(?=$|-|:)", re.ASCII)
# Variants of one model; other words, such as pro, name another.
_SAME_MODEL = rf"{_DATE}|v\d+(?:\.\d+)*|e?\d+b|preview|exp|experimental|beta|thinking|it|instruct"
_STEM = re.compile(rf"(.+?)(?:[-@:](?:{_SAME_MODEL}))*(?::.*)?", re.DOTALL | re.ASCII)
VERSION = f"genai-prices/{genai_prices.__version__}"
# The suffix of OpenRouter's free models.
FREE_SUFFIX = ":free"
OPENROUTER = "openrouter"
_MAX_MODEL_LENGTH = 200
# Models with such a word in their name are only compared with each other.
_MEDIA_MODEL_KINDS = ("image", "tts", "transcribe", "whisper")
# Above all tiers in the table.
_UNLIMITED_PROMPT = 10**9


def without_routing(table: str, name: str) -> str:
    """Return a model's name without OpenRouter's routing suffixes, which do not change its price."""
    if table != OPENROUTER or ":" not in name:
        return name
    plain, *suffixes = name.split(":")
    return ":".join([plain, *(each for each in suffixes if each.lower() not in _ROUTING_SUFFIXES)])


def candidates(table: str, name: str) -> Iterator[str]:
    """Yield the names under which a table may have a model: its own, with hyphens, and without its date or release."""
    name = without_routing(table, name)
    yield name
    if _COMPACT_DATE.search(name):
        yield _COMPACT_DATE.sub(r"-\1-\2-\3", name)
    dated = _DATED.fullmatch(name)
    if dated is not None:
        preview, more = dated[2] or "", dated[3] or ""
        # A preview may have been cheaper than the model is now.
        yield from dict.fromkeys((dated[1] + more, dated[1] + preview + more))


def is_version_of(clause: object, name: str) -> bool:
    """Return whether a clause matches a lower-case name as its model, not as the beginning of another (gpt-5-pro)."""
    match clause:
        case types.ClauseOr(or_=parts):
            return any(is_version_of(part, name) for part in parts)
        case types.ClauseAnd(and_=parts):
            return all(is_version_of(part, name) for part in parts)
        case types.ClauseStartsWith(starts_with=text) | types.ClauseContains(contains=text):
            at = name.find(text)
            stem = _STEM.fullmatch(name)
            # What precedes it is a path, not the rest of another name.
            is_whole = at == 0 or (at > 0 and name[at - 1] in "/.@:")
            return is_whole and stem is not None and text.startswith(stem[1][at:])
        case types.ClauseEquals() | types.ClauseRegex() | types.ClauseEndsWith():
            return clause.is_match(name)
    return False


@dataclass(frozen=True, slots=True)
class Rates:
    """The price of one unit of each kind, in fractions of nano-dollars; None if the table has none.

    The metadata are its key in the table, and the nano-dollars each of a dollar there: per million, for example.
    """

    input: Decimal | None = field(default=None, metadata={"input_mtok": 10**3})
    output: Decimal | None = field(default=None, metadata={"output_mtok": 10**3})
    cache_read: Decimal | None = field(default=None, metadata={"cache_read_mtok": 10**3})
    cache_write: Decimal | None = field(default=None, metadata={"cache_write_mtok": 10**3})
    cache_write_5m: Decimal | None = field(default=None, metadata={"cache_write_5m_mtok": 10**3})
    cache_write_1h: Decimal | None = field(default=None, metadata={"cache_write_1h_mtok": 10**3})
    audio_in: Decimal | None = field(default=None, metadata={"input_audio_mtok": 10**3})
    audio_cached: Decimal | None = field(default=None, metadata={"cache_audio_read_mtok": 10**3})
    audio_out: Decimal | None = field(default=None, metadata={"output_audio_mtok": 10**3})
    image_in: Decimal | None = field(default=None, metadata={"input_image_mtok": 10**3})
    image_cached: Decimal | None = field(default=None, metadata={"cache_image_read_mtok": 10**3})
    image_out: Decimal | None = field(default=None, metadata={"output_image_mtok": 10**3})
    video_in: Decimal | None = field(default=None, metadata={"input_video_mtok": 10**3})
    video_out: Decimal | None = field(default=None, metadata={"output_video_mtok": 10**3})
    reasoning: Decimal | None = field(default=None, metadata={"output_reasoning_mtok": 10**3})
    search: Decimal | None = field(default=None, metadata={"web_searches_kcount": 10**6})
    character: Decimal | None = field(default=None, metadata={"input_mchars": 10**3})
    # Per hour: the division is made when seconds are multiplied, so that no fraction is lost here.
    audio_hour: Decimal | None = field(default=None, metadata={"audio_hours": 10**9})


_PRICE_KEYS = {each.name: next(iter(each.metadata.items())) for each in fields(Rates)}


@dataclass(frozen=True, slots=True)
class TableModel:
    model: types.ModelInfo
    _is_own: bool
    # The sizes of prompts above which some price changes.
    _steps: tuple[int, ...]

    @classmethod
    def of(cls, model: types.ModelInfo, *, is_own: bool) -> TableModel:
        """Return a model of the table; `is_own` if the provider itself lists it, not another one."""
        stated = model.prices
        listed = [stated] if isinstance(stated, types.ModelPrice) else [each.prices for each in stated]
        listed += [variant.prices for variant in model.price_variants or ()]
        prices = [getattr(each, key) for each in listed for key, _ in _PRICE_KEYS.values()]
        tiers = [tier for price in prices if isinstance(price, types.TieredPrices) for tier in price.tiers]
        return cls(model, is_own, tuple(sorted({tier.start for tier in tiers})))

    def rates(
        self, at: datetime, tokens_in: int, *, tier: str | None = None, speed: str | None = None, maximum: bool = False
    ) -> Rates:
        """Return the rates at a time for a prompt of this size, or with `maximum` the highest for any up to it.

        Some models charge more for long prompts.
        """
        named = {"service_tier": tier, "speed": speed}
        context = {name: value for name, value in named.items() if value is not None} if self._is_own else {}
        return _rates(self.model.get_prices(at, context), tokens_in, maximum=maximum)

    def smallest_prompt(self, tokens_in: int) -> int:
        """Return the size of the smallest prompt with the same rates as one of this size."""
        steps = self._steps
        return max((step + 1 for step in steps if step < tokens_in), default=0) if steps else 0

    def is_free(self, at: datetime) -> bool:
        """Return whether the provider charges nothing: it lists the model itself, without a price of any kind."""
        return self._is_own and not any(price for price in vars(self.model.get_prices(at)).values())

    def has_variant(self, at: datetime, name: str, value: str) -> bool:
        """Return whether the table has separate prices for calls with this option."""
        return self._is_own and any(
            variant.when == {name: value}
            and (variant.constraint is None or variant.constraint.active(at))
            and any(price is not None for price in vars(variant.prices).values())
            for variant in self.model.price_variants or ()
        )


def find_model(table: str, model: str) -> TableModel | None:
    """Return a model by name; None if the table does not have it."""
    return _find_model(table, model[:_MAX_MODEL_LENGTH])


# Clients choose the names, so the cache has a limit, unlike that of the library.
@lru_cache(maxsize=4096)
def _find_model(table: str, model: str) -> TableModel | None:
    provider = _providers().get(table)
    if provider is None or not model:
        return None
    sources = [provider, *(_providers()[each] for each in provider.fallback_model_providers or ())]
    for name in candidates(table, model.lower()):
        for source in sources:
            for found in source.models:
                if found.match.is_match(name) and is_version_of(found.match, name):
                    return TableModel.of(found, is_own=source is provider)
    return None


def provider_max_rates(table: str, model: str, at: datetime) -> Rates:
    """Return a provider's highest rate of each kind; for an image or audio model, among models of its kind."""
    kind = next((kind for kind in _MEDIA_MODEL_KINDS if kind in model), "")
    return _provider_max_rate(table, kind, at.replace(minute=0, second=0, microsecond=0))


@lru_cache(maxsize=64)
def _provider_max_rate(table: str, kind: str, at: datetime) -> Rates:
    provider = _providers().get(table)
    models = [model for model in provider.models if kind in model.id] if provider else []
    return highest_rates(_rates(model.get_prices(at), _UNLIMITED_PROMPT, maximum=True) for model in models)


def min_rates(table: str, at: datetime) -> Rates:
    """Return a provider's lowest rates of input and output above zero."""
    models = _providers()[table].models
    known = [_rates(model.get_prices(at), 0, maximum=False) for model in models]
    inputs, outputs = [rates.input for rates in known], [rates.output for rates in known]
    return Rates(input=min(filter(None, inputs), default=None), output=min(filter(None, outputs), default=None))


def highest_rates(known: Iterable[Rates]) -> Rates:
    known = list(known)
    return Rates(
        **{
            name: max((rate for rates in known if (rate := getattr(rates, name)) is not None), default=None)
            for name in Rates.__slots__
        }
    )


@cache
def _providers() -> dict[str, types.Provider]:
    return {provider.id: provider for provider in data_snapshot.get_snapshot().providers}


def model_names(table: str) -> list[str]:
    return [model.id for model in _providers()[table].models if not model.deprecated]


def table_names() -> frozenset[str]:
    return frozenset(_providers())


def _rates(prices: types.ModelPrice, tokens_in: int, *, maximum: bool) -> Rates:
    return Rates(
        **{name: _rate(prices, key, scale, tokens_in, maximum=maximum) for name, (key, scale) in _PRICE_KEYS.items()}
    )


def _rate(prices: types.ModelPrice, key: str, scale: int, tokens_in: int, *, maximum: bool) -> Decimal | None:
    price = getattr(prices, key)
    if isinstance(price, types.TieredPrices):
        reached = [price.base, *(tier.price for tier in price.tiers if tokens_in > tier.start)]
        price = max(reached) if maximum else reached[-1]
    return None if price is None else price * scale
