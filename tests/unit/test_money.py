"""Exact money: no digit is lost, nothing is rounded silently, and only plain numbers are parsed."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.chains import ETH, SOL, USDC, Token
from app.core.money import (
    NANOS_PER_USD,
    AmountError,
    TokenAmount,
    decimal_string,
    nanos_from_usd,
    parse_amount,
    usd_from_nanos,
    usd_without_float_noise,
    value_nanos,
)

TOKENS = st.sampled_from([ETH, SOL, USDC])
UNITS = st.integers(min_value=1, max_value=2**255 - 1)


@given(st.integers(min_value=1, max_value=10**66 - 1), TOKENS)
def test_every_amount_survives_a_round_trip_exactly(units: int, token: Token) -> None:
    amount = TokenAmount(units, token)
    assert parse_amount(str(amount), token) == amount


@given(UNITS, TOKENS)
def test_an_amount_is_written_as_an_exact_plain_decimal(units: int, token: Token) -> None:
    text = str(TokenAmount(units, token))
    with localcontext(prec=100):
        assert Decimal(text) * 10**token.decimals == units
    assert set(text) <= set("0123456789.")
    assert not text.endswith(".")
    assert "." not in text or not text.endswith("0")


def test_superfluous_zeros_are_parsed_and_not_written() -> None:
    assert parse_amount("007.500000", USDC).units == 7_500_000
    assert str(parse_amount("007.500000", USDC)) == "7.5"
    assert str(TokenAmount(10**20, ETH)) == "100"
    assert decimal_string(0, 6) == "0"
    assert decimal_string(-1, 9) == "-0.000000001"
    assert decimal_string(-15, 1) == "-1.5"
    assert decimal_string(12, 0) == "12"


BAD_AMOUNTS = [
    "", " ", "1 ", " 1", "+1", "-1", "-0", "1e2", "1E2", ".5", "5.", "1.2.3", "1,5", "1_000", "0x10", "NaN",
    "Infinity", "١", "１", "²", "1\n", "1\x00", "9" * 61, "1." + "0" * 41,
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_AMOUNTS)
def test_malformed_amounts_are_refused(text: str) -> None:
    with pytest.raises(AmountError, match="plain decimal number"):
        parse_amount(text, ETH)


@pytest.mark.parametrize(("token", "text"), [(USDC, "0.0000001"), (SOL, "1.0000000001"), (ETH, "0." + "1" * 19)])
def test_more_decimals_than_the_token_has_are_refused_not_cut_off(token: Token, text: str) -> None:
    with pytest.raises(AmountError, match=f"{token.symbol} has at most {token.decimals} decimals"):
        parse_amount(text, token)


@pytest.mark.parametrize("text", ["0", "0.0", "000.000000"])
def test_zero_is_refused_as_an_amount(text: str) -> None:
    with pytest.raises(AmountError, match="greater than zero"):
        parse_amount(text, USDC)


def test_an_amount_above_uint256_is_refused() -> None:
    largest = decimal_string(2**255 - 1, 18)
    assert parse_amount(largest, ETH).units == 2**255 - 1
    with pytest.raises(AmountError, match="larger than any balance"):
        parse_amount(decimal_string(2**255, 18), ETH)


def test_an_amount_is_never_negative() -> None:
    with pytest.raises(ValueError, match="never negative"):
        TokenAmount(-1, ETH)


@given(UNITS, TOKENS, st.integers(min_value=1, max_value=10**18))
def test_a_value_is_rounded_up_by_less_than_a_nano_dollar(units: int, token: Token, price: int) -> None:
    nanos = value_nanos(TokenAmount(units, token), price)
    scale = 10**token.decimals
    assert 0 <= nanos * scale - units * price < scale


def test_the_smallest_unit_has_a_value_so_that_dust_counts_against_limits() -> None:
    assert value_nanos(TokenAmount(1, ETH), 3000 * NANOS_PER_USD) == 1
    assert value_nanos(TokenAmount(1, USDC), NANOS_PER_USD) == 1000
    assert value_nanos(TokenAmount(0, ETH), 3000 * NANOS_PER_USD) == 0


@given(st.integers(min_value=-(10**30), max_value=10**30))
def test_dollars_and_nano_dollars_are_the_same_number(nanos: int) -> None:
    assert nanos_from_usd(usd_from_nanos(nanos)) == nanos


@pytest.mark.parametrize("usd", ["NaN", "sNaN", "Infinity", "-Infinity", "0.0000000001", "1E-400"])
def test_dollars_that_nano_dollars_cannot_express_are_refused(usd: str) -> None:
    with pytest.raises(AmountError, match="finite number with at most 9 decimals"):
        nanos_from_usd(Decimal(usd))


def test_the_surrounding_decimal_context_changes_nothing() -> None:
    with localcontext(prec=2):
        assert nanos_from_usd(Decimal("123456.123456789")) == 123_456_123_456_789
        assert usd_from_nanos(123_456_123_456_789) == Decimal("123456.123456789")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (0.1 + 0.2, "0.3"), (4.35 * 100, "435"), (0.1 * 3, "0.3"), (1.1 + 2.2, "3.3"), (0.1 + 0.7, "0.8"),
        (sum([0.1] * 10), "1"), (1e-9 * 3, "0.000000003"), (16.99, "16.99"), (0.0, "0"),
        (999999999.999, "999999999.999"),
    ],
)  # fmt: skip
def test_binary_rounding_noise_is_removed_from_amounts(written: float, meant: str) -> None:
    assert usd_without_float_noise(Decimal(repr(written))) == Decimal(meant)


@pytest.mark.parametrize(
    "usd", ["0.0000000001", "1E-400", "1E-2000000", "0.3000000001", "0.30000000000001", "0.9999999999", "1.00000000049"]
)
def test_intended_digits_are_not_removed_as_noise(usd: str) -> None:
    assert usd_without_float_noise(Decimal(usd)) == Decimal(usd)
    with pytest.raises(AmountError):
        nanos_from_usd(usd_without_float_noise(Decimal(usd)))


@given(st.decimals(min_value=0, max_value=10**9, allow_nan=False, allow_infinity=False))
def test_no_amount_changes_by_a_nano_dollar_or_becomes_zero(usd: Decimal) -> None:
    meant = usd_without_float_noise(usd)
    assert abs(meant - usd) < Decimal("1E-9")
    assert (meant == 0) == (usd == 0)
