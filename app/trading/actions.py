"""Actions: reads, which are recorded as `trading_query` in the wallet's history unless they fail, and previews.

A preview of an action that changes something is checked against the wallet's controls, and returned unsigned: nothing
is signed, sent, recorded or counted as spent. For it, data from the exchange is optional: while it is unavailable, the
payload is built from stored data.
"""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, Inexact, InvalidOperation
from typing import Any

from app.core import clock
from app.core.chains import USDC, ChainName, Family
from app.core.money import TokenAmount
from app.db.unit_of_work import read_only_unit
from app.errors import InvalidInput, PerpdexError, TradingNotImplemented
from app.ports import perpdex as exchange
from app.ports.perpdex import Json, PerpdexQuery, PerpdexTopic, PerpMarket
from app.spending import holds as spending_holds
from app.spending.policy import SpendingRequest
from app.state import app_state
from app.trading import exchange_client
from app.trading.exchange_client import MarketList, MarketSource
from app.wallets.core import network_fees, parsing
from app.wallets.core.wallets import WalletView
from app.wallets.transactions import relayed

Parameters = Mapping[str, Any]
_ACCOUNTS = {"account": PerpdexTopic.ACCOUNT, "spot": PerpdexTopic.SPOT}
_FUNDING = PerpdexQuery(PerpdexTopic.FUNDING)


def execute_read(wallet: WalletView, action: str, parameters: Parameters) -> dict[str, Json]:
    """Execute a read, record it and return its result. Raises: InvalidInput, PerpdexError, NotFound."""
    found = _READS[action](wallet, parameters)
    address = exchange_address(wallet)
    transaction_id = relayed.record_query(wallet.id, address=address, kind=action)
    return {"action": action, "wallet_id": wallet.id, "address": address, "transaction_id": transaction_id, **found}


def exchange_address(wallet: WalletView) -> str:
    return wallet.address_on(ChainName.ETHEREUM)


def _account_query(topic: PerpdexTopic, wallet: WalletView) -> Json:
    return exchange_client.fetch(PerpdexQuery(topic, address=exchange_address(wallet)), wallet_id=wallet.id)


def _markets(_wallet: WalletView, _parameters: Parameters) -> dict[str, Json]:
    document = exchange_client.get_public(exchange_client.MARKETS).document
    return {"markets": document["universe"], "margin_tables": document.get("marginTables", [])}


def _ticker(_wallet: WalletView, parameters: Parameters) -> dict[str, Json]:
    mids = exchange_client.get_public(PerpdexQuery(PerpdexTopic.MIDS)).document
    symbol = parameters["symbol"]
    if symbol is None:
        return {"mids": mids}
    # Pairs that are not perpetuals (`@107`) have a mid price but are not in the list of markets.
    spelling = symbol if symbol in mids else _market(symbol).symbol
    if spelling not in mids:
        raise InvalidInput.field("symbol", f"has no mid price now: {spelling} has no order book")
    return {"symbol": spelling, "mid_price": mids[spelling]}


def _orderbook(_wallet: WalletView, parameters: Parameters) -> dict[str, Json]:
    symbol = _market(parameters["symbol"]).symbol
    book = exchange_client.get_public(PerpdexQuery(PerpdexTopic.BOOK, symbol=symbol)).document
    if book is None:
        raise InvalidInput.field("symbol", f"has no order book: {symbol} is not traded")
    return {"symbol": symbol, "orderbook": book}


def _market(symbol: str) -> PerpMarket:
    known = exchange_client.load_markets()
    if known.source is not MarketSource.EXCHANGE and known.find(symbol) is None:
        # An older list does not prove that the market does not exist.
        raise exchange_client.unavailable_error("no_answer")
    return exchange_client.require_market(known, symbol)


