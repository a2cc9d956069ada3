"""Transfers and withdrawals: the full value counts against the limits.

USDC can be transferred without a native token: the wallet authorizes, and the service submits for a fee in USDC. One
unit counts the transfer, holds amount and fee, signs both authorizations and their submission, and stores them:
nothing that was signed is known to anyone before. The chain then decides on each authorization, by any submitter, and
on the submission, which is a transaction of the service's wallet.
"""

from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial

from app.core import clock
from app.core.chains import USDC, ChainName, look_alikes
from app.core.identifiers import new_id
from app.core.money import TokenAmount, parse_amount
from app.core.movement_kinds import MovementKind
from app.db.unit_of_work import read_only_unit
from app.errors import InvalidInput, ServiceError
from app.idempotency.service import Claim
from app.ports.chain import SignedTransaction, TransactionDraft, TransferIntent
from app.ports.errors import PortError, Rejected
from app.spending import controls as spending_controls
from app.spending import holds as spending_holds
from app.state import app_state
from app.wallets import gas
from app.wallets.core import custody, intents, network_fees, parsing
from app.wallets.core.intents import Intent
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.parsing import GasSource
from app.wallets.core.wallets import WalletView
from app.wallets.gas import SubmissionPlan
from app.wallets.transactions import failures, pipeline, relayed
from app.wallets.transactions.pipeline import Movement, MovementQuote, RecordedCallback
from app.wallets.views import history
from app.wallets.views.history import TransactionView

_MAX_READINGS = 5
_MORE_UNITS = 10**59
"""More than anybody holds of a token that is worth something."""


def quote_sponsored(movement: Movement, *, without_gas: ServiceError | None = None) -> MovementQuote:
    """Check limits and simulate like `execute`, without signing. Raises: what `execute` raises before signing."""
    if not movement.takes_all:
        pipeline.assert_allowed(movement)
    try:
        plan = _plan(movement)
        with read_only_unit() as session:
            is_free = gas.is_free(session, plan, movement.wallet.agent_id, counts=False)
            priced, fee = _with_fee(movement, plan, is_free=is_free)
            for each in () if movement.takes_all else (priced, *([fee] if fee else [])):
                spending_holds.check(session, movement.wallet.id, each.spending_request)
            relayed.assert_payable(session, priced, plan.draft.funds)
    except PortError as error:
        if without_gas is not None and error.reason == gas.UNAVAILABLE:
            raise without_gas from None
        if pipeline.is_too_much(movement, error):
            raise
        raise failures.failure(movement.type, error) from None
    return MovementQuote(movement=priced, fee_units=0, recipient_is=plan.draft.submission.recipient_is)


def execute(
    movement: Movement, without_gas: PortError | None, *, wait_seconds: Decimal | None, claim: Claim
) -> TransactionView:
    """Have a transfer submitted by the service, and wait for its outcome up to `wait_seconds`.

    Returns a `confirmed` or `pending` transaction. `without_gas` is why the wallet could not pay the network itself; it
    is reported if the service cannot either.

    Raises: the 403 errors of refused limits; the error of the movement's type if it is known not to have happened.
    """
    try:
        recorded, submission, signed = pipeline.retry_after_settling_pending(
            movement, lambda: _plan(movement), partial(_record, movement, claim=claim)
        )
    except PortError as error:
        if pipeline.is_too_much(movement, error):
            raise
        reported = without_gas if without_gas and error.reason == gas.UNAVAILABLE else error
        raise pipeline.record_failed(movement, reported, claim=claim) from None
    chain, account_id = app_state().ports.chains[movement.chain], movement.wallet.agent_id
    submitted = pipeline.broadcast_and_wait(chain, submission, signed, wait_seconds=wait_seconds, account_id=account_id)
    if submitted.status == MovementStatus.PENDING:
        return history.current_view(recorded.id)
    # Another party may have submitted it first: then the submission failed, and the transfer did not.
    view = relayed.wait_for_authorized(recorded, wait_seconds=wait_seconds, account_id=account_id)
    if view.status == MovementStatus.FAILED:
        raise failures.recorded_failure(view)
    return view


def _plan(movement: Movement) -> SubmissionPlan:
    plan = gas.plan_submission(movement.chain, movement.sender, movement.recipient, movement.amount.units)
    if movement.wallet.agent_id == plan.sponsor_wallet.agent_id:
        # The service pays what it submits for itself.
        network_fees.assert_below(plan.cost_nanos, movement.max_fee_nanos)
    return plan


