"""Events of transactions: each status that an agent sees, as it is stored."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import TOKENS_BY_SYMBOL
from app.core.money import TokenAmount
from app.core.movement_kinds import MovementKind
from app.db.statements import table_of
from app.events.outbox import OutboxOf
from app.events.types import EventType
from app.wallets.core.models import Transaction, Wallet

COLUMNS = (
    Transaction.id, Transaction.wallet_id, Transaction.type, Transaction.kind, Transaction.chain,
    Transaction.to_address, Transaction.amount_units, Transaction.currency, Transaction.tx_hash,
    Transaction.output_currency, Transaction.output_units, Transaction.created_at, Transaction.confirmed_at,
)  # fmt: skip
"""What an event is made of."""
_GROUPS = {"funding": "funding", "payment": "payment"}
"""The groups of events by the type of transaction; all others are `transaction`."""
_UNANNOUNCED_TYPES = {"trading_query"}
_UNANNOUNCED_KINDS = {MovementKind.SETTLEMENT, MovementKind.LEG}
"""What is no movement of an agent: queries, submissions by the service's own key, and single legs of a movement."""
_WALLETS = table_of(Wallet)
_OUTBOX = OutboxOf(select(_WALLETS.c.agent_id).where(_WALLETS.c.id == bindparam("of_wallet")).scalar_subquery())


def announce(session: Session, row: Any, status: str, reason: str | None) -> None:
    """Record the event of a status, unless none is meant for agents."""
    if row.type in _UNANNOUNCED_TYPES or row.kind in _UNANNOUNCED_KINDS:
        return
    _OUTBOX.record(
        session,
        EventType(f"{_GROUPS.get(row.type, 'transaction')}.{status}"),
        object_id=row.id,
        data=_data(row, status, reason),
        parameters={"of_wallet": row.wallet_id},
    )


def _data(row: Any, status: str, reason: str | None) -> dict[str, Any]:
    data = {
        "transaction_id": row.id,
        "wallet_id": row.wallet_id,
        "type": row.type,
        "kind": row.kind,
        "chain": row.chain,
        "status": status,
        "reason": reason,
        "to": row.to_address,
        "amount": _amount(row.amount_units, row.currency),
        "currency": row.currency,
        "tx_hash": row.tx_hash,
        "created_at": clock.isoformat(row.created_at),
        "confirmed_at": None if row.confirmed_at is None else clock.isoformat(row.confirmed_at),
    }
    if row.output_currency is not None:
        received = None if row.output_units is None else _amount(row.output_units, row.output_currency)
        data |= {"output_currency": row.output_currency, "output_amount": received}
    return data


def _amount(units: int, currency: str) -> str:
    return str(TokenAmount(units, TOKENS_BY_SYMBOL[currency]))
