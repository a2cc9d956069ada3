"""How far a bridge is, as the database says it: read for a look, and locked for a move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import update

from app.core.chains import TOKENS_BY_SYMBOL, ChainName
from app.core.money import TokenAmount
from app.core.unit_of_work import reading
from app.extensions import db
from app.ports.bridges import Arrival, Ask, Crossing, Leg
from app.ports.chain import BlockRef
from app.wallets import bridge_legs
from app.wallets.lifecycle import Status
from app.wallets.models import Bridge, Transaction


class Stage(StrEnum):
    """How far a bridge is."""

    SOURCE = "source"
    CROSSING = "crossing"
    ARRIVED = "arrived"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Refund:
    """By which payment on its source chain it came back, and in which block."""

    tx_hash: str
    block: BlockRef


@dataclass(frozen=True, slots=True)
class State:
    """A bridge as it was read; legs by their newest transaction."""

    id: str
    wallet_id: str
    stage: Stage
    adapter: str
    crossing: Crossing
    source_status: Status
    is_delivering: bool
    arrival_block: BlockRef | None
    refund: Refund | None


def read(bridge_id: str) -> State | None:
    """Return a bridge as it stands; None when it is gone."""
    with reading() as session:
        bridge, parent = session.get(Bridge, bridge_id), session.get(Transaction, bridge_id)
        if bridge is None or parent is None:
            return None
        legs = bridge_legs.of(bridge_id)
        source = source_of(legs)
        if source is None or parent.from_address is None:
            return None
        delivered = [
            leg for leg in legs
            if leg.leg == Leg.DESTINATION and leg.status == Status.CONFIRMED.value
        ]  # fmt: skip
        ask = Ask(
            ChainName(parent.chain), ChainName(bridge.destination_chain), parent.from_address,
            parent.to_address, TokenAmount(parent.amount_units, TOKENS_BY_SYMBOL[parent.currency]),
        )  # fmt: skip
        block = None
        if bridge.arrival_block is not None and bridge.arrival_block_hash:
            block = BlockRef(bridge.arrival_block, bridge.arrival_block_hash)
        refund = None
        if bridge.refund_hash and bridge.refund_block is not None and bridge.refund_block_hash:
            refund = Refund(bridge.refund_hash, BlockRef(bridge.refund_block, bridge.refund_block_hash))
        return State(
            id=bridge_id, wallet_id=bridge.wallet_id, stage=Stage(bridge.stage), adapter=bridge.adapter,
            crossing=Crossing(
                ask, bridge.terms, source.tx_hash or "", bridge.proof,
                delivered[-1].tx_hash if delivered else None,
            ),
            source_status=Status(source.status), is_delivering=is_delivering(legs), arrival_block=block,
            refund=refund,
        )  # fmt: skip


def locked(bridge_id: str) -> Bridge | None:
    """Lock a bridge and return it, in the current unit."""
    session = db.session
    # The touch takes the row lock on PostgreSQL and the write lock on SQLite.
    session.execute(
        update(Bridge)
        .where(Bridge.id == bridge_id)
        .values(steps=Bridge.steps)
        .execution_options(synchronize_session=False)
    )
    return session.get(Bridge, bridge_id, populate_existing=True)


def source_of(legs: Sequence[Transaction]) -> Transaction | None:
    """Return the transaction by which it leaves its source chain."""
    return next((leg for leg in legs if leg.leg == Leg.SOURCE), None)


def is_delivering(legs: Sequence[Transaction]) -> bool:
    """Tell whether a transaction of ours is under way on the destination chain."""
    ours = (Leg.ACCOUNT, Leg.DESTINATION)
    return any(leg.leg in ours and leg.status == Status.PENDING.value for leg in legs)


def forget_refund(bridge: Bridge) -> None:
    """Take back what `note_refund` kept."""
    bridge.refund_hash = bridge.refund_block = bridge.refund_block_hash = bridge.refund_units = None


def note_refund(bridge: Bridge, came_back: Arrival) -> None:
    """Keep what came back, which is no deposit, with a locked bridge."""
    bridge.refund_hash, bridge.refund_units = came_back.tx_hash, came_back.units
    if came_back.block is not None:
        bridge.refund_block, bridge.refund_block_hash = came_back.block.number, came_back.block.hash
