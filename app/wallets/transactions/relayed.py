"""Payments that a wallet signs and another party submits, such submissions, and queries to the trading exchange.

The signed bytes of a payment are recorded with the hold before anyone gets them, and only those are ever sent: no
second authorization is signed for one movement. Submissions move no tokens of their wallet; they use nonces and pay
fees like movements. The chain decides the outcome of both, as for every movement.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

from sqlalchemy import Row, delete, or_, select, text
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.identifiers import new_id, require
from app.db.tables import add_amounts, delete_rows, in_list, table_of
from app.db.unit_of_work import read_only_unit, run_in_batches, unit_of_work
from app.errors import NotFound
from app.idempotency.service import Claim
from app.ports.chain import AvailableFunds, Chain, SignedTransaction, TransactionDraft, TransactionQuery
from app.ports.errors import Rejected
from app.ports.facilitator import SignedPart
from app.ports.vault import Signer
from app.spending import accounts as spending_accounts
from app.spending import holds as spending_holds
from app.state import app_state
from app.wallets.core import lifecycle
from app.wallets.core.intents import Intent
from app.wallets.core.lifecycle import PERPDEX_CHAIN, AttemptPurpose, MovementStatus, StatusReason, TransactionType
from app.wallets.core.models import SignedAttempt, Transaction, TransactionEvent, Wallet
from app.wallets.core.wallets import WalletView
from app.wallets.transactions import outcome_polling, pipeline, settlement
from app.wallets.transactions.pipeline import Movement, NotAffordable
from app.wallets.views import history
from app.wallets.views.history import TransactionView

# The condition of the partial index.
_QUERIES = text("transactions.type = 'trading_query'")


def intent_of(chain: ChainName, wallet: WalletView, draft: TransactionDraft, kind: str) -> Intent:
    """Return the intent of a new submission, with which `record_submission` signs it."""
    return Intent(new_id(), wallet.id, chain, kind, draft.intent.recipient, draft.intent.amount)


def record_submission(
    session: Session, chain: Chain, wallet: WalletView, draft: TransactionDraft, signer: Signer, *, intent: Intent
) -> tuple[TransactionView, SignedTransaction]:
    """Sign a draft and record it as pending. Raises: Rejected("insufficient_gas") after unmined transactions."""
    movement = Movement(
        wallet=wallet, type=TransactionType.TRANSFER, kind=intent.kind, chain=chain.name,
        recipient=draft.intent.recipient, payee=None, amount=draft.intent.amount, value_nanos=0,
    )  # fmt: skip

    def sign(nonce: int | None) -> SignedTransaction:
        # Checked once the nonce is allocated: its lock lets one at a time count what the others spend.
        try:
            pipeline.assert_affordable(session, chain.name, draft)
        except NotAffordable:
            raise Rejected("insufficient_gas") from None
        return chain.sign(draft, signer, sequence=nonce)

    transaction = pipeline.new_transaction(intent.id, movement)
    signed = lifecycle.record_signed(session, transaction, draft, sign)
    return history.view_of(session, transaction), signed


def kind_of(session: Session, chain: ChainName, tx_hash: str) -> str | None:
    """Return the kind of Purser's movement with a hash, None for any other hash."""
    return session.scalar(
        select(Transaction.kind)
        .outerjoin(SignedAttempt, SignedAttempt.transaction_id == Transaction.id)
        .where(Transaction.chain == chain.value, Transaction.kind.is_not(None))
        .where(or_(SignedAttempt.tx_hash == tx_hash, Transaction.tx_hash == tx_hash))
        .limit(1)
    )


@dataclass(frozen=True, slots=True)
class BlockDecision:
    """How a block decided a movement, and whether that block is final."""

    status: MovementStatus
    is_final: bool
    reason: str | None = field(compare=False)
    fee_units: int | None = field(compare=False)

    @property
    def has_failed(self) -> bool:
        return self.status is MovementStatus.FAILED

    @property
    def is_reverted(self) -> bool:
        """Return whether a block contains it, and it had no effect but its fee."""
        return self.has_failed and self.reason == StatusReason.REVERTED


