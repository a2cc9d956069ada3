"""Transfers of USDC that the wallet authorizes and the service submits, for a fee in USDC.

One unit counts the transfer, holds amount and fee, signs both authorizations and their submission, and stores them:
nothing that was signed is known to anyone before. The chain then decides on each authorization, by any submitter, and
on the submission, which is a transaction of the service's own wallet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from sqlalchemy import BigInteger, bindparam, select, update
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import USDC
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.db.prepared import PreparedInsert, PreparedRead, PreparedStatement
from app.db.statements import table_of
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import ServiceError
from app.idempotency.service import Claim
from app.ports.chain import SignedTransaction
from app.ports.errors import PortError, Rejected, Unreachable
from app.ports.sponsor import AuthorizedTransfer, SponsoredDraft, SponsoredTransfer
from app.spending import holds as spending_holds
from app.state import app_state
from app.wallets.core import custody, lifecycle, network_fees, parsing, wallets
from app.wallets.core.lifecycle import MovementKind, MovementStatus, TransactionType
from app.wallets.core.models import SponsoredDay
from app.wallets.core.wallets import WalletView
from app.wallets.transactions import authorizations, failures, pipeline, relayed, unmined
from app.wallets.transactions.pipeline import Movement, MovementQuote, NotAffordable, RecordedCallback
from app.wallets.views import history
from app.wallets.views.history import TransactionView

UNAVAILABLE = "gas_unavailable"
SUBMISSION_KIND = "sponsored"
# USDC counts as one dollar everywhere.
_NANOS_PER_UNIT = 10**9 // 10**USDC.decimals
_OF_TODAY = (SponsoredDay.agent_id == bindparam("of_agent")) & (SponsoredDay.day == bindparam("today"))
_USED_TODAY = PreparedRead(select(SponsoredDay.transfers).where(_OF_TODAY))
_INSERT_DAY = PreparedInsert(SponsoredDay, unique=[SponsoredDay.agent_id, SponsoredDay.day])
_COUNT_TODAY = PreparedStatement(
    update(table_of(SponsoredDay))
    .where(_OF_TODAY, SponsoredDay.transfers < bindparam("maximum", type_=BigInteger))
    .values({SponsoredDay.transfers: SponsoredDay.transfers + 1})
    .returning(SponsoredDay.transfers)
)


@dataclass(frozen=True, slots=True)
class _SponsoredPlan:
    """A sponsored transfer that the chain would execute; `cost_units` is its fee in USDC if it is not free."""

    draft: SponsoredDraft
    sponsor_wallet: WalletView
    cost_units: int


def is_available(movement: Movement) -> bool:
    """Return whether the service submits such transfers at all."""
    state = app_state()
    is_usdc = movement.amount.token == USDC and movement.chain in state.ports.sponsors
    return is_usdc and state.settings.sponsored_per_day > 0


def quote(movement: Movement, *, without_gas: ServiceError | None = None) -> MovementQuote:
    """Check limits and simulate like `execute`, without signing. Raises: what `execute` raises before signing."""
    pipeline.assert_allowed(movement)
    try:
        plan = _plan(movement)
        with read_only_unit() as session:
            number = _used_today(session, movement) + 1
            if number > app_state().settings.sponsored_per_day:
                raise Rejected("sponsored_limit")
            priced, fee = _with_fee(movement, plan, number)
            for each in (priced, *([fee] if fee else [])):
                spending_holds.check(session, movement.wallet.id, each.spending_request)
            _assert_affordable(session, priced, plan.draft)
    except PortError as error:
        if without_gas is not None and error.reason == UNAVAILABLE:
            raise without_gas from None
        raise failures.failure(movement.type, error.reason, error.details) from None
    return MovementQuote(movement=priced, fee_units=0)


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
        reported = without_gas if without_gas and error.reason == UNAVAILABLE else error
        raise pipeline.record_failed(movement, reported.reason, reported.details, claim=claim) from None
    chain, account_id = app_state().ports.chains[movement.chain], movement.wallet.agent_id
    submitted = pipeline.broadcast_and_wait(
        chain, submission, signed, wait_seconds=wait_seconds, account_id=account_id
    )
    if submitted.status == MovementStatus.PENDING:
        return history.current_view(recorded.id)
    # Another party may have submitted it first: then the submission failed, and the transfer did not.
    view = authorizations.wait(recorded, wait_seconds=wait_seconds, account_id=account_id)
    if view.status == MovementStatus.FAILED:
        raise failures.recorded_failure(view)
    return view


def _plan(movement: Movement) -> _SponsoredPlan:
    """Read the chain and the price. Raises: Rejected, InvalidInput."""
    state = app_state()
    sponsor = state.gas_sponsor(movement.chain)
    transfer = SponsoredTransfer(movement.sender, movement.recipient, movement.amount.units, sponsor)
    try:
        draft = state.ports.sponsors[movement.chain].draft(transfer)
    except Unreachable as error:
        raise Rejected("chain_unreachable", details=error.details) from None
    except Rejected as error:
        raise parsing.invalid_input_from(error.reason, error.details) or error from None
    if not network_fees.is_within_cap(movement.chain, draft.submission.fee_units):
        raise Rejected("network_fee_too_high")
    cost_nanos = network_fees.usd_value_nanos(draft.cost)
    if cost_nanos is None:
        raise Rejected("gas_price_unknown")
    percent = 100 + state.settings.sponsored_margin_percent
    cost_units = -(-cost_nanos * percent // (100 * _NANOS_PER_UNIT))
    return _SponsoredPlan(draft, wallets.get_with_controls(sponsor.wallet_id), cost_units)


def _with_fee(movement: Movement, plan: _SponsoredPlan, number: int) -> tuple[Movement, Movement | None]:
    """Return a movement with its fee, and the movement that pays the fee: none for the first ones of a day.

    Raises: Rejected("gas_fee_too_high") if the fee exceeds the amount.
    """
    is_free = number <= app_state().settings.sponsored_free_per_day and not plan.draft.creates_account
    units = 0 if is_free else plan.cost_units
    if units > movement.amount.units:
        details = {
            "fee": str(TokenAmount(units, USDC)),
            "amount": str(movement.amount),
            "currency": USDC.symbol,
        }
        raise Rejected("gas_fee_too_high", details=details)
    priced = replace(movement, gas_fee_units=units)
    if not units:
        return priced, None
    paid_to = plan.draft.transfer.sponsor.fee_recipient
    return priced, replace(
        movement, type=TransactionType.PAYMENT, kind=MovementKind.GAS, recipient=paid_to, payee=None,
        amount=TokenAmount(units, USDC), value_nanos=units * _NANOS_PER_UNIT,
    )  # fmt: skip


def _record(
    movement: Movement, plan: _SponsoredPlan, *, claim: Claim, on_recorded: RecordedCallback | None
) -> tuple[TransactionView, TransactionView, SignedTransaction]:
    """Count, hold, sign and store, in one unit; return the transfer, and the submission with its bytes.

    Raises: Rejected, and the 403 errors of refused limits.
    """
    signer, submitter = custody.signer_of(movement.wallet.id), custody.signer_of(plan.sponsor_wallet.id)
    chain, sponsor = app_state().ports.chains[movement.chain], app_state().ports.sponsors[movement.chain]
    transfer_id, fee_id = new_id(), new_id()
    with unit_of_work() as session:
        spending_holds.hold(session, movement.wallet.id, movement.spending_request, reference=transfer_id)
        priced, fee = _with_fee(movement, plan, _count_today(session, movement))
        if fee is not None:
            spending_holds.hold(session, movement.wallet.id, fee.spending_request, reference=fee_id)
        _assert_affordable(session, priced, plan.draft)
        authorized = sponsor.authorize(
            plan.draft,
            fee_units=priced.gas_fee_units or 0,
            signer=signer,
            now=int(clock.now().timestamp()),
        )
        # First, because it locks the nonces of the service's wallet.
        submission, signed = relayed.record_submission(
            session, chain, plan.sponsor_wallet, authorized.submission, submitter, kind=SUBMISSION_KIND
        )
        recorded = _record_authorizations(session, (transfer_id, priced), (fee_id, fee), authorized)
        claim.bind(session, transfer_id)
        if on_recorded is not None:
            on_recorded(session, recorded)
        return recorded, submission, signed


def _record_authorizations(
    session: Session,
    transfer: tuple[str, Movement],
    fee: tuple[str, Movement | None],
    authorized: AuthorizedTransfer,
) -> TransactionView:
    """Record the transfer and its fee as pending. Their signed bytes are part of the submission's."""
    rows = [pipeline.new_transaction(*transfer)]
    parts = [authorized.transfer]
    if fee[1] is not None and authorized.fee is not None:
        rows.append(pipeline.new_transaction(fee[0], fee[1]))
        parts.append(authorized.fee)
    for row, part in zip(rows, parts, strict=True):
        lifecycle.record_authorization(session, row, reference=part.reference, raw=b"", terms=part.terms)
    return history.view_of(session, rows[0])


