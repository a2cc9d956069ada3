"""Beat 3: what the chain says about a movement becomes its state, and its hold is spent or given back.

Web requests and workers call the same functions; conditional updates make the second one a no-op.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import select, update

from app.core import clock
from app.core.chains import ChainName, Token, native
from app.core.unit_of_work import unit_of_work
from app.extensions import db
from app.ports import provider
from app.ports.chain import Fate, Outcome, Signed, Watch
from app.spending import service as spending
from app.wallets import lifecycle, open_movements
from app.wallets.lifecycle import Reason, Status
from app.wallets.models import SignedAttempt, Transaction

# The request that made a movement looks after it first; then the workers do.
FIRST_CHECK_AFTER = timedelta(seconds=3)
# A decided movement is looked at until its block is beyond reorganisation.
FINALITY_CHECK_AFTER = timedelta(seconds=5)


class Purpose(StrEnum):
    """What signed bytes are for."""

    PAYMENT = "payment"
    CANCELLATION = "cancellation"


def watch(transaction_id: str, sender: str, signed: Signed, *, receives: Token | None = None) -> Watch:
    """Return what to look for on the chain for bytes that were just signed."""
    return Watch(
        transaction_id, sender, signed.sequence, (signed.tx_hash,), signed.expires_at_height, receives,
        signed.terms,
    )  # fmt: skip


def attempt_row(
    transaction_id: str, chain: ChainName, signed: Signed, purpose: Purpose = Purpose.PAYMENT
) -> SignedAttempt:
    """Make the row that keeps signed bytes."""
    now = clock.now()
    return SignedAttempt(
        transaction_id=transaction_id, chain=chain.value, tx_hash=signed.tx_hash, purpose=purpose.value,
        raw=signed.raw, terms=dict(signed.terms), sent_at=now, created_at=now,
    )  # fmt: skip


def confirmations_needed(chain: ChainName) -> int:
    """Return how deep a movement of ours must be before it counts as done."""
    settings = provider.settings()
    by_chain = {
        ChainName.ETHEREUM: settings.ethereum_confirmations,
        ChainName.BASE: settings.base_confirmations,
    }
    return by_chain.get(chain, 1)


def is_decided(chain: ChainName, outcome: Outcome) -> bool:
    """Tell whether an outcome ends a movement: deep enough in the chain, or certain never to land."""
    return outcome.fate is Fate.VOID or is_landed(outcome, needed=confirmations_needed(chain))


def is_landed(outcome: Outcome, *, needed: int) -> bool:
    """Tell whether a movement is in the chain at the depth that is needed, executed or reverted."""
    return outcome.fate in (Fate.SUCCEEDED, Fate.REVERTED) and outcome.confirmations >= needed


def settle(looked_for: Watch, outcome: Outcome) -> bool:
    """Carry a decided outcome into the record, in one unit; tell whether this call did it.

    That nothing can land any more is only believed of all that was ever signed: while somebody looked for the
    first hash, a replacement may have been signed and have landed. Nor of what was held back meanwhile: after a
    restore, bytes that nobody here knows may have landed.
    """
    transaction_id = looked_for.key
    with unit_of_work() as session:
        transaction = session.get(Transaction, transaction_id)
        if transaction is None or transaction.status != Status.PENDING.value:
            return False
        # Lock order: the wallet's spending account before its transactions.
        spending.lock_account(transaction.wallet_id)
        purposes = {
            attempt.tx_hash: attempt.purpose
            for attempt in session.execute(
                select(SignedAttempt.tx_hash, SignedAttempt.purpose).where(
                    SignedAttempt.transaction_id == transaction_id
                )
            )
        }
        if outcome.fate is Fate.VOID and (
            set(looked_for.tx_hashes) != set(purposes) or _is_held(transaction_id)
        ):
            return False
        purpose = purposes.get(outcome.tx_hash or "")
        target, reason = _end(outcome, purpose, transaction)
        moved = lifecycle.move(
            transaction_id,
            source=Status.PENDING,
            target=target,
            reason=reason,
            changes=_facts(transaction, outcome, target),
        )
        if not moved:
            return False
        if transaction.bridge_id is not None:
            lifecycle.wake(transaction.bridge_id)
        if target is Status.CONFIRMED:
            spending.spend(transaction_id)
        else:
            spending.release(transaction_id)
        return True


def reopen(transaction_id: str, *, reason: Reason = Reason.REORGANISED) -> bool:
    """Put a decided movement back to pending, for what decided it does not stand; its value is held again."""
    with unit_of_work() as session:
        transaction = session.get(Transaction, transaction_id)
        if transaction is None or transaction.status == Status.PENDING.value:
            return False
        spending.lock_account(transaction.wallet_id)
        return _reopen(transaction, Status(transaction.status), reason)


def reopen_failed(transaction_id: str, *, reason: Reason) -> bool:
    """Put a failed movement back to pending, in the current unit, which has locked its account."""
    transaction = db.session.get(Transaction, transaction_id)
    return transaction is not None and _reopen(transaction, Status.FAILED, reason)


def _reopen(transaction: Transaction, source: Status, reason: Reason) -> bool:
    moved = lifecycle.move(
        transaction.id,
        source=source,
        target=Status.PENDING,
        reason=reason,
        changes={
            "block_number": None,
            "block_hash": None,
            "confirmed_at": None,
            "fee_units": None,
            "native_out_units": None,
            "output_units": None,
            "next_check_at": clock.now(),
            "checks": 0,
        },
    )
    if moved:
        spending.unspend(transaction.id)
    if moved and transaction.bridge_id is not None:
        lifecycle.wake(transaction.bridge_id)
    return moved


def note_fee(transaction_id: str, outcome: Outcome) -> bool:
    """Add what a decided movement cost, if the chain can tell now; tell whether that was done."""
    if outcome.fee_units is None or outcome.block is None:
        return False
    with unit_of_work() as session:
        transaction = session.get(Transaction, transaction_id)
        if transaction is None:
            return False
        status = Status(transaction.status)
        # Another block than the recorded one means a reorganisation, after which it is settled anew.
        noted = session.execute(
            update(Transaction)
            .where(
                Transaction.id == transaction_id,
                Transaction.status == status.value,
                Transaction.status != Status.PENDING.value,
                Transaction.block_hash == outcome.block.hash,
            )
            .values(fee_units=outcome.fee_units, native_out_units=_native_out(transaction, outcome, status))
        )
        return bool(noted.rowcount)  # type: ignore[attr-defined]


def finish(transaction_ids: list[str]) -> None:
    """Stop looking at movements whose block can no longer be reorganised away, in one unit."""
    if not transaction_ids:
        return
    with unit_of_work() as session:
        session.execute(
            update(Transaction)
            .where(Transaction.id.in_(transaction_ids), Transaction.status != Status.PENDING.value)
            .values(next_check_at=None)
        )


def note_refusal(transaction_id: str, tx_hash: str, reason: str) -> None:
    """Remember why a node refused signed bytes; the movement stays pending, for the bytes could still land."""
    with unit_of_work() as session:
        session.execute(
            update(SignedAttempt)
            .where(SignedAttempt.transaction_id == transaction_id, SignedAttempt.tx_hash == tx_hash)
            .values(refusal=reason[:40])
        )
        session.execute(
            update(Transaction)
            .where(Transaction.id == transaction_id, Transaction.status == Status.PENDING.value)
            .values(error=reason[:200])
        )


def _is_held(transaction_id: str) -> bool:
    due = db.session.scalar(select(Transaction.next_check_at).where(Transaction.id == transaction_id))
    return due == open_movements.HELD


def _end(outcome: Outcome, purpose: str | None, transaction: Transaction) -> tuple[Status, str | None]:
    if outcome.fate is Fate.VOID:
        return Status.FAILED, Reason.EXPIRED if transaction.nonce is None else Reason.SLOT_TAKEN
    if purpose == Purpose.CANCELLATION.value:
        return Status.FAILED, Reason.CANCELLED
    if outcome.fate is Fate.REVERTED:
        return Status.FAILED, Reason.REVERTED
    return Status.CONFIRMED, None


def _facts(transaction: Transaction, outcome: Outcome, target: Status) -> dict[str, Any]:
    now = clock.now()
    facts: dict[str, Any] = {
        "fee_units": outcome.fee_units,
        "native_out_units": _native_out(transaction, outcome, target),
        "next_check_at": now + FINALITY_CHECK_AFTER if outcome.block is not None else None,
        "checks": 0,
    }
    if outcome.tx_hash is not None:
        facts["tx_hash"] = outcome.tx_hash
    if outcome.block is not None:
        facts |= {"block_number": outcome.block.number, "block_hash": outcome.block.hash}
    if target is Status.CONFIRMED:
        facts["confirmed_at"] = now
        facts["output_units"] = outcome.received_units
    return facts


def _native_out(transaction: Transaction, outcome: Outcome, target: Status) -> int | None:
    """Return what the movement took from the sender's native balance, so that deposits can be told from it.

    None where that is not known, and on chains without nonces: there deposits are told by hashes.
    """
    if outcome.fate is Fate.VOID:
        return 0
    if outcome.fee_units is None or transaction.nonce is None:
        return None
    out = outcome.fee_units
    if target is not Status.CONFIRMED:
        return out
    symbol = native(ChainName(transaction.chain)).symbol
    leaves = transaction.output_currency is not None or transaction.to_address != transaction.from_address
    if transaction.currency == symbol and leaves:
        out += transaction.amount_units
    if transaction.output_currency == symbol:
        received = transaction.output_units if outcome.received_units is None else outcome.received_units
        out -= received or 0
    return out
