"""Remembered rates are those of the moment: they follow each switch-over of the table and each size of prompt."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from genai_prices import data_snapshot
from genai_prices.types import ModelInfo, ModelPrice, StartDateConstraint, TieredPrices, TimeOfDateConstraint

from app.gateway.pricing import rates
from app.gateway.pricing.price_table import Rates
from app.gateway.pricing.quotes import TokenPrices
from app.gateway.pricing.rates import CONFIGURED, PricingMode, RateBook

_AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
_MODES = (PricingMode(), PricingMode(tier="priority"), PricingMode(speed="fast"))


def _models() -> Iterator[tuple[str, ModelInfo]]:
    for provider in data_snapshot.get_snapshot().providers:
        yield from ((provider.id, model) for model in provider.models)


def _constraints(model: ModelInfo) -> list[Any]:
    conditional = [] if isinstance(model.prices, ModelPrice) else model.prices
    found = [each.constraint for each in (*conditional, *(model.price_variants or ()))]
    return [each for each in found if each is not None]


def _switches(constraint: Any) -> list[datetime]:
    if isinstance(constraint, StartDateConstraint):
        return [datetime.combine(constraint.start_date, time(), UTC)]
    assert isinstance(constraint, TimeOfDateConstraint)
    times = (constraint.start_time, constraint.end_time)
    return [datetime.combine(_AT.date(), each, each.tzinfo or UTC).astimezone(UTC) for each in times]


def _steps(model: ModelInfo) -> set[int]:
    listed = [model.prices] if isinstance(model.prices, ModelPrice) else [each.prices for each in model.prices]
    listed += [variant.prices for variant in model.price_variants or ()]
    prices = [price for each in listed for price in vars(each).values()]
    return {tier.start for price in prices if isinstance(price, TieredPrices) for tier in price.tiers}


def _assert_read(book: RateBook, name: str, at: datetime, tokens_in: int) -> None:
    for mode in _MODES:
        for maximum in (False, True):
            remembered = book.rates_for(name, at, tokens_in, mode, maximum=maximum)
            assert remembered == book.read_rates(name, at, tokens_in, mode, maximum=maximum)


def test_rates_change_exactly_when_the_table_does() -> None:
    dated = [(table, model) for table, model in _models() if _constraints(model)]
    assert dated
    for table, model in dated:
        for switch in {at for constraint in _constraints(model) for at in _switches(constraint)}:
            # Rates are remembered for a minute.
            assert (switch.second, switch.microsecond) == (0, 0)
            for at in (switch - timedelta(microseconds=1), switch, switch + timedelta(seconds=59)):
                _assert_read(TokenPrices(table), model.id, at, 1000)


def test_rates_change_exactly_above_each_size_of_prompt() -> None:
    tiered = [(table, model) for table, model in _models() if _steps(model)]
    assert tiered
    for table, model in tiered:
        for step in _steps(model):
            for tokens_in in (0, step, step + 1, 10**9):
                _assert_read(TokenPrices(table), model.id, _AT, tokens_in)


def test_books_of_one_table_keep_their_own_prices() -> None:
    cheap, dear = (
        TokenPrices("openai", models={"gpt-5*": Rates(input=Decimal(each), output=Decimal(each))}) for each in (1, 2)
    )
    for book, each in ((cheap, 1), (dear, 2), (cheap, 1)):
        found, source = book.rates_for("gpt-5-mini", _AT, 10)
        assert (found.input, source) == (Decimal(each), CONFIGURED)


@pytest.mark.parametrize(("name", "is_remembered"), [("x" * 10_000, False), ("no-such-model-of-any", True)])
def test_long_names_of_models_are_not_remembered(name: str, *, is_remembered: bool) -> None:
    before = rates._remembered_rates.cache_info().misses
    TokenPrices("openai").rates_for(name, _AT, 10)
    assert rates._remembered_rates.cache_info().misses - before == is_remembered
