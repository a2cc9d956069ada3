"""Claims of movements that are in no block yet on balances that were read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from sqlalchemy import BigInteger, ColumnElement, and_, bindparam, or_, select
from sqlalchemy.orm import Session

from app.core.chains import TOKENS_BY_SYMBOL, ChainName, Token
from app.db.prepared import PreparedRead
from app.db.statements import count
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import Transaction

_SINCE = bindparam("since", type_=BigInteger)


def _unmined_where(condition: ColumnElement[bool]) -> PreparedRead:
    return PreparedRead(
        select(Transaction.currency, Transaction.amount_units, Transaction.fee_cap_units, Transaction.status).where(
            Transaction.chain == bindparam("of_chain"),
            Transaction.from_address == bindparam("of_sender"),
            condition,
            Transaction.fee_cap_units.is_not(None),
        )
    )


_UNMINED_SINCE_NONCE = _unmined_where(
    # What has no nonce is submitted by another party, at any time.
    (Transaction.nonce >= _SINCE)
    | and_(
        Transaction.nonce.is_(None),
        Transaction.block_number.is_(None),
        Transaction.status == MovementStatus.PENDING.value,
    )
)
_UNMINED_SINCE_BLOCK = _unmined_where(
    or_(
        # Pending rows have no block; both conditions are ranges of one index.
        Transaction.block_number.is_(None) & (Transaction.status == MovementStatus.PENDING.value),
        Transaction.block_number > _SINCE,
    )
    & Transaction.nonce.is_(None)
)


def outflows(
    session: Session,
    sender: str,
    chain: ChainName,
    *,
    since_sequence: int | None,
    since_block: int | None = None,
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
            sent[TOKENS_BY_SYMBOL[currency]] += units
        fees += fee_cap or 0
    return sent, fees


def count_swaps(
    session: Session,
    sender: str,
    chain: ChainName,
    currency: str,
    *,
    since_sequence: int,
    before_sequence: int,
) -> int:
    """Count the swaps of a token with nonces from the chain's count up to a new one."""
    return count(
        session,
        Transaction,
        Transaction.chain == chain.value,
        Transaction.from_address == sender,
        Transaction.type == TransactionType.SWAP.value,
        Transaction.currency == currency,
        Transaction.nonce >= since_sequence,
        Transaction.nonce < before_sequence,
    )
