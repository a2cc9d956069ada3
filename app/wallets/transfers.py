"""The story of a transfer or withdrawal, in four beats (architecture §5).

(0) read the chain; (1) in one unit: limits held, nonce taken, signed, recorded; (2) broadcast; (3) the outcome
settles. A process that dies between beats leaves a `pending` row that `tracking` carries to its true end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeVar

import structlog

from app.core import clock
from app.core.chains import Token, native
from app.core.identifiers import new_id
from app.core.money import TokenAmount, decimal_string, value_nanos
from app.core.unit_of_work import reading, unit_of_work
from app.errors import ServiceError, TransferFailed, WithdrawalFailed
from app.ports import provider
from app.ports.chain import Chain, Draft, Intent, Signed
from app.ports.errors import OutcomeUnknown, PortError, Rejected, Unreachable
from app.ports.vault import Signer
from app.spending import service as spending
from app.wallets import (
    custody,
    history,
    lifecycle,
    network_fees,
    nonces,
    orders,
    settlement,
    tracking,
    waiting,
)
from app.wallets.lifecycle import Status, TransactionType
from app.wallets.models import Transaction
from app.wallets.orders import Order
from app.wallets.service import WalletView
from app.web import idempotency

_log = structlog.get_logger(__name__)

Done = TypeVar("Done")

_FAILURES: Mapping[TransactionType, type[ServiceError]] = {
    TransactionType.TRANSFER: TransferFailed,
    TransactionType.WITHDRAWAL: WithdrawalFailed,
}
_SENTENCES: Mapping[str, str] = {
    "insufficient_funds": "The wallet does not hold enough of this token.",
    "insufficient_gas": "The wallet does not hold enough of the chain's own token to pay the network fee.",
    "leaves_dust": "It would leave less than the chain lets an account hold: send less, or all of it.",
    "simulation_failed": "The chain would refuse this transaction.",
    "chain_unreachable": "The chain cannot be reached at the moment; nothing was sent.",
    "network_fee_too_high": "The network fee is above the operator's cap at the moment; try again later.",
    "expired": "No block took it before it expired; nothing was moved, and nothing can be any more.",
    "reverted": "The chain executed the transaction and it failed; the network fee was spent.",
}


@dataclass(frozen=True, slots=True)
class Quote:
    """What a dry run learns: the limits allow it and the chain would take it, at this cost at most."""

    value_nanos: int | None
    fee: TokenAmount
    fee_nanos: int | None


class NotAffordable(Exception):
    """Other movements of this wallet, not mined yet, use up what this one needs."""

    def __init__(self, reason: str, token: Token, *, available: int, required: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.details = shortage(token, available=available, required=required)


def shortage(token: Token, *, available: int, required: int) -> dict[str, str]:
    """Return what is missing, for people and programs."""
    return {
        "currency": token.symbol,
        "available": decimal_string(available, token.decimals),
        "required": decimal_string(required, token.decimals),
        "missing": decimal_string(required - available, token.decimals),
    }


def quote(wallet: WalletView, order: Order) -> Quote:
    """Check limits and chain as `send` would, and sign nothing. Raises: what `send` raises before signing."""
    value = _value(order.amount)
    with reading():
        _check(wallet, order, value)
    chain = provider.current().chains[order.chain]

    def assert_possible(draft: Draft) -> Draft:
        with reading():
            _check(wallet, order, value)
            assert_affordable(order, draft)
        return draft

    try:
        draft = _on_fresh_facts(chain, wallet, order, assert_possible)
    except (PortError, NotAffordable) as error:
        raise _failure(order, error.reason, error.details) from None
    token = native(order.chain)
    fee_nanos = network_fees.fee_nanos(order.chain, draft.fee_units)
    return Quote(value, TokenAmount(draft.fee_units, token), fee_nanos)


def send(
    wallet: WalletView,
    order: Order,
    *,
    wait_seconds: Decimal,
    record_beside: Callable[[history.TransactionView], None] | None = None,
) -> history.TransactionView:
    """Move tokens, and wait for the outcome as long as asked.

    Returns a `confirmed` or `pending` transaction. What `record_beside` writes is in the unit that records it.

    Raises: the 403 classes of a refused limit; InvalidInput for what only the chain could find wrong;
    TransferFailed or WithdrawalFailed when it certainly did not happen.
    """
    chain = provider.current().chains[order.chain]
    value = _value(order.amount)
    # First without a lock: whom a limit stops need not cost questions to the chain.
    with reading():
        _check(wallet, order, value)
    signer = custody.signer_of(wallet.id)

    def commit(draft: Draft) -> tuple[history.TransactionView, Signed]:
        return _commit(
            chain, wallet, order, value=value, draft=draft, signer=signer, record_beside=record_beside
        )

    try:
        recorded, signed = _on_fresh_facts(chain, wallet, order, commit)
    except (PortError, NotAffordable) as error:
        raise _refused(wallet, order, value, error.reason, error.details) from None
    view = carry_out(chain, recorded, signed, wait_seconds=wait_seconds)
    if view.status == Status.FAILED:
        raise _failure(order, view.error or "failed", {}, transaction_id=view.id, tx_hash=view.tx_hash)
    return view


def carry_out(
    chain: Chain, recorded: history.TransactionView, signed: Signed, *, wait_seconds: Decimal
) -> history.TransactionView:
    """Beats 2 and 3. Whatever breaks here, the movement is on its way: it is answered as recorded, never with a 500."""
    try:
        if _broadcast(chain, recorded.id, signed):
            watch = settlement.watch(recorded.id, recorded.from_address or "", signed)
            waiting.for_outcome(chain.name, watch, seconds=wait_seconds)
        return history.movement(recorded.id)
    except Exception:
        _log.exception("movement_left_to_the_workers", transaction_id=recorded.id)
        return recorded


def answer_failure(view: history.TransactionView) -> ServiceError:
    """Return the failure that a failed movement is answered with, from its record."""
    failure = _FAILURES.get(TransactionType(view.type), TransferFailed)
    details = {"reason": view.error or "failed", "transaction_id": view.id, "tx_hash": view.tx_hash}
    return failure(_SENTENCES.get(view.error or "", "It did not take place."), details=details)


def _draft(chain: Chain, wallet: WalletView, order: Order) -> Draft:
    """Beat 0. Raises: Rejected, InvalidInput."""
    sender = wallet.address_on(order.chain)
    try:
        draft = chain.draft(Intent(sender, order.recipient, order.amount))
    except Unreachable as error:
        raise Rejected("chain_unreachable", details=error.details) from None
    except Rejected as error:
        bad_request = orders.bad_request(error.reason, error.details)
        raise bad_request or error from None
    if not network_fees.is_within_cap(order.chain, draft.fee_units):
        raise Rejected("network_fee_too_high")
    return draft


def _on_fresh_facts(chain: Chain, wallet: WalletView, order: Order, do: Callable[[Draft], Done]) -> Done:
    """Draft and go on with it; where only what is pending stands against it, see first whether it still is.

    Raises: Rejected, NotAffordable.
    """
    draft = _draft(chain, wallet, order)
    try:
        return do(draft)
    except NotAffordable:
        if draft.sequence is not None:
            raise  # the nonce has told what the balances include
        try:
            if not tracking.settle_landed(chain, draft.intent.sender):
                raise
        except Unreachable as error:
            raise Rejected("chain_unreachable", details=error.details) from None
    return do(_draft(chain, wallet, order))


def _commit(
    chain: Chain,
    wallet: WalletView,
    order: Order,
    *,
    value: int | None,
    draft: Draft,
    signer: Signer,
    record_beside: Callable[[history.TransactionView], None] | None = None,
) -> tuple[history.TransactionView, Signed]:
    """Beat 1: everything that must be true before the bytes leave, in one unit."""
    transaction_id, now = new_id(), clock.now()
    sender = wallet.address_on(order.chain)
    with unit_of_work():
        spending.hold(
            wallet.id, reference=transaction_id, value_nanos=value,
            recipient=_limited(order), family=order.chain.family,
        )  # fmt: skip
        assert_affordable(order, draft)
        slot = None
        if draft.sequence is not None:
            slot = nonces.allocate(order.chain, sender, floor=draft.sequence)
        signed = chain.sign(draft, signer, sequence=slot)
        transaction = row_of(transaction_id, wallet, order, value=value)
        transaction.tx_hash = signed.tx_hash
        transaction.nonce = signed.sequence
        transaction.expires_at_height = signed.expires_at_height
        transaction.fee_cap_units = draft.fee_units
        transaction.next_check_at = now + settlement.FIRST_CHECK_AFTER
        lifecycle.record(
            transaction,
            status=Status.PENDING,
            attempt=settlement.attempt_row(transaction_id, order.chain, signed),
        )
        idempotency.bind(transaction_id)
        recorded = history.view_of(transaction)
        if record_beside is not None:
            record_beside(recorded)
        return recorded, signed


def assert_affordable(order: Order, draft: Draft) -> None:
    """Refuse what movements that were not mined when the balances were read have used up. Raises: NotAffordable."""
    token, fee_token = order.amount.token, native(order.chain)
    sent, fees = history.outflows_not_mined(
        draft.intent.sender, order.chain, since_sequence=draft.sequence, since_block=draft.as_of
    )
    needed_native = draft.fee_units + fees + sent.get(fee_token, 0)
    if token == fee_token:
        needed_native += order.amount.units
    else:
        needed = order.amount.units + sent.get(token, 0)
        if needed > draft.token_units:
            raise NotAffordable("insufficient_funds", token, available=draft.token_units, required=needed)
    if needed_native > draft.native_units:
        reason = "insufficient_funds" if token == fee_token else "insufficient_gas"
        raise NotAffordable(reason, fee_token, available=draft.native_units, required=needed_native)


def _broadcast(chain: Chain, transaction_id: str, signed: Signed) -> bool:
    """Beat 2: send, and tell whether waiting for the outcome makes sense. A refusal leaves the row pending."""
    try:
        chain.broadcast(signed.raw)
    except Rejected as error:
        _log.warning("broadcast_refused", transaction_id=transaction_id, reason=error.reason)
        settlement.note_refusal(transaction_id, signed.tx_hash, error.reason)
        return error.reason == "nonce_too_low"
    except (Unreachable, OutcomeUnknown) as error:
        _log.warning("broadcast_uncertain", transaction_id=transaction_id, reason=error.reason)
    return True


def _refused(
    wallet: WalletView, order: Order, value: int | None, reason: str, details: Mapping[str, str]
) -> ServiceError:
    """Record a movement that was refused before signing, and make its failure. A limit's refusal goes first."""
    transaction = row_of(new_id(), wallet, order, value=value)
    transaction.cost_nanos = 0
    transaction.error = reason
    with unit_of_work():
        spending.lock_account(wallet.id)
        _check(wallet, order, value)
        lifecycle.record(transaction, status=Status.FAILED)
        idempotency.bind(transaction.id)
    return _failure(order, reason, details, transaction_id=transaction.id)


