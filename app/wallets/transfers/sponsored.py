"""Transfers of USDC that the wallet authorizes and the service submits, for a fee in USDC.

One unit counts the transfer, holds amount and fee, signs both authorizations and their submission, and stores them:
nothing that was signed is known to anyone before. The chain then decides on each authorization, by any submitter, and
on the submission, which is a transaction of the service's wallet.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import USDC
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.core.movement_kinds import MovementKind
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import ServiceError
from app.idempotency.service import Claim
from app.ports.chain import SignedTransaction
from app.ports.errors import PortError
from app.spending import holds as spending_holds
from app.state import app_state
from app.wallets.core import custody, lifecycle, network_fees
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.gas import submissions
from app.wallets.gas.submissions import SubmissionPlan
from app.wallets.transactions import authorizations, failures, pipeline
from app.wallets.transactions.pipeline import Movement, MovementQuote, RecordedCallback
from app.wallets.views import history
from app.wallets.views.history import TransactionView


def quote(movement: Movement, *, without_gas: ServiceError | None = None) -> MovementQuote:
    """Check limits and simulate like `execute`, without signing. Raises: what `execute` raises before signing."""
    pipeline.assert_allowed(movement)
    try:
        plan = _plan(movement)
        with read_only_unit() as session:
            number = submissions.next_number_today(session, movement.wallet.agent_id)
            is_free = submissions.is_free(session, plan, number, counts=False)
            priced, fee = _with_fee(movement, plan, is_free=is_free)
            for each in (priced, *([fee] if fee else [])):
                spending_holds.check(session, movement.wallet.id, each.spending_request)
            _assert_affordable(session, priced, plan)
    except PortError as error:
        if without_gas is not None and error.reason == submissions.UNAVAILABLE:
            raise without_gas from None
        raise failures.failure(movement.type, error.reason, error.details) from None
    return MovementQuote(movement=priced, fee_units=0, recipient_is=plan.draft.submission.recipient_is)


def execute(
    movement: Movement,
    *,
    wait_seconds: Decimal | None,
    claim: Claim,
    on_recorded: RecordedCallback | None = None,
    without_gas: PortError | None = None,
) -> TransactionView:
    """Have a transfer submitted by the service, and wait for its outcome up to `wait_seconds`.

    Returns a `confirmed` or `pending` transaction. `without_gas` is why the wallet could not pay the network itself; it
    is reported if the service cannot either.

    Raises: the 403 errors of refused limits; the error of the movement's type if it is known not to have happened.
    """
    try:
        recorded, submission, signed = pipeline.retry_after_settling_pending(
            movement,
            lambda: _plan(movement),
            lambda plan: _record(movement, plan, claim=claim, on_recorded=on_recorded),
            sequence=lambda plan: plan.draft.sequence,
        )
    except PortError as error:
        reported = without_gas if without_gas and error.reason == submissions.UNAVAILABLE else error
        raise pipeline.record_failed(movement, reported.reason, reported.details, claim=claim) from None
    chain, account_id = app_state().ports.chains[movement.chain], movement.wallet.agent_id
    submitted = pipeline.broadcast_and_wait(chain, submission, signed, wait_seconds=wait_seconds, account_id=account_id)
    if submitted.status == MovementStatus.PENDING:
        return history.current_view(recorded.id)
    # Another party may have submitted it first: then the submission failed, and the transfer did not.
    view = authorizations.wait(recorded, wait_seconds=wait_seconds, account_id=account_id)
    if view.status == MovementStatus.FAILED:
        raise failures.recorded_failure(view)
    return view


def _plan(movement: Movement) -> SubmissionPlan:
    return submissions.plan(movement.chain, movement.sender, movement.recipient, movement.amount.units)


def _with_fee(movement: Movement, plan: SubmissionPlan, *, is_free: bool) -> tuple[Movement, Movement | None]:
    """Return a movement with its fee, and the movement that pays the fee, if it is not free.

    Raises: Rejected("gas_fee_too_high") if the fee exceeds the amount.
    """
    units = 0 if is_free else submissions.price_units(plan.cost_nanos)
    submissions.assert_fee_below(units, movement.amount)
    network_fees.assert_below(units * submissions.NANOS_PER_UNIT, movement.max_fee_nanos)
    priced = replace(movement, gas_fee_units=units)
    if not units:
        return priced, None
    paid_to = plan.draft.transfer.sponsor.fee_recipient
    return priced, replace(
        movement, type=TransactionType.PAYMENT, kind=MovementKind.GAS, recipient=paid_to, payee=None,
        amount=TokenAmount(units, USDC), value_nanos=units * submissions.NANOS_PER_UNIT,
    )  # fmt: skip


def _record(
    movement: Movement, plan: SubmissionPlan, *, claim: Claim, on_recorded: RecordedCallback | None
) -> tuple[TransactionView, TransactionView, SignedTransaction]:
    """Count, hold, sign and store, in one unit; return the transfer, and the submission with its bytes.

    Raises: Rejected, and the 403 errors of refused limits.
    """
    signer, submitter = custody.signer_of(movement.wallet.id), custody.signer_of(plan.sponsor_wallet.id)
    sponsor = app_state().ports.sponsors[movement.chain]
    transfer_id, fee_id = new_id(), new_id()
    with unit_of_work() as session:
        spending_holds.hold(session, movement.wallet.id, movement.spending_request, reference=transfer_id)
        number = submissions.count_today(session, movement.wallet.agent_id)
        is_free = submissions.is_free(session, plan, number, counts=True)
        priced, fee = _with_fee(movement, plan, is_free=is_free)
        if fee is not None:
            spending_holds.hold(session, movement.wallet.id, fee.spending_request, reference=fee_id)
        _assert_affordable(session, priced, plan)
        now = int(clock.now().timestamp())
        authorized = sponsor.authorize(plan.draft, fee_units=priced.gas_fee_units or 0, signer=signer, now=now)
        # First, because it locks the nonces of the service's wallet.
        submission, signed = submissions.record(session, plan.submission(authorized), submitter)
        # Their signed bytes are part of the submission's.
        row = pipeline.new_transaction(transfer_id, priced)
        parts = [(row, authorized.transfer)]
        if fee is not None and authorized.fee is not None:
            parts.append((pipeline.new_transaction(fee_id, fee), authorized.fee))
        for each, part in parts:
            terms = {**part.terms, "submission": signed.tx_hash}
            lifecycle.record_authorization(session, each, reference=part.reference, raw=b"", terms=terms)
        recorded = history.view_of(session, row)
        claim.bind(session, transfer_id)
        if on_recorded is not None:
            on_recorded(session, recorded)
        return recorded, submission, signed


def _assert_affordable(session: Session, movement: Movement, plan: SubmissionPlan) -> None:
    units = movement.amount.units + (movement.gas_fee_units or 0)
    submissions.assert_affordable(session, movement, plan.draft, units=units)