_READS: Mapping[str, Callable[[WalletView, Parameters], dict[str, Json]]] = {
    "status": lambda wallet, _: {name: _account_query(topic, wallet) for name, topic in _ACCOUNTS.items()},
    "positions": lambda wallet, _: {"positions": _account_query(PerpdexTopic.ACCOUNT, wallet)["assetPositions"]},
    "orders": lambda wallet, _: {"orders": _account_query(PerpdexTopic.ORDERS, wallet)},
    "fills": lambda wallet, _: {"fills": _account_query(PerpdexTopic.FILLS, wallet)},
    "markets": _markets, "ticker": _ticker, "orderbook": _orderbook,
    "funding": lambda *_: {"funding": {"rates": exchange_client.get_public(_FUNDING).document}},
}  # fmt: skip
READS = tuple(_READS)


_NUMBER = re.compile(r"[0-9]{1,60}(?:\.[0-9]{1,60})?", re.ASCII)
_MAX_NUMBER = Decimal(10**12)
# The exchange's documentation, "Tick and lot size": a price has at most five significant figures and at most six
# decimals less the market's size decimals; whole prices are always allowed.
_SIGNIFICANT_FIGURES = 5
_PRICE_DECIMALS = 6
_WIDE_CONTEXT = Context(prec=200, traps=[InvalidOperation])
_EXACT_CONTEXT = Context(prec=200, traps=[InvalidOperation, Inexact])
_MS_PER_SECOND = 1000
_HIGHEST_LEVERAGE = 50
_LEAST_ORDER_USDC = 10
"""The exchange's `MinTradeNtl`."""
_WITHDRAWAL_FEE = TokenAmount(10**USDC.decimals, USDC)
BUYS = ("buy", "long")
SELLS = ("sell", "short")


class GridError(ValueError):
    """A number that cannot be rounded to the grid; the message is for the client."""


def parse(text: str) -> Decimal:
    """Parse a positive plain decimal such as `3000.5`: no sign, exponent or spaces. Raises: GridError."""
    if not _NUMBER.fullmatch(text):
        raise GridError('must be a plain decimal number such as "3000.5"')
    number = Decimal(text)
    if number == 0:
        raise GridError("must be greater than zero")
    if number > _MAX_NUMBER:
        raise GridError("is too large")
    return number


def round_price(requested: Decimal, *, size_decimals: int, is_buy: bool) -> Decimal:
    """Return the nearest price on the grid that is not worse for the client. Raises: GridError below the smallest."""
    finest = -max(0, _PRICE_DECIMALS - size_decimals)
    figures = min(0, requested.adjusted() - (_SIGNIFICANT_FIGURES - 1))
    rounding = ROUND_FLOOR if is_buy else ROUND_CEILING
    return _on_grid(requested, max(finest, figures), rounding, f"price, {Decimal(1).scaleb(finest):f}")


def round_size(requested: Decimal, *, size_decimals: int) -> Decimal:
    """Return the size rounded down to the grid. Raises: GridError if that is zero."""
    return _on_grid(requested, -size_decimals, ROUND_FLOOR, f"size, {Decimal(1).scaleb(-size_decimals):f}")


def _on_grid(requested: Decimal, exponent: int, rounding: str, smallest: str) -> Decimal:
    step = Decimal(1).scaleb(exponent)
    on_grid = requested.quantize(step, rounding=rounding, context=_WIDE_CONTEXT).normalize(_WIDE_CONTEXT)
    if on_grid == 0:
        raise GridError(f"is below the market's smallest {smallest}")
    return on_grid


def notional_nanos(price: Decimal, size: Decimal, *, nanos_per_usdc: int) -> int:
    """Return the dollar value of an order in nano-dollars, rounded up."""
    value = _EXACT_CONTEXT.multiply(_EXACT_CONTEXT.multiply(price, size), Decimal(nanos_per_usdc))
    return int(value.to_integral_value(rounding=ROUND_CEILING, context=_WIDE_CONTEXT))


