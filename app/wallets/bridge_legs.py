"""The legs of bridges: transactions of their own, recorded like every movement's, and shown with their bridge only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from app.core import clock
from app.core.chains import TOKENS_BY_SYMBOL, ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.extensions import db
from app.ports import provider
from app.ports.bridges import Bridge as BridgePort
from app.ports.bridges import Leg, Step
from app.ports.chain import Signed
from app.ports.vault import Signer
from app.wallets import lifecycle, nonces, settlement
from app.wallets.lifecycle import Kind, Status, TransactionType
from app.wallets.models import Bridge, Transaction


@dataclass(frozen=True, slots=True)
class Sent:
    """A leg that was signed and recorded, to be sent once that is committed."""

    transaction_id: str
    chain: ChainName
    sender: str
    signed: Signed


@dataclass(frozen=True, slots=True)
class LegView:
    """A leg as its wallet's owner sees it."""

    leg: str
    chain: str
    status: str
    tx_hash: str | None
    explorer_url: str | None
    error: str | None
    confirmed_at: datetime | None


@dataclass(frozen=True, slots=True)
class BridgeView:
    """What a bridge is beyond its transaction; amounts as decimal strings."""

    destination_chain: str
    route: str
    fee: str
    received_amount: str | None
    refunded_amount: str | None
    legs: tuple[LegView, ...]


def record(bridge_id: str, wallet_id: str, step: Step, adapter: BridgePort, signer: Signer) -> Sent:
    """Sign a step and record it, in the current unit; the nonce stays locked until the unit ends."""
    draft, now, transaction_id = step.draft, clock.now(), new_id()
    intent, slot = draft.intent, None
    if draft.sequence is not None:
        slot = nonces.allocate(step.chain, intent.sender, floor=draft.sequence)
    signed = adapter.sign(step, signer, sequence=slot)
    transaction = Transaction(
        id=transaction_id, wallet_id=wallet_id, bridge_id=bridge_id, leg=step.leg.value,
        type=TransactionType.TRANSFER.value, kind=Kind.BRIDGE_LEG.value, chain=step.chain.value,
        from_address=intent.sender, to_address=intent.recipient,
        amount_units=intent.amount.units, currency=intent.amount.token.symbol, cost_nanos=0,
        tx_hash=signed.tx_hash, nonce=signed.sequence, expires_at_height=signed.expires_at_height,
        fee_cap_units=draft.fee_units, created_at=now, next_check_at=now + settlement.FIRST_CHECK_AFTER,
        checks=0,
    )  # fmt: skip
    attempt = settlement.attempt_row(transaction_id, step.chain, signed)
    lifecycle.record(transaction, status=Status.PENDING, attempt=attempt)
    db.session.flush()
    return Sent(transaction_id, step.chain, intent.sender, signed)


def of(bridge_id: str) -> list[Transaction]:
    """Return the transactions of a bridge, the oldest first; in the current unit."""
    return _by_bridge([bridge_id])[bridge_id]


def views(transactions: Sequence[Transaction]) -> Mapping[str, BridgeView]:
    """Return what bridges are beyond their transactions, by id; two queries, in the current unit."""
    wanted = {row.id: row for row in transactions}
    if not wanted:
        return {}
    found = db.session.scalars(select(Bridge).where(Bridge.id.in_(list(wanted)))).all()
    legs = _by_bridge(list(wanted))
    return {bridge.id: _view(bridge, wanted[bridge.id], legs[bridge.id]) for bridge in found}


def _by_bridge(bridge_ids: Sequence[str]) -> Mapping[str, list[Transaction]]:
    legs: dict[str, list[Transaction]] = defaultdict(list)
    rows = db.session.scalars(
        select(Transaction)
        .where(Transaction.bridge_id.in_(bridge_ids))
        .order_by(Transaction.created_at, Transaction.id)
    )
    for row in rows:
        legs[row.bridge_id or ""].append(row)
    return legs


def _view(bridge: Bridge, parent: Transaction, rows: Sequence[Transaction]) -> BridgeView:
    token = TOKENS_BY_SYMBOL[parent.currency]
    # A leg that failed may have been made again: the last one counts.
    by_leg = {row.leg: _of_row(row) for row in rows}
    legs = [by_leg[leg] for leg in (Leg.APPROVE, Leg.SOURCE) if leg in by_leg]
    is_over = parent.status == Status.FAILED.value
    if bridge.attested_at is not None or (bridge.terms.get("attested") and not is_over):
        legs.append(
            LegView(
                Leg.ATTESTATION, parent.chain,
                Status.PENDING if bridge.attested_at is None else Status.CONFIRMED,
                None, None, None, bridge.attested_at,
            )
        )  # fmt: skip
    if Leg.ACCOUNT in by_leg:
        legs.append(by_leg[Leg.ACCOUNT])
    if not is_over:
        legs.append(_destination(bridge, parent, by_leg.get(Leg.DESTINATION)))
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
    has_arrived = parent.status == Status.CONFIRMED.value
    if ours is not None and not has_arrived:
        return ours
    # What has arrived has, whichever transaction brought it, and whether ours is settled yet or not.
    tx_hash = bridge.arrival_hash or (ours.tx_hash if ours is not None else None) if has_arrived else None
    return LegView(
        Leg.DESTINATION, bridge.destination_chain,
        Status.CONFIRMED if has_arrived else Status.PENDING,
        tx_hash, _explorer_url(bridge.destination_chain, tx_hash), None, parent.confirmed_at,
    )  # fmt: skip


def _of_row(row: Transaction) -> LegView:
    return LegView(
        row.leg or "", row.chain, row.status, row.tx_hash, _explorer_url(row.chain, row.tx_hash), row.error,
        row.confirmed_at,
    )  # fmt: skip


def _explorer_url(chain: str, tx_hash: str | None) -> str | None:
    served = provider.current().chains.get(ChainName(chain))
    return served.explorer_url(tx_hash) if served is not None and tx_hash else None
