"""Settlement: the outcome on the chain becomes the status of a movement, and its hold is spent or released.

Web requests and workers call the same functions; conditional updates make a second call a no-op. Until it is mined, a
movement counts against balances that were read.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeAlias

import structlog
from sqlalchemy import BigInteger, ColumnElement, Row, bindparam, select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import ChainName, Token, native, token_named
from app.db.prepared import PreparedRead
from app.db.tables import count, table_of, update_rows
from app.db.unit_of_work import unit_of_work
from app.ports.chain import Chain, SignedTransaction, TransactionOutcome, TransactionQuery, TransactionStatus
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from app.spending import accounts as spending_accounts
from app.spending import holds as spending_holds
from app.spending.accounts import Account
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import AttemptPurpose, MovementStatus, StatusReason, TransactionType
from app.wallets.core.models import SignedAttempt, Transaction

_log = structlog.get_logger(__name__)
_TransactionRow: TypeAlias = Transaction | Row[*tuple[Any, ...]]
_TRANSACTION = PreparedRead(select(*table_of(Transaction).c).where(Transaction.id == bindparam("of_transaction")))
_ATTEMPTS = PreparedRead(
    select(SignedAttempt.tx_hash, SignedAttempt.purpose).filter_by(transaction_id=bindparam("of_transaction"))
)
_SINCE = bindparam("since", type_=BigInteger)


def query_for(
    transaction_id: str, sender: str, signed: SignedTransaction, *, output_token: Token | None = None
) -> TransactionQuery:
    return TransactionQuery(
        transaction_id, sender, signed.sequence, (signed.tx_hash,), signed.expires_at_height, output_token,
        signed.terms,
    )  # fmt: skip


def is_decided(outcome: TransactionOutcome, *, needed: int) -> bool:
    """Return whether an outcome is decided: sufficiently confirmed, or never able to land."""
    return outcome.status is TransactionStatus.VOID or is_landed(outcome, needed=needed)


def is_landed(outcome: TransactionOutcome, *, needed: int) -> bool:
    """Return whether a movement is in the chain at the depth that is needed, executed or reverted."""
    return (
        outcome.status in (TransactionStatus.SUCCEEDED, TransactionStatus.REVERTED) and outcome.confirmations >= needed
    )


def settle(query: TransactionQuery, outcome: TransactionOutcome) -> bool:
    """Record a decided outcome, in one unit; return whether this call did it.

    `VOID` is accepted only for all hashes ever signed: a replacement may have been signed and have landed since the
    query. It is never accepted for a quarantined movement: after a restore, unknown bytes may have landed.
    """
    transaction_id = query.key
    with unit_of_work() as session:
        transaction = _TRANSACTION.one_or_none(session, {"of_transaction": transaction_id})
        if transaction is None or transaction.status != MovementStatus.PENDING.value:
            return False
        # Lock order: the wallet's spending account before its transactions.
        account = spending_accounts.lock_account(session, transaction.wallet_id)
        purposes: dict[str, str] = dict(_ATTEMPTS.all(session, {"of_transaction": transaction_id}))
        if outcome.status is TransactionStatus.VOID:
            quarantined_at = select(Transaction.quarantined_at).where(Transaction.id == transaction_id)
            if set(query.tx_hashes) != set(purposes) or session.scalar(quarantined_at) is not None:
                return False
        purpose = purposes.get(outcome.tx_hash or "")
        target, reason = _final_status(outcome, purpose, transaction)
        changes = _outcome_changes(transaction, outcome, target)
        moved = move(session, transaction_id, MovementStatus.PENDING, target, reason=reason, account=account, **changes)
        if moved:
            lifecycle.schedule_next_step(session, transaction)
        return moved


def move(
    session: Session,
    transaction_id: str,
    source: MovementStatus,
    target: MovementStatus,
    *,
    reason: str | None,
    account: Account | None = None,
    **changes: Any,
) -> bool:
    """Move a movement to a status, and its hold with it; return whether this call did it.

    The unit must have locked its account, which is `account` if it is known.
    """
    if not lifecycle.TRANSACTIONS.move(session, transaction_id, source, target, reason=reason, **changes):
        return False
    if target is MovementStatus.PENDING:
        spending_holds.restore_hold(session, transaction_id)
    elif target is MovementStatus.CONFIRMED or reason == StatusReason.WRITTEN_OFF:
        spending_holds.spend(session, transaction_id, account=account)
    else:
        spending_holds.release(session, transaction_id)
    return True


def reopen(transaction_id: str) -> bool:
    """Reopen a decided movement because its outcome was reversed: it is pending, and its value is held again."""
    with unit_of_work() as session:
        transaction = session.get(Transaction, transaction_id)
        if transaction is None or transaction.status == MovementStatus.PENDING.value:
            return False
        spending_accounts.lock_account(session, transaction.wallet_id)
        source = MovementStatus(transaction.status)
        return reopen_from(session, transaction, source, reason=StatusReason.REORGANISED)


def reopen_from(session: Session, transaction: Transaction, source: MovementStatus, *, reason: StatusReason) -> bool:
    """Reopen a movement that has this status; return whether this call did it. Its account must be locked."""
    undone = ("block_number", "block_hash", "confirmed_at", "fee_units", "native_out_units", "output_units")
    changes: dict[str, Any] = {**dict.fromkeys(undone), "next_check_at": clock.now(), "checks": 0}
    moved = move(session, transaction.id, source, MovementStatus.PENDING, reason=reason, **changes)
    if moved:
        lifecycle.schedule_next_step(session, transaction)
    return moved


def record_fee(transaction_id: str, outcome: TransactionOutcome) -> bool:
    """Record the fee of a decided movement if the outcome contains it; return whether it was recorded."""
    if outcome.fee_units is None or outcome.block is None:
        return False
    with unit_of_work() as session:
        transaction = session.get(Transaction, transaction_id)
        if transaction is None:
            return False
        status = MovementStatus(transaction.status)
        # A block other than the recorded one means a reorg, after which it is settled again.
        updated = update_rows(
            session, Transaction, Transaction.id == transaction_id, Transaction.status == status.value,
            Transaction.status != MovementStatus.PENDING.value, Transaction.block_hash == outcome.block.hash,
            fee_units=outcome.fee_units, native_out_units=_native_out(transaction, outcome, status),
        )  # fmt: skip
        return updated > 0


def broadcast(chain: Chain, transaction_id: str, signed: SignedTransaction) -> str | None:
    """Broadcast signed bytes; return why they were refused, if they were. A refusal leaves the row pending."""
    try:
        chain.broadcast(signed.raw)
    except Rejected as error:
        _log.warning("broadcast_refused", transaction_id=transaction_id, reason=error.reason)
        record_refusal(transaction_id, signed.tx_hash, error.reason)
        return error.reason
    except (Unreachable, OutcomeUnknown) as error:
        _log.warning("broadcast_uncertain", transaction_id=transaction_id, reason=error.reason)
    return None


def record_refusal(transaction_id: str, tx_hash: str, reason: str | None) -> None:
    """Record why a node refused signed bytes, or that it accepts them. They could still land: it stays pending."""
    with unit_of_work() as session:
        is_refused = SignedAttempt.transaction_id == transaction_id, SignedAttempt.tx_hash == tx_hash
        update_rows(session, SignedAttempt, *is_refused, refusal=reason and reason[:40])
        lifecycle.set_error(session, transaction_id, reason)


def _final_status(
    outcome: TransactionOutcome, purpose: str | None, transaction: _TransactionRow
) -> tuple[MovementStatus, str | None]:
    if outcome.status is TransactionStatus.VOID:
        return (MovementStatus.FAILED, StatusReason.EXPIRED if transaction.nonce is None else StatusReason.SLOT_TAKEN)
    if purpose == AttemptPurpose.CANCELLATION.value:
        return MovementStatus.FAILED, StatusReason.CANCELLED
    if outcome.status is TransactionStatus.REVERTED:
        return MovementStatus.FAILED, StatusReason.REVERTED
    return MovementStatus.CONFIRMED, None


def _outcome_changes(
    transaction: _TransactionRow, outcome: TransactionOutcome, target: MovementStatus
) -> dict[str, Any]:
    now = clock.now()
    changes: dict[str, Any] = {
        "fee_units": outcome.fee_units,
        "native_out_units": _native_out(transaction, outcome, target),
        # A decided movement is checked until its block is final.
        "next_check_at": None
        if outcome.block is None
        else now + lifecycle.finality_recheck_after(ChainName(transaction.chain), 0),
        "checks": 0,
    }
    if outcome.tx_hash is not None:
        changes["tx_hash"] = outcome.tx_hash
    if outcome.block is not None:
        changes |= {"block_number": outcome.block.number, "block_hash": outcome.block.hash}
    if target is MovementStatus.CONFIRMED:
        changes["confirmed_at"] = now
        changes["output_units"] = outcome.received_units
    return changes


def _native_out(transaction: _TransactionRow, outcome: TransactionOutcome, target: MovementStatus) -> int | None:
    """Return what a movement took from the sender's native balance, to distinguish it from deposits.

    None if unknown, and on chains without nonces, on which hashes identify deposits.
    """
    if outcome.status is TransactionStatus.VOID:
        return 0
    if outcome.fee_units is None or transaction.nonce is None:
        return None
    out = outcome.fee_units
    if target is not MovementStatus.CONFIRMED:
        return out
    symbol = native(ChainName(transaction.chain)).symbol
    leaves_wallet = transaction.output_currency is not None or transaction.to_address != transaction.from_address
    if transaction.currency == symbol and leaves_wallet:
        out += transaction.amount_units
    if transaction.output_currency == symbol:
        received = transaction.output_units if outcome.received_units is None else outcome.received_units
        out -= received or 0
    return out


def _unmined_where(condition: ColumnElement[bool]) -> PreparedRead:
    return PreparedRead(
        select(Transaction.currency, Transaction.amount_units, Transaction.fee_cap_units, Transaction.status)
        .filter_by(chain=bindparam("of_chain"), from_address=bindparam("of_sender"))
        .where(condition, Transaction.fee_cap_units.is_not(None))
    )


# Pending rows have no block; this and a range of blocks are ranges of one index.
_IS_PENDING = Transaction.block_number.is_(None) & (Transaction.status == MovementStatus.PENDING.value)
# What has no nonce is submitted by another party, at any time.
_UNMINED_SINCE_NONCE = _unmined_where((Transaction.nonce >= _SINCE) | (Transaction.nonce.is_(None) & _IS_PENDING))
_UNMINED_SINCE_BLOCK = _unmined_where((_IS_PENDING | (Transaction.block_number > _SINCE)) & Transaction.nonce.is_(None))


def outflows(
    session: Session, sender: str, chain: ChainName, *, since_sequence: int | None, since_block: int | None = None
) -> tuple[Mapping[Token, int], int]:
    """Return what unmined movements take from balances that were read at a nonce: tokens, and maximum fees.

    The balances include movements with a lower nonce, and none with this or a higher one, even if those were mined
    since. Without nonces, they exclude what landed after their block and what is pending. A pending payment that
    another party submits counts until it is settled, even if the balances include it already.
    """
    of_sender = {"of_chain": chain.value, "of_sender": sender}
    if since_sequence is not None:
        rows = _UNMINED_SINCE_NONCE.all(session, {**of_sender, "since": since_sequence})
    else:
        rows = _UNMINED_SINCE_BLOCK.all(session, {**of_sender, "since": since_block or 0})
    sent: dict[Token, int] = defaultdict(int)
    fees = 0
    for currency, units, fee_cap, status in rows:
        if status != MovementStatus.FAILED.value:
            sent[token_named(currency)] += units
        fees += fee_cap or 0
    return sent, fees


def count_swaps(
    session: Session, sender: str, chain: ChainName, currency: str, *, since_sequence: int, before_sequence: int
) -> int:
    """Count the swaps of a token with nonces from the chain's count up to a new one."""
    return count(
        session, Transaction, Transaction.chain == chain.value, Transaction.from_address == sender,
        Transaction.type == TransactionType.SWAP.value, Transaction.currency == currency,
        Transaction.nonce >= since_sequence, Transaction.nonce < before_sequence,
    )  # fmt: skip
