"""Schemas of the trading API: one request body per kind of action, one response for all reads."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import marshmallow as ma
from marshmallow import ValidationError, fields

from app.core.chains import USDC, Family, parse_address
from app.core.money import parse_amount
from app.core.strict_json import JsonNumber
from app.ports.perpdex import TimeInForce
from app.trading import actions
from app.trading.exchange_client import MarketSource
from app.web.fields import AmountField, QueryCount, StrictBoolean, Text, one_of
from app.web.schemas import EXAMPLE_ID, AcceptsCamelCase, ErrorBody, Schema

_SYMBOL_EXAMPLE = {"example": "ETH"}
_ADDRESS_EXAMPLE = "0x5e9ee1089755c3435139848e47e6635505d5a13a"
_ORDER_ID = re.compile(r"[0-9]{1,20}", re.ASCII)
_CLIENT_ID = re.compile(r"0x[0-9a-fA-F]{32}", re.ASCII)
_MAX_ORDER_ID = 2**64 - 1
_ALL_ACTIONS = (*actions.READS, *actions.PREVIEWS)
_NOT_EMPTY = ma.validate.Length(min=1, max=100, error="must have 1 to 100 characters")


def _action(names: Iterable[str]) -> Text:
    listed = list(names)
    return one_of(listed, required=True, metadata={"example": listed[0]})


class Choice(Text):
    """One of a few words in any case, converted to the exchange's spelling."""

    def __init__(self, words: Iterable[str], **options: Any) -> None:
        self._spellings = {word.lower(): word for word in words}
        listed = ma.validate.OneOf(list(self._spellings.values()), error="must be one of {choices}")
        super().__init__(validate=listed, **options)

    def _parse(self, value: Any) -> str:
        word = super()._parse(value)
        return self._spellings.get(word.lower(), word)


class Parsed(AmountField):
    """A string, or the digits of a number, as a function parses it that raises ValueError with what is wrong."""

    def __init__(self, parse: Callable[[str], Any], example: Any, *, type_: Any = "string", **options: Any) -> None:
        super().__init__(metadata={"type": type_, "example": example}, **options)
        self._parse_text = parse

    def _parse(self, value: Any) -> Any:
        is_text = isinstance(value, str | int | JsonNumber) and not isinstance(value, bool)
        try:
            return self._parse_text(super()._parse(value) if is_text else "")
        except ValueError as error:
            raise ValidationError(str(error)) from None


def _parse_order_id(text: str) -> int | str:
    if _ORDER_ID.fullmatch(text) and int(text) <= _MAX_ORDER_ID:
        return int(text)
    return _parse_client_id(text, "must be an order's number, or 0x and 32 hexadecimal digits")


def _parse_client_id(text: str, problem: str = "must be 0x and 32 hexadecimal digits") -> str:
    if not _CLIENT_ID.fullmatch(text):
        raise ValueError(problem)
    return text.lower()


class CallBody(Schema):
    """The wallet and the action."""

    wallet_id = Text(required=True, data_key="walletId", validate=_NOT_EMPTY, metadata={"example": EXAMPLE_ID})
    action = _action(_ALL_ACTIONS)

    @ma.pre_load
    def _take_null_for_absent(self, body: Any, **_kwargs: object) -> Any:
        return {name: value for name, value in body.items() if value is not None}


class WriteBody(CallBody, AcceptsCamelCase):
    """An action that changes something: what it does not know could have changed its meaning, and is refused."""

    class Meta(Schema.Meta):
        """Options of these bodies."""

        unknown = ma.RAISE

    error_messages = {"unknown": "is not supported by this action"}  # noqa: RUF012 - as marshmallow declares it

    def _aliases(self) -> Mapping[str, str]:
        return {name: field.data_key for name, field in self.fields.items() if field.data_key is not None}


class PlainReadBody(CallBody):
    """Reads without parameters: the account, its positions, orders and fills; markets and funding rates."""

    action = _action(name for name in actions.READS if name not in {"ticker", "orderbook"})


class TickerBody(CallBody):
    """Mid prices of one market or of all."""

    action = _action(["ticker"])
    symbol = Text(load_default=None, validate=_NOT_EMPTY, metadata={**_SYMBOL_EXAMPLE})


class OrderbookBody(CallBody):
    """The order book of a market, twenty levels a side."""

    action = _action(["orderbook"])
    symbol = Text(load_default="ETH", validate=_NOT_EMPTY, metadata=_SYMBOL_EXAMPLE)


class OrderBody(WriteBody):
    """A limit order. Its price times its amount is checked against the wallet's limits."""

    action = _action(["order"])
    symbol = Text(required=True, validate=_NOT_EMPTY, metadata=_SYMBOL_EXAMPLE)
    side = Choice([*actions.BUYS, *actions.SELLS], required=True, metadata={"example": "buy"})
    price = Parsed(actions.parse, "3000.5", required=True)
    amount = Parsed(actions.parse, "0.01", required=True)
    tif = Choice(TimeInForce, load_default="Gtc")
    reduce_only = StrictBoolean(load_default=False, data_key="reduceOnly")
    cloid = Parsed(_parse_client_id, "0x1234567890abcdef1234567890abcdef", load_default=None)


