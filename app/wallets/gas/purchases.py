"""Purchases of a native token for USDC, by wallets that hold too little of it for a swap or a bridge.

The wallet authorizes a payment to the treasury, which the settlement wallet submits; and the settlement wallet sends
the native token, perhaps on another chain. One unit counts, holds, signs and stores both. After it, both are ordinary
transactions, which workers complete. Nothing else depends on them: what needed the token is requested again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import exists, or_, select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import USDC, ChainName, native
from app.core.identifiers import new_id
from app.core.money import TokenAmount, parse_amount
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import GasPending, ServiceError
from app.ports.chain import SignedTransaction, TransactionDraft, TransferIntent
from app.ports.errors import PortError, Rejected, Unreachable
from app.spending import holds as spending_holds
from app.state import app_state
from app.wallets.core import custody, lifecycle, network_fees, wallets
from app.wallets.core.lifecycle import MovementKind, MovementStatus, TransactionType
from app.wallets.core.models import Transaction
from app.wallets.core.parsing import GasSource
from app.wallets.core.wallets import WalletView
from app.wallets.gas import submissions
from app.wallets.gas.submissions import SubmissionPlan
from app.wallets.transactions import failures, pipeline, relayed, settlement
from app.wallets.transactions.pipeline import Movement
from app.wallets.views.history import TransactionView

SHORTAGE = "insufficient_gas"
# Fees may have doubled by the time that the token arrives; the rest stays in the wallet.
_BOUGHT_PER_MISSING = 2
# What is simulated, because the price is known only afterwards.
_SAMPLE_UNITS = 1
# Between the hosts of this service.
_CLOCK_DIFFERENCE = timedelta(seconds=2)
# Of a delivery: then another one may be bought. It bounds how much of the seller's history is read.
_LONGEST_PENDING = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class _PurchasePlan:
    """A payment of USDC with the plan of its submission, and the delivery of the native token with its sender."""

    payment: Movement
    submission: SubmissionPlan
    chain: ChainName
    delivery: TransactionDraft
    seller: WalletView


def are_available(source: GasSource, chain: ChainName) -> bool:
    """Return whether a wallet may pay for native tokens with its USDC on a chain."""
    return source is not GasSource.OWN and submissions.is_available(chain)


def quote(movement: Movement, shortages: Sequence[Mapping[str, str]], *, without: ServiceError) -> Movement:
    """Return a movement with what `buy` would take for it.

    Raises: the error of its type, which is `without` if the service sells nothing; the 403 errors of refused limits.
    """
    units = 0
    try:
        for shortage in shortages:
            plan = _plan(movement, shortage)
            units += plan.payment.amount.units
            with read_only_unit() as session:
                submissions.next_number_today(session, movement.wallet.agent_id)
                spending_holds.check(session, movement.wallet.id, plan.payment.spending_request)
                _assert_affordable(session, movement, plan)
    except PortError as error:
        if error.reason == submissions.UNAVAILABLE:
            raise without from None
        raise failures.failure(movement.type, error.reason, error.details, kind=movement.kind) from None
    return replace(movement, gas_fee_units=units)


def buy(movement: Movement, shortages: Sequence[PortError], *, since: datetime) -> None:
    """Buy what a movement of USDC lacks of native tokens, and wait until the wallet has it.

    The details of a shortage are the missing amount, and the chain if it is not the movement's. What another request
    has bought `since`, before the shortages were found, may cover them: then nothing is bought.

    Raises: Rejected, which is the shortage itself if the service sells nothing; the 403 errors of refused limits;
    GasPending if it has not arrived yet. What was bought before stays bought.
    """
    for shortage in shortages:
        try:
            _buy(movement, shortage.details, since)
        except PortError as error:
            raise (shortage if error.reason == submissions.UNAVAILABLE else error) from None


def _buy(movement: Movement, shortage: Mapping[str, str], since: datetime) -> None:
    plan = _plan(movement, shortage)
    (submission, payment_bytes), (delivery, delivery_bytes) = _record(movement, plan, since)
    chains, account_id = app_state().ports.chains, movement.wallet.agent_id
    settlement.broadcast(chains[movement.chain], submission.id, payment_bytes)
    delivered = pipeline.broadcast_and_wait(
        chains[plan.chain], delivery, delivery_bytes, wait_seconds=None, account_id=account_id
    )
    if delivered.status != MovementStatus.CONFIRMED:
        raise _pending(plan.chain)


def _plan(movement: Movement, shortage: Mapping[str, str]) -> _PurchasePlan:
    """Read the chains and prices. Raises: Rejected."""
    state = app_state()
    chain = ChainName(shortage.get("chain", movement.chain))
    missing = parse_amount(shortage["missing"], native(chain))
    if not network_fees.is_within_cap(chain, missing.units):
        raise Rejected("network_fee_too_high")
    bought = TokenAmount(missing.units * _BOUGHT_PER_MISSING, missing.token)
    sponsor = state.gas_sponsor(chain, bought.units)
    intent = TransferIntent(sponsor.submitter, movement.wallet.address_on(chain), bought)
    try:
        delivery = state.ports.chains[chain].draft(intent)
    except Unreachable as error:
        raise Rejected("chain_unreachable", details=error.details) from None
    except Rejected:
        raise Rejected(submissions.UNAVAILABLE) from None
    submission = submissions.plan(movement.chain, movement.sender, None, _SAMPLE_UNITS)
    units = submissions.price_units(
        submission.cost_nanos
        + submissions.value_nanos(bought)
        + submissions.value_nanos(TokenAmount(delivery.fee_units, bought.token))
    )
    submissions.assert_fee_below(units, movement.amount)
    transfer = replace(submission.draft.transfer, units=units)
    payment = Movement(
        wallet=movement.wallet, type=TransactionType.PAYMENT, kind=MovementKind.GAS, chain=movement.chain,
        recipient=transfer.recipient, payee=None, amount=TokenAmount(units, USDC),
        value_nanos=units * submissions.NANOS_PER_UNIT,
    )  # fmt: skip
    submission = replace(submission, draft=replace(submission.draft, transfer=transfer))
    return _PurchasePlan(payment, submission, chain, delivery, wallets.get_with_controls(sponsor.wallet_id))


def _record(
    movement: Movement, plan: _PurchasePlan, since: datetime
) -> tuple[tuple[TransactionView, SignedTransaction], tuple[TransactionView, SignedTransaction]]:
    """Count, hold, sign and store, in one unit; return the submission of the payment and the delivery.

    Raises: Rejected, GasPending, the 403 errors of refused limits.
    """
    state, payment, wallet_id = app_state(), plan.payment, movement.wallet.id
    signer = custody.signer_of(wallet_id)
    submitter, seller = (
        custody.signer_of(plan.submission.sponsor_wallet.id),
        custody.signer_of(plan.seller.id),
    )
    payment_id = new_id()
    with unit_of_work() as session:
        spending_holds.hold(session, wallet_id, payment.spending_request, reference=payment_id)
        # What needs the token must be within the limits, too.
        spending_holds.check(session, wallet_id, movement.spending_request)
        if _is_bought(session, plan, since):
            raise _pending(plan.chain)
        submissions.count_today(session, movement.wallet.agent_id)
        _assert_affordable(session, movement, plan)
        authorized = state.ports.sponsors[payment.chain].authorize(
            plan.submission.draft, fee_units=0, signer=signer, now=int(clock.now().timestamp())
        )
        steps = {
            "submission": (
                payment.chain, plan.submission.sponsor_wallet, authorized.submission, submitter,
                submissions.SUBMISSION_KIND,
            ),
            "delivery": (plan.chain, plan.seller, plan.delivery, seller, MovementKind.GAS_SALE),
        }  # fmt: skip
        by_chain = sorted(steps.items(), key=lambda step: step[1][0])
        for _name, (chain, _wallet, draft, _key, _kind) in by_chain:
            if draft.sequence is not None:
                lifecycle.lock_nonces(session, chain, draft.intent.sender)
        recorded = {
            name: relayed.record_submission(session, state.ports.chains[chain], wallet, draft, key, kind=kind)
            for name, (chain, wallet, draft, key, kind) in by_chain
        }
        lifecycle.record_authorization(
            session, pipeline.new_transaction(payment_id, payment),
            reference=authorized.transfer.reference, raw=b"", terms=authorized.transfer.terms,
        )  # fmt: skip
    return recorded["submission"], recorded["delivery"]


def _assert_affordable(session: Session, movement: Movement, plan: _PurchasePlan) -> None:
    """Check that the balance covers the payment and the movement after it. Raises: NotAffordable."""
    units = plan.payment.amount.units + movement.amount.units
    submissions.assert_affordable(session, plan.payment, plan.submission.draft, units=units)


def _is_bought(session: Session, plan: _PurchasePlan, since: datetime) -> bool:
    """Return whether a delivery to this wallet is pending, or was made since. The wallet's account must be locked."""
    return bool(
        session.scalar(
            select(
                exists().where(
                    Transaction.chain == plan.chain.value,
                    Transaction.wallet_id == plan.seller.id,
                    Transaction.created_at >= since - _LONGEST_PENDING,
                    or_(
                        Transaction.status == MovementStatus.PENDING.value,
                        Transaction.created_at >= since - _CLOCK_DIFFERENCE,
                    ),
                    Transaction.kind == MovementKind.GAS_SALE,
                    Transaction.to_address == plan.delivery.intent.recipient,
                )
            )
        )
    )


def _pending(chain: ChainName) -> GasPending:
    block_seconds = app_state().ports.chains[chain].block_time.total_seconds()
    return GasPending(retry_after_seconds=max(1, round(block_seconds)), details={"chain": chain.value})