def row_of(transaction_id: str, wallet: WalletView, order: Order, *, value: int | None) -> Transaction:
    """Make the row of a movement."""
    return Transaction(
        id=transaction_id, wallet_id=wallet.id, type=order.type.value, kind=order.kind, chain=order.chain.value,
        from_address=wallet.address_on(order.chain), to_address=order.recipient,
        amount_units=order.amount.units, currency=order.amount.token.symbol,
        cost_nanos=value or 0, created_at=clock.now(), checks=0,
    )  # fmt: skip


def _check(wallet: WalletView, order: Order, value: int | None) -> None:
    spending.check(wallet.id, value_nanos=value, recipient=_limited(order), family=order.chain.family)


def _limited(order: Order) -> str | None:
    """Return the recipient that an allowlist has to name, if it has to."""
    return order.recipient if order.needs_allowlist else None


def _value(amount: TokenAmount) -> int | None:
    price = provider.current().prices.nanos_per_token(amount.token)
    return None if price is None else value_nanos(amount, price)


def _failure(
    order: Order,
    reason: str,
    details: Mapping[str, str],
    *,
    transaction_id: str | None = None,
    tx_hash: str | None = None,
) -> ServiceError:
    shown: dict[str, str | None] = {"reason": reason, **details}
    if transaction_id is not None:
        shown |= {"transaction_id": transaction_id, "tx_hash": tx_hash}
    missing = f" Missing: {details['missing']} {details['currency']}." if "missing" in details else ""
    return _FAILURES[order.type](_SENTENCES.get(reason, "It did not take place.") + missing, details=shown)
