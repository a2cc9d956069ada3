"""Transfers and withdrawals: the full value counts against the limits."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from app.core.chains import USDC, ChainName
from app.core.money import TokenAmount
from app.errors import ServiceError
from app.idempotency.service import Claim
from app.ports.chain import TransactionDraft, TransferIntent
from app.ports.errors import PortError, Rejected
from app.state import app_state
from app.wallets.core import network_fees, parsing
from app.wallets.core.lifecycle import TransactionType
from app.wallets.core.parsing import GasSource
from app.wallets.core.wallets import WalletView
from app.wallets.gas import submissions
from app.wallets.transactions import pipeline
from app.wallets.transactions.pipeline import Movement, MovementQuote, RecordedCallback
from app.wallets.transfers import sponsored
from app.wallets.views import history


@dataclass(frozen=True, slots=True)
class MovementOrder:
    """A requested transfer or withdrawal: the recipient in canonical form, the amount in base units."""

    type: TransactionType
    chain: ChainName
    recipient: str
    amount: TokenAmount
    kind: str | None = None
    # False for payments to the service itself.
    needs_allowlist: bool = True
    session_id: str | None = None
    gas: GasSource = GasSource.AUTO
    max_fee_nanos: int | None = None


def quote(wallet: WalletView, order: MovementOrder) -> MovementQuote:
    """Check limits and simulate like `send`, without signing. Raises: what `send` raises before signing."""
    movement = _movement(wallet, order)
    pipeline.assert_allowed(movement)
    if order.gas is GasSource.SPONSORED:
        return sponsored.quote(movement)
    try:
        draft = pipeline.dry_run(movement, lambda _signer: _draft(movement))
    except ServiceError as error:
        if error.details.get("reason") == "insufficient_gas" and _may_be_sponsored(movement, order):
            return sponsored.quote(movement, without_gas=error)
        raise
    counted = pipeline.counting_rent(movement, draft)
    return MovementQuote(movement=counted, fee_units=draft.fee_units, recipient_is=draft.recipient_is)


def send(
    wallet: WalletView,
    order: MovementOrder,
    *,
    wait_seconds: Decimal | None,
    claim: Claim,
    on_recorded: RecordedCallback | None = None,
) -> history.TransactionView:
    """Send tokens and wait for the outcome up to `wait_seconds`.

    Returns a `confirmed` or `pending` transaction. `on_recorded` runs in the unit that records it.

    Raises: the 403 errors of refused limits; InvalidInput for what only the chain can validate; TransferFailed or
    WithdrawalFailed if it is known not to have happened.
    """
    chain = app_state().ports.chains[order.chain]
    movement = _movement(wallet, order)
    # Checked without a lock first: a refused request costs no call to the chain.
    pipeline.assert_allowed(movement)

    def sponsor(without_gas: PortError | None = None) -> history.TransactionView:
        return sponsored.execute(
            movement, wait_seconds=wait_seconds, claim=claim, on_recorded=on_recorded, without_gas=without_gas
        )

    if order.gas is GasSource.SPONSORED:
        return sponsor()

    return pipeline.execute(
        movement,
        lambda _signer: _draft(movement),
        lambda _session, draft, signer, nonce: chain.sign(draft, signer, sequence=nonce),
        wait_seconds=wait_seconds,
        claim=claim,
        on_recorded=on_recorded,
        without_gas=sponsor if _may_be_sponsored(movement, order) else None,
    )


def _may_be_sponsored(movement: Movement, order: MovementOrder) -> bool:
    may_be = order.gas is not GasSource.OWN and movement.amount.token == USDC
    return may_be and submissions.is_available(movement.chain)


def _movement(wallet: WalletView, order: MovementOrder) -> Movement:
    return Movement(
        wallet=wallet, type=order.type, kind=order.kind, chain=order.chain, recipient=order.recipient,
        payee=order.recipient if order.needs_allowlist else None,
        amount=order.amount, value_nanos=network_fees.usd_value_nanos(order.amount), session_id=order.session_id,
        max_fee_nanos=order.max_fee_nanos,
    )  # fmt: skip


def _draft(movement: Movement) -> TransactionDraft:
    """Read the chain and simulate. Raises: Rejected, Unreachable, InvalidInput."""
    chain = app_state().ports.chains[movement.chain]
    try:
        return chain.draft(TransferIntent(movement.sender, movement.recipient, movement.amount))
    except Rejected as error:
        invalid_input = parsing.invalid_input_from(error.reason, error.details)
        raise invalid_input or error from None
