"""The phases of an outgoing transaction: prepare, record, broadcast, settle. Shared by transfers and swaps.

Prepare reads the chain and simulates. Record holds the value, allocates the nonce, signs and stores, in one unit.
A process that dies between phases leaves a `pending` row that `confirmation` settles.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TypeVar

import structlog
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import USDC, ChainName, Family, Token, native
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.core.movement_kinds import MovementKind
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import ServiceError
from app.idempotency.service import Claim
from app.ports.bridges import BridgeOffer
from app.ports.chain import Chain, Shortage, SignedTransaction, TransactionDraft
from app.ports.errors import PortError
from app.ports.swaps import SwapOffer
from app.ports.vault import Signer
from app.spending import accounts as spending_accounts
from app.spending import holds as spending_holds
from app.spending.policy import SpendingRequest
from app.state import app_state
from app.wallets.core import custody, intents, lifecycle, network_fees
from app.wallets.core.intents import Intent
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import Transaction
from app.wallets.core.wallets import WalletView
from app.wallets.transactions import confirmation, failures, outcome_polling, settlement
from app.wallets.views import history

_log = structlog.get_logger(__name__)

PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")
DraftFunction = Callable[[Signer | None], TransactionDraft]
"""Reads the chain and simulates; in a dry run there is no signer, and nothing is signed.