@dataclass(frozen=True, slots=True)
class PreparedAction:
    """An action with its value, its recipient and further members of the response."""

    action: exchange.Action
    value_nanos: int | None = 0
    recipient: str | None = None
    notes: Mapping[str, Json] = field(default_factory=dict)
    nonce: int = field(default_factory=lambda: int(clock.now().timestamp() * _MS_PER_SECOND))


def preview(wallet: WalletView, action: str, parameters: Parameters) -> TradingNotImplemented:
    """Check an action; return the 501 response with its payload. Raises: InvalidInput and what a movement raises."""
    prepared = _PREPARE[action](wallet, parameters)
    _assert_allowed(wallet, prepared.value_nanos, prepared.recipient)
    unsigned = {"action": prepared.action, "nonce": prepared.nonce, "signature": None, "vaultAddress": None}
    about = {"action": action, "wallet_id": wallet.id, "address": exchange_address(wallet)}
    return TradingNotImplemented(members={**about, "payload": unsigned, **prepared.notes})


def _assert_allowed(wallet: WalletView, value_nanos: int | None = 0, recipient: str | None = None) -> None:
    with read_only_unit() as session:
        spending_holds.check(session, wallet.id, SpendingRequest(value_nanos, recipient, Family.EVM))


def _order(_wallet: WalletView, parameters: Parameters) -> PreparedAction:
    price, amount = parameters["price"], parameters["amount"]
    market_list, market = _tradable_market(parameters["symbol"])
    is_buy = parameters["side"] in BUYS
    field = "price"
    try:
        on_grid = round_price(price, size_decimals=market.size_decimals, is_buy=is_buy)
        field = "amount"
        size = round_size(amount, size_decimals=market.size_decimals)
    except GridError as error:
        raise InvalidInput.field(field, str(error)) from None
    rounded = {"price": (price, on_grid), "amount": (amount, size)}
    adjusted = {
        name: {"asked": f"{asked:f}", "used": f"{used:f}"} for name, (asked, used) in rounded.items() if asked != used
    }
    valued = _valuation_price(market, on_grid, is_buy=is_buy)
    # What closes a position may be as small as the position.
    if not parameters["reduce_only"] and valued * size < _LEAST_ORDER_USDC:
        worth = f"this one is worth {valued * size:f}"
        problem = f"is too small: the exchange takes no order below {_LEAST_ORDER_USDC} USDC, and {worth}"
        raise InvalidInput.field("amount", problem)
    time_in_force, is_reduce_only = exchange.TimeInForce(parameters["tif"]), parameters["reduce_only"]
    order = exchange.PerpOrder(is_buy, on_grid, size, time_in_force, is_reduce_only, client_id=parameters["cloid"])
    action = app_state().ports.perpdex.order(market, order)
    nanos_per_usdc = app_state().ports.prices.nanos_per_token(USDC)
    value = None if nanos_per_usdc is None else notional_nanos(valued, size, nanos_per_usdc=nanos_per_usdc)
    notes = {**({"adjusted": adjusted} if adjusted else {}), **_market_metadata(market_list)}
    return PreparedAction(action, value_nanos=value, notes=notes)


def _valuation_price(market: PerpMarket, price: Decimal, *, is_buy: bool) -> Decimal:
    """Return the price at which an order is valued: a sell below the market executes at the market price."""
    if is_buy:
        return price
    try:
        mids = exchange_client.get_public(PerpdexQuery(PerpdexTopic.MIDS)).document
        mid = mids.get(market.symbol) if isinstance(mids, dict) else None
        return max(price, parse(mid)) if isinstance(mid, str) else price
    except (PerpdexError, GridError):
        # Without a market price, the order's own price counts.
        return price


def _cancel(_wallet: WalletView, parameters: Parameters) -> PreparedAction:
    market_list = exchange_client.load_markets()
    market = exchange_client.require_market(market_list, parameters["symbol"])
    order_id, perpdex = parameters["order_id"], app_state().ports.perpdex
    if isinstance(order_id, int):
        action = perpdex.cancel([(market.index, order_id)])
    else:
        action = perpdex.cancel_by_client_id(market.index, order_id)
    return PreparedAction(action, notes=_market_metadata(market_list))


