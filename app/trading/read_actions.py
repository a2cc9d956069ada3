"""Actions that read from the exchange and record a `trading_query` in the wallet's history.

A failed query is not recorded.
"""

from collections.abc import Callable, Mapping
from typing import Any

from app.core.chains import ChainName
from app.errors import InvalidInput
from app.ports.perpdex import Json, PerpdexQuery, PerpdexTopic, PerpMarket
from app.trading import exchange_client, markets
from app.trading.markets import MarketSource
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
    document = markets.live_markets().document
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
    known = markets.load_markets()
    if known.source is not MarketSource.EXCHANGE and known.find(symbol) is None:
        # An older list does not prove that the market does not exist.
        raise exchange_client.unavailable_error("no_answer")
    return markets.require_market(known, symbol)


_READS: Mapping[str, Callable[[WalletView, Parameters], dict[str, Json]]] = {
    "status": lambda wallet, _: {name: _account_query(topic, wallet) for name, topic in _ACCOUNTS.items()},
    "positions": lambda wallet, _: {"positions": _account_query(PerpdexTopic.ACCOUNT, wallet)["assetPositions"]},
    "orders": lambda wallet, _: {"orders": _account_query(PerpdexTopic.ORDERS, wallet)},
    "fills": lambda wallet, _: {"fills": _account_query(PerpdexTopic.FILLS, wallet)},
    "markets": _markets, "ticker": _ticker, "orderbook": _orderbook,
    "funding": lambda *_: {"funding": {"rates": exchange_client.get_public(_FUNDING).document}},
}  # fmt: skip
ACTIONS = tuple(_READS)