def decisions(session: Session, transaction_ids: Sequence[str]) -> dict[str, BlockDecision]:
    """Return the decisions of those movements that are not pending, by id."""
    columns = Transaction.id, Transaction.status, Transaction.next_check_at, Transaction.error, Transaction.fee_units
    rows = session.execute(
        select(*columns).where(Transaction.id.in_(transaction_ids), Transaction.status != MovementStatus.PENDING.value)
    )
    return {
        row.id: BlockDecision(MovementStatus(row.status), row.next_check_at is None, row.error, row.fee_units)
        for row in rows
    }


def final_decision(session: Session, transaction_id: str) -> BlockDecision | None:
    """Return the decision of a movement once it is final, None before."""
    found = decisions(session, [transaction_id]).get(transaction_id)
    return found if found is not None and found.is_final else None


def of_kinds(session: Session, kinds: Sequence[str]) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return what the movements of some kinds pay to whom, and their status. For audits."""
    columns = (
        Transaction.id, Transaction.kind, Transaction.chain, Transaction.to_address, Transaction.amount_units,
        Transaction.status,
    )  # fmt: skip
    return session.execute(select(*columns).where(Transaction.kind.in_(kinds))).all()


def failed_fee_units(session: Session, wallet_id: str, chain: ChainName, *, kind: str, since: datetime) -> int:
    """Return the network fees of a wallet's movements since an instant that a block contains without effect."""
    failed, reason = MovementStatus.FAILED.value, StatusReason.REVERTED.value
    fees = select(Transaction.fee_units).filter_by(
        wallet_id=wallet_id, status=failed, error=reason, chain=chain.value, kind=kind
    )
    # Units are text on SQLite.
    return sum(int(units or 0) for units in session.scalars(fees.where(Transaction.created_at >= since)))


def failed_hashes(session: Session, agent_id: str, chain: ChainName, *, kind: str, since: datetime) -> list[str]:
    """Return all hashes of an agent's movements since an instant that finally failed."""
    failed = select(Transaction.id).filter_by(
        status=MovementStatus.FAILED.value, next_check_at=None, chain=chain.value, kind=kind
    )
    of_agent = Transaction.wallet_id.in_(select(Wallet.id).filter_by(agent_id=agent_id))
    ids = failed.where(of_agent, Transaction.created_at >= since)
    return list(session.scalars(select(SignedAttempt.tx_hash).where(SignedAttempt.transaction_id.in_(ids))))


def record_query(wallet_id: str, *, address: str, kind: str) -> str:
    """Record a `trading_query` in a wallet's history and return its id. Raises: NotFound if the wallet was deleted."""
    transaction_id, now = new_id(), clock.now()
    with unit_of_work() as session:
        # The lock excludes a concurrent deletion, which would leave this row behind.
        spending_accounts.lock_account(session, wallet_id)
        lifecycle.record(
            session, Transaction(
                id=transaction_id, wallet_id=wallet_id, type=TransactionType.TRADING_QUERY.value, kind=kind,
                chain=PERPDEX_CHAIN, from_address=address, to_address=PERPDEX_CHAIN, amount_units=0,
                currency=USDC.symbol, cost_nanos=0, created_at=now, confirmed_at=now, checks=0,
            ),
            status=MovementStatus.CONFIRMED,
        )  # fmt: skip
    return transaction_id


def prune_queries(before: datetime) -> int:
    """Delete old trading queries with their events, in short units; return how many."""
    return run_in_batches(partial(_prune_batch, before), batch_size=100, max_batches=50)


def _prune_batch(before: datetime, limit: int) -> int:
    with read_only_unit() as session:
        old = session.execute(
            select(Transaction.id, Transaction.wallet_id)
            .where(_QUERIES, Transaction.created_at < before)
            .order_by(Transaction.created_at)
            .limit(limit)
        ).all()
    if not old:
        return 0
    ids = [row.id for row in old]
    with unit_of_work() as session:
        # Lock the accounts first, as in every unit that changes rows of several wallets.
        spending_accounts.lock_accounts(session, {row.wallet_id for row in old})
        deleted = session.scalars(
            delete(Transaction).where(in_list(session, Transaction.id, ids)).returning(Transaction.wallet_id),
            execution_options={"synchronize_session": False},
        ).all()
        delete_rows(session, TransactionEvent, in_list(session, TransactionEvent.transaction_id, ids))
        counts = [{"id": each, "transaction_count": -count} for each, count in sorted(Counter(deleted).items())]
        add_amounts(session, table_of(Wallet), ["id"], counts)
    return len(old)


