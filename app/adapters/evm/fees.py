"""What a transaction may cost: EIP-1559 fee fields, gas with a margin, the L1 data fee. Pure rules."""

from __future__ import annotations

from dataclasses import dataclass

from app.adapters.evm.wire import FeeHistory
from app.ports.chain import Terms

TRANSFER_GAS = 21_000
"""A transfer to an account without code costs exactly this."""


TOKEN_TRANSFER_GAS = 80_000
"""About what a USDC transfer to a new holder is given, for the figures of a refusal without an estimate."""


@dataclass(frozen=True, slots=True)
class Price:
    """The fee fields of EIP-1559, in wei per gas."""

    max_fee: int
    tip: int


@dataclass(frozen=True, slots=True)
class FeeTerms:
    """Everything about fees that a draft fixes; stored as JSON among an attempt's terms."""

    gas: int
    price: Price
    l1_fee_units: int

    @property
    def most_units(self) -> int:
        """Return the most that the network can take; the L1 part is fixed only when the block is made."""
        return self.gas * self.price.max_fee + with_l1_margin(self.l1_fee_units)

    def as_terms(self) -> Terms:
        """Write them as JSON values."""
        return {
            "gas": self.gas,
            "max_fee_per_gas": self.price.max_fee,
            "max_priority_fee_per_gas": self.price.tip,
            "l1_fee": str(self.l1_fee_units),
        }

    @classmethod
    def from_terms(cls, terms: Terms) -> FeeTerms:
        """Read what `as_terms` wrote."""
        price = Price(_number(terms["max_fee_per_gas"]), _number(terms["max_priority_fee_per_gas"]))
        return cls(_number(terms["gas"]), price, _number(terms["l1_fee"]))


def market(history: FeeHistory, *, suggested_tip: int | None) -> Price:
    """Return a price that survives six full blocks: twice the base fee, and the tip that others paid."""
    tip = max(history.tips, default=0) or suggested_tip or 1
    return Price(2 * history.next_base_fee + tip, tip)


def gas_limit(estimate: int) -> int:
    """Return a quarter more than was estimated, except for plain transfers, whose gas is fixed."""
    return TRANSFER_GAS if estimate == TRANSFER_GAS else -(-estimate * 5 // 4)


def replacing(previous: Price, market_price: Price) -> Price:
    """Return a price at which nodes let a transaction replace its predecessor, and not below the market's.

    geth asks for 10 % more on both fields (`txpool.pricebump`); we give 12.5 %.
    """
    tip = max(_raised(previous.tip), market_price.tip)
    return Price(max(_raised(previous.max_fee), market_price.max_fee, tip), tip)


def with_l1_margin(l1_fee_units: int) -> int:
    """Return an L1 data fee with a fifth on top: it follows L1's base fee until the block is made."""
    return -(-l1_fee_units * 6 // 5)


def _raised(units: int) -> int:
    return -(-units * 9 // 8) + 1


def _number(value: str | int | None) -> int:
    if value is None:
        raise ValueError("the terms lack a figure")
    return int(value)
