"""Transactions that a wallet of the service's own submits for somebody else: recorded and carried out like movements.

They take nonce slots and pay fees like all others, and the workers carry them on; they move nothing of the wallet's.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from sqlalchemy import or_, select

from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.extensions import db
from app.ports.chain import Chain, Draft, Signed
from app.ports.errors import Rejected
from app.ports.vault import Signer
from app.wallets import history, lifecycle, movements, nonces, settlement
from app.wallets.history import TransactionView
from app.wallets.lifecycle import Status, TransactionType
from app.wallets.models import SignedAttempt, Transaction, Wallet
from app.wallets.movements import Movement, NotAffordable
from app.wallets.service import WalletView


def record(
    chain: Chain, wallet: WalletView, draft: Draft, signer: Signer, *, kind: str
) -> tuple[TransactionView, Signed]:
    """Sign a draft of the wallet's and record it as pending, in the current unit.

    Raises: Rejected("insufficient_gas") when what is on its way already uses up the wallet's own token.
    """
    movement = Movement(
        wallet=wallet, type=TransactionType.TRANSFER, kind=kind, chain=chain.name,
        recipient=draft.intent.recipient, payee=None, amount=draft.intent.amount, value_nanos=0,
    )  # fmt: skip
    slot = None
    if draft.sequence is not None:
        # The slot first: its lock lets one at a time count what the others take.
        slot = nonces.allocate(chain.name, draft.intent.sender, floor=draft.sequence)
    try:
        movements.assert_affordable(movement, draft)
    except NotAffordable:
        raise Rejected("insufficient_gas") from None
    signed = chain.sign(draft, signer, sequence=slot)
    transaction = movements.row_of(new_id(), movement)
    transaction.tx_hash = signed.tx_hash
    transaction.nonce = signed.sequence
    transaction.expires_at_height = signed.expires_at_height
    transaction.fee_cap_units = draft.fee_units
    transaction.next_check_at = clock.now() + settlement.FIRST_CHECK_AFTER
    attempt = settlement.attempt_row(transaction.id, chain.name, signed)
    lifecycle.record(transaction, status=Status.PENDING, attempt=attempt)
    return history.view_of(transaction), signed


def carry_out(
    chain: Chain, recorded: TransactionView, signed: Signed, *, wait_seconds: Decimal
) -> TransactionView:
    """Broadcast what was recorded and wait for its outcome; whatever breaks, the workers carry it on."""
    return movements.send_and_settle(chain, recorded, signed, wait_seconds=wait_seconds)


def kind_of(chain: ChainName, tx_hash: str) -> str | None:
    """Return the kind of the movement of ours that has or had this hash, None for any other. In the current unit."""
    return db.session.scalar(
        select(Transaction.kind)
        .outerjoin(SignedAttempt, SignedAttempt.transaction_id == Transaction.id)
        .where(
            Transaction.chain == chain.value,
            Transaction.kind.is_not(None),
            or_(SignedAttempt.tx_hash == tx_hash, Transaction.tx_hash == tx_hash),
        )
        .limit(1)
    )


def failed_hashes(agent_id: str, chain: ChainName, *, kind: str, since: datetime) -> list[str]:
    """Return every hash of an agent's movements since then that failed beyond change. In the current unit."""
    rows = (
        select(SignedAttempt.tx_hash)
        .join(Transaction, Transaction.id == SignedAttempt.transaction_id)
        .join(Wallet, Wallet.id == Transaction.wallet_id)
        .where(
            Wallet.agent_id == agent_id,
            Transaction.created_at >= since,
            Transaction.status == Status.FAILED.value,
            Transaction.next_check_at.is_(None),
            Transaction.chain == chain.value,
            Transaction.kind == kind,
        )
    )
    return list(db.session.scalars(rows))


def is_beyond_change(transaction_id: str) -> bool:
    """Tell whether a movement is at its end and no reorganisation can change that. In the current unit."""
    row = db.session.get(Transaction, transaction_id)
    return row is not None and row.status != Status.PENDING.value and row.next_check_at is None