def read_funds(movement: Movement) -> AvailableFunds:
    """Read what a wallet has of a movement's token, if it covers it. Raises: NotAffordable, Unreachable."""
    chain = app_state().ports.chains[movement.chain]
    # The nonce first: what is signed in between counts as unmined.
    sequence = chain.transaction_counts([movement.sender]).get(movement.sender)
    block = chain.head().number
    funds = AvailableFunds(chain.balances(movement.sender).of(movement.amount.token).units, sequence, block)
    with read_only_unit() as session:
        assert_payable(session, movement, funds)
    return funds


def assert_payable(session: Session, movement: Movement, funds: AvailableFunds, *, more_units: int = 0) -> None:
    """Refuse a payment that a balance does not cover, with its fee and more, after all unmined movements.

    Raises: NotAffordable.
    """
    token = movement.amount.token
    unmined_units, _fees = settlement.outflows(
        session, movement.sender, movement.chain, since_sequence=funds.sequence, since_block=funds.block
    )
    needed = movement.amount.units + (movement.gas_fee_units or 0) + more_units + unmined_units.get(token, 0)
    NotAffordable.check(token, "insufficient_funds", funds.units, needed)


def record_authorized(
    session: Session, transaction_id: str, movement: Movement, funds: AvailableFunds, sign: Callable[[str], SignedPart],
    *, claim: Claim,
) -> TransactionView:  # fmt: skip
    """Hold the value, sign by `sign` with the new movement's id, and store: all that precedes sending the bytes.

    Raises: the 403 errors of refused limits, NotAffordable.
    """
    spending_holds.hold(session, movement.wallet.id, movement.spending_request, reference=transaction_id)
    assert_payable(session, movement, funds)
    transaction = _record_part(session, transaction_id, movement, sign(transaction_id))
    return pipeline.bind_recorded(session, transaction, movement, claim)


def record_in_submission(
    session: Session, transaction_id: str, movement: Movement, part: SignedPart, submission: SignedTransaction
) -> Transaction:
    """Record a payment whose signed bytes are part of a submission's."""
    terms = {**part.terms, "submission": submission.tx_hash}
    return _record_part(session, transaction_id, movement, replace(part, terms=terms))


def _record_part(session: Session, transaction_id: str, movement: Movement, part: SignedPart) -> Transaction:
    """Record a signed payment that another party submits, as pending; the network costs it nothing."""
    transaction = pipeline.new_transaction(transaction_id, movement)
    transaction.fee_cap_units = 0
    transaction.next_check_at = clock.now() + lifecycle.first_check_after(movement.chain)
    lifecycle.record(session, transaction, status=MovementStatus.PENDING)
    signed = SignedTransaction(part.reference, part.raw, sequence=None, expires_at_height=None, terms=part.terms)
    lifecycle.add_attempt(session, transaction_id, movement.chain, signed, AttemptPurpose.AUTHORIZATION)
    return transaction


def stored_authorization(transaction_id: str) -> SignedPart:
    """Return the bytes that were signed for a movement. Raises: NotFound."""
    with read_only_unit() as session:
        parts = select(SignedAttempt.tx_hash, SignedAttempt.raw, SignedAttempt.terms).filter_by(
            transaction_id=transaction_id, purpose=AttemptPurpose.AUTHORIZATION.value
        )
        row = require(session.execute(parts).one_or_none(), NotFound())
    return SignedPart(row.tx_hash, row.terms, row.raw)


def wait_for_authorized(view: TransactionView, *, wait_seconds: Decimal | None, account_id: str) -> TransactionView:
    """Wait up to `wait_seconds` for the outcome of a pending payment, and return its present state."""
    if view.status == MovementStatus.PENDING:
        signed = stored_authorization(view.id)
        query = TransactionQuery(view.id, view.from_address or "", None, (signed.reference,), terms=signed.terms)
        outcome_polling.wait_for_outcome(ChainName(view.chain), query, seconds=wait_seconds, account_id=account_id)
    return history.current_view(view.id)
