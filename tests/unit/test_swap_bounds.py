"""What a swap must bring at least and can lose at most: never rounded in the exchange's favour."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.chains import ETH, USDC
from app.core.money import TokenAmount
from app.ports.errors import Rejected
from app.wallets.swap_bounds import Bounds, Prices, bound

ETH_NANOS, USDC_NANOS = 3000 * 10**9, 10**9


def bounds(units: int, quoted: int, *, slippage: int = 50, deviation: int = 200) -> Bounds:
    return bound(
        TokenAmount(units, USDC),
        ETH,
        Prices(USDC_NANOS, ETH_NANOS),
        quoted_units=quoted,
        slippage_bps=slippage,
        deviation_bps=deviation,
    )


def test_the_quote_less_the_slippage_is_the_minimum_where_it_is_above_the_market_s_bound() -> None:
    found = bounds(3000 * 10**6, 10**18)
    assert found == Bounds(minimum_units=995 * 10**15, loss_nanos=15 * 10**9)


def test_the_market_bounds_a_slippage_that_is_wider() -> None:
    assert bounds(3000 * 10**6, 10**18, slippage=500).minimum_units == 98 * 10**16


def test_a_quote_below_the_market_s_bound_is_refused_with_figures() -> None:
    with pytest.raises(Rejected, match="price_deviation") as refusal:
        bounds(3000 * 10**6, 98 * 10**16 - 1)
    assert refusal.value.details == {"quoted": "0.979999999999999999", "required": "0.98"}


def test_a_quote_above_the_market_loses_nothing_and_gives_nothing_back_to_a_limit() -> None:
    assert bounds(3000 * 10**6, 2 * 10**18).loss_nanos == 0


@pytest.mark.parametrize(("units", "quoted"), [(1, 0), (10**6, 0)])
def test_what_brings_nothing_is_refused(units: int, quoted: int) -> None:
    with pytest.raises(Rejected, match=r"amount_too_small"):
        bounds(units, quoted)


@given(
    units=st.integers(1, 10**15),
    slippage=st.integers(0, 500),
    deviation=st.integers(0, 500),
    better=st.integers(-100, 1000),
)
def test_bounds_are_never_kinder_to_the_exchange_than_the_exact_figures(
    units: int, slippage: int, deviation: int, better: int
) -> None:
    quoted = units * 10**12 // 3000 * (10_000 + better) // 10_000
    try:
        found = bounds(units, quoted, slippage=slippage, deviation=deviation)
    except Rejected:
        return
    assert found.minimum_units * 10_000 >= quoted * (10_000 - slippage)
    assert found.minimum_units <= max(quoted, 1)
    exact_loss = units * 1000 - found.minimum_units * 3000 / 10**9
    assert found.loss_nanos >= exact_loss - 1e-3 * abs(exact_loss) - 1
