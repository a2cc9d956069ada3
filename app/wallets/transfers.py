"""The story of a transfer or withdrawal: tokens leave for another address, and count at their whole value."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from app.core.chains import native
from app.core.money import TokenAmount
from app.ports import provider
from app.ports.chain import Draft, Intent, Signed
from app.ports.errors import Rejected
from app.ports.vault import Signer
from app.wallets import history, movements, network_fees, orders
from app.wallets.movements import Movement, Recording
from app.wallets.orders import Order
from app.wallets.service import WalletView


@dataclass(frozen=True, slots=True)
class Quote:
    """What a dry run learns: the limits allow it and the chain would take it, at this cost at most."""

    value_nanos: int | None
    fee: TokenAmount
    fee_nanos: int | None


def quote(wallet: WalletView, order: Order) -> Quote:
    """Check limits and chain as `send` would, and sign nothing. Raises: what `send` raises before signing."""
    movement = _movement(wallet, order)
    movements.assert_allowed(movement)
    draft = movements.try_out(movement, lambda _signer: _draft(movement))
    fee_nanos = network_fees.fee_nanos(order.chain, draft.fee_units)
    return Quote(movement.value_nanos, TokenAmount(draft.fee_units, native(order.chain)), fee_nanos)


def send(
    wallet: WalletView, order: Order, *, wait_seconds: Decimal, record_beside: Recording | None = None
) -> history.TransactionView:
    """Move tokens, and wait for the outcome as long as asked.

    Returns a `confirmed` or `pending` transaction. What `record_beside` writes is in the unit that records it.

    Raises: the 403 classes of a refused limit; InvalidInput for what only the chain could find wrong;
    TransferFailed or WithdrawalFailed when it certainly did not happen.
    """
    chain = provider.current().chains[order.chain]
    movement = _movement(wallet, order)
    # First without a lock: whom a limit stops need not cost questions to the chain.
    movements.assert_allowed(movement)

    def sign(draft: Draft, signer: Signer, slot: int | None) -> Signed:
        return chain.sign(draft, signer, sequence=slot)

    return movements.carry_out(
        movement,
        lambda _signer: _draft(movement),
        sign,
        wait_seconds=wait_seconds,
        record_beside=record_beside,
    )


def _movement(wallet: WalletView, order: Order) -> Movement:
    return Movement(
        wallet=wallet, type=order.type, kind=order.kind, chain=order.chain, recipient=order.recipient,
        payee=order.recipient if order.needs_allowlist else None,
        amount=order.amount, value_nanos=movements.worth_nanos(order.amount),
    )  # fmt: skip


def _draft(movement: Movement) -> Draft:
    """Beat 0. Raises: Rejected, Unreachable, InvalidInput."""
    chain = provider.current().chains[movement.chain]
    try:
        return chain.draft(Intent(movement.sender, movement.recipient, movement.amount))
    except Rejected as error:
        bad_request = orders.bad_request(error.reason, error.details)
        raise bad_request or error from None
