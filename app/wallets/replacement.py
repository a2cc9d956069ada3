"""Movements that do not get into a block: their slot is signed again at a higher fee, or used up if unpayable.

Every hash that was ever signed is kept and watched; whichever lands is the outcome.
"""

from __future__ import annotations

import structlog
from sqlalchemy import func, select, update

from app.core.chains import ChainName, native
from app.core.unit_of_work import unit_of_work
from app.errors import NotFound
from app.ports import provider
from app.ports.chain import Chain, Draft
from app.ports.errors import OutcomeUnknown, PortError, Rejected, Unreachable
from app.wallets import custody, network_fees, settlement
from app.wallets.lifecycle import Status
from app.wallets.models import SignedAttempt, Transaction
from app.wallets.open_movements import OpenMovement
from app.wallets.settlement import Purpose

_log = structlog.get_logger(__name__)

_UNPAYABLE = frozenset({"insufficient_funds", "insufficient_gas"})
# It can only fail by now, and at a fee: nothing is left but to use its slot up.
_HOPELESS = frozenset({"deadline_passed"})
# No node will ever take these bytes, whatever the fee; an empty transaction in their slot is another matter.
_IMPOSSIBLE = frozenset({"invalid_transaction", "wrong_chain"})


def patience_blocks(chain: ChainName) -> int:
    """Return how many blocks signed bytes may wait before they are replaced."""
    settings = provider.settings()
    return settings.base_stuck_blocks if chain is ChainName.BASE else settings.ethereum_stuck_blocks


def replace(chain: Chain, movement: OpenMovement) -> bool:
    """Sign a stuck movement's slot again and send it; tell whether that was done.

    A movement that cannot be carried out any more is cancelled by an empty transaction in its slot: only a used
    slot makes the failure certain.
    """
    try:
        drafted = _drafted(chain, movement)
        if drafted is None:
            return False
        purpose, draft = drafted
        signer = custody.signer_of(movement.wallet_id)
    except (PortError, NotFound) as error:
        _log.warning(
            "replacement_not_possible", transaction_id=movement.id, reason=getattr(error, "reason", "gone")
        )
        return False
    # A slot that is used up needs no more bytes, and none can land in a slot that is not reached yet.
    if draft.sequence != movement.nonce or not network_fees.is_within_cap(chain.name, draft.fee_units):
        return False
    with unit_of_work() as session:
        # The row's lock goes first: only then is the newest attempt the newest.
        locked = session.execute(
            update(Transaction)
            .where(Transaction.id == movement.id, Transaction.status == Status.PENDING.value)
            .values(fee_cap_units=Transaction.fee_cap_units)
            .returning(Transaction.fee_cap_units)
        ).one_or_none()
        newest = session.scalar(
            select(func.max(SignedAttempt.id)).where(SignedAttempt.transaction_id == movement.id)
        )
        if locked is None or newest != movement.latest.id:
            return False
        session.execute(
            update(Transaction)
            .where(Transaction.id == movement.id)
            # Any of the attempts may land, so the dearest of them is the most that the network can take.
            .values(fee_cap_units=max(locked.fee_cap_units or 0, draft.fee_units), error=None)
        )
        signed = chain.sign(draft, signer, sequence=movement.nonce)
        session.add(settlement.attempt_row(movement.id, chain.name, signed, purpose))
    try:
        chain.broadcast(signed.raw)
    except Rejected as error:
        settlement.note_refusal(movement.id, signed.tx_hash, error.reason)
    except (Unreachable, OutcomeUnknown) as error:
        _log.warning("broadcast_uncertain", transaction_id=movement.id, reason=error.reason)
    _log.info("movement_replaced", transaction_id=movement.id, purpose=purpose, tx_hash=signed.tx_hash)
    return True


def _drafted(chain: Chain, movement: OpenMovement) -> tuple[Purpose, Draft] | None:
    """Draft the movement at a higher fee, or its cancellation where it is hopeless now; None to let it wait.

    Raises: PortError.
    """
    attempt = movement.attempt()
    purpose = Purpose(movement.latest.purpose)
    draft: Draft | None = None
    if purpose is Purpose.PAYMENT and _is_impossible(chain, movement):
        purpose = Purpose.CANCELLATION
    if purpose is Purpose.PAYMENT:
        try:
            draft = chain.replacement(attempt)
        except Rejected as refusal:
            if refusal.reason not in _UNPAYABLE | _HOPELESS:
                raise
            if refusal.reason in _UNPAYABLE and not _is_unpayable(chain, movement, refusal):
                return None
            purpose = Purpose.CANCELLATION
    if purpose is Purpose.CANCELLATION:
        draft = chain.cancellation(attempt)
    return None if draft is None else (purpose, draft)


def _is_impossible(chain: Chain, movement: OpenMovement) -> bool:
    """Tell whether nodes still refuse the bytes for good; one endpoint may once have been mistaken."""
    return movement.latest.refusal in _IMPOSSIBLE and _refusal_now(chain, movement) in _IMPOSSIBLE


def _is_unpayable(chain: Chain, movement: OpenMovement, refusal: Rejected) -> bool:
    """Tell whether a movement that cannot be paid at a higher fee cannot be paid at its present one either."""
    if refusal.details.get("currency") != native(chain.name).symbol:
        return True  # the token itself is gone
    return _refusal_now(chain, movement) in _UNPAYABLE


def _refusal_now(chain: Chain, movement: OpenMovement) -> str | None:
    """Send the bytes again and return why the nodes refuse them, None when they take them.

    Raises: Unreachable, OutcomeUnknown.
    """
    try:
        chain.broadcast(movement.latest.raw)
    except Rejected as error:
        settlement.note_refusal(movement.id, movement.latest.tx_hash, error.reason)
        return error.reason
    _forget_refusal(movement)
    return None


def _forget_refusal(movement: OpenMovement) -> None:
    with unit_of_work() as session:
        session.execute(
            update(SignedAttempt).where(SignedAttempt.id == movement.latest.id).values(refusal=None)
        )
        session.execute(
            update(Transaction)
            .where(Transaction.id == movement.id, Transaction.status == Status.PENDING.value)
            .values(error=None)
        )