Raises: PortError, ServiceError.
"""
SignFunction = Callable[[Session, TransactionDraft, Signer, int | None], SignedTransaction]
"""Signs a draft with a nonce, inside the unit that records it: no network."""
RecordedCallback = Callable[[Session, history.TransactionView], None]
"""Writes related rows inside the unit that records a movement: no network."""


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """The expected output of a swap: quoted and minimum; None while there is no quote."""

    token: Token
    quoted: TokenAmount | None = None
    minimum: TokenAmount | None = None


@dataclass(frozen=True, slots=True)
class Movement:
    """An outgoing movement: `amount` leaves the wallet and counts as `value_nanos` against its limits.

    `payee` must be on the wallet's allowlist, if it has one; None if the recipient is the wallet or the service.
    `domain` is the web service's that is paid, if one is; `session_id` the session that it counts against.
    """

    wallet: WalletView
    type: TransactionType
    chain: ChainName
    recipient: str
    payee: str | None
    amount: TokenAmount
    value_nanos: int | None
    output: ExpectedOutput | None = None
    kind: str | None = None
    domain: str | None = None
    session_id: str | None = None
    gas_fee_units: int | None = None
    """What a transfer that the service submits costs in USDC; None if the wallet pays the network itself."""
    max_fee_nanos: int | None = None
    takes_all: bool = False
    """Whether the amount is a guess at all that can leave: too much is not recorded, and the caller tries less.

    Limits are checked when it is sent, not in a dry run, because it is not the amount yet.
    """
    on_recorded: RecordedCallback | None = None
    """Called in the unit that records it."""

    @property
    def sender(self) -> str:
        return self.wallet.address_on(self.chain)

    def intent(self, transaction_id: str, *, is_held: bool = True) -> Intent:
        """Return what a signer process checks the signature for this movement against."""
        held, output = self.spending_request if is_held else None, self.output
        return Intent(
            transaction_id, self.wallet.id, self.chain, str(self.kind or self.type), self.recipient, self.amount, held,
            minimum_units=output.minimum.units if output and output.minimum else None,
        )  # fmt: skip

    @property
    def spending_request(self) -> SpendingRequest:
        is_fee = self.kind == MovementKind.GAS
        return SpendingRequest(
            self.value_nanos, self.payee, self.chain.family, self.domain, self.session_id,
            approved=None if is_fee else self.wallet.approved, is_network_fee=is_fee,
            buys_credits=self.kind == MovementKind.TOPUP, is_foreign=self.amount.token.contract is not None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MovementQuote:
    """The result of a dry run that passed: the movement, its maximum network fee, and the offer that it accepts."""

    movement: Movement
    fee_units: int
    offer: BridgeOffer | SwapOffer | None = None
    dry_run: bool = True
    recipient_is: str | None = None
    similar_recipients: tuple[str, ...] = ()

    @property
    def gas_fee(self) -> TokenAmount | None:
        """Return the fee of a transfer that the service submits; None if the wallet pays the network itself."""
        units = self.movement.gas_fee_units
        return None if units is None else TokenAmount(units, USDC)

    @property
    def network_fee(self) -> TokenAmount:
        return TokenAmount(self.fee_units, native(self.movement.chain))

    @property
    def network_fee_nanos(self) -> int | None:
        """Return the dollar value of the fee, None if no price is known. Reads the network."""
        return network_fees.usd_value_nanos(self.network_fee)


class NotAffordable(Shortage):
    """The balance, less unmined transactions of the wallet, does not cover a movement."""


def is_too_much(movement: Movement, error: PortError) -> bool:
    """Return whether less of a movement that takes all could be moved: by `details.missing` less."""
    is_short = error.reason == "insufficient_funds" and error.details.get("currency") == movement.amount.token.symbol
    return movement.takes_all and is_short


def assert_allowed(movement: Movement) -> None:
    """Check the limits without locking or holding. Raises: the 403 errors, PriceUnavailable."""
    wallet = movement.wallet
    with read_only_unit() as session:
        spending_holds.check(session, wallet.id, movement.spending_request, status=wallet.spending_status)


def dry_run(movement: Movement, draft: DraftFunction) -> TransactionDraft:
    """Prepare a movement and check limits and balances. Raises: what `execute` raises before signing."""

    def assert_possible(drafted: TransactionDraft) -> TransactionDraft:
        counted = counting_rent(movement, drafted)
        with read_only_unit() as session:
            if not movement.takes_all:
                spending_holds.check(session, movement.wallet.id, counted.spending_request)
            assert_affordable(session, movement.chain, drafted)
        return drafted

    try:
        return retry_after_settling_pending(movement, lambda: _prepare(movement, draft, None), assert_possible)
    except PortError as error:
        if is_too_much(movement, error):
            raise
        raise failures.failure(movement.type, error) from None


def execute(
    movement: Movement,
    draft: DraftFunction,
    sign: SignFunction,
    *,
    wait_seconds: Decimal | None,
    claim: Claim,
    without_gas: Callable[[PortError], history.TransactionView] | None = None,
) -> history.TransactionView:
    """Prepare, record and broadcast a movement, and wait for its outcome up to `wait_seconds`.

    Returns a `confirmed` or `pending` transaction. `without_gas` replaces all of it for a wallet with too little of the
    native token.

    Raises: the 403 errors of refused limits; the error of the movement's type if it is known not to have happened.
    """
    signer = custody.signer_of(movement.wallet.id, movement.wallet.addresses)
    # A swap is simulated with a permit, which is signed before anything is held.
    is_early = movement.type is TransactionType.SWAP and movement.chain.family is Family.EVM
    drafted_for = [movement.intent(new_id(), is_held=False)] if is_early else []

    def commit(drafted: TransactionDraft) -> tuple[history.TransactionView, SignedTransaction]:
        counted = counting_rent(movement, drafted)
        intent = counted.intent(drafted_for[0].id if drafted_for else new_id())
        return _record_signed(counted, drafted, sign, signer, intent, claim=claim)

    try:
        with intents.recorded(*drafted_for):
            recorded, signed = retry_after_settling_pending(movement, lambda: _prepare(movement, draft, signer), commit)
    except PortError as error:
        if error.reason == "insufficient_gas" and without_gas is not None:
            return without_gas(error)
        if is_too_much(movement, error):
            raise
        raise record_failed(movement, error, claim=claim) from None
    view = broadcast_and_wait(
        app_state().ports.chains[movement.chain], recorded, signed, wait_seconds=wait_seconds,
        account_id=movement.wallet.agent_id, output_token=movement.output.token if movement.output else None,
    )  # fmt: skip
    if view.status == MovementStatus.FAILED:
        raise failures.recorded_failure(view)
    return view


def record_failed(movement: Movement, error: PortError, *, claim: Claim) -> ServiceError:
    """Record a movement that failed before signing, and return its error. Limits are checked first."""
    transaction = new_transaction(new_id(), movement)
    transaction.cost_nanos = 0
    transaction.error = failures.reason_of(error)
    with unit_of_work() as session:
        spending_accounts.lock_account(session, movement.wallet.id)
        spending_holds.check(session, movement.wallet.id, movement.spending_request)
        lifecycle.record(session, transaction, status=MovementStatus.FAILED)
        claim.bind(session, transaction.id)
    return failures.failure(movement.type, error, transaction_id=transaction.id, kind=movement.kind)


def retry_after_settling_pending(
    movement: Movement, plan: Callable[[], PlanT], action: Callable[[PlanT], ResultT]
) -> ResultT:
    """Plan a movement and apply `action`; if pending ones make it unaffordable, settle those that landed and retry.

    The retry plans again, because only new balances include what has landed. Where there are nonces, they define what
    the balances include, and nothing is retried.

    Raises: PortError (NotAffordable is a subclass).
    """
    try:
        return action(plan())
    except NotAffordable:
        if movement.chain.family is Family.EVM:
            raise
        confirmation.settle_landed(movement.chain, movement.sender)
    return action(plan())


def _prepare(movement: Movement, draft: DraftFunction, signer: Signer | None) -> TransactionDraft:
    """Draft a movement and check its network fee. Raises: PortError."""
    drafted = draft(signer)
    network_fees.assert_acceptable(movement.chain, drafted.fee_units, movement.max_fee_nanos)
    return drafted


def counting_rent(movement: Movement, draft: TransactionDraft) -> Movement:
    """Return a movement that counts the recipient's rent, too; an approval includes it. Reads the network."""
    if not draft.rent_units or movement.value_nanos is None:
        return movement
    rent_nanos = network_fees.nanos(movement.chain, draft.rent_units)
    wallet = movement.wallet
    if wallet.approved is not None:
        wallet = replace(wallet, approved=replace(wallet.approved, max_nanos=wallet.approved.max_nanos + rent_nanos))
    return replace(movement, wallet=wallet, value_nanos=movement.value_nanos + rent_nanos)


