"""Payments that a wallet signs and another party submits.

The signed bytes are recorded with the hold before anyone gets them, and only those are ever sent: no second
authorization is signed for one movement. The chain decides the outcome, as for every movement.
"""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.chains import ChainName
from app.core.identifiers import require
from app.db.unit_of_work import read_only_unit
from app.errors import NotFound
from app.idempotency.service import Claim
from app.ports.chain import AvailableFunds, SignedTransaction, TransactionQuery
from app.ports.facilitator import SignedPart
from app.spending import holds as spending_holds
from app.state import app_state
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import AttemptPurpose, MovementStatus
from app.wallets.core.models import SignedAttempt, Transaction
from app.wallets.transactions import outcome_polling, pipeline, settlement
from app.wallets.transactions.pipeline import Movement, NotAffordable
from app.wallets.views import history
from app.wallets.views.history import TransactionView


def read_funds(movement: Movement) -> AvailableFunds:
    """Read what a wallet has of a movement's token, if it covers it. Raises: NotAffordable, Unreachable."""
    chain = app_state().ports.chains[movement.chain]
    # The nonce first: what is signed in between counts as unmined.
    sequence = chain.transaction_counts([movement.sender]).get(movement.sender)
    block = chain.head().number
    funds = AvailableFunds(chain.balances(movement.sender).of(movement.amount.token).units, sequence, block)
    with read_only_unit() as session:
        assert_affordable(session, movement, funds)
    return funds


def assert_affordable(session: Session, movement: Movement, funds: AvailableFunds, *, more_units: int = 0) -> None:
    """Refuse a payment that a balance does not cover, with its fee and more, after all unmined movements.

    Raises: NotAffordable.
    """
    token = movement.amount.token
    unmined_units, _fees = settlement.outflows(
        session, movement.sender, movement.chain, since_sequence=funds.sequence, since_block=funds.block
    )
    needed = movement.amount.units + (movement.gas_fee_units or 0) + more_units + unmined_units.get(token, 0)
    NotAffordable.check(token, "insufficient_funds", funds.units, needed)


def record(
    session: Session, transaction_id: str, movement: Movement, funds: AvailableFunds, sign: Callable[[str], SignedPart],
    *, claim: Claim,
) -> TransactionView:  # fmt: skip
    """Hold the value, sign by `sign` with the new movement's id, and store: all that precedes sending the bytes.

    Raises: the 403 errors of refused limits, NotAffordable.
    """
    spending_holds.hold(session, movement.wallet.id, movement.spending_request, reference=transaction_id)
    assert_affordable(session, movement, funds)
    transaction = pipeline.new_transaction(transaction_id, movement)
    signed = sign(transaction_id)
    lifecycle.record_authorization(session, transaction, signed)
    return pipeline.bind_recorded(session, transaction, movement, claim)


def record_submitted(
    session: Session, transaction_id: str, movement: Movement, part: SignedPart, submission: SignedTransaction
) -> Transaction:
    """Record a payment whose signed bytes are part of a submission's."""
    transaction = pipeline.new_transaction(transaction_id, movement)
    terms = {**part.terms, "submission": submission.tx_hash}
    lifecycle.record_authorization(session, transaction, replace(part, terms=terms))
    return transaction


def stored(transaction_id: str) -> SignedPart:
    """Return the bytes that were signed for a movement. Raises: NotFound."""
    with read_only_unit() as session:
        parts = select(SignedAttempt.tx_hash, SignedAttempt.raw, SignedAttempt.terms).filter_by(
            transaction_id=transaction_id, purpose=AttemptPurpose.AUTHORIZATION.value
        )
        row = require(session.execute(parts).one_or_none(), NotFound())
    return SignedPart(row.tx_hash, row.terms, row.raw)


def wait(view: TransactionView, *, wait_seconds: Decimal | None, account_id: str) -> TransactionView:
    """Wait up to `wait_seconds` for the outcome of a pending payment, and return its present state."""
    if view.status == MovementStatus.PENDING:
        signed = stored(view.id)
        query = TransactionQuery(view.id, view.from_address or "", None, (signed.reference,), terms=signed.terms)
        outcome_polling.wait_for_outcome(ChainName(view.chain), query, seconds=wait_seconds, account_id=account_id)
    return history.current_view(view.id)
