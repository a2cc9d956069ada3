from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.trading import actions
from app.trading.actions import GridError

SIZE_DECIMALS = st.integers(min_value=0, max_value=8)
NUMBERS = st.decimals(
    min_value=Decimal("0.000001"), max_value=Decimal(10**9), allow_nan=False, allow_infinity=False, places=12
)


def is_on_price_grid(price: Decimal, size_decimals: int) -> bool:
    """Check the rule of the exchange's documentation: whole, or five significant figures and limited decimals."""
    normal = price.normalize()
    _, digits, exponent = normal.as_tuple()
    assert isinstance(exponent, int)
    if exponent >= 0:
        return True
    return len(digits) <= 5 and -exponent <= max(0, 6 - size_decimals)


@given(asked=NUMBERS, size_decimals=SIZE_DECIMALS, is_buy=st.booleans())
def test_a_price_is_on_the_grid_and_never_worse_than_requested(
    asked: Decimal, size_decimals: int, *, is_buy: bool
) -> None:
    try:
        price = actions.round_price(asked, size_decimals=size_decimals, is_buy=is_buy)
    except GridError:
        assert is_buy
        assert asked < Decimal(1).scaleb(-max(0, 6 - size_decimals))
        return
    assert is_on_price_grid(price, size_decimals)
    assert price <= asked if is_buy else price >= asked
    # And at most one step of the grid away.
    step = Decimal(1).scaleb(max(-max(0, 6 - size_decimals), min(0, asked.adjusted() - 4)))
    assert abs(price - asked) < step


@given(asked=NUMBERS, size_decimals=SIZE_DECIMALS, is_buy=st.booleans())
def test_a_price_on_the_grid_is_unchanged(asked: Decimal, size_decimals: int, *, is_buy: bool) -> None:
    price = actions.round_price(asked, size_decimals=size_decimals, is_buy=False)
    assert actions.round_price(price, size_decimals=size_decimals, is_buy=is_buy) == price


@given(asked=NUMBERS, size_decimals=SIZE_DECIMALS)
def test_a_size_is_on_the_grid_and_never_above_the_request(asked: Decimal, size_decimals: int) -> None:
    smallest = Decimal(1).scaleb(-size_decimals)
    try:
        size = actions.round_size(asked, size_decimals=size_decimals)
    except GridError:
        assert asked < smallest
        return
    assert size % smallest == 0
    assert asked - smallest < size <= asked


@given(price=NUMBERS, size=NUMBERS)
def test_the_value_of_an_order_is_never_too_low(price: Decimal, size: Decimal) -> None:
    nanos = actions.notional_nanos(price, size, nanos_per_usdc=10**9)
    assert nanos - 1 < Fraction(price) * Fraction(size) * 10**9 <= nanos


@pytest.mark.parametrize(
    ("asked", "decimals", "is_buy", "price"),
    [
        ("3000.55", 4, True, "3000.5"),
        ("3000.55", 4, False, "3000.6"),
        ("123456.7", 5, True, "123456"),  # whole prices may have more figures
        ("1234567", 5, True, "1234567"),
        ("99999.6", 0, False, "100000"),
        ("0.00438512", 0, True, "0.004385"),
        ("0.12345678", 1, True, "0.12345"),
        ("1.23456", 5, False, "1.3"),
        ("1670.1", 4, True, "1670.1"),
    ],
)
def test_prices_of_the_documentation(asked: str, decimals: int, price: str, *, is_buy: bool) -> None:
    assert actions.round_price(Decimal(asked), size_decimals=decimals, is_buy=is_buy) == Decimal(price)


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1e3", " 1", "1.", ".5", "0", "0.000", "NaN", "Infinity", "٣", "1_000", "1" * 61]
)
def test_malformed_and_non_positive_decimals_are_refused(text: str) -> None:
    with pytest.raises(GridError):
        actions.parse(text)


def test_a_huge_number_is_refused_and_a_long_fraction_loses_no_digit() -> None:
    with pytest.raises(GridError, match="too large"):
        actions.parse(str(10**12 + 1))
    assert actions.parse("0." + "0" * 50 + "1") == Decimal("1e-51")
    with pytest.raises(GridError, match=r"smallest price, 0\.01"):
        actions.round_price(actions.parse("0." + "0" * 50 + "1"), size_decimals=4, is_buy=True)
    with pytest.raises(GridError, match=r"smallest size, 0\.0001"):
        actions.round_size(Decimal("0.00009"), size_decimals=4)