def _record_signed(
    movement: Movement, draft: TransactionDraft, sign: SignFunction, signer: Signer, intent: Intent, *, claim: Claim
) -> tuple[history.TransactionView, SignedTransaction]:
    """Hold the value, allocate the nonce, sign and store: all that must be committed before the broadcast."""
    with intents.recording(intent) as session:
        spending_holds.hold(session, movement.wallet.id, movement.spending_request, reference=intent.id)
        assert_affordable(session, movement.chain, draft)
        row = new_transaction(intent.id, movement)
        signed = lifecycle.record_signed(session, row, draft, lambda nonce: sign(session, draft, signer, nonce))
        return bind_recorded(session, row, movement, claim), signed


def bind_recorded(session: Session, row: Transaction, movement: Movement, claim: Claim) -> history.TransactionView:
    """Bind a movement that this unit recorded to its claim, call what waits for that, and return its view."""
    claim.bind(session, row.id)
    view = history.view_of(session, row)
    if movement.on_recorded is not None:
        movement.on_recorded(session, view)
    return view


def assert_affordable(session: Session, chain: ChainName, draft: TransactionDraft) -> None:
    """Refuse what the balances do not cover after all unmined movements. Raises: NotAffordable."""
    sender, amount, fee_token = draft.intent.sender, draft.intent.amount, native(chain)
    unmined_units, fees = settlement.outflows(
        session, sender, chain, since_sequence=draft.sequence, since_block=draft.as_of
    )
    needed_native = draft.fee_units + fees + unmined_units.get(fee_token, 0)
    if amount.token == fee_token:
        needed_native += amount.units
    else:
        needed = amount.units + unmined_units.get(amount.token, 0)
        NotAffordable.check(amount.token, "insufficient_funds", draft.token_units, needed)
    reason = "insufficient_funds" if amount.token == fee_token else "insufficient_gas"
    NotAffordable.check(fee_token, reason, draft.native_units, needed_native)


def broadcast_and_wait(
    chain: Chain,
    recorded: history.TransactionView,
    signed: SignedTransaction,
    *,
    wait_seconds: Decimal | None,
    account_id: str,
    output_token: Token | None = None,
    legs: Sequence[tuple[str, SignedTransaction]] = (),
    after_legs: Callable[[str], object] | None = None,
) -> history.TransactionView:
    """Broadcast and wait for the outcome. An error here never becomes a 500: the recorded movement is returned.

    For a movement with legs, given with their ids, all legs are broadcast and the outcome of the last one is awaited.
    Then `after_legs` applies their state to the movement.
    """
    try:
        sent = legs or [(recorded.id, signed)]
        refusals = [settlement.broadcast(chain, transaction_id, each) for transaction_id, each in sent]
        if not any(refusals) and wait_seconds is not None and wait_seconds <= 0:
            return recorded
        # A used nonce may be the effect of these bytes.
        if all(refusal in {None, "nonce_too_low"} for refusal in refusals):
            query = settlement.query_for(sent[-1][0], recorded.from_address or "", signed, output_token=output_token)
            outcome_polling.wait_for_outcome(chain.name, query, seconds=wait_seconds, account_id=account_id)
            if after_legs is not None:
                after_legs(recorded.id)
        return history.current_view(recorded.id)
    except Exception:
        _log.exception("movement_deferred_to_workers", transaction_id=recorded.id)
        return recorded


def new_transaction(transaction_id: str, movement: Movement) -> Transaction:
    output = movement.output
    return Transaction(
        id=transaction_id, wallet_id=movement.wallet.id, type=movement.type.value,
        kind=None if movement.kind is None else str(movement.kind),
        chain=movement.chain.value, from_address=movement.sender, to_address=movement.recipient,
        amount_units=movement.amount.units, currency=movement.amount.token.symbol,
        output_currency=output.token.symbol if output else None,
        output_quoted_units=output.quoted.units if output and output.quoted else None,
        output_minimum_units=output.minimum.units if output and output.minimum else None,
        gas_fee_units=movement.gas_fee_units,
        max_fee_nanos=movement.max_fee_nanos,
        cost_nanos=movement.value_nanos or 0, created_at=clock.now(), checks=0,
    )  # fmt: skip