def _with_fee(movement: Movement, plan: SubmissionPlan, *, is_free: bool) -> tuple[Movement, Movement | None]:
    """Return a movement with its fee, and what pays the fee unless it is free. Raises: Rejected("gas_fee_too_high")."""
    units = 0 if is_free else gas.price_units(plan.cost_nanos)
    gas.assert_fee_below(units, movement.amount)
    network_fees.assert_below(units * gas.NANOS_PER_UNIT, movement.max_fee_nanos)
    priced = replace(movement, gas_fee_units=units)
    if not units:
        return priced, None
    paid_to = plan.draft.transfer.sponsor.fee_recipient
    return priced, replace(
        movement, type=TransactionType.PAYMENT, kind=MovementKind.GAS, recipient=paid_to, payee=None,
        amount=TokenAmount(units, USDC), value_nanos=units * gas.NANOS_PER_UNIT,
    )  # fmt: skip


def _record(
    movement: Movement, plan: SubmissionPlan, *, claim: Claim
) -> tuple[TransactionView, TransactionView, SignedTransaction]:
    """Count, hold, sign and store in one unit; return transfer and submission. Raises: Rejected, the 403 errors."""
    wallets = movement.wallet, plan.sponsor_wallet
    signer, submitter = [custody.signer_of(each.id, each.addresses) for each in wallets]
    sponsor = app_state().ports.sponsors[movement.chain]
    transfer_id, fee_id, own = new_id(), new_id(), plan.intent()
    with intents.recording(*_intents(movement, plan, transfer_id, fee_id), own) as session:
        spending_holds.hold(session, movement.wallet.id, movement.spending_request, reference=transfer_id)
        is_free = gas.is_free(session, plan, movement.wallet.agent_id, counts=True)
        priced, fee = _with_fee(movement, plan, is_free=is_free)
        if fee is not None:
            spending_holds.hold(session, movement.wallet.id, fee.spending_request, reference=fee_id)
        relayed.assert_payable(session, priced, plan.draft.funds)
        now = int(clock.now().timestamp())
        authorized = sponsor.authorize(plan.draft, fee_units=priced.gas_fee_units or 0, signer=signer, now=now)
        # First, because it locks the nonces of the service's wallet.
        submission, signed = gas.record(session, plan.submission(authorized), submitter, own)
        # Their signed bytes are part of the submission's.
        row = relayed.record_in_submission(session, transfer_id, priced, authorized.transfer, signed)
        if fee is not None and authorized.fee is not None:
            relayed.record_in_submission(session, fee_id, fee, authorized.fee, signed)
        return pipeline.bind_recorded(session, row, movement, claim), submission, signed


def _intents(movement: Movement, plan: SubmissionPlan, transfer_id: str, fee_id: str) -> list[Intent]:
    """Return what the wallet signs, with the fee that is due now, for a signer process. Raises: Rejected."""
    if app_state().ports.signer is None:
        return []
    with read_only_unit() as session:
        is_free = gas.is_free(session, plan, movement.wallet.agent_id, counts=False)
    priced, fee = _with_fee(movement, plan, is_free=is_free)
    return [priced.intent(transfer_id), *([fee.intent(fee_id)] if fee else [])]


@dataclass(frozen=True, slots=True)
class TransferOrder:
    """A requested transfer or withdrawal: the recipient in canonical form, the amount in base units."""

    type: TransactionType
    chain: ChainName
    recipient: str
    amount: TokenAmount
    kind: str | None = None
    # False for payments to the service itself.
    needs_allowlist: bool = True
    session_id: str | None = None
    gas: GasSource = GasSource.AUTO
    max_fee_nanos: int | None = None
    takes_all: bool = False
    """Whether the amount is all that can leave the wallet after fees; see `settled`."""


def quote(wallet: WalletView, order: TransferOrder) -> MovementQuote:
    """Check limits and simulate like `send`, without signing. Raises: what `send` raises before signing."""
    found = _quote(wallet, replace(settled(wallet, order), takes_all=False) if order.takes_all else order)
    movement, allowed = found.movement, spending_controls.controls_from_row(found.movement.wallet.spending_status)
    with read_only_unit() as session:
        paid = history.recipients_of(session, [wallet.id], movement.chain)
    known = {*paid, *(() if allowed is None else allowed.allowed_addresses)}
    # A person could take this recipient for one of them.
    return replace(found, similar_recipients=look_alikes(movement.recipient, known))


