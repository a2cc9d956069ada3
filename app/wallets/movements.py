"""The four beats that all movements share (architecture §5); what moves and how it is signed, their stories say.

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
from app.core.chains import ChainName, Token, native
from app.core.identifiers import new_id
from app.core.money import TokenAmount, decimal_string, value_nanos
from app.core.unit_of_work import reading, unit_of_work
from app.errors import BridgeFailed, ServiceError, SwapFailed, TransferFailed, WithdrawalFailed
from app.ports import provider
from app.ports.chain import Chain, Draft, Signed
from app.ports.errors import OutcomeUnknown, PortError, Rejected, Unreachable
from app.ports.vault import Signer
from app.spending import service as spending
from app.wallets import custody, history, lifecycle, network_fees, nonces, settlement, tracking, waiting
from app.wallets.lifecycle import Kind, Status, TransactionType
from app.wallets.models import Transaction
from app.wallets.service import WalletView
from app.web import idempotency

_log = structlog.get_logger(__name__)

Done = TypeVar("Done")
Drafting = Callable[[Signer | None], Draft]
"""Beat 0 of a story: asks the network; without a signer, as in a dry run, nothing may be signed.

Raises: PortError, ServiceError.
"""
Signing = Callable[[Draft, Signer, int | None], Signed]
"""Signs a draft for a nonce slot, inside the unit that records it: no network."""
Recording = Callable[[history.TransactionView], None]
"""Writes what belongs to a movement, inside the unit that records it: no network."""

_FAILURES: Mapping[TransactionType, type[ServiceError]] = {
    TransactionType.TRANSFER: TransferFailed,
    TransactionType.WITHDRAWAL: WithdrawalFailed,
    TransactionType.SWAP: SwapFailed,
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
    "cancelled": "It could not be carried out any more (too late, or not payable); its slot was used up instead.",
    "slot_taken": "Another transaction used its slot, so that it can never be executed.",
    "quote_unavailable": "No quote can be had at the moment; nothing was sent. Try again later.",
    "no_liquidity": "No market offers this exchange at the moment.",
    "amount_too_small": "The amount is too small to bring anything.",
    "price_deviation": "The exchange offers too much less than the market's price; nothing was sent.",
    "price_moved": "The price moved past the slippage that was allowed; nothing was sent.",
    "unsafe_instructions": "What was to be signed is not what was asked for; nothing was sent.",
    "deadline_passed": "It was not executed before its deadline, and can no longer be.",
    "bridge_fee_too_high": "Every way keeps more of the amount than the operator allows; nothing was sent.",
    "written_off": "It left, and whoever was to pay it out has not: the operator has closed it.",
    "refunded": "It could not be delivered on the other chain; what left came back on the chain that it left.",
}


@dataclass(frozen=True, slots=True)
class Output:
    """What an exchange shall bring: as it was quoted, and at least; None while there is no quote."""

    token: Token
    quoted_units: int | None = None
    minimum_units: int | None = None


@dataclass(frozen=True, slots=True)
class Movement:
    """What is to move: `amount` leaves the wallet and counts as `value_nanos` against its limits.

    `payee` must be on the wallet's allowlist, if it has one; None where only the wallet or the service itself is paid.
    """

    wallet: WalletView
    type: TransactionType
    chain: ChainName
    recipient: str
    payee: str | None
    amount: TokenAmount
    value_nanos: int | None
    output: Output | None = None
    kind: str | None = None

    @property
    def sender(self) -> str:
        """The wallet's address on the chain."""
        return self.wallet.address_on(self.chain)


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


def worth_nanos(amount: TokenAmount) -> int | None:
    """Return the dollar value of an amount, None while no price is known. Asks the network."""
    price = provider.current().prices.nanos_per_token(amount.token)
    return None if price is None else value_nanos(amount, price)


def assert_allowed(movement: Movement) -> None:
    """Let the limits decide without locking or counting. Raises: the 403 classes, PriceUnavailable."""
    with reading():
        check(movement)


def try_out(movement: Movement, draft: Drafting) -> Draft:
    """Go through everything before signing, and return what the chain said. Raises: what `carry_out` raises then."""

    def assert_possible(drafted: Draft) -> Draft:
        with reading():
            check(movement)
            assert_affordable(movement, drafted)
        return drafted

    try:
        return _on_fresh_facts(movement, lambda: draft(None), assert_possible)
    except (PortError, NotAffordable) as error:
        raise failure(movement.type, error.reason, error.details) from None


