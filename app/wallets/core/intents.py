"""Signing intents: what a signer process is about to sign, committed with its hold before it is asked.

The unit that records a movement is not committed when the movement is signed, so that another process cannot see it.
Without a signer process, nothing here is used.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import ChainName
from app.core.money import TokenAmount
from app.db.prepared import PreparedInsert, commit_part
from app.db.tables import delete_rows, in_list, update_rows
from app.db.unit_of_work import CommitUnknownError, read_only_unit, unit_of_work
from app.errors import KeyServiceUnavailable
from app.ports.vault import INTENTS
from app.spending import holds as spending_holds
from app.spending.policy import SpendingRequest
from app.state import app_state
from app.wallets.core.lifecycle import StatusReason
from app.wallets.core.models import SigningIntent, Transaction, Wallet

_log = structlog.get_logger(__name__)
# Longer than any unit lasts, and than a request that waits for its wallet.
_ABANDONED = timedelta(minutes=10)
_KEPT, _COUNTED = timedelta(days=7), timedelta(days=62)
_BATCH = 200
_INSERT = PreparedInsert(SigningIntent, unique=[SigningIntent.id])
_IS_RECORDED = exists().where(Transaction.id == SigningIntent.id)


@dataclass(frozen=True, slots=True)
class Intent:
    """One transaction or authorization; `request` is held for it under `hold_id`, its own id unless one is given."""

    id: str
    wallet_id: str
    chain: ChainName
    kind: str
    recipient: str
    amount: TokenAmount
    request: SpendingRequest | None = None
    hold_id: str | None = None
    minimum_units: int | None = None


@contextmanager
def recorded(*intents: Intent) -> Iterator[None]:
    """Commit what the block is about to sign, outside of a unit; release what was held for it if it fails.

    Raises: as `recording`.
    """
    if not _are_needed(intents):
        yield
        return
    with unit_of_work() as session:
        _record(session, intents)
    with _withdrawn_on_failure(intents):
        yield


@contextmanager
def recording(*intents: Intent) -> Iterator[Session]:
    """Open the unit that signs and records movements; where a signer process signs, their intents are committed first.

    What was held for them is released if the unit fails.

    Raises: what `spending.holds.hold` raises; KeyServiceUnavailable before anything is held.
    """
    if not _are_needed(intents):
        with unit_of_work() as session:
            yield session
        return
    with _withdrawn_on_failure(intents), unit_of_work() as session:
        held = _record(session, intents)
        commit_part(session)
        committed = spending_holds.COMMITTED.set(held)
        try:
            yield session
        finally:
            spending_holds.COMMITTED.reset(committed)


def _are_needed(intents: Sequence[Intent]) -> bool:
    """Return whether a signer process signs; it has to respond before anything is held for it."""
    signer = app_state().ports.signer
    if signer is None or not intents:
        return False
    signer.assert_reachable()
    return True


def _record(session: Session, intents: Sequence[Intent]) -> Collection[str]:
    """Record intents, and hold what they need; return the references of the holds."""
    held = set()
    for each in intents:
        if each.request is not None:
            reference = each.hold_id or each.id
            spending_holds.hold(session, each.wallet_id, each.request, reference=reference)
            held.add(reference)
        row = {
            "id": each.id, "wallet_id": each.wallet_id, "chain": each.chain.value, "kind": each.kind,
            "recipient": each.recipient, "amount_units": each.amount.units, "currency": each.amount.token.symbol,
            "minimum_units": each.minimum_units, "hold_id": each.hold_id or each.id, "created_at": clock.now(),
        }  # fmt: skip
        _INSERT.execute(session, row)
    return held


@contextmanager
def _withdrawn_on_failure(intents: Sequence[Intent]) -> Iterator[None]:
    ids = [each.id for each in intents]
    named = INTENTS.set(ids)
    try:
        yield
    except CommitUnknownError:
        raise  # a worker decides, once it is certain whether the movement was recorded
    except Exception:
        try:
            _withdraw(ids)
        except KeyServiceUnavailable:
            _log.warning("intents_left_to_workers", intents=ids)
        raise
    finally:
        INTENTS.reset(named)


def settle_abandoned(now: datetime) -> None:
    """Withdraw intents whose process died before it recorded a movement, and delete what has ended. For a worker."""
    if app_state().ports.signer is None:
        return
    with read_only_unit() as session:
        is_abandoned = SigningIntent.created_at < now - _ABANDONED, SigningIntent.closed_at.is_(None), ~_IS_RECORDED
        abandoned = session.scalars(select(SigningIntent.id).where(*is_abandoned).limit(_BATCH)).all()
    _withdraw(abandoned)
    # Authorizations expire. Another transaction, which is final, has used the nonce; one that lost its nonce to unknown
    # bytes may have lost it to these. After two months, no limit counts it.
    has_nonce = exists().where(
        Wallet.id == SigningIntent.wallet_id, Transaction.chain == SigningIntent.chain,
        Transaction.from_address == Wallet.evm_address, Transaction.nonce == SigningIntent.nonce,
        Transaction.next_check_at.is_(None), Transaction.error.is_distinct_from(StatusReason.SLOT_TAKEN.value),
    )  # fmt: skip
    is_void = or_(SigningIntent.valid_until < now, SigningIntent.created_at < now - _COUNTED, has_nonce)
    with unit_of_work() as session:
        _end(session, SigningIntent.closed_at.is_not(None), ~_IS_RECORDED, is_void)
        has_ended = exists().where(Transaction.id == SigningIntent.id, Transaction.next_check_at.is_(None))
        delete_rows(session, SigningIntent, SigningIntent.created_at < now - _KEPT, has_ended)


def find_unrecorded(since: datetime) -> list[str]:
    """Return one sentence for each signature that has no movement, for the audit. Raises: KeyServiceUnavailable."""
    if (signer := app_state().ports.signer) is None:
        return []
    signed = signer.signed_since(since)
    with read_only_unit() as session:
        wallets = session.scalars(select(Wallet.id).where(in_list(session, Wallet.id, list({*signed.values()})))).all()
        recorded = select(Transaction.id).where(in_list(session, Transaction.id, list(signed)))
        is_open = SigningIntent.closed_at.is_(None)
        known = {*session.scalars(recorded), *session.scalars(select(SigningIntent.id).where(is_open))}
    return [
        f"the signer process signed {each} for wallet {wallet_id}, and no movement was recorded"
        for each, wallet_id in signed.items()
        if each not in known and wallet_id in wallets
    ]


def _withdraw(ids: Sequence[str]) -> None:
    """Have the signer sign nothing more for intents without a movement, and release what it had not signed."""
    with read_only_unit() as session:
        is_open = in_list(session, SigningIntent.id, list(ids)), ~_IS_RECORDED
        rows = session.scalars(select(SigningIntent.id).where(*is_open)).all()
    signer = app_state().ports.signer
    if not rows or signer is None:
        return
    signed = signer.withdraw(rows)
    with unit_of_work() as session:
        for each, validity in signed.items():
            _log.error("signed_without_movement", intent=each, **validity)
            nonce, until = validity["nonce"], validity["valid_until"]
            is_signed, now = SigningIntent.id == each, clock.now()
            update_rows(session, SigningIntent, is_signed, closed_at=now, nonce=nonce, valid_until=until)
        _end(session, in_list(session, SigningIntent.id, [each for each in rows if each not in signed]))


def _end(session: Session, *conditions: ColumnElement[bool]) -> None:
    """Delete intents that nothing can carry out any more, and release the holds that no other intent shares."""
    rows = session.scalars(select(SigningIntent).where(*conditions).order_by(SigningIntent.wallet_id)).all()
    for row in rows:
        others = exists().where(SigningIntent.hold_id == row.hold_id, SigningIntent.id != row.id)
        if not session.scalar(select(others)):
            spending_holds.release(session, row.hold_id)
        delete_rows(session, SigningIntent, SigningIntent.id == row.id)
