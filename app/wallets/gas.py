"""Purchases of a native token for USDC, by wallets that hold too little of it for what they do.

The wallet authorizes a payment to the treasury, which the settlement wallet submits; and the settlement wallet sends
the native token, on each chain on which the wallet lacks it. One unit counts, holds, signs and stores all of them.
After it, they are ordinary transactions, which workers complete. Nothing else depends on them: what needed the token is
requested again. Also the cost of such a submission, how many an agent has free in a day, and what covers it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import BigInteger, bindparam, select, update
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import USDC, ChainName, native
from app.core.identifiers import new_id, require
from app.core.money import TokenAmount, nanos_from_usd, parse_amount
from app.core.movement_kinds import MovementKind
from app.db.prepared import PreparedInsert, PreparedRead, PreparedStatement
from app.db.tables import table_of
from app.db.unit_of_work import read_only_unit
from app.errors import GasPending, ServiceError
from app.idempotency.service import Claim
from app.ports.chain import SignedTransaction, TransactionDraft, TransferIntent
from app.ports.errors import PortError, Rejected
from app.ports.facilitator import AuthorizedTransfer, GasSponsor, SponsoredDraft, SponsoredTransfer
from app.ports.vault import Signer
from app.spending import holds as spending_holds
from app.state import app_state
from app.wallets.core import custody, intents, lifecycle, network_fees, parsing, wallets
from app.wallets.core.intents import Intent
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import SponsoredDay, Transaction
from app.wallets.core.parsing import GasSource
from app.wallets.core.wallets import WalletView
from app.wallets.transactions import failures, outcome_polling, pipeline, relayed, settlement
from app.wallets.transactions.pipeline import Movement
from app.wallets.views import history
from app.wallets.views.history import TransactionView

UNAVAILABLE = "gas_unavailable"
SUBMISSION_KIND = "sponsored"
# Its row counts what free transfers cost, in millionths of a dollar.
_ALL_AGENTS, _NANOS_PER_COUNT = "00000000-0000-0000-0000-000000000000", 1_000
# USDC counts as one dollar everywhere.
NANOS_PER_UNIT = 10**9 // 10**USDC.decimals
_MARGIN_PERCENT = 10
"""What the fee is above the expected cost."""
_OF_TODAY = (SponsoredDay.agent_id == bindparam("of_agent")) & (SponsoredDay.day == bindparam("today"))
_USED_TODAY = PreparedRead(select(SponsoredDay.transfers).where(_OF_TODAY))
_INSERT_DAY = PreparedInsert(SponsoredDay, unique=[SponsoredDay.agent_id, SponsoredDay.day])
_COUNTED = SponsoredDay.transfers + bindparam("amount", type_=BigInteger)
_COUNT_TODAY = PreparedStatement(
    update(table_of(SponsoredDay))
    .where(_OF_TODAY, bindparam("maximum", type_=BigInteger) >= _COUNTED)
    .values({SponsoredDay.transfers: _COUNTED})
    .returning(SponsoredDay.transfers)
)


@dataclass(frozen=True, slots=True)
class SponsorTransaction:
    """A transaction of the service's wallet: it submits a payment, or delivers a native token."""

    chain: ChainName
    draft: TransactionDraft
    sponsor: GasSponsor
    wallet: WalletView


@dataclass(frozen=True, slots=True)
class SubmissionPlan:
    """A payment that the chain would execute; `cost_nanos` is what its submission is likely to cost the service."""

    chain: ChainName
    draft: SponsoredDraft
    sponsor_wallet: WalletView
    cost_nanos: int

    def intent(self) -> Intent:
        return relayed.intent_of(self.chain, self.sponsor_wallet, self.draft.submission, SUBMISSION_KIND)

    def submission(self, authorized: AuthorizedTransfer) -> SponsorTransaction:
        sponsor = self.draft.transfer.sponsor
        return SponsorTransaction(self.chain, authorized.submission, sponsor, self.sponsor_wallet)


