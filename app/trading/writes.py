"""The actions that would change something: checked, held against the wallet's controls, and shown unsigned.

Nothing is signed, sent, recorded or counted as spent. Whatever is asked of the exchange on the way is a help and no
need: with the exchange away the payload is made from what is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from app.core import addresses, clock
from app.core.addresses import ZERO_EVM_ADDRESS
from app.core.chains import USDC, Family
from app.core.money import AmountError, TokenAmount, parse_amount, value_nanos
from app.core.unit_of_work import reading
from app.errors import InvalidInput, PerpdexError, TradingNotImplemented
from app.ports import provider
from app.ports.perpdex import (
    Action,
    CancelByClientId,
    CancelOrders,
    Json,
    LimitOrder,
    Market,
    OrderRef,
    Question,
    SendUsdc,
    SetLeverage,
    TimeInForce,
    Topic,
    Withdraw,
)
from app.spending import service as spending
from app.trading import feed, grid, markets
from app.trading.grid import GridError
from app.trading.markets import Catalog
from app.trading.reads import Parameters, address_of
from app.wallets.service import WalletView

_MS_PER_SECOND = 1000
_HIGHEST_LEVERAGE = 50
"""No market allows more; used where a market's own limit is not known."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An action with what it counts for and whom it pays, and what its caller should know about it.

    `notes` are further members of the answer. `finish` asks the exchange what can only be asked there.
    """

    action: Action
    value_nanos: int | None = 0
    recipient: str | None = None
    notes: Mapping[str, Json] = field(default_factory=dict)
    finish: Callable[[], tuple[Action, Mapping[str, Json]]] | None = None


_Prepare = Callable[[WalletView, Parameters], Prepared]


def refuse(wallet: WalletView, action: str, parameters: Parameters) -> TradingNotImplemented:
    """Check an action and make the answer that shows its payload.

    Raises: InvalidInput; WalletFrozen, AddressNotAllowed, PriceUnavailable and the limits' classes.
    """
    prepared = _PREPARE[action](wallet, parameters)
    with reading():
        spending.check(
            wallet.id,
            value_nanos=prepared.value_nanos,
            recipient=prepared.recipient,
            family=None if prepared.recipient is None else Family.EVM,
        )
    what, notes = prepared.action, prepared.notes
    if prepared.finish is not None:
        what, more = prepared.finish()
        notes = {**notes, **more}
    nonce = int(clock.now().timestamp() * _MS_PER_SECOND)
    payload = provider.current().perpdex.payload(what, nonce=nonce)
    return TradingNotImplemented(
        members={
            "action": action,
            "wallet_id": wallet.id,
            "address": address_of(wallet),
            "payload": {
                "action": payload.action,
                "nonce": payload.nonce,
                "signature": None,
                "vaultAddress": None,
            },
            **notes,
        }
    )


def _order(_wallet: WalletView, parameters: Parameters) -> Prepared:
    problems: dict[str, list[str]] = {}
    price = _number(parameters, "price", problems)
    amount = _number(parameters, "amount", problems)
    known, market = _traded(parameters["symbol"], problems)
    if problems or market is None or price is None or amount is None:
        raise _invalid(problems)
    is_buy = parameters["side"] in BUYS
    try:
        on_grid = grid.price(price, size_decimals=market.size_decimals, is_buy=is_buy)
    except GridError as error:
        raise InvalidInput.field("price", str(error)) from None
    try:
        size = grid.size(amount, size_decimals=market.size_decimals)
    except GridError as error:
        raise InvalidInput.field("amount", str(error)) from None
    rounded = {"price": (price, on_grid), "amount": (amount, size)}
    adjusted = {
        name: {"asked": f"{asked:f}", "used": f"{used:f}"}
        for name, (asked, used) in rounded.items()
        if asked != used
    }
    nanos_per_usdc = provider.current().prices.nanos_per_token(USDC)
    return Prepared(
        LimitOrder(market, is_buy, on_grid, size, TimeInForce(parameters["tif"])),
        value_nanos=None
        if nanos_per_usdc is None
        else grid.notional_nanos(
            _valued_at(market, on_grid, is_buy=is_buy), size, nanos_per_usdc=nanos_per_usdc
        ),
        notes={**({"adjusted": adjusted} if adjusted else {}), **_about(known)},
    )


def _valued_at(market: Market, price: Decimal, *, is_buy: bool) -> Decimal:
    """Return what a unit of an order counts for: a sell below the market is executed at the market."""
    if is_buy:
        return price
    try:
        mids = feed.public(Question(Topic.MIDS)).document
        mid = mids.get(market.symbol) if isinstance(mids, dict) else None
        return max(price, grid.parse(mid)) if isinstance(mid, str) else price
    except (PerpdexError, GridError):
        # Not known: what is known is the order's own price.
        return price


def _cancel(_wallet: WalletView, parameters: Parameters) -> Prepared:
    known = markets.catalog()
    market = markets.require(known, parameters["symbol"])
    order_id = parameters["order_id"]
    if isinstance(order_id, int):
        action: Action = CancelOrders((OrderRef(market.index, order_id),))
    else:
        action = CancelByClientId(market.index, order_id)
    return Prepared(action, notes=_about(known))


def _cancel_all(wallet: WalletView, parameters: Parameters) -> Prepared:
    known = markets.catalog()
    symbol = parameters["symbol"]
    only = None if symbol is None else markets.require(known, symbol)

    def finish() -> tuple[Action, Mapping[str, Json]]:
        # The exchange has no such action: it is a cancel of all that is open.
        try:
            document = feed.private(Question(Topic.ORDERS, address=address_of(wallet)), wallet_id=wallet.id)
        except PerpdexError as error:
            return CancelOrders(()), {"open_orders": None, "open_orders_error": error.message}
        by_symbol = {market.symbol: market for market in known.markets}
        refs, left_out = [], []
        for coin, order_id in provider.current().perpdex.orders_in(document):
            market = by_symbol.get(coin)
            if market is None:
                left_out.append(order_id)
            elif only is None or market == only:
                refs.append(OrderRef(market.index, order_id))
        notes: dict[str, Json] = {"open_orders": len(refs)}
        if left_out and only is None:
            notes["left_out"] = left_out
        return CancelOrders(tuple(refs)), notes

    return Prepared(CancelOrders(()), notes=_about(known), finish=finish)


def _set_leverage(_wallet: WalletView, parameters: Parameters) -> Prepared:
    problems: dict[str, list[str]] = {}
    known, market = _traded(parameters["symbol"], problems)
    if problems or market is None:
        raise _invalid(problems)
    highest = market.max_leverage or _HIGHEST_LEVERAGE
    if not 1 <= parameters["leverage"] <= highest:
        raise InvalidInput.field("leverage", f"must be from 1 to {highest} for {market.symbol}")
    if parameters["cross"] and market.only_isolated:
        raise InvalidInput.field("cross", f"must be false: {market.symbol} allows isolated margin only")
    action = SetLeverage(market, parameters["leverage"], is_cross=parameters["cross"])
    return Prepared(action, notes=_about(known))


def _withdraw(_wallet: WalletView, parameters: Parameters) -> Prepared:
    amount, destination = _payment(parameters)
    return Prepared(Withdraw(amount, destination), value_nanos=_value(amount), recipient=destination)


def _transfer(_wallet: WalletView, parameters: Parameters) -> Prepared:
    amount, destination = _payment(parameters)
    return Prepared(SendUsdc(amount, destination), value_nanos=_value(amount), recipient=destination)


def _payment(parameters: Parameters) -> tuple[TokenAmount, str]:
    problems: dict[str, list[str]] = {}
    amount, destination = None, ""
    try:
        amount = parse_amount(parameters["amount"], USDC)
    except AmountError as error:
        problems["amount"] = [str(error)]
    try:
        destination = addresses.parse(parameters["destination"], Family.EVM)
    except addresses.AddressError as error:
        problems["destination"] = [str(error)]
    if destination == ZERO_EVM_ADDRESS:
        problems["destination"] = ["must not be the zero address: nobody can spend from it"]
    if problems or amount is None:
        raise _invalid(problems)
    return amount, destination


def _value(amount: TokenAmount) -> int | None:
    price = provider.current().prices.nanos_per_token(USDC)
    return None if price is None else value_nanos(amount, price)


def _number(parameters: Parameters, name: str, problems: dict[str, list[str]]) -> Decimal | None:
    try:
        return grid.parse(parameters[name])
    except GridError as error:
        problems[name] = [str(error)]
        return None


def _traded(symbol: str, problems: dict[str, list[str]]) -> tuple[Catalog, Market | None]:
    """Return the markets and the one that is meant. Other problems are named before a symbol's near matches are."""
    known = markets.catalog()
    if problems and known.find(symbol) is None:
        problems["symbol"] = ["is not a market of the exchange"]
        return known, None
    market = markets.require(known, symbol)
    if market.is_delisted:
        problems["symbol"] = [f"is not traded any more: {market.symbol} was delisted"]
    return known, market


def _about(known: Catalog) -> dict[str, Json]:
    return {"metadata": {"source": known.origin.value, "as_of": known.as_of}}


def _invalid(problems: Mapping[str, list[str]]) -> InvalidInput:
    first = next(iter(problems))
    return InvalidInput(f"{first} {problems[first][0]}.", details={"fields": dict(problems)})


BUYS = ("buy", "long")
SELLS = ("sell", "short")
_PREPARE: Mapping[str, _Prepare] = {
    "order": _order,
    "cancel": _cancel,
    "cancel_all": _cancel_all,
    "set_leverage": _set_leverage,
    "withdraw": _withdraw,
    "transfer": _transfer,
}
ACTIONS = tuple(_PREPARE)
"""The actions that would change something."""
