"""A perpetual-futures exchange: what can be read there, and what would be sent there.

Reading asks the network; a payload is built without it and without any key, so a preview needs no exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol

from app.core.money import TokenAmount

Json = Any
"""A document of the exchange's, passed through: its numbers are strings and stay as they were written."""


class Topic(StrEnum):
    """What can be asked."""

    ACCOUNT = "account"
    SPOT = "spot"
    ORDERS = "orders"
    FILLS = "fills"
    MARKETS = "markets"
    FUNDING = "funding"
    MIDS = "mids"
    BOOK = "book"


@dataclass(frozen=True, slots=True)
class Question:
    """One question; of an account by its address, of an order book by its symbol."""

    topic: Topic
    address: str | None = None
    symbol: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The exchange's document, and what it weighed beyond the question's known weight (long answers do).

    `document` is None where the exchange knows no order book of that symbol.
    """

    document: Json
    surplus_weight: int = 0


@dataclass(frozen=True, slots=True)
class Market:
    """A market. `max_leverage` is None where it is not known; `index` is its number in actions."""

    index: int
    symbol: str
    size_decimals: int
    max_leverage: int | None = None
    only_isolated: bool = False
    is_delisted: bool = False


@dataclass(frozen=True, slots=True)
class BundledMarkets:
    """The markets that ship with the service, and of which day they are."""

    day: date
    markets: tuple[Market, ...]


class TimeInForce(StrEnum):
    """How long an order stands: until cancelled, immediate or not at all, only as a maker."""

    GTC = "Gtc"
    IOC = "Ioc"
    ALO = "Alo"


@dataclass(frozen=True, slots=True)
class LimitOrder:
    """An order; price and size are on the exchange's grid already."""

    market: Market
    is_buy: bool
    price: Decimal
    size: Decimal
    time_in_force: TimeInForce


@dataclass(frozen=True, slots=True)
class OrderRef:
    """A resting order by its market's index and its number."""

    market_index: int
    order_id: int


@dataclass(frozen=True, slots=True)
class CancelOrders:
    """Cancel resting orders."""

    orders: tuple[OrderRef, ...]


@dataclass(frozen=True, slots=True)
class CancelByClientId:
    """Cancel the order that its maker named: 0x and 32 hexadecimal digits."""

    market_index: int
    client_id: str


@dataclass(frozen=True, slots=True)
class SetLeverage:
    """Set a market's leverage, across all positions or for this one alone."""

    market: Market
    leverage: int
    is_cross: bool


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take USDC out of the exchange, to an address on its settlement chain."""

    amount: TokenAmount
    destination: str


@dataclass(frozen=True, slots=True)
class SendUsdc:
    """Give USDC to another account inside the exchange."""

    amount: TokenAmount
    destination: str


Action = LimitOrder | CancelOrders | CancelByClientId | SetLeverage | Withdraw | SendUsdc


@dataclass(frozen=True, slots=True)
class Payload:
    """What would be sent, lacking its signature. The order of the keys in `action` is part of what is signed."""

    action: Mapping[str, Json]
    nonce: int


class Perpdex(Protocol):
    """The exchange."""

    def weight_of(self, question: Question) -> int:
        """Return what a question weighs against the exchange's limit per address of ours. No network."""
        ...

    def ask(self, question: Question) -> Reply:
        """Ask the exchange.

        Raises: Rejected("refused"); Unreachable("rate_limited", "not_sent", "no_answer", "unexpected_answer",
        "exchange_failed").
        """
        ...

    def markets_in(self, document: Json) -> tuple[Market, ...]:
        """Read the markets in an answer about `Topic.MARKETS`. Pure."""
        ...

    def bundled_markets(self) -> BundledMarkets | None:
        """Return the markets that ship with the service; None for a network that numbers its markets otherwise."""
        ...

    def orders_in(self, document: Json) -> Sequence[tuple[str, int]]:
        """Read symbol and number of each order in an answer about `Topic.ORDERS`. Pure."""
        ...

    def payload(self, action: Action, *, nonce: int) -> Payload:
        """Build what would be sent; `nonce` is the time in milliseconds. Pure."""
        ...