def carry_out(
    movement: Movement,
    draft: Drafting,
    sign: Signing,
    *,
    wait_seconds: Decimal,
    record_beside: Recording | None = None,
) -> history.TransactionView:
    """Go through all beats, and wait for the outcome as long as asked.

    Returns a `confirmed` or `pending` transaction. What `record_beside` writes is in the unit that records it.

    Raises: the 403 classes of a refused limit; the movement's own failure when it certainly did not happen.
    """
    chain = provider.current().chains[movement.chain]
    signer = custody.signer_of(movement.wallet.id)

    def commit(drafted: Draft) -> tuple[history.TransactionView, Signed]:
        return _commit(movement, drafted, lambda slot: sign(drafted, signer, slot), record_beside)

    try:
        recorded, signed = _on_fresh_facts(movement, lambda: draft(signer), commit)
    except (PortError, NotAffordable) as error:
        raise refuse(movement, error.reason, error.details) from None
    wanted = movement.output.token if movement.output else None
    view = send_and_settle(chain, recorded, signed, wait_seconds=wait_seconds, receives=wanted)
    if view.status == Status.FAILED:
        raise failure(movement.type, view.error or "failed", {}, transaction_id=view.id, tx_hash=view.tx_hash)
    return view


def refuse(movement: Movement, reason: str, details: Mapping[str, str]) -> ServiceError:
    """Record a movement that was refused before signing, and make its failure. A limit's refusal goes first."""
    transaction = row_of(new_id(), movement)
    transaction.cost_nanos = 0
    transaction.error = reason
    with unit_of_work():
        spending.lock_account(movement.wallet.id)
        check(movement)
        lifecycle.record(transaction, status=Status.FAILED)
        idempotency.bind(transaction.id)
    return failure(movement.type, reason, details, transaction_id=transaction.id, kind=movement.kind)


def answer_failure(view: history.TransactionView) -> ServiceError:
    """Return the failure that a failed movement is answered with, from its record."""
    kind = _failure_of(TransactionType(view.type), view.kind)
    details = {"reason": view.error or "failed", "transaction_id": view.id, "tx_hash": view.tx_hash}
    return kind(_SENTENCES.get(view.error or "", "It did not take place."), details=details)


def failure(
    type_: TransactionType,
    reason: str,
    details: Mapping[str, str],
    *,
    transaction_id: str | None = None,
    tx_hash: str | None = None,
    kind: str | None = None,
) -> ServiceError:
    """Make the failure of a movement that certainly did not take place."""
    shown: dict[str, str | None] = {"reason": reason, **details}
    if transaction_id is not None:
        shown |= {"transaction_id": transaction_id, "tx_hash": tx_hash}
    where = f" on {details['chain']}" if "chain" in details else ""
    missing = f" Missing: {details['missing']} {details['currency']}{where}." if "missing" in details else ""
    return _failure_of(type_, kind)(_SENTENCES.get(reason, "It did not take place.") + missing, details=shown)


def _failure_of(type_: TransactionType, kind: str | None) -> type[ServiceError]:
    return BridgeFailed if kind == Kind.BRIDGE else _FAILURES.get(type_, TransferFailed)


def _on_fresh_facts(movement: Movement, draft: Callable[[], Draft], do: Callable[[Draft], Done]) -> Done:
    """Draft and go on with it; where only what is pending stands against it, see first whether it still is.

    Whether this look or somebody else's settles what has landed, only another draft tells what is left.

    Raises: Rejected, NotAffordable.
    """
    drafted = payable(movement, draft)
    try:
        return do(drafted)
    except NotAffordable:
        if drafted.sequence is not None:
            raise  # the nonce has told what the balances include
        try:
            tracking.settle_landed(provider.current().chains[movement.chain], movement.sender)
        except Unreachable as error:
            raise Rejected("chain_unreachable", details=error.details) from None
    return do(payable(movement, draft))


def payable(movement: Movement, draft: Callable[[], Draft]) -> Draft:
    """Beat 0. Raises: Rejected."""
    try:
        drafted = draft()
    except Unreachable as error:
        raise Rejected("chain_unreachable", details=error.details) from None
    if not network_fees.is_within_cap(movement.chain, drafted.fee_units):
        raise Rejected("network_fee_too_high")
    return drafted


