"""The minimum output and maximum loss of a swap, never rounded in favour of the exchange."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.chains import ETH, USDC
from app.core.money import TokenAmount
from app.ports.errors import Rejected
from app.wallets.kinds.swap import compute_bounds

ETH_NANOS, USDC_NANOS = 3000 * 10**9, 10**9


def bounds(units: int, quoted: int, *, slippage: int = 50, deviation: int = 200) -> tuple[TokenAmount, int]:
    return compute_bounds(
        TokenAmount(units, USDC),
        ETH,
        input_price_nanos=USDC_NANOS,
        output_price_nanos=ETH_NANOS,
        quoted_units=quoted,
        slippage_bps=slippage,
        deviation_bps=deviation,
    )


def test_the_minimum_is_the_quote_less_slippage_if_that_is_above_the_market_bound() -> None:
    found = bounds(3000 * 10**6, 10**18)
    assert found == (TokenAmount(995 * 10**15, ETH), 15 * 10**9)


def test_the_market_bound_limits_a_wider_slippage() -> None:
    assert bounds(3000 * 10**6, 10**18, slippage=500)[0].units == 98 * 10**16


def test_a_quote_below_the_market_bound_is_refused_with_the_numbers() -> None:
    with pytest.raises(Rejected, match="price_deviation") as refusal:
        bounds(3000 * 10**6, 98 * 10**16 - 1)
    assert refusal.value.details == {"quoted": "0.979999999999999999", "required": "0.98"}


def test_a_quote_above_the_market_has_no_loss_and_adds_nothing_to_a_limit() -> None:
    assert bounds(3000 * 10**6, 2 * 10**18)[1] == 0


@pytest.mark.parametrize(("units", "quoted"), [(1, 0), (10**6, 0)])
def test_a_swap_without_output_is_refused(units: int, quoted: int) -> None:
    with pytest.raises(Rejected, match=r"amount_too_small"):
        bounds(units, quoted)


@given(
    units=st.integers(1, 10**15),
    slippage=st.integers(0, 500),
    deviation=st.integers(0, 500),
    better=st.integers(-100, 1000),
)
def test_bounds_are_never_rounded_in_favour_of_the_exchange(
    units: int, slippage: int, deviation: int, better: int
) -> None:
    quoted = units * 10**12 // 3000 * (10_000 + better) // 10_000
    try:
        minimum, loss_nanos = bounds(units, quoted, slippage=slippage, deviation=deviation)
    except Rejected:
        return
    assert minimum.units * 10_000 >= quoted * (10_000 - slippage)
    assert minimum.units <= max(quoted, 1)
    exact_loss = units * 1000 - minimum.units * 3000 / 10**9
    assert loss_nanos >= exact_loss - 1e-3 * abs(exact_loss) - 1
