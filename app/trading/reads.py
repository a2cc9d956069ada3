"""The actions that read: ask the exchange, leave a `trading_query` in the wallet's history, answer.

A question that was not answered leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.core.chains import ChainName
from app.errors import InvalidInput
from app.ports.perpdex import Json, Market, Question, Topic
from app.trading import feed, markets
from app.trading.markets import Origin
from app.wallets import queries
from app.wallets.service import WalletView

Parameters = Mapping[str, Any]
_Read = Callable[[WalletView, Parameters], dict[str, Json]]


def answer(wallet: WalletView, action: str, parameters: Parameters) -> dict[str, Json]:
    """Answer a reading action with its result and the id of its row in the history.

    Raises: InvalidInput for a symbol that is none, PerpdexError, NotFound when the wallet was deleted meanwhile.
    """
    found = _READS[action](wallet, parameters)
    address = address_of(wallet)
    transaction_id = queries.record(wallet.id, address=address, kind=action)
    return {
        "action": action,
        "wallet_id": wallet.id,
        "address": address,
        "transaction_id": transaction_id,
        **found,
    }


def address_of(wallet: WalletView) -> str:
    """Return the address that is the wallet's account on the exchange."""
    return wallet.address_on(ChainName.ETHEREUM)


def _of_account(topic: Topic, wallet: WalletView) -> Json:
    return feed.private(Question(topic, address=address_of(wallet)), wallet_id=wallet.id)


def _status(wallet: WalletView, _parameters: Parameters) -> dict[str, Json]:
    return {"account": _of_account(Topic.ACCOUNT, wallet), "spot": _of_account(Topic.SPOT, wallet)}


def _positions(wallet: WalletView, _parameters: Parameters) -> dict[str, Json]:
    return {"positions": _of_account(Topic.ACCOUNT, wallet)["assetPositions"]}


def _orders(wallet: WalletView, _parameters: Parameters) -> dict[str, Json]:
    return {"orders": _of_account(Topic.ORDERS, wallet)}


def _fills(wallet: WalletView, _parameters: Parameters) -> dict[str, Json]:
    return {"fills": _of_account(Topic.FILLS, wallet)}


def _markets(_wallet: WalletView, _parameters: Parameters) -> dict[str, Json]:
    document = markets.live().document
    return {"markets": document["universe"], "margin_tables": document.get("marginTables", [])}


def _ticker(_wallet: WalletView, parameters: Parameters) -> dict[str, Json]:
    mids = feed.public(Question(Topic.MIDS)).document
    symbol = parameters["symbol"]
    if symbol is None:
        return {"mids": mids}
    spelling = symbol if symbol in mids else None
    if spelling is None:
        # Pairs that are no perpetual (`@107`) have a mid price, too, and no place among the markets.
        spelling = _market(symbol).symbol
    if spelling not in mids:
        raise InvalidInput.field("symbol", f"has no mid price at the moment: {spelling} has no order book")
    return {"symbol": spelling, "mid_price": mids[spelling]}


def _orderbook(_wallet: WalletView, parameters: Parameters) -> dict[str, Json]:
    symbol = _market(parameters["symbol"]).symbol
    book = feed.public(Question(Topic.BOOK, symbol=symbol)).document
    if book is None:
        raise InvalidInput.field("symbol", f"has no order book: {symbol} is not traded")
    return {"symbol": symbol, "orderbook": book}


def _funding(_wallet: WalletView, _parameters: Parameters) -> dict[str, Json]:
    return {"funding": {"rates": feed.public(Question(Topic.FUNDING)).document}}


def _market(symbol: str) -> Market:
    known = markets.catalog()
    if known.origin is not Origin.EXCHANGE and known.find(symbol) is None:
        # An older list cannot say that there is no such market.
        raise feed.failure_of("no_answer")
    return markets.require(known, symbol)


_READS: Mapping[str, _Read] = {
    "status": _status,
    "positions": _positions,
    "orders": _orders,
    "fills": _fills,
    "markets": _markets,
    "ticker": _ticker,
    "orderbook": _orderbook,
    "funding": _funding,
}
ACTIONS = tuple(_READS)
"""The actions that read."""