def plan_submission(chain: ChainName, sender: str, recipient: str | None, units: int) -> SubmissionPlan:
    """Read the chain and the price; without a recipient, it is the service. Raises: PortError, InvalidInput."""
    state = app_state()
    sponsor = state.gas_sponsor(chain, 0)
    transfer = SponsoredTransfer(sender, recipient or sponsor.fee_recipient, units, sponsor)
    try:
        draft = state.ports.sponsors[chain].draft(transfer)
    except Rejected as error:
        raise parsing.invalid_input_from(error.reason, error.details) or error from None
    network_fees.assert_acceptable(chain, draft.submission.fee_units)
    return SubmissionPlan(chain, draft, wallets.get_with_controls(sponsor.wallet_id), value_nanos(draft.cost))


def value_nanos(cost: TokenAmount) -> int:
    """Return the dollar value of a cost in a native token. Raises: Rejected("gas_price_unknown")."""
    return require(network_fees.usd_value_nanos(cost), Rejected("gas_price_unknown"))


def price_units(cost_nanos: int) -> int:
    """Return what the service takes for a cost, in USDC: with a margin, rounded up."""
    units: int = -(-cost_nanos * (100 + _MARGIN_PERCENT) // (100 * NANOS_PER_UNIT))
    return units


def assert_fee_below(fee_units: int, amount: TokenAmount) -> None:
    """Check that a fee in USDC does not exceed what it is paid for. Raises: Rejected("gas_fee_too_high")."""
    if fee_units > amount.units:
        details = {"fee": str(TokenAmount(fee_units, USDC)), "amount": str(amount), "currency": USDC.symbol}
        raise Rejected("gas_fee_too_high", details=details)


def number_today(session: Session, agent_id: str, *, counts: bool) -> int:
    """Return the number of an agent's next submission today, and with `counts` count it. Raises: Rejected."""
    number = _number_today(session, agent_id, app_state().settings.sponsored_per_day, counts=counts)
    return require(number, Rejected("sponsored_limit"))


def is_free(session: Session, plan: SubmissionPlan, agent_id: str, *, counts: bool) -> bool:
    """Return whether an agent's transfer is free, and with `counts` count it, for all agents too if it is.

    Agents cost nothing: what is free for each of them is bounded for all together. The service's own are free, and not
    counted. Raises: Rejected.
    """
    if agent_id == plan.sponsor_wallet.agent_id:
        return True
    settings, number = app_state().settings, number_today(session, agent_id, counts=counts)
    if number > settings.sponsored_free_per_day or plan.draft.creates_account:
        return False
    most = nanos_from_usd(settings.sponsored_free_usd_per_day) // _NANOS_PER_COUNT
    cost = -(-plan.cost_nanos // _NANOS_PER_COUNT)
    return _number_today(session, _ALL_AGENTS, most, amount=cost, counts=counts) is not None


def _number_today(session: Session, agent_id: str, maximum: int, *, amount: int = 1, counts: bool) -> int | None:
    """Return the count of today with an amount, None if that exceeds the maximum; store it with `counts`."""
    today = clock.now().date()
    if not counts:
        row = _USED_TODAY.one_or_none(session, {"of_agent": agent_id, "today": today})
        following = amount + (0 if row is None else int(row.transfers))
        return following if following <= maximum else None
    values = {"of_agent": agent_id, "today": today, "maximum": maximum, "amount": amount}
    number = _COUNT_TODAY.scalar(session, values)
    if number is None:
        _INSERT_DAY.execute(session, {"agent_id": agent_id, "day": today, "transfers": 0})
        number = _COUNT_TODAY.scalar(session, values)
    return None if number is None else int(number)


def record(
    session: Session, transaction: SponsorTransaction, signer: Signer, intent: Intent
) -> tuple[TransactionView, SignedTransaction]:
    """Sign a transaction that leaves the service's wallet the gas that payments need, and record it as pending.

    Raises: Rejected("gas_unavailable"), also for what concurrent requests have spent since the balance was read.
    """
    chain, draft = app_state().ports.chains[transaction.chain], transaction.draft
    spendable = replace(draft, native_units=draft.native_units - transaction.sponsor.reserve_units)
    try:
        return relayed.record_submission(session, chain, transaction.wallet, spendable, signer, intent=intent)
    except Rejected as error:
        if error.reason != "insufficient_gas":
            raise
        raise Rejected(UNAVAILABLE) from None


SHORTAGE = "insufficient_gas"
# What is simulated, because the price is known only afterwards.
_SAMPLE_UNITS = 1
# Between the hosts of this service.
_CLOCK_DIFFERENCE = timedelta(seconds=2)
# After this time without delivery, another one may be bought. It bounds how much of the seller's history is read.
_LONGEST_PENDING = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class _PurchasePlan:
    payment: Movement
    submission: SubmissionPlan
    deliveries: Sequence[SponsorTransaction]


def are_available(source: GasSource, chain: ChainName, amount: TokenAmount) -> bool:
    """Return whether a wallet that moves an amount on a chain may pay for native tokens with the USDC that remains."""
    state = app_state()
    is_sold = chain in state.ports.sponsors and state.settings.sponsored_per_day > 0
    return source is not GasSource.OWN and amount.token == USDC and is_sold


def quote(movement: Movement, shortages: Sequence[Mapping[str, str]], *, without: ServiceError) -> Movement:
    """Return a movement with what `buy` would take for it.

    Raises: the error of its type, which is `without` if the service sells nothing; the 403 errors of refused limits.
    """
    try:
        plan = _plan(movement, shortages)
        with read_only_unit() as session:
            number_today(session, movement.wallet.agent_id, counts=False)
            total_nanos = (plan.payment.value_nanos or 0) + (movement.value_nanos or 0)
            request = replace(plan.payment.spending_request, value_nanos=total_nanos)
            spending_holds.check(session, movement.wallet.id, request)
            funds, after = plan.submission.draft.funds, movement.amount.units
            relayed.assert_payable(session, plan.payment, funds, more_units=after)
    except PortError as error:
        if error.reason == UNAVAILABLE:
            raise without from None
        raise failures.failure(movement.type, error, kind=movement.kind) from None
    return replace(movement, gas_fee_units=plan.payment.amount.units)


def buy(
    movement: Movement, shortages: Sequence[PortError], *, since: datetime, wait_seconds: Decimal | None, claim: Claim
) -> None:
    """Buy what a movement of USDC lacks of native tokens, and wait up to `wait_seconds` until the wallet has it.

    The details of a shortage are the missing and the required amount, and the chain if it is not the movement's. What
    another request has bought `since`, before the shortages were found, may cover them: then nothing is bought.

    Raises: the error of the movement's type, after it was recorded as failed (by the first shortage if the service
    sells nothing); the 403 errors of refused limits; GasPending if not all of it has arrived yet. What was bought stays
    bought.
    """
    chains = app_state().ports.chains
    try:
        plan = _plan(movement, [each.details for each in shortages])
        (submission, payment_bytes), *delivered = _record(movement, plan, since)
    except PortError as error:
        reported = shortages[0] if error.reason == UNAVAILABLE else error
        raise pipeline.record_failed(movement, reported, claim=claim) from None
    settlement.broadcast(chains[movement.chain], submission.id, payment_bytes)
    for delivery, (recorded, signed) in zip(plan.deliveries, delivered, strict=True):
        settlement.broadcast(chains[delivery.chain], recorded.id, signed)
    for delivery, (recorded, signed) in zip(plan.deliveries, delivered, strict=True):
        query = settlement.query_for(recorded.id, recorded.from_address or "", signed)
        outcome_polling.wait_for_outcome(
            delivery.chain, query, seconds=wait_seconds, account_id=movement.wallet.agent_id
        )
        if history.current_view(recorded.id).status != MovementStatus.CONFIRMED:
            raise _pending(delivery.chain)


def _plan(movement: Movement, shortages: Sequence[Mapping[str, str]]) -> _PurchasePlan:
    """Read the chains and prices. Raises: PortError."""
    deliveries = [_plan_delivery(movement, each) for each in shortages]
    submission = plan_submission(movement.chain, movement.sender, None, _SAMPLE_UNITS)
    sold = [(each.draft.intent.amount, each.draft.fee_units) for each in deliveries]
    # What the deliveries take from the settlement wallet, in dollars.
    taken = sum(value_nanos(replace(amount, units=amount.units + fee_units)) for amount, fee_units in sold)
    units = price_units(submission.cost_nanos + taken)
    assert_fee_below(units, movement.amount)
    network_fees.assert_below(units * NANOS_PER_UNIT, movement.max_fee_nanos)
    transfer = replace(submission.draft.transfer, units=units)
    payment = Movement(
        wallet=movement.wallet, type=TransactionType.PAYMENT, kind=MovementKind.GAS, chain=movement.chain,
        recipient=transfer.recipient, payee=None, amount=TokenAmount(units, USDC),
        value_nanos=units * NANOS_PER_UNIT,
    )  # fmt: skip
    submission = replace(submission, draft=replace(submission.draft, transfer=transfer))
    return _PurchasePlan(payment, submission, deliveries)


def _plan_delivery(movement: Movement, shortage: Mapping[str, str]) -> SponsorTransaction:
    state = app_state()
    chain = ChainName(shortage.get("chain", movement.chain))
    missing, required = (parse_amount(shortage[name], native(chain)) for name in ("missing", "required"))
    network_fees.assert_acceptable(chain, required.units)
    # Fees may have doubled by the time that it arrives; the rest stays in the wallet.
    bought = TokenAmount(missing.units + required.units, required.token)
    sponsor = state.gas_sponsor(chain, bought.units)
    intent = TransferIntent(sponsor.submitter, movement.wallet.address_on(chain), bought)
    try:
        draft = state.ports.chains[chain].draft(intent)
    except Rejected:
        raise Rejected(UNAVAILABLE) from None
    return SponsorTransaction(chain, draft, sponsor, wallets.get_with_controls(sponsor.wallet_id))


def _record(
    movement: Movement, plan: _PurchasePlan, since: datetime
) -> Sequence[tuple[TransactionView, SignedTransaction]]:
    """Count, hold, sign and store, in one unit; return the submission of the payment, and the deliveries.

    Raises: Rejected, GasPending, the 403 errors of refused limits.
    """
    payment, submission, wallet_id, payment_id = plan.payment, plan.submission, movement.wallet.id, new_id()
    wallets = movement.wallet, submission.sponsor_wallet, *(each.wallet for each in plan.deliveries)
    signer, submitter, *sellers = [custody.signer_of(each.id, each.addresses) for each in wallets]
    sales = [relayed.intent_of(each.chain, each.wallet, each.draft, MovementKind.GAS_SALE) for each in plan.deliveries]
    own = submission.intent()
    with intents.recording(payment.intent(payment_id), own, *sales) as session:
        spending_holds.hold(session, wallet_id, payment.spending_request, reference=payment_id)
        # What needs the token must be within the limits, too.
        spending_holds.check(session, wallet_id, movement.spending_request)
        for delivery in plan.deliveries:
            if _is_bought(session, delivery, since):
                raise _pending(delivery.chain)
        number_today(session, movement.wallet.agent_id, counts=True)
        # The movement has to be affordable after the payment.
        after = movement.amount.units
        relayed.assert_payable(session, payment, submission.draft.funds, more_units=after)
        sponsor, now = app_state().ports.sponsors[payment.chain], int(clock.now().timestamp())
        authorized = sponsor.authorize(submission.draft, fee_units=0, signer=signer, now=now)
        sent = submission.submission(authorized)
        # All of them first: recording a transaction locks the service's wallet, which ranks after its nonces.
        for each in sorted([sent, *plan.deliveries], key=lambda each: each.chain):
            if each.draft.sequence is not None:
                lifecycle.lock_nonces(session, each.chain, each.draft.intent.sender)
        recorded = [record(session, sent, submitter, own)]
        for each, seller, sale in zip(plan.deliveries, sellers, sales, strict=True):
            recorded.append(record(session, each, seller, sale))
        relayed.record_in_submission(session, payment_id, payment, authorized.transfer, recorded[0][1])
    return recorded


def _is_bought(session: Session, delivery: SponsorTransaction, since: datetime) -> bool:
    """Return whether a delivery to this wallet is pending, or was made since. The wallet's account must be locked."""
    was_made = Transaction.created_at >= since - _CLOCK_DIFFERENCE
    found = select(Transaction.id).filter_by(
        chain=delivery.chain.value, wallet_id=delivery.wallet.id, kind=MovementKind.GAS_SALE.value,
        to_address=delivery.draft.intent.recipient,
    )  # fmt: skip
    is_recent = Transaction.created_at >= since - _LONGEST_PENDING
    is_open = was_made | (Transaction.status == MovementStatus.PENDING.value)
    return session.scalar(found.where(is_recent, is_open).limit(1)) is not None


def _pending(chain: ChainName) -> GasPending:
    block_seconds = app_state().ports.chains[chain].block_time.total_seconds()
    return GasPending(retry_after_seconds=max(1, round(block_seconds)), details={"chain": chain.value})
