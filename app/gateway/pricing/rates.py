"""Rates of one call: from the price table or the operator, adjusted for tier, speed and region.

Where a provider publishes a surcharge as a range, or only for other models, the highest applies; a discount published
only for other models does not apply.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from app.gateway.pricing import price_table, price_updates
from app.gateway.pricing.price_table import Rates, TableModel

FALLBACK = "fallback"
CONFIGURED = "configured"

# Factors of tiers on the standard rates, if the price table has no separate prices for them. OpenAI's price
# page has 1.67 to 2.5 for priority and 6 for ultrafast; Google's 1.8 for priority and a half for flex. Tiers of other
# providers have no separate list price.
_TIER_FACTORS: Mapping[str, Mapping[str, Decimal]] = {
    "openai": {"priority": Decimal("2.5"), "fast": Decimal("2.5"), "ultrafast": Decimal(6)},
    "google": {"priority": Decimal("1.8"), "flex": Decimal("0.5")},
}
# With most models, Google's cached tokens cost the same in the flex tier.
_CACHED = frozenset({"cache_read", "audio_cached", "image_cached"})
# Anthropic's fast mode is twice the standard rates with new models and six times with the first; inference in the
# United States 1.1 times.
_FAST_FACTOR = Decimal(6)
_REGION_FACTOR = Decimal("1.1")
_REGIONS_AT_LIST_PRICE = frozenset({"global", "not_available"})
# OpenAI's writes for twelve hours cost twice those for thirty minutes.
_LONG_CACHE_WRITE_FACTOR = 2
_ZERO = Decimal(0)
_MAX_REMEMBERED_NAME = 200
Price = TypeVar("Price")

# For kinds of tokens without a rate in the prices of a known model.
_DEFAULT_INPUT_NANOS, _DEFAULT_OUTPUT_NANOS = 5_000, 25_000


@dataclass(frozen=True, slots=True)
class FallbackRates:
    """Rates if the table has none: for a token, and for a call without tokens (an image)."""

    # The operator's rates for unknown models; without them, the provider's highest apply.
    input_nanos_each: int | None = None
    output_nanos_each: int | None = None
    search_nanos_each: int = 35_000_000
    call_nanos: int = 100_000_000

    def for_unknown_model(self, max_rates: Rates) -> Rates:
        """Return the rates of an unknown model: the highest of its provider, without discounts."""
        inputs = (max_rates.input, max_rates.audio_in, max_rates.image_in)
        outputs = (max_rates.output, max_rates.audio_out, max_rates.image_out)
        each_in, each_out = (max(filter(None, each), default=None) for each in (inputs, outputs))
        if self.input_nanos_each is not None:
            each_in = Decimal(self.input_nanos_each)
        if self.output_nanos_each is not None:
            return Rates(input=each_in, output=Decimal(self.output_nanos_each), search=max_rates.search)
        return Rates(
            input=each_in, output=each_out, search=max_rates.search, character=max_rates.character,
            audio_hour=max_rates.audio_hour,
        )  # fmt: skip

    def fill_missing(self, rates: Rates, *, is_free: bool = False) -> Rates:
        """Return rates with the fallback if the table has none; a free model's searches are not free."""
        if is_free:
            return replace(rates, input=_ZERO, output=_ZERO, search=rates.search or Decimal(self.search_nanos_each))
        has_other_unit = rates.character or rates.audio_hour
        input_each = 0 if has_other_unit else self.input_nanos_each or _DEFAULT_INPUT_NANOS
        output_each = 0 if has_other_unit else self.output_nanos_each or _DEFAULT_OUTPUT_NANOS
        return replace(
            rates,
            input=Decimal(input_each) if rates.input is None else rates.input,
            output=Decimal(output_each) if rates.output is None else rates.output,
            search=rates.search or Decimal(self.search_nanos_each),
        )


class PricingMode(NamedTuple):
    """The options of a call that change its rates."""

    tier: str | None = None
    speed: str | None = None
    region: str | None = None


STANDARD_MODE = PricingMode()