def settled(wallet: WalletView, order: TransferOrder) -> TransferOrder:
    """Return an order that takes all with the amount that can leave now, whatever the limits allow.

    `send` decides whether it still can, in the unit that signs: if not, it raises a `PortError`, and nothing is
    recorded. Raises: what `quote` raises.
    """
    token = order.amount.token
    try:
        chain, address = app_state().ports.chains[order.chain], wallet.address_on(order.chain)
        # A draft reads the balance of a foreign token, and says what is missing.
        units = chain.balances(address).of(token).units if token.contract is None else _MORE_UNITS
    except PortError as error:
        raise failures.failure(order.type, error) from None
    # Fees, and what pending movements take, are what is missing; a fee may rise between two readings.
    for _ in range(_MAX_READINGS):
        order = replace(order, amount=TokenAmount(max(units, 1), token), takes_all=units > 0)
        if units <= 0:
            break
        try:
            _quote(wallet, order)
            break
        except PortError as error:
            units -= parse_amount(error.details["missing"], token).units
    return order


def _quote(wallet: WalletView, order: TransferOrder) -> MovementQuote:
    movement = _movement(wallet, order)
    if not order.takes_all:
        pipeline.assert_allowed(movement)
    if order.gas is GasSource.SPONSORED:
        return quote_sponsored(movement)
    try:
        draft = pipeline.dry_run(movement, lambda _signer: _draft(movement))
    except ServiceError as error:
        is_short = error.details.get("reason") == gas.SHORTAGE
        if is_short and gas.are_available(order.gas, order.chain, order.amount):
            return quote_sponsored(movement, without_gas=error)
        raise
    counted = pipeline.counting_rent(movement, draft)
    return MovementQuote(movement=counted, fee_units=draft.fee_units, recipient_is=draft.recipient_is)


def send(
    wallet: WalletView,
    order: TransferOrder,
    *,
    wait_seconds: Decimal | None,
    claim: Claim,
    on_recorded: RecordedCallback | None = None,
) -> history.TransactionView:
    """Send tokens and wait for the outcome up to `wait_seconds`.

    Returns a `confirmed` or `pending` transaction. `on_recorded` runs in the unit that records it.

    Raises: the 403 errors of refused limits; InvalidInput for what only the chain can validate; TransferFailed or
    WithdrawalFailed if it is known not to have happened.
    """
    chain = app_state().ports.chains[order.chain]
    movement = replace(_movement(wallet, order), on_recorded=on_recorded)
    # Checked without a lock first: a refused request costs no call to the chain.
    pipeline.assert_allowed(movement)

    sponsor = partial(execute, movement, wait_seconds=wait_seconds, claim=claim)
    if order.gas is GasSource.SPONSORED:
        return sponsor(None)
    return pipeline.execute(
        movement, lambda _signer: _draft(movement),
        lambda _session, draft, signer, nonce: chain.sign(draft, signer, sequence=nonce), wait_seconds=wait_seconds,
        claim=claim, without_gas=sponsor if gas.are_available(order.gas, order.chain, order.amount) else None,
    )  # fmt: skip


def _movement(wallet: WalletView, order: TransferOrder) -> Movement:
    to = wallet.agent_id, order.chain.value, order.recipient
    if order.amount.token.contract is not None and not app_state().is_address_named(*to):
        raise InvalidInput.field("to", "must be an address that the owner has named on this chain")
    return Movement(
        wallet=wallet, type=order.type, kind=order.kind, chain=order.chain, recipient=order.recipient,
        payee=order.recipient if order.needs_allowlist else None,
        amount=order.amount, value_nanos=network_fees.usd_value_nanos(order.amount), session_id=order.session_id,
        max_fee_nanos=order.max_fee_nanos, takes_all=order.takes_all,
    )  # fmt: skip


def _draft(movement: Movement) -> TransactionDraft:
    """Read the chain and simulate. Raises: Rejected, Unreachable, InvalidInput."""
    chain = app_state().ports.chains[movement.chain]
    try:
        return chain.draft(TransferIntent(movement.sender, movement.recipient, movement.amount))
    except Rejected as error:
        invalid_input = parsing.invalid_input_from(error.reason, error.details)
        raise invalid_input or error from None
