"""Replacement of stuck movements: the same nonce at a higher fee, or a cancellation if they are unaffordable.

Without nonces, only the delivery of sold gas is signed again. All signed hashes are stored and checked; the one that
lands is the outcome.
"""

import structlog
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.core.chains import ChainName, native
from app.core.movement_kinds import MovementKind
from app.errors import KeyServiceUnavailable, NotFound
from app.ports.chain import Chain, TransactionDraft
from app.ports.errors import PortError, Rejected, Unreachable
from app.ports.vault import Signer
from app.state import app_state
from app.wallets.core import custody, intents, lifecycle, network_fees
from app.wallets.core.intents import Intent
from app.wallets.core.lifecycle import AttemptPurpose, MovementStatus
from app.wallets.core.models import SignedAttempt, Transaction
from app.wallets.transactions import settlement
from app.wallets.transactions.open_transactions import OpenMovement

_log = structlog.get_logger(__name__)

# What was sold is paid for, and is sent until it arrives, unless that takes half an hour.
_MAX_DELIVERY_ATTEMPTS = 20
_UNAFFORDABLE_REASONS = frozenset({"insufficient_funds", "insufficient_gas"})
# It can only revert by now, at a fee, so its nonce is used by a cancellation.
_EXPIRED_REASONS = frozenset({"deadline_passed"})
# No node will ever accept these bytes, whatever the fee; it may accept an empty transaction with their nonce.
_PERMANENT_REASONS = frozenset({"invalid_transaction", "wrong_chain"})


def stuck_after_blocks(chain: ChainName) -> int:
    """Return how many blocks signed bytes may wait before they are replaced."""
    settings = app_state().settings
    return settings.base_stuck_blocks if chain is ChainName.BASE else settings.ethereum_stuck_blocks


def deliver_again(chain: Chain, movement: OpenMovement) -> bool:
    """Sign anew the delivery of gas that the service has sold, after all of its hashes were found `VOID`.

    Nothing else is signed again on a chain without nonces. Returns whether it stays pending: it was sent again, or the
    chain could not be read.
    """
    is_owed = movement.kind == MovementKind.GAS_SALE and movement.nonce is None
    if not is_owed or len(movement.attempts) >= _MAX_DELIVERY_ATTEMPTS:
        return False
    try:
        draft = chain.draft(movement.intent)
        network_fees.assert_acceptable(chain.name, draft.fee_units)
        signer = custody.signer_of(movement.wallet_id)
    except (Unreachable, KeyServiceUnavailable) as error:
        _log.warning("delivery_postponed", transaction_id=movement.id, reason=error.reason)
        return True
    except (PortError, NotFound) as error:
        _log.warning("delivery_failed", transaction_id=movement.id, reason=getattr(error, "reason", "gone"))
        return False
    _sign_again(chain, movement, draft, signer)
    return True


def replace_stuck(chain: Chain, movement: OpenMovement) -> bool:
    """Replace a stuck movement and broadcast the replacement; return whether that was done.

    A movement that can no longer be executed is cancelled by an empty transaction with its nonce: only a used nonce
    makes the failure final.
    """
    try:
        drafted = _draft_replacement(chain, movement)
        # A used nonce needs no replacement, and a nonce that is not reached yet cannot land.
        if drafted is None or drafted[1].sequence != movement.nonce:
            return False
        purpose, draft = drafted
        # The request's maximum is for what it asked for, not for an empty transaction that frees its nonce.
        maximum_nanos = movement.max_fee_nanos if purpose is AttemptPurpose.PAYMENT else None
        network_fees.assert_acceptable(chain.name, draft.fee_units, maximum_nanos)
        signer = custody.signer_of(movement.wallet_id)
    except (PortError, NotFound, KeyServiceUnavailable) as error:
        _log.warning("replacement_skipped", transaction_id=movement.id, reason=getattr(error, "reason", "gone"))
        return False
    return _sign_again(chain, movement, draft, signer, purpose)


