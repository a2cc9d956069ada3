"""Bridges and their legs as agents and owners see them. A leg appears only within its bridge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.chains import TOKENS_BY_SYMBOL
from app.core.money import TokenAmount
from app.ports.bridges import BridgeLegKind
from app.wallets.core.lifecycle import MovementStatus
from app.wallets.core.models import Bridge, Transaction
from app.wallets.views.history import explorer_url


@dataclass(frozen=True, slots=True)
class LegView:
    leg: str
    chain: str
    status: str
    tx_hash: str | None
    explorer_url: str | None
    error: str | None
    confirmed_at: datetime | None


@dataclass(frozen=True, slots=True)
class BridgeView:
    """The data of a bridge in addition to its transaction; amounts as decimal strings."""

    destination_chain: str
    route: str
    fee: str
    received_amount: str | None
    refunded_amount: str | None
    legs: tuple[LegView, ...]


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
    by_leg = {row.leg: _of_row(row) for row in rows}
    legs = [by_leg[leg] for leg in (BridgeLegKind.APPROVE, BridgeLegKind.SOURCE) if leg in by_leg]
    is_over = parent.status == MovementStatus.FAILED.value
    if bridge.attested_at is not None or (bridge.terms.get("attested") and not is_over):
        legs.append(
            LegView(
                BridgeLegKind.ATTESTATION, parent.chain,
                MovementStatus.PENDING if bridge.attested_at is None else MovementStatus.CONFIRMED,
                None, None, None, bridge.attested_at,
            )
        )  # fmt: skip
    if BridgeLegKind.ACCOUNT in by_leg:
        legs.append(by_leg[BridgeLegKind.ACCOUNT])
    if not is_over:
        legs.append(_destination(bridge, parent, by_leg.get(BridgeLegKind.DESTINATION)))
    received = bridge.received_units
    return BridgeView(
        destination_chain=bridge.destination_chain,
        route=bridge.route,
        fee=str(TokenAmount(bridge.fee_units if received is None else parent.amount_units - received, token)),
        received_amount=None if received is None else str(TokenAmount(received, token)),
        refunded_amount=None if bridge.refund_units is None else str(TokenAmount(bridge.refund_units, token)),
        legs=tuple(legs),
    )


def _destination(bridge: Bridge, parent: Transaction, ours: LegView | None) -> LegView:
    has_arrived = parent.status == MovementStatus.CONFIRMED.value
    if ours is not None and not has_arrived:
        return ours
    # Once it arrived, the leg is confirmed, whichever transaction delivered it.
    tx_hash = bridge.arrival_hash or (ours.tx_hash if ours is not None else None) if has_arrived else None
    return LegView(
        BridgeLegKind.DESTINATION, bridge.destination_chain,
        MovementStatus.CONFIRMED if has_arrived else MovementStatus.PENDING,
        tx_hash, explorer_url(bridge.destination_chain, tx_hash), None, parent.confirmed_at,
    )  # fmt: skip


def _of_row(row: Transaction) -> LegView:
    return LegView(
        row.leg or "", row.chain, row.status, row.tx_hash, explorer_url(row.chain, row.tx_hash), row.error,
        row.confirmed_at,
    )  # fmt: skip