class CancelBody(WriteBody):
    """Cancel one order."""

    action = _action(["cancel"])
    symbol = Text(required=True, validate=_NOT_EMPTY, metadata=_SYMBOL_EXAMPLE)
    order_id = Parsed(_parse_order_id, 91490942, type_=["integer", "string"], required=True, data_key="orderId")

    def _aliases(self) -> Mapping[str, str]:
        return {**super()._aliases(), "cloid": "orderId"}


class CancelAllBody(WriteBody):
    """Cancel all open orders, or those of one market."""

    action = _action(["cancel_all"])
    symbol = Text(load_default=None, validate=_NOT_EMPTY, metadata=_SYMBOL_EXAMPLE)


class SetLeverageBody(WriteBody):
    """Set the leverage of a market."""

    action = _action(["set_leverage"])
    symbol = Text(required=True, validate=_NOT_EMPTY, metadata=_SYMBOL_EXAMPLE)
    leverage = QueryCount(required=True, metadata={"example": 5, "minimum": 1})
    cross = StrictBoolean(load_default=True)


class ExchangePaymentBody(WriteBody):
    """Move USDC off the exchange (`withdraw`) or to another account on it (`transfer`), under the wallet's controls."""

    action = _action(["withdraw", "transfer"])
    amount = Parsed(partial(parse_amount, token=USDC), "10", required=True)
    destination = Parsed(partial(parse_address, family=Family.EVM), _ADDRESS_EXAMPLE, required=True)


BODIES: tuple[type[CallBody], ...] = (
    PlainReadBody, TickerBody, OrderbookBody, OrderBody, CancelBody, CancelAllBody, SetLeverageBody,
    ExchangePaymentBody,
)  # fmt: skip


BODY_OF_ACTION: Mapping[str, type[CallBody]] = {
    action: body
    for body in BODIES
    for action in body().fields["action"].validate.choices  # type: ignore[union-attr]
}


class OrderBookShape(Schema):
    """An order book, the best levels first."""

    bids = fields.List(fields.Dict(), required=True)
    asks = fields.List(fields.Dict(), required=True)
    time = fields.Raw()


class FundingRate(Schema):
    """The current funding rate of a market; strings as the exchange returns them."""

    symbol = fields.String(required=True)
    funding_rate = fields.Raw(required=True)
    premium = fields.Raw(required=True)
    mark_price = fields.Raw(required=True)
    oracle_price = fields.Raw(required=True)
    open_interest = fields.Raw(required=True)


class FundingRates(Schema):
    """The funding rates of all markets."""

    rates = fields.List(fields.Nested(FundingRate), required=True)


class TradingReadShape(Schema):
    """The data as the exchange returns it: its numbers are strings."""

    action = fields.String(required=True, metadata={"enum": list(actions.READS)})
    wallet_id = fields.UUID(required=True)
    address = fields.String(required=True)
    transaction_id = fields.UUID(required=True)
    account = fields.Dict()
    spot = fields.Dict()
    positions = fields.List(fields.Dict(), metadata={"description": "`positions`."})
    orders = fields.List(fields.Dict())
    fills = fields.List(fields.Dict())
    markets = fields.List(fields.Dict())
    margin_tables = fields.List(fields.Raw())
    mids = fields.Dict()
    symbol = fields.String()
    mid_price = fields.String()
    orderbook = fields.Nested(OrderBookShape)
    funding = fields.Nested(FundingRates)


class UnsignedPayload(Schema):
    """The payload for the exchange. The order of the keys in `action` is part of what is signed."""

    action = fields.Dict(required=True)
    nonce = fields.Integer(required=True)
    signature = fields.Raw(required=True, metadata={"type": "null"})
    vaultAddress = fields.String(required=True, allow_none=True)  # noqa: N815 - the exchange's spelling


class MarketsOrigin(Schema):
    """The source of the market numbers in a payload."""

    source = fields.String(required=True, metadata={"enum": list(MarketSource)})
    as_of = fields.DateTime(required=True)


class RoundedNumber(Schema):
    """A number that was rounded to the exchange's grid."""

    asked = fields.String(required=True)
    used = fields.String(required=True)


class TradingRefusalShape(ErrorBody):
    """An action that passed every check, and the payload that would be sent for it."""

    action = fields.String(required=True, metadata={"enum": list(actions.PREVIEWS)})
    wallet_id = fields.UUID(required=True)
    address = fields.String(required=True)
    payload = fields.Nested(UnsignedPayload, required=True)
    adjusted = fields.Dict(keys=fields.String(), values=fields.Nested(RoundedNumber))
    metadata = fields.Nested(MarketsOrigin)
    open_orders = fields.Integer(allow_none=True)
    open_orders_error = fields.String()
    left_out = fields.List(fields.Integer())
