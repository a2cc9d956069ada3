"""The stored state of a bridge and its legs: reading, locking, recording and changing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy import update
from sqlalchemy.orm import Session

from app.authenticated import seal_of
from app.core import clock
from app.core.chains import TOKENS_BY_SYMBOL, ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.core.movement_kinds import MovementKind
from app.db.state_machine import StateMachine, Transitions
from app.db.unit_of_work import read_only_unit
from app.ports.bridges import BridgeArrival, BridgeLegKind, BridgeProof, BridgeRequest, BridgeStep, BridgeTransfer
from app.ports.bridges import BridgeProvider as BridgePort
from app.ports.chain import BlockRef, SignedTransaction
from app.ports.vault import Signer
from app.wallets.bridges import views as bridge_views
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import Bridge, Transaction
from app.wallets.transactions import settlement


class BridgeStage(StrEnum):
    SOURCE = "source"
    CROSSING = "crossing"
    ARRIVED = "arrived"
    FAILED = "failed"


BRIDGES = StateMachine(
    Bridge.stage,
    Transitions(
        initial={BridgeStage.SOURCE},
        permitted={
            # The source transaction was executed, or certainly was not.
            BridgeStage.SOURCE: {BridgeStage.CROSSING, BridgeStage.FAILED},
            # Delivered, or refunded or written off; or a reorg reversed the source transaction.
            BridgeStage.CROSSING: {BridgeStage.ARRIVED, BridgeStage.FAILED, BridgeStage.SOURCE},
            # A reorg reversed the arrival, the refund, or the failure of the source transaction.
            BridgeStage.ARRIVED: {BridgeStage.CROSSING},
            BridgeStage.FAILED: {BridgeStage.CROSSING, BridgeStage.SOURCE},
        },
    ),
    logger=structlog.get_logger(__name__),
)
_STATUSES = {
    BridgeStage.SOURCE: MovementStatus.PENDING,
    BridgeStage.CROSSING: MovementStatus.PENDING,
    BridgeStage.ARRIVED: MovementStatus.CONFIRMED,
    BridgeStage.FAILED: MovementStatus.FAILED,
}
_NO_EVIDENCE = {
    "arrival_hash": None, "arrival_block": None, "arrival_block_hash": None, "arrival_takes_slot": False,
    "received_units": None,
    "refund_hash": None, "refund_block": None, "refund_block_hash": None, "refund_units": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BridgeState:
    id: str
    wallet_id: str
    stage: BridgeStage
    adapter: str
    crossing: BridgeTransfer
    is_delivering: bool
    # The block of its arrival or refund.
    end_block: BlockRef | None


@dataclass(frozen=True, slots=True)
class SentLeg:
    """A leg that was signed and recorded, to be broadcast once that is committed."""

    transaction_id: str
    chain: ChainName
    sender: str
    signed: SignedTransaction


def read(bridge_id: str) -> BridgeState | None:
    """Return the current state of a bridge; None if it was deleted."""
    with read_only_unit() as session:
        bridge, parent = session.get(Bridge, bridge_id), session.get(Transaction, bridge_id)
        if bridge is None or parent is None:
            return None
        seal_of(Bridge).verify(session, bridge)
        seal_of(Transaction).verify(session, parent)
        legs = bridge_views.legs_of(session, bridge_id)
        source = source_of(legs)
        if source is None or parent.from_address is None:
            return None
        delivered = [
            leg for leg in legs
            if leg.leg == BridgeLegKind.DESTINATION and leg.status == MovementStatus.CONFIRMED.value
        ]  # fmt: skip
        failed = sum(leg.leg == BridgeLegKind.DESTINATION and leg.status == MovementStatus.FAILED.value for leg in legs)
        request = BridgeRequest(
            ChainName(parent.chain), ChainName(bridge.destination_chain), parent.from_address,
            parent.to_address, TokenAmount(parent.amount_units, TOKENS_BY_SYMBOL[parent.currency]),
        )  # fmt: skip
        return BridgeState(
            id=bridge_id, wallet_id=bridge.wallet_id, stage=BridgeStage(bridge.stage), adapter=bridge.adapter,
            crossing=BridgeTransfer(
                request, bridge.terms, source.tx_hash or "", bridge.proof,
                delivered[-1].tx_hash if delivered else None, failed,
            ),
            is_delivering=is_delivering(legs),
            end_block=end_block_of(bridge),
        )  # fmt: skip


def end_block_of(bridge: Bridge) -> BlockRef | None:
    """Return the block of a bridge's arrival or refund."""
    number, block_hash = bridge.arrival_block, bridge.arrival_block_hash
    if bridge.refund_hash:
        number, block_hash = bridge.refund_block, bridge.refund_block_hash
    return BlockRef(number, block_hash) if number is not None and block_hash else None


