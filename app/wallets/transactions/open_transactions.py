"""Queries for the transactions that workers have to check."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import structlog
from sqlalchemy import ColumnElement, Row, bindparam, case, exists, func, select

from app.authenticated import RowChanged, seal_of
from app.core.chains import ChainName, token_named
from app.core.money import TokenAmount
from app.db.tables import table_of
from app.db.unit_of_work import read_only_unit
from app.ports.chain import BlockRef, StoredTransaction, TransactionQuery, TransferIntent
from app.wallets.core.lifecycle import AttemptPurpose, MovementStatus, StatusReason
from app.wallets.core.models import SignedAttempt, Transaction

_log = structlog.get_logger(__name__)

BATCH = 1000


_ATTEMPTS = table_of(SignedAttempt)
# What others submit is never sent from here, and holds all that the seller stated.
_RAW = case(
    (_ATTEMPTS.c.purpose == AttemptPurpose.AUTHORIZATION.value, bindparam("not_loaded", b"")), else_=_ATTEMPTS.c.raw
)
_ATTEMPT = [_RAW.label("raw") if column.name == "raw" else column for column in _ATTEMPTS.c]

SignedBytes: TypeAlias = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class OpenMovement:
    """A movement that is not final, with all bytes that were signed for it, oldest first."""

    id: str
    wallet_id: str
    chain: ChainName
    sender: str
    status: MovementStatus
    nonce: int | None
    checks: int
    block: BlockRef | None
    fee_units: int | None
    request_id: str | None
    query: TransactionQuery
    attempts: tuple[SignedBytes, ...]
    intent: TransferIntent
    kind: str | None = None
    max_fee_nanos: int | None = None

    @property
    def lacks_fee(self) -> bool:
        """Return whether it landed in a block and its fee is unknown."""
        return self.status is not MovementStatus.PENDING and self.block is not None and self.fee_units is None

    @property
    def expires_at_height(self) -> int | None:
        return self.query.expires_at_height

    @property
    def latest(self) -> SignedBytes:
        return self.attempts[-1]

    def attempt(self) -> StoredTransaction:
        row = self.latest
        return StoredTransaction(self.intent, row.tx_hash, row.raw, self.nonce, row.terms)


def has_due(chain: ChainName, now: datetime) -> ColumnElement[bool]:
    return exists().where(Transaction.chain == chain.value, *_is_due(now))


def due(chain: ChainName, now: datetime) -> tuple[list[OpenMovement], list[Transaction]]:
    """Return movements that are due for a check, the longest due first, and the rows of those that cannot be read."""
    return _load(chain, *_is_due(now), order=(Transaction.next_check_at,), limit=BATCH)


def pending_of(sender: str, chain: ChainName) -> list[OpenMovement]:
    """Return the pending movements of a sender on a chain without nonces, oldest first."""
    found, _unreadable = _load(
        chain, Transaction.from_address == sender, Transaction.block_number.is_(None),
        Transaction.status == MovementStatus.PENDING.value, Transaction.nonce.is_(None),
        Transaction.fee_cap_units.is_not(None), order=(Transaction.created_at,), limit=BATCH,
    )  # fmt: skip
    return found


def query_of(transaction_id: str, chain: ChainName) -> TransactionQuery | None:
    found, _unreadable = _load(chain, Transaction.id == transaction_id, order=(Transaction.id,))
    return found[0].query if found else None


def possibly_displaced(chain: ChainName) -> list[OpenMovement]:
    """Return movements that are pending with a nonce, or failed because unknown bytes used it; slow, for operators."""
    lost_slot = Transaction.error == StatusReason.SLOT_TAKEN.value
    is_displaced = lost_slot & (Transaction.status == MovementStatus.FAILED.value)
    found, _unreadable = _load(
        chain,
        Transaction.nonce.is_not(None),
        is_displaced | (Transaction.status == MovementStatus.PENDING.value),
        order=(Transaction.from_address, Transaction.nonce),
    )
    return found


def lowest_nonces(chain: ChainName, senders: Sequence[str]) -> dict[str, int]:
    """Return the lowest pending nonce of each sender, except quarantined ones, which are used."""
    if not senders:
        return {}
    with read_only_unit() as session:
        rows = session.execute(
            select(Transaction.from_address, func.min(Transaction.nonce))
            .where(Transaction.chain == chain.value, Transaction.from_address.in_(sorted(set(senders))))
            .where(Transaction.status == MovementStatus.PENDING.value, Transaction.quarantined_at.is_(None))
            .group_by(Transaction.from_address)
        )
        return {str(sender): lowest for sender, lowest in rows if lowest is not None}


def _is_due(now: datetime) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return Transaction.next_check_at <= now, Transaction.quarantined_at.is_(None)


def _load(
    chain: ChainName, *conditions: ColumnElement[bool], order: tuple[Any, ...], limit: int | None = None
) -> tuple[list[OpenMovement], list[Transaction]]:
    found: list[OpenMovement] = []
    unreadable: list[Transaction] = []
    with read_only_unit() as session:
        rows = session.scalars(
            select(Transaction).where(Transaction.chain == chain.value, *conditions).order_by(*order).limit(limit)
        ).all()
        attempts: dict[str, list[SignedBytes]] = {row.id: [] for row in rows}
        signed = select(*_ATTEMPT).where(_ATTEMPTS.c.transaction_id.in_(list(attempts))).order_by(_ATTEMPTS.c.id)
        for attempt in session.execute(signed):
            attempts[attempt.transaction_id].append(attempt)
        for row in rows:
            try:
                # They may be signed again as they are here.
                seal_of(Transaction).verify(session, row)
                for attempt in attempts[row.id]:
                    seal_of(SignedAttempt).verify(session, attempt)
                found.append(_movement(row, attempts[row.id]))
            except (LookupError, ValueError, RowChanged):
                _log.exception("movement_unreadable", transaction_id=row.id, chain=row.chain)
                unreadable.append(row)
    return found, unreadable


def _movement(row: Transaction, attempts: list[SignedBytes]) -> OpenMovement:
    if not attempts:
        raise LookupError("no signed attempt")
    sender = row.from_address or ""
    block = BlockRef(row.block_number, row.block_hash) if row.block_number is not None and row.block_hash else None
    return OpenMovement(
        id=row.id, wallet_id=row.wallet_id, chain=ChainName(row.chain), sender=sender,
        status=MovementStatus(row.status), nonce=row.nonce, checks=row.checks, block=block, fee_units=row.fee_units,
        request_id=row.request_id,
        query=TransactionQuery(
            row.id, sender, row.nonce, tuple(a.tx_hash for a in attempts), row.expires_at_height,
            token_named(row.output_currency) if row.output_currency else None,
            attempts[-1].terms,
        ),
        attempts=tuple(attempts),
        intent=TransferIntent(sender, row.to_address, TokenAmount(row.amount_units, token_named(row.currency))),
        kind=row.kind, max_fee_nanos=row.max_fee_nanos,
    )  # fmt: skip
