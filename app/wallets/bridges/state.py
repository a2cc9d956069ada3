"""Bridges and their legs: their stored state, how it changes, their maximum fee, and how agents and owners see them.

A leg appears only within its bridge. Also their arrivals and refunds, so that they are not taken for deposits.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

import structlog
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from app.authenticated import seal_of
from app.core import clock
from app.core.chains import TOKENS_BY_SYMBOL, ChainName, Token, native
from app.core.money import TokenAmount, nanos_from_usd
from app.core.movement_kinds import MovementKind
from app.db.state_machine import StateMachine
from app.db.tables import count, in_list, update_rows
from app.db.unit_of_work import read_only_unit
from app.ports.bridges import BridgeArrival, BridgeLegKind, BridgeProof, BridgeRequest, BridgeStep, BridgeTransfer
from app.ports.bridges import BridgeProvider as BridgePort
from app.ports.chain import BlockRef, OwnTransaction, SignedTransaction
from app.ports.vault import Signer
from app.state import app_state
from app.wallets.core import lifecycle, network_fees
from app.wallets.core.intents import Intent
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import Bridge, DepositScanState, Transaction
from app.wallets.transactions import settlement
from app.wallets.views.history import explorer_url

BridgeView: TypeAlias = Mapping[str, Any]
"""What a bridge has besides its transaction, or one of its legs, as their schemas name it; amounts as decimal texts."""


def legs_of(session: Session, bridge_id: str) -> list[Transaction]:
    """Return the transactions of a bridge, oldest first."""
    return _by_bridge(session, [bridge_id])[bridge_id]


def views(session: Session, transactions: Sequence[Transaction]) -> Mapping[str, BridgeView]:
    """Return the views of bridges by id, for their transactions; two queries."""
    parents = {row.id: row for row in transactions}
    if not parents:
        return {}
    found = session.scalars(select(Bridge).where(Bridge.id.in_(list(parents)))).all()
    legs = _by_bridge(session, list(parents))
    return {bridge.id: _view(bridge, parents[bridge.id], legs[bridge.id]) for bridge in found}


def _by_bridge(session: Session, bridge_ids: Sequence[str]) -> Mapping[str, list[Transaction]]:
    legs: dict[str, list[Transaction]] = defaultdict(list)
    rows = session.scalars(
        select(Transaction)
        .where(Transaction.bridge_id.in_(bridge_ids))
        .order_by(Transaction.created_at, Transaction.id)
    )
    for row in rows:
        legs[row.bridge_id or ""].append(row)
    return legs


def _view(bridge: Bridge, parent: Transaction, rows: Sequence[Transaction]) -> BridgeView:
    token = TOKENS_BY_SYMBOL[parent.currency]
    # A failed leg may have been retried: the last one counts.
    by_leg = {
        row.leg: _leg(row.leg, row.chain, row.status, row.tx_hash, error=row.error, confirmed_at=row.confirmed_at)
        for row in rows
    }
    legs = [by_leg[leg] for leg in (BridgeLegKind.APPROVE, BridgeLegKind.SOURCE) if leg in by_leg]
    is_over = parent.status == MovementStatus.FAILED.value
    if bridge.attested_at is not None or (bridge.terms.get("attested") and not is_over):
        status = MovementStatus.PENDING if bridge.attested_at is None else MovementStatus.CONFIRMED
        legs.append(_leg(BridgeLegKind.ATTESTATION, parent.chain, status, None, confirmed_at=bridge.attested_at))
    if BridgeLegKind.ACCOUNT in by_leg:
        legs.append(by_leg[BridgeLegKind.ACCOUNT])
    if not is_over:
        legs.append(_destination(bridge, parent, by_leg.get(BridgeLegKind.DESTINATION)))
    received, refunded = bridge.received_units, bridge.refund_units
    fee_units = bridge.fee_units if received is None else parent.amount_units - received
    return {
        "destination_chain": bridge.destination_chain, "route": bridge.route, "fee": str(TokenAmount(fee_units, token)),
        "received_amount": None if received is None else str(TokenAmount(received, token)),
        "refunded_amount": None if refunded is None else str(TokenAmount(refunded, token)), "legs": legs,
    }  # fmt: skip


def _destination(bridge: Bridge, parent: Transaction, ours: BridgeView | None) -> BridgeView:
    kind, chain = BridgeLegKind.DESTINATION, bridge.destination_chain
    if parent.status == MovementStatus.CONFIRMED.value:
        # Once it arrived, the leg is confirmed, whichever transaction delivered it.
        tx_hash = bridge.arrival_hash or (None if ours is None else ours["tx_hash"])
        return _leg(kind, chain, MovementStatus.CONFIRMED, tx_hash, confirmed_at=parent.confirmed_at)
    return ours or _leg(kind, chain, MovementStatus.PENDING, None)


def _leg(
    leg: str | None, chain: str, status: str, tx_hash: str | None, *, error: str | None = None,
    confirmed_at: datetime | None = None,
) -> BridgeView:  # fmt: skip
    return {
        "leg": leg, "chain": chain, "status": status, "tx_hash": tx_hash, "explorer_url": explorer_url(chain, tx_hash),
        "error": error, "confirmed_at": confirmed_at,
    }  # fmt: skip


_BPS_SCALE = 10_000


def is_fee_acceptable(fee_units: int, amount: TokenAmount) -> bool | None:
    """Return whether a fee is within a share of the amount plus the cap on network fees; None without a price."""
    settings = app_state().settings
    excess_units = fee_units - amount.units * settings.max_bridge_fee_bps // _BPS_SCALE
    if excess_units <= 0:
        return True
    excess_nanos = network_fees.usd_value_nanos(TokenAmount(excess_units, amount.token))
    return None if excess_nanos is None else excess_nanos <= nanos_from_usd(settings.max_network_fee_usd)


def is_sufficient_refund(refunded_units: int, amount: TokenAmount) -> bool | None:
    """Return whether all is refunded but an acceptable fee, and at least half; None if that needs an unknown price."""
    if 2 * refunded_units < amount.units:
        return False
    return is_fee_acceptable(amount.units - refunded_units, amount)


class BridgeStage(StrEnum):
    SOURCE = "source"
    CROSSING = "crossing"
    ARRIVED = "arrived"
    FAILED = "failed"


BRIDGES = StateMachine(
    Bridge.stage,
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


def read(bridge_id: str) -> BridgeState | None:
    """Return the current state of a bridge; None if it was deleted."""
    with read_only_unit() as session:
        bridge, parent = session.get(Bridge, bridge_id), session.get(Transaction, bridge_id)
        if bridge is None or parent is None:
            return None
        seal_of(Bridge).verify(session, bridge)
        seal_of(Transaction).verify(session, parent)
        legs = legs_of(session, bridge_id)
        source = source_of(legs)
        if source is None or parent.from_address is None:
            return None
        ends = [leg for leg in legs if leg.leg == BridgeLegKind.DESTINATION]
        delivered = [leg for leg in ends if leg.status == MovementStatus.CONFIRMED.value]
        failed = sum(leg.status == MovementStatus.FAILED.value for leg in ends)
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
    number, block_hash = bridge.arrival_block, bridge.arrival_block_hash
    if bridge.refund_hash:
        number, block_hash = bridge.refund_block, bridge.refund_block_hash
    return BlockRef(number, block_hash) if number is not None and block_hash else None


def lock(session: Session, bridge_id: str) -> Bridge | None:
    # The no-op update acquires the row lock on PostgreSQL and the write lock on SQLite.
    update_rows(session, Bridge, Bridge.id == bridge_id, steps=Bridge.steps)
    return session.get(Bridge, bridge_id, populate_existing=True)


def source_of(legs: Sequence[Transaction]) -> Transaction | None:
    return next((leg for leg in legs if leg.leg == BridgeLegKind.SOURCE), None)


def is_delivering(legs: Sequence[Transaction]) -> bool:
    delivery_legs = (BridgeLegKind.ACCOUNT, BridgeLegKind.DESTINATION)
    return any(leg.leg in delivery_legs and leg.status == MovementStatus.PENDING.value for leg in legs)


def refund_columns(refund: BridgeArrival | None) -> dict[str, Any]:
    """Return the columns of a refund, if it is known, so that it is not taken for a deposit."""
    if refund is None:
        return {}
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
    session: Session, bridge_id: str, step: BridgeStep, adapter: BridgePort, *, signer: Signer, leg: Intent
) -> tuple[str, SignedTransaction]:
    """Sign a step and record it, and return it with its id; the nonces stay locked until the unit ends."""
    intent = step.draft.intent
    transaction = Transaction(
        id=leg.id, wallet_id=leg.wallet_id, bridge_id=bridge_id, leg=step.leg.value,
        type=TransactionType.TRANSFER.value, kind=MovementKind.LEG.value, chain=step.chain.value,
        from_address=intent.sender, to_address=intent.recipient,
        amount_units=intent.amount.units, currency=intent.amount.token.symbol, cost_nanos=0,
        created_at=clock.now(), checks=0,
    )  # fmt: skip
    signed = lifecycle.record_signed(
        session, transaction, step.draft, lambda nonce: adapter.sign(step, signer, sequence=nonce)
    )
    session.flush()
    return transaction.id, signed


def store_proof(bridge: Bridge, proof: BridgeProof) -> None:
    """Store the proof of a locked bridge; an empty one discards what was stored."""
    bridge.proof = dict(proof)
    if not proof:
        bridge.attested_at = None
    elif bridge.attested_at is None:
        bridge.attested_at = clock.now()


def expected_tokens(session: Session, chain: ChainName, wallet_ids: Sequence[str]) -> Mapping[str, frozenset[Token]]:
    """Return the tokens that bridges may deliver or refund to wallets on a chain."""
    tokens_by_wallet: dict[str, frozenset[Token]] = defaultdict(frozenset)
    is_destination = Bridge.destination_chain == chain.value
    may_return = (Transaction.chain == chain.value) & Bridge.may_return.is_(True)
    rows = session.execute(
        select(Bridge.wallet_id, Transaction.currency)
        .join(Transaction, Transaction.id == Bridge.id)
        .where(is_destination | may_return, in_list(session, Bridge.wallet_id, wallet_ids))
        .where(Bridge.stage.in_([BridgeStage.SOURCE.value, BridgeStage.CROSSING.value]))
    )
    for wallet_id, currency in rows:
        tokens_by_wallet[wallet_id] |= {TOKENS_BY_SYMBOL[currency]}
    return tokens_by_wallet


def recorded_arrivals(
    session: Session, chain: ChainName, wallet_ids: Sequence[str], *, is_recent: Callable[..., ColumnElement[bool]]
) -> Mapping[str, list[OwnTransaction]]:
    """Return the recent arrivals and refunds; `is_recent` compares a block with the wallet's scan state."""
    arrivals: dict[str, list[OwnTransaction]] = defaultdict(list)
    # A bridge has an arrival or a refund, never both.
    tx_hash = func.coalesce(Bridge.refund_hash, Bridge.arrival_hash)
    block = func.coalesce(Bridge.refund_block, Bridge.arrival_block)
    units = func.coalesce(Bridge.refund_units, Bridge.received_units)
    has_arrived = (Bridge.destination_chain == chain.value) & (Bridge.stage == BridgeStage.ARRIVED.value)
    is_refunded = (Transaction.chain == chain.value) & Bridge.refund_hash.is_not(None)
    rows = session.execute(
        select(Bridge.wallet_id, tx_hash, block, units, Bridge.arrival_takes_slot, Transaction.currency)
        .join(Transaction, Transaction.id == Bridge.id)
        .join(DepositScanState, DepositScanState.wallet_id == Bridge.wallet_id)
        .where(in_list(session, Bridge.wallet_id, wallet_ids), tx_hash.is_not(None), has_arrived | is_refunded)
        .where(DepositScanState.chain == chain.value, is_recent(block))
    )
    for wallet_id, found_hash, number, received, uses_nonce, currency in rows:
        out = -(received or 0) if TOKENS_BY_SYMBOL[currency] == native(chain) else 0
        # Our own mint is also listed as a movement, with its fee.
        arrivals[wallet_id].append(OwnTransaction(found_hash, None, out, number, uses_nonce))
    return arrivals


def count_newest_arrivals(chain: ChainName, wallet_id: str, address: str) -> int:
    """Return how many arrivals of bridges used nonces of an address after its newest own transaction."""
    newest_block = select(func.coalesce(func.max(Transaction.block_number), -1)).where(
        Transaction.chain == chain.value, Transaction.from_address == address, Transaction.nonce.is_not(None)
    )
    are_newer = Bridge.arrival_takes_slot.is_(True), Bridge.arrival_block > newest_block.scalar_subquery()
    with read_only_unit() as session:
        of_wallet = Bridge.wallet_id == wallet_id, Bridge.destination_chain == chain.value
        return count(session, Bridge, *of_wallet, *are_newer)