def _cancel_all(wallet: WalletView, parameters: Parameters) -> PreparedAction:
    market_list, symbol = exchange_client.load_markets(), parameters["symbol"]
    only_market = None if symbol is None else exchange_client.require_market(market_list, symbol)
    notes: dict[str, Json] = _market_metadata(market_list)
    perpdex = app_state().ports.perpdex
    # A frozen agent costs no request to the exchange.
    _assert_allowed(wallet)
    # The exchange has no such action: cancel each open order.
    try:
        document = _account_query(PerpdexTopic.ORDERS, wallet)
    except PerpdexError as error:
        notes |= {"open_orders": None, "open_orders_error": error.message}
        return PreparedAction(perpdex.cancel(()), notes=notes)
    by_symbol = {market.symbol: market for market in market_list.markets}
    refs, left_out = [], []
    for coin, order_id in perpdex.parse_orders(document):
        market = by_symbol.get(coin)
        if market is None:
            left_out.append(order_id)
        elif only_market is None or market == only_market:
            refs.append((market.index, order_id))
    notes["open_orders"] = len(refs)
    if left_out and only_market is None:
        notes["left_out"] = left_out
    return PreparedAction(perpdex.cancel(refs), notes=notes)


def _set_leverage(_wallet: WalletView, parameters: Parameters) -> PreparedAction:
    market_list, market = _tradable_market(parameters["symbol"])
    highest = market.max_leverage or _HIGHEST_LEVERAGE
    if not 1 <= parameters["leverage"] <= highest:
        raise InvalidInput.field("leverage", f"must be from 1 to {highest} for {market.symbol}")
    if parameters["cross"] and market.only_isolated:
        raise InvalidInput.field("cross", f"must be false: {market.symbol} allows isolated margin only")
    action = app_state().ports.perpdex.set_leverage(market.index, parameters["leverage"], is_cross=parameters["cross"])
    return PreparedAction(action, notes=_market_metadata(market_list))


def _pay(_wallet: WalletView, parameters: Parameters, *, is_withdrawal: bool) -> PreparedAction:
    amount, destination = parameters["amount"], parameters["destination"]
    problems: dict[str, list[str]] = {}
    if is_withdrawal and amount.units < _WITHDRAWAL_FEE.units:
        problems["amount"] = [f"must be at least {_WITHDRAWAL_FEE}: the exchange's fee for a withdrawal"]
    if known := app_state().ports.perpdex.dead_end(destination):
        problems["destination"] = [f"is {known}, from which tokens cannot be recovered"]
    if problems:
        raise parsing.invalid_fields(problems)
    prepared = PreparedAction({}, value_nanos=network_fees.usd_value_nanos(amount), recipient=destination)
    action = app_state().ports.perpdex.pay(amount, destination, is_withdrawal=is_withdrawal, time_ms=prepared.nonce)
    return replace(prepared, action=action)


def _tradable_market(symbol: str) -> tuple[MarketList, PerpMarket]:
    market_list = exchange_client.load_markets()
    market = exchange_client.require_market(market_list, symbol)
    if market.is_delisted:
        raise InvalidInput.field("symbol", f"is no longer traded: {market.symbol} was delisted")
    return market_list, market


def _market_metadata(market_list: MarketList) -> dict[str, Json]:
    return {"metadata": {"source": market_list.source.value, "as_of": market_list.as_of}}


_PREPARE: Mapping[str, Callable[[WalletView, Parameters], PreparedAction]] = {
    "order": _order, "cancel": _cancel, "cancel_all": _cancel_all, "set_leverage": _set_leverage,
    "withdraw": functools.partial(_pay, is_withdrawal=True),
    "transfer": functools.partial(_pay, is_withdrawal=False),
}  # fmt: skip
PREVIEWS = tuple(_PREPARE)
