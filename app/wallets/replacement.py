"""Movements that do not get into a block: their slot is signed again at a higher fee, or used up if unpayable.

Every hash that was ever signed is kept and watched; whichever lands is the outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from sqlalchemy import select, update

from app.core.chains import ChainName, native
from app.core.money import TokenAmount, nanos_from_usd, value_nanos
from app.core.unit_of_work import unit_of_work
from app.errors import NotFound
from app.ports import provider
from app.ports.chain import Chain, Draft
from app.ports.errors import OutcomeUnknown, PortError, Rejected, Unreachable
from app.wallets import custody, settlement
from app.wallets.lifecycle import Status
from app.wallets.models import SignedAttempt, Transaction
from app.wallets.settlement import Purpose

if TYPE_CHECKING:
    from app.wallets.tracking import OpenMovement

_log = structlog.get_logger(__name__)
_UNPAYABLE = "insufficient_funds"


def patience_blocks(chain: ChainName) -> int:
    """Return how many blocks signed bytes may wait before they are replaced."""
    settings = provider.settings()
    return settings.base_stuck_blocks if chain is ChainName.BASE else settings.ethereum_stuck_blocks


def replace(chain: Chain, movement: OpenMovement) -> bool:
    """Sign a stuck movement's slot again and send it; tell whether that was done.

    A movement that the wallet cannot pay any more is cancelled by an empty transaction in its slot: only a used
    slot makes the failure certain.
    """
    purpose = Purpose(movement.latest.purpose)
    if movement.latest.refusal == _UNPAYABLE:
        purpose = Purpose.CANCELLATION
    try:
        attempt = movement.attempt()
        draft = chain.cancellation(attempt) if purpose is Purpose.CANCELLATION else chain.replacement(attempt)
        if draft is None or _too_expensive(chain.name, draft):
            return False
        signer = custody.signer_of(movement.wallet_id)
    except (PortError, NotFound) as error:
        _log.warning(
            "replacement_not_possible", transaction_id=movement.id, reason=getattr(error, "reason", "gone")
        )
        return False
    with unit_of_work() as session:
        newest = session.scalar(
            select(SignedAttempt.id)
            .where(SignedAttempt.transaction_id == movement.id)
            .order_by(SignedAttempt.id.desc())
            .limit(1)
        )
        claimed = session.execute(
            update(Transaction)
            .where(Transaction.id == movement.id, Transaction.status == Status.PENDING.value)
            .values(fee_cap_units=draft.fee_units)
        )
        if claimed.rowcount != 1 or newest != movement.latest.id:  # type: ignore[attr-defined]
            return False
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


def _too_expensive(name: ChainName, draft: Draft) -> bool:
    token = native(name)
    price = provider.current().prices.nanos_per_token(token)
    if price is None:
        return True
    fee = value_nanos(TokenAmount(draft.fee_units, token), price)
    return fee > nanos_from_usd(provider.settings().max_network_fee_usd)