def _assert_affordable(session: Session, movement: Movement, draft: SponsoredDraft) -> None:
    """Refuse a transfer that the balance does not cover after its fee and unmined ones. Raises: NotAffordable."""
    unmined_units, _fees = unmined.outflows(
        session, movement.sender, movement.chain, since_sequence=draft.sequence, since_block=draft.since_block
    )
    needed = movement.amount.units + (movement.gas_fee_units or 0) + unmined_units.get(USDC, 0)
    if needed > draft.token_units:
        raise NotAffordable("insufficient_funds", USDC, available=draft.token_units, required=needed)


def _used_today(session: Session, movement: Movement) -> int:
    today = {"of_agent": movement.wallet.agent_id, "today": clock.now().date()}
    row = _USED_TODAY.one_or_none(session, today)
    return 0 if row is None else int(row.transfers)


def _count_today(session: Session, movement: Movement) -> int:
    """Count one more transfer of the agent today; return how many it has then. Raises: Rejected("sponsored_limit")."""
    today = {"of_agent": movement.wallet.agent_id, "today": clock.now().date()}
    maximum = {"maximum": app_state().settings.sponsored_per_day}
    number = _COUNT_TODAY.scalar(session, {**today, **maximum})
    if number is None:
        _INSERT_DAY.execute(session, {"agent_id": today["of_agent"], "day": today["today"], "transfers": 0})
        number = _COUNT_TODAY.scalar(session, {**today, **maximum})
    if number is None:
        raise Rejected("sponsored_limit")
    return int(number)
