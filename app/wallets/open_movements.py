"""What is open on a chain, as the database says it: the movements that workers have to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from sqlalchemy import func, select

from app.core.chains import TOKENS_BY_SYMBOL, ChainName
from app.core.money import TokenAmount
from app.core.unit_of_work import reading
from app.extensions import db
from app.ports.chain import Attempt, BlockRef, Intent, Terms, Watch
from app.wallets.lifecycle import Reason, Status
from app.wallets.models import SignedAttempt, Transaction

_log = structlog.get_logger(__name__)

BATCH = 1000
HELD = datetime(9999, 1, 1, tzinfo=UTC)
"""When a movement is looked at that no worker shall settle: it counts among what is pending, and is never due."""


@dataclass(frozen=True, slots=True)
class SignedBytes:
    """Bytes that were signed for a movement, and what became of them so far."""

    id: int
    tx_hash: str
    purpose: str
    raw: bytes
    terms: Terms
    refusal: str | None
    seen_at_block: int | None
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class OpenMovement:
    """A movement that is not at its end, with everything that was ever signed for it, oldest first."""

    id: str
    wallet_id: str
    chain: ChainName
    sender: str
    status: Status
    nonce: int | None
    checks: int
    block: BlockRef | None
    fee_units: int | None
    request_id: str | None
    watch: Watch
    attempts: tuple[SignedBytes, ...]
    intent: Intent

    @property
    def lacks_fee(self) -> bool:
        """Tell whether it landed in a block and the chain could not tell yet what that cost."""
        return self.status is not Status.PENDING and self.block is not None and self.fee_units is None

    @property
    def expires(self) -> bool:
        """Tell whether its bytes are void some time after they were signed."""
        return self.watch.expires_at_height is not None

    @property
    def latest(self) -> SignedBytes:
        """Return the attempt that was signed last."""
        return self.attempts[-1]

    def attempt(self) -> Attempt:
        """Return the latest attempt as the chain's adapter takes it."""
        row = self.latest
        return Attempt(self.intent, row.tx_hash, row.raw, self.nonce, row.terms)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row that says what this version does not understand."""

    id: str
    checks: int


def due(chain: ChainName, now: datetime) -> list[OpenMovement | Unreadable]:
    """Return what is to be looked at, the longest due first."""
    with reading() as session:
        rows = session.scalars(
            select(Transaction)
            .where(Transaction.chain == chain.value, Transaction.next_check_at <= now)
            .order_by(Transaction.next_check_at)
            .limit(BATCH)
        ).all()
        return _with_attempts(rows)


def pending_of(sender: str, chain: ChainName) -> list[OpenMovement]:
    """Return what a sender has pending on a chain without nonces, the oldest first."""
    with reading() as session:
        rows = session.scalars(
            select(Transaction)
            .where(
                Transaction.chain == chain.value,
                Transaction.from_address == sender,
                Transaction.block_number.is_(None),
                Transaction.status == Status.PENDING.value,
                Transaction.nonce.is_(None),
                Transaction.fee_cap_units.is_not(None),
            )
            .order_by(Transaction.created_at)
            .limit(BATCH)
        ).all()
        return [entry for entry in _with_attempts(rows) if isinstance(entry, OpenMovement)]


def undone_by_others(chain: ChainName) -> list[OpenMovement]:
    """Return what is pending in a slot, or failed because something unknown had used it: for an operator, not fast."""
    lost = (Transaction.status == Status.FAILED.value) & (Transaction.error == Reason.SLOT_TAKEN.value)
    with reading() as session:
        rows = session.scalars(
            select(Transaction)
            .where(
                Transaction.chain == chain.value,
                Transaction.nonce.is_not(None),
                lost | (Transaction.status == Status.PENDING.value),
            )
            .order_by(Transaction.from_address, Transaction.nonce)
        ).all()
        return [entry for entry in _with_attempts(rows) if isinstance(entry, OpenMovement)]


def lowest_nonces(chain: ChainName, senders: Sequence[str]) -> dict[str, int]:
    """Return the lowest slot of each sender that is pending, but for those that are held: theirs are used up."""
    if not senders:
        return {}
    with reading() as session:
        rows = session.execute(
            select(Transaction.from_address, func.min(Transaction.nonce))
            .where(
                Transaction.chain == chain.value,
                Transaction.from_address.in_(sorted(set(senders))),
                Transaction.status == Status.PENDING.value,
                Transaction.nonce.is_not(None),
                Transaction.next_check_at.is_distinct_from(HELD),
            )
            .group_by(Transaction.from_address)
        )
        return {str(sender): lowest for sender, lowest in rows if lowest is not None}


def _with_attempts(rows: Sequence[Transaction]) -> list[OpenMovement | Unreadable]:
    attempts: dict[str, list[SignedBytes]] = {row.id: [] for row in rows}
    signed = (
        select(SignedAttempt)
        .where(SignedAttempt.transaction_id.in_(list(attempts)))
        .order_by(SignedAttempt.id)
    )
    for attempt in db.session.scalars(signed):
        attempts[attempt.transaction_id].append(
            SignedBytes(
                attempt.id, attempt.tx_hash, attempt.purpose, attempt.raw, attempt.terms,
                attempt.refusal, attempt.seen_at_block, attempt.sent_at,
            )
        )  # fmt: skip
    return [_movement_or_unreadable(row, attempts[row.id]) for row in rows]


def _movement_or_unreadable(row: Transaction, attempts: list[SignedBytes]) -> OpenMovement | Unreadable:
    try:
        return _movement(row, attempts)
    except (LookupError, ValueError):
        _log.exception("movement_unreadable", transaction_id=row.id, chain=row.chain)
        return Unreadable(row.id, row.checks)


def _movement(row: Transaction, attempts: list[SignedBytes]) -> OpenMovement:
    if not attempts:
        raise LookupError("nothing was signed for it")
    sender = row.from_address or ""
    block = (
        BlockRef(row.block_number, row.block_hash)
        if row.block_number is not None and row.block_hash
        else None
    )
    return OpenMovement(
        id=row.id, wallet_id=row.wallet_id, chain=ChainName(row.chain), sender=sender,
        status=Status(row.status), nonce=row.nonce, checks=row.checks, block=block, fee_units=row.fee_units,
        request_id=row.request_id,
        watch=Watch(
            row.id, sender, row.nonce, tuple(a.tx_hash for a in attempts), row.expires_at_height,
            TOKENS_BY_SYMBOL[row.output_currency] if row.output_currency else None,
            attempts[-1].terms,
        ),
        attempts=tuple(attempts),
        intent=Intent(sender, row.to_address, TokenAmount(row.amount_units, TOKENS_BY_SYMBOL[row.currency])),
    )  # fmt: skip