def _sign_again(
    chain: Chain,
    movement: OpenMovement,
    draft: TransactionDraft,
    signer: Signer,
    purpose: AttemptPurpose = AttemptPurpose.PAYMENT,
) -> bool:
    """Sign, record and broadcast; return False if the movement is decided or was signed again already."""
    meant = movement.intent
    intent = Intent(movement.id, movement.wallet_id, chain.name, movement.kind or "", meant.recipient, meant.amount)
    try:
        with intents.recording(intent) as session:
            transaction = _lock_newest(session, movement)
            if transaction is None:
                return False
            # Any attempt may land, so the cap is the highest fee of them.
            transaction.fee_cap_units = max(transaction.fee_cap_units or 0, draft.fee_units)
            transaction.error = None
            signed = chain.sign(draft, signer, sequence=movement.nonce)
            if movement.nonce is None:
                lifecycle.set_signed(transaction, signed)
            lifecycle.add_attempt(session, movement.id, chain.name, signed, purpose)
    except (Rejected, KeyServiceUnavailable) as error:
        _log.warning("replacement_skipped", transaction_id=movement.id, reason=error.reason)
        return False
    settlement.broadcast(chain, movement.id, signed)
    _log.info("movement_replaced", transaction_id=movement.id, purpose=purpose, tx_hash=signed.tx_hash)
    return True


def _lock_newest(session: Session, movement: OpenMovement) -> Transaction | None:
    """Lock the row of a pending movement; None if it is decided, or has newer signed bytes by now."""
    # Lock the row first, so that the newest attempt read below stays the newest.
    locked = session.scalars(
        update(Transaction)
        .filter_by(id=movement.id, status=MovementStatus.PENDING.value, quarantined_at=None)
        .values(fee_cap_units=Transaction.fee_cap_units)
        .returning(Transaction)
    ).one_or_none()
    newest = session.scalar(select(func.max(SignedAttempt.id)).where(SignedAttempt.transaction_id == movement.id))
    return locked if newest == movement.latest.id else None


def _draft_replacement(chain: Chain, movement: OpenMovement) -> tuple[AttemptPurpose, TransactionDraft] | None:
    """Draft it at a higher fee, or its cancellation if it cannot succeed; None to wait. Raises: PortError."""
    attempt = movement.attempt()
    purpose = AttemptPurpose(movement.latest.purpose)
    draft: TransactionDraft | None = None
    fee_token = native(chain.name)
    is_refused = movement.latest.refusal in _PERMANENT_REASONS
    # A single refusal may have been an error: nodes are asked once more.
    if purpose is AttemptPurpose.PAYMENT and is_refused and _rebroadcast_refusal(chain, movement) in _PERMANENT_REASONS:
        purpose = AttemptPurpose.CANCELLATION
    if purpose is AttemptPurpose.PAYMENT:
        try:
            draft = chain.draft_replacement(attempt)
        except Rejected as refusal:
            if refusal.reason not in _UNAFFORDABLE_REASONS | _EXPIRED_REASONS:
                raise
            # With too little of the fee's token, it may still be affordable at its current fee.
            may_pay = refusal.reason in _UNAFFORDABLE_REASONS and refusal.details.get("currency") == fee_token.symbol
            if may_pay and _rebroadcast_refusal(chain, movement) not in _UNAFFORDABLE_REASONS:
                return None
            purpose = AttemptPurpose.CANCELLATION
    if purpose is AttemptPurpose.CANCELLATION:
        draft = chain.draft_cancellation(attempt)
    return None if draft is None else (purpose, draft)


def _rebroadcast_refusal(chain: Chain, movement: OpenMovement) -> str | None:
    """Broadcast the bytes again; return why nodes refuse them, or None. Raises: Unreachable, OutcomeUnknown."""
    try:
        chain.broadcast(movement.latest.raw)
        reason = None
    except Rejected as error:
        reason = error.reason
    settlement.record_refusal(movement.id, movement.latest.tx_hash, reason)
    return reason