@dataclass(frozen=True, slots=True, eq=False)
class RateBook:
    """Rates of a provider's models: the operator's prices, the table's or the provider's highest, in this order.

    Compared by identity, because what `read_rates` returns is cached for each book.
    """

    table: str
    fallback: FallbackRates = field(default_factory=FallbackRates)
    # By name, or by prefix and a star.
    models: Mapping[str, Rates] = field(default_factory=dict)

    def rates_for(
        self, name: str, at: datetime, tokens_in: int, mode: PricingMode = STANDARD_MODE, *, maximum: bool = False
    ) -> tuple[Rates, str]:
        """Return the rates of a model and their source; with `maximum`, the highest for any prompt up to that size."""
        if len(name) > _MAX_REMEMBERED_NAME:
            return self.read_rates(name, at, tokens_in, mode, maximum=maximum)
        found = price_table.find_model(self.table, name)
        prompt = found.smallest_prompt(tokens_in) if found else 0
        # Prices change on whole minutes only.
        return _remembered_rates(
            price_updates.version(), self, name, at.replace(second=0, microsecond=0), prompt, mode, maximum=maximum
        )

    def has_model(self, name: str) -> bool:
        given = self._configured(name) or price_updates.find(self.table, name)
        return bool(given or price_table.find_model(self.table, name))

    def _configured(self, name: str) -> Rates | None:
        """Return the operator's price of a model; a dated snapshot that the table lacks has that of its alias."""
        if not self.models:
            return None
        plain, *aliases = price_table.candidates(self.table, name)
        found = find_by_prefix(self.models, plain)
        if found is None and price_table.find_model(self.table, plain) is None:
            found = next((self.models[alias] for alias in aliases if alias in self.models), None)
        return found

    def context_window(self, name: str) -> int | None:
        """Return the context window of a model in tokens, if the table has it."""
        found = price_table.find_model(self.table, name)
        return found.model.context_window if found else None

    def is_free(self, name: str, at: datetime) -> bool:
        """Return whether a model costs nothing: by its name (OpenRouter), the operator's price, or the table."""
        if self.table == price_table.OPENROUTER:
            return price_table.without_routing(self.table, name).endswith(price_table.FREE_SUFFIX)
        given = self._configured(name) or price_updates.find(self.table, name)
        if given is not None:
            return given.input == given.output == 0
        found = price_table.find_model(self.table, name)
        return found is not None and found.is_free(at)

    def read_rates(
        self, name: str, at: datetime, tokens_in: int, mode: PricingMode, *, maximum: bool
    ) -> tuple[Rates, str]:
        """Read what `rates_for` returns from the table, which takes ten times as long as the rest of a quote."""
        is_free = self.is_free(name, at)
        found = None
        if (configured_rates := self._configured(name)) is not None:
            rates, version = configured_rates, CONFIGURED
        elif (found := price_table.find_model(self.table, name)) is not None:
            rates = found.rates(at, tokens_in, tier=mode.tier, speed=mode.speed, maximum=maximum)
            version = price_table.VERSION
            if self.table == price_table.OPENROUTER:
                rates = _with_media_rates(rates, name, at)
            if self.table == "openai" and "audio" in name and rates.audio_out is None:
                # The table lacks audio rates of the first such models: audio costs 8 to 33 times as much as text.
                audio_rates = price_table.provider_max_rates(self.table, name, at)
                rates = replace(rates, audio_in=audio_rates.audio_in, audio_out=audio_rates.audio_out)
        elif is_free:
            rates, version = Rates(), FALLBACK
        else:
            highest = price_table.provider_max_rates(self.table, name, at)
            rates, version = self.fallback.for_unknown_model(highest), FALLBACK
        if version != CONFIGURED and (listed := price_updates.find(self.table, name)) is not None:
            standard = Rates(search=rates.search) if found is None else found.rates(at, tokens_in, maximum=maximum)
            # Without the table's prices of tiers, which belong to other standard rates.
            rates, version, found = price_updates.complete(listed, standard), price_updates.version(), None
        return self._apply_mode(self.fallback.fill_missing(rates, is_free=is_free), found, mode, at), version

    def _apply_mode(self, rates: Rates, found: TableModel | None, mode: PricingMode, at: datetime) -> Rates:
        if self.table == "openai" and rates.cache_write is not None and rates.cache_write_1h is None:
            rates = replace(rates, cache_write_1h=rates.cache_write * _LONG_CACHE_WRITE_FACTOR)
        factor = _ZERO + 1
        if mode.tier is not None and not (found and found.has_variant(at, "service_tier", mode.tier)):
            factor = _TIER_FACTORS.get(self.table, {}).get(mode.tier, factor)
        if self.table == "anthropic":
            if mode.speed == "fast" and not (found and found.has_variant(at, "speed", "fast")):
                factor *= _FAST_FACTOR
            if mode.region is not None and mode.region not in _REGIONS_AT_LIST_PRICE:
                factor *= _REGION_FACTOR
        return _scale_rates(rates, factor)


# By the version of the prices too. Clients choose the names, so their number and length have limits.
@lru_cache(maxsize=4096)
def _remembered_rates(_version: str, book: RateBook, *call: Any, maximum: bool) -> tuple[Rates, str]:
    return book.read_rates(*call, maximum=maximum)


def _with_media_rates(rates: Rates, name: str, at: datetime) -> Rates:
    """Return OpenRouter's rates, completed by the maker's rates for audio and images, which its list omits."""
    maker, _, model = name.partition("/")
    found = price_table.find_model(maker, model.partition(":")[0]) if maker in _MAKERS else None
    if found is None:
        return rates
    maker_rates = found.rates(at, 0)
    missing = [kind for kind in _MEDIA_RATES if getattr(rates, kind) is None]
    return replace(rates, **{kind: getattr(maker_rates, kind) for kind in missing})


_MAKERS = frozenset({"google", "openai"})
_MEDIA_RATES = ("audio_in", "audio_out", "image_in", "image_out")


def find_by_prefix(prices: Mapping[str, Price], name: str) -> Price | None:
    """Return the price of a name, or of its longest prefix with a star; None if there is none."""
    if name in prices:
        return prices[name]
    families = [each for each in prices if each.endswith("*") and name.startswith(each[:-1])]
    return prices[max(families, key=len)] if families else None


def _scale_rates(rates: Rates, factor: Decimal) -> Rates:
    if factor == 1:
        return rates
    # Searches are not billed by the token.
    fixed = {"search", *(_CACHED if factor < 1 else ())}
    scaled = {name: getattr(rates, name) for name in Rates.__slots__ if name not in fixed}
    return replace(rates, **{name: rate * factor for name, rate in scaled.items() if rate is not None})
