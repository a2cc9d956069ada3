"""The story of a swap: tokens become others on the same chain, for the wallet itself.

What counts against the limits is the bounded loss: the value given less the least that comes back. An exchange that
offers too much less than the market's price is not taken, whatever slippage the caller allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from app.core.chains import native
from app.core.money import TokenAmount
from app.errors import PriceUnavailable
from app.ports import provider
from app.ports.chain import Draft, Signed
from app.ports.errors import PortError, Rejected, Unreachable
from app.ports.swaps import Ask, Beside, Exchange, Offer
from app.ports.vault import Signer
from app.wallets import history, movements, network_fees, swap_bounds
from app.wallets.lifecycle import TransactionType
from app.wallets.movements import Movement, Output
from app.wallets.orders import SwapOrder
from app.wallets.service import WalletView


@dataclass(frozen=True, slots=True)
class Quote:
    """What a dry run learns: what the swap would bring, at least and by which way, and what it costs at most."""

    output: TokenAmount
    minimum: TokenAmount
    route: str
    value_nanos: int | None
    fee: TokenAmount
    fee_nanos: int | None


def quote(wallet: WalletView, order: SwapOrder) -> Quote:
    """Check limits, exchange and chain as `send` would, and sign nothing.

    Raises: what `send` raises before signing.
    """
    movements.assert_allowed(_unpriced(wallet, order))
    try:
        movement, offer, minimum = _offered(wallet, order)
    except PortError as error:
        raise movements.failure(TransactionType.SWAP, error.reason, error.details) from None
    movements.assert_allowed(movement)
    exchange = _exchange(order)
    draft = movements.try_out(
        movement, lambda signer: exchange.draft(offer, minimum_units=minimum.units, signer=signer)
    )
    return Quote(
        output=TokenAmount(offer.output_units, order.wanted),
        minimum=minimum,
        route=offer.route,
        value_nanos=movement.value_nanos,
        fee=TokenAmount(draft.fee_units, native(order.chain)),
        fee_nanos=network_fees.fee_nanos(order.chain, draft.fee_units),
    )


def send(wallet: WalletView, order: SwapOrder, *, wait_seconds: Decimal) -> history.TransactionView:
    """Swap tokens, and wait for the outcome as long as asked.

    Returns a `confirmed` or `pending` transaction; its output is the quote's until the chain has told.

    Raises: the 403 classes of a refused limit; PriceUnavailable; SwapFailed when it certainly did not happen.
    """
    # First without a price: who is frozen need not cost questions to the exchange.
    movements.assert_allowed(_unpriced(wallet, order))
    try:
        movement, offer, minimum = _offered(wallet, order)
    except PortError as error:
        raise movements.refuse(_unpriced(wallet, order), error.reason, error.details) from None
    movements.assert_allowed(movement)
    exchange = _exchange(order)

    def draft(signer: Signer | None) -> Draft:
        return exchange.draft(offer, minimum_units=minimum.units, signer=signer)

    def sign(drafted: Draft, signer: Signer, slot: int | None) -> Signed:
        return exchange.sign(drafted, signer, sequence=slot, beside=_beside(movement, drafted, slot))

    return movements.carry_out(movement, draft, sign, wait_seconds=wait_seconds)


def _offered(wallet: WalletView, order: SwapOrder) -> tuple[Movement, Offer, TokenAmount]:
    """Ask for prices and an offer, and bound what it may lose. Raises: PriceUnavailable, Rejected."""
    prices, settings = provider.current().prices, provider.settings()
    given, wanted = prices.market(order.given.token), prices.market(order.wanted)
    # Without a market price nothing would tell a bad offer from a good one.
    if given is None or wanted is None:
        raise PriceUnavailable(
            "No current price is known for these tokens, so no offer for them can be judged; try again shortly."
        )
    ask = Ask(wallet.address_on(order.chain), order.given, order.wanted, order.slippage_bps)
    try:
        offer = _exchange(order).quote(ask)
    except Unreachable as error:
        raise Rejected("chain_unreachable", details=error.details) from None
    bounds = swap_bounds.bound(
        order.given,
        order.wanted,
        # Where sources differ, each counts that makes more of what is lost, and asks more of the exchange.
        swap_bounds.Prices(given.most_nanos, wanted.least_nanos),
        quoted_units=offer.output_units,
        slippage_bps=order.slippage_bps,
        deviation_bps=settings.max_price_deviation_bps,
    )
    output = Output(order.wanted, offer.output_units, bounds.minimum_units)
    movement = _movement(wallet, order, output=output, value_nanos=bounds.loss_nanos)
    return movement, offer, TokenAmount(bounds.minimum_units, order.wanted)


def _unpriced(wallet: WalletView, order: SwapOrder) -> Movement:
    """Return the swap as it is known before an offer: it counts nothing yet."""
    return _movement(wallet, order, output=Output(order.wanted), value_nanos=0)


def _movement(wallet: WalletView, order: SwapOrder, *, output: Output, value_nanos: int) -> Movement:
    # The output goes to the wallet itself and nowhere else, so that there is nobody to be allowed.
    return Movement(
        wallet=wallet, type=TransactionType.SWAP, chain=order.chain, recipient=wallet.address_on(order.chain),
        payee=None, amount=order.given, value_nanos=value_nanos, output=output,
    )  # fmt: skip


def _exchange(order: SwapOrder) -> Exchange:
    return provider.current().exchanges[order.chain]


def _beside(movement: Movement, draft: Draft, slot: int | None) -> Beside:
    """Return what of the wallet's was signed before and is not in a draft's figures; in the current unit."""
    if slot is not None and draft.sequence is not None:
        ahead = history.swaps_not_mined(
            movement.sender,
            movement.chain,
            movement.amount.token.symbol,
            since_sequence=draft.sequence,
            before_sequence=slot,
        )
        return Beside(swaps=ahead)
    sent, fees = history.outflows_not_mined(
        movement.sender, movement.chain, since_sequence=None, since_block=draft.as_of
    )
    fee_token = native(movement.chain)
    return Beside(leaving={**sent, fee_token: sent.get(fee_token, 0) + fees})