def lock(session: Session, bridge_id: str) -> Bridge | None:
    # The no-op update acquires the row lock on PostgreSQL and the write lock on SQLite.
    session.execute(
        update(Bridge)
        .where(Bridge.id == bridge_id)
        .values(steps=Bridge.steps)
        .execution_options(synchronize_session=False)
    )
    return session.get(Bridge, bridge_id, populate_existing=True)


def source_of(legs: Sequence[Transaction]) -> Transaction | None:
    return next((leg for leg in legs if leg.leg == BridgeLegKind.SOURCE), None)


def is_delivering(legs: Sequence[Transaction]) -> bool:
    """Return whether an own transaction is pending on the destination chain."""
    delivery_legs = (BridgeLegKind.ACCOUNT, BridgeLegKind.DESTINATION)
    return any(leg.leg in delivery_legs and leg.status == MovementStatus.PENDING.value for leg in legs)


def refund_columns(refund: BridgeArrival) -> dict[str, Any]:
    """Return the columns of a refund, so that it is not taken for a deposit."""
    block = refund.block
    return {
        "refund_hash": refund.tx_hash, "refund_units": refund.units,
        "refund_block": block and block.number, "refund_block_hash": block and block.hash,
    }  # fmt: skip


def move(
    session: Session,
    bridge: Bridge,
    target: BridgeStage,
    *,
    reason: str | None,
    next_step_at: datetime | None,
    **changes: Any,
) -> None:
    """Move a bridge to a stage, its transaction to the status of that stage, and the hold with it.

    `changes` have the evidence of an end; without one, there is none.

    The unit must have locked its account and the bridge. Raises: RuntimeError if they disagree: a bug.
    """
    stage = BridgeStage(bridge.stage)
    source_status, status = _STATUSES[stage], _STATUSES[target]
    confirmed_at = clock.now() if status is MovementStatus.CONFIRMED else None
    if status is not source_status and not settlement.move(
        session, bridge.id, source_status, status, reason=reason, confirmed_at=confirmed_at
    ):
        raise RuntimeError(f"the transaction of a bridge in {stage} is not {source_status}")
    changes = {**_NO_EVIDENCE, "next_step_at": next_step_at, "steps": 0, **changes}
    BRIDGES.move(session, bridge.id, stage, target, reason=reason, **changes)


def record_leg(
    session: Session, bridge_id: str, wallet_id: str, step: BridgeStep, adapter: BridgePort, *, signer: Signer
) -> SentLeg:
    """Sign a step and record it; the nonces stay locked until the unit ends."""
    intent = step.draft.intent
    transaction = Transaction(
        id=new_id(), wallet_id=wallet_id, bridge_id=bridge_id, leg=step.leg.value,
        type=TransactionType.TRANSFER.value, kind=MovementKind.LEG.value, chain=step.chain.value,
        from_address=intent.sender, to_address=intent.recipient,
        amount_units=intent.amount.units, currency=intent.amount.token.symbol, cost_nanos=0,
        created_at=clock.now(), checks=0,
    )  # fmt: skip
    signed = lifecycle.record_signed(
        session, transaction, step.draft, lambda nonce: adapter.sign(step, signer, sequence=nonce)
    )
    session.flush()
    return SentLeg(transaction.id, step.chain, intent.sender, signed)


def store_proof(bridge: Bridge, proof: BridgeProof) -> None:
    """Store the proof of a locked bridge; an empty one discards what was stored."""
    bridge.proof = dict(proof)
    if not proof:
        bridge.attested_at = None
    elif bridge.attested_at is None:
        bridge.attested_at = clock.now()