def _commit(
    movement: Movement,
    draft: Draft,
    sign: Callable[[int | None], Signed],
    record_beside: Recording | None = None,
) -> tuple[history.TransactionView, Signed]:
    """Beat 1: everything that must be true before the bytes leave, in one unit."""
    transaction_id, now = new_id(), clock.now()
    with unit_of_work():
        spending.hold(
            movement.wallet.id, reference=transaction_id, value_nanos=movement.value_nanos,
            recipient=movement.payee, family=movement.chain.family,
        )  # fmt: skip
        assert_affordable(movement, draft)
        slot = None
        if draft.sequence is not None:
            slot = nonces.allocate(movement.chain, movement.sender, floor=draft.sequence)
        signed = sign(slot)
        transaction = row_of(transaction_id, movement)
        transaction.tx_hash = signed.tx_hash
        transaction.nonce = signed.sequence
        transaction.expires_at_height = signed.expires_at_height
        transaction.fee_cap_units = draft.fee_units
        transaction.next_check_at = now + settlement.FIRST_CHECK_AFTER
        lifecycle.record(
            transaction,
            status=Status.PENDING,
            attempt=settlement.attempt_row(transaction_id, movement.chain, signed),
        )
        idempotency.bind(transaction_id)
        recorded = history.view_of(transaction)
        if record_beside is not None:
            record_beside(recorded)
        return recorded, signed


def assert_affordable(movement: Movement, draft: Draft) -> None:
    """Refuse what movements that were not mined when the balances were read have used up. Raises: NotAffordable."""
    token, fee_token = movement.amount.token, native(movement.chain)
    sent, fees = history.outflows_not_mined(
        movement.sender, movement.chain, since_sequence=draft.sequence, since_block=draft.as_of
    )
    needed_native = draft.fee_units + fees + sent.get(fee_token, 0)
    if token == fee_token:
        needed_native += movement.amount.units
    else:
        needed = movement.amount.units + sent.get(token, 0)
        if needed > draft.token_units:
            raise NotAffordable("insufficient_funds", token, available=draft.token_units, required=needed)
    if needed_native > draft.native_units:
        reason = "insufficient_funds" if token == fee_token else "insufficient_gas"
        raise NotAffordable(reason, fee_token, available=draft.native_units, required=needed_native)


def send_and_settle(
    chain: Chain,
    recorded: history.TransactionView,
    signed: Signed,
    *,
    wait_seconds: Decimal,
    receives: Token | None = None,
) -> history.TransactionView:
    """Beats 2 and 3. Whatever breaks here, the movement is on its way: it is answered as recorded, never with a 500."""
    try:
        if broadcast(chain, recorded.id, signed):
            watch = settlement.watch(recorded.id, recorded.from_address or "", signed, receives=receives)
            waiting.for_outcome(chain.name, watch, seconds=wait_seconds)
        return history.movement(recorded.id)
    except Exception:
        _log.exception("movement_left_to_the_workers", transaction_id=recorded.id)
        return recorded


def broadcast(chain: Chain, transaction_id: str, signed: Signed) -> bool:
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


def row_of(transaction_id: str, movement: Movement) -> Transaction:
    """Make the row of a movement that nothing was signed for yet."""
    output = movement.output
    return Transaction(
        id=transaction_id, wallet_id=movement.wallet.id, type=movement.type.value,
        kind=None if movement.kind is None else str(movement.kind),
        chain=movement.chain.value, from_address=movement.sender, to_address=movement.recipient,
        amount_units=movement.amount.units, currency=movement.amount.token.symbol,
        output_currency=output.token.symbol if output else None,
        output_quoted_units=output.quoted_units if output else None,
        output_minimum_units=output.minimum_units if output else None,
        cost_nanos=movement.value_nanos or 0, created_at=clock.now(), checks=0,
    )  # fmt: skip


def check(movement: Movement) -> None:
    """Let the limits decide, in the current unit, without counting. Raises: the 403 classes, PriceUnavailable."""
    spending.check(
        movement.wallet.id,
        value_nanos=movement.value_nanos,
        recipient=movement.payee,
        family=movement.chain.family,
    )
