"""A perpetual-futures exchange: queries, and the payloads of actions.

Queries use the network; payloads are built without it and without a key, so a preview needs no exchange.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol

from app.core.money import TokenAmount

Json = Any
"""A document of the exchange, returned unchanged: its numbers are strings and keep their spelling."""


class PerpdexTopic(StrEnum):
    ACCOUNT = "account"
    SPOT = "spot"
    ORDERS = "orders"
    FILLS = "fills"
    MARKETS = "markets"
    FUNDING = "funding"
    MIDS = "mids"
    BOOK = "book"


@dataclass(frozen=True, slots=True)
class PerpdexQuery:
    """One query; of an account by its address, of an order book by its symbol."""

    topic: PerpdexTopic
    address: str | None = None
    symbol: str | None = None


@dataclass(frozen=True, slots=True)
class PerpdexReply:
    """A document, None without an order book of that symbol, and its weight beyond the query's known one."""

    document: Json
    surplus_weight: int = 0


@dataclass(frozen=True, slots=True)
class PerpMarket:
    """A market. `max_leverage` is None if it is unknown; `index` is its number in actions."""

    index: int
    symbol: str
    size_decimals: int
    max_leverage: int | None = None
    only_isolated: bool = False
    is_delisted: bool = False


class TimeInForce(StrEnum):
    """The lifetime of an order: until cancelled, immediate or cancel, post-only."""

    GTC = "Gtc"
    IOC = "Ioc"
    ALO = "Alo"


@dataclass(frozen=True, slots=True)
class PerpOrder:
    """A limit order; price and size are already on the exchange's grid."""

    is_buy: bool
    price: Decimal
    size: Decimal
    time_in_force: TimeInForce
    is_reduce_only: bool = False
    client_id: str | None = None


Action = Mapping[str, Json]
"""An unsigned action. The order of its keys is part of what is signed."""


class Perpdex(Protocol):
    def query_weight(self, query: PerpdexQuery) -> int:
        """Return a query's weight against the exchange's rate limit per IP address. No network."""

    def fetch(self, query: PerpdexQuery) -> PerpdexReply:
        """Query the exchange. Raises: Rejected("refused"); Unreachable, with the reason."""

    def parse_markets(self, document: Json) -> tuple[PerpMarket, ...]:
        """Parse the markets in a response about `PerpdexTopic.MARKETS`. No I/O."""

    def bundled_markets(self) -> tuple[date, tuple[PerpMarket, ...]] | None:
        """Return the markets that ship with the service, and their day; None for a network with other numbers."""

    def parse_orders(self, document: Json) -> Sequence[tuple[str, int]]:
        """Parse symbol and number of each order in a response about `PerpdexTopic.ORDERS`. No I/O."""

    def dead_end(self, address: str) -> str | None:
        """Return what a recipient is that gives nothing back ("a burn address", …), or None. No I/O."""

    def order(self, market: PerpMarket, order: PerpOrder) -> Action:
        """Build an order. No I/O, as for all actions."""

    def cancel(self, orders: Sequence[tuple[int, int]]) -> Action:
        """Build the cancellation of orders, each by the number of its market and its own."""

    def cancel_by_client_id(self, market_index: int, client_id: str) -> Action:
        """Build the cancellation of an order by its client id: 0x and 32 hexadecimal digits."""

    def set_leverage(self, market_index: int, leverage: int, *, is_cross: bool) -> Action:
        """Build a change of a market's leverage, across all positions or for this one alone."""

    def pay(self, amount: TokenAmount, destination: str, *, is_withdrawal: bool, time_ms: int) -> Action:
        """Build a withdrawal to an address on the settlement chain, or a transfer to another account inside.

        The time is the nonce that the action has to be sent with.
        """
