"""Settlement of signed payments: submitted with a settlement key, in the same phases as every transaction.

A payment is claimed, signed and recorded in one unit of work and broadcast after it. It is voided only when it
can no longer land. Workers resume what a process left unfinished.
"""

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from random import SystemRandom

import structlog
from sqlalchemy import select

from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.core.movement_kinds import MovementKind
from app.db import leases
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.observability import telemetry
from app.payments import claimed_payments, settlement_capacity, settlement_risks, treasury
from app.payments.claimed_payments import PaymentRail, PaymentRow, PaymentStatus
from app.payments.models import Payment
from app.payments.presented import PaymentPrice, SignedPayment
from app.ports.errors import PortError, Rejected
from app.ports.facilitator import ExpectedPayment, Facilitator, PaymentAuthorization
from app.state import app_state
from app.wallets.core import custody, intents, lifecycle
from app.wallets.core.lifecycle import MovementStatus
from app.wallets.core.models import Transaction
from app.wallets.core.wallets import WalletView
from app.wallets.transactions import open_transactions, outcome_polling, pipeline, relayed
from app.wallets.views import history
from app.wallets.views.history import TransactionView
from server.pool import ResourceUse

_log = structlog.get_logger(__name__)
KIND = MovementKind.SETTLEMENT
ACCOUNT_OPENING_KIND = "opening"
_INSUFFICIENT_GAS = "insufficient_gas"
_RESOLVE_BATCH = 200
_random = SystemRandom()
# No reorg of these chains reaches further back, and no authorization is resubmitted for longer.
REVERSAL_WINDOW = timedelta(hours=24)
# A request that submitted a payment and saw it land begins its call within milliseconds.
_HANDOVER = timedelta(seconds=2)
_HANDOVER_POLL = timedelta(milliseconds=100)


def verify(presented: SignedPayment, price: PaymentPrice) -> PaymentAuthorization:
    """Run the checks of a signed payment that need no chain. Raises: Rejected."""
    name = presented.facilitator.name
    presented.check(price)
    expected = ExpectedPayment(price.units, treasury.recipient(name), treasury.settler(name))
    return presented.facilitator.verify(presented.payload, expected, now=int(clock.now().timestamp()))


def settle(
    facilitator: Facilitator, authorization: PaymentAuthorization, price: PaymentPrice, *, account_id: str
) -> str:
    """Claim a verified payment, submit it, and wait for its outcome; return the payment's id.

    The waiting thread counts against `account_id`.

    Raises: Rejected before anything was claimed; Unreachable; IntegrityError when it was claimed concurrently;
    PaymentIsOpen when another one of this payer was, for this request.
    """
    *others, last = _by_pending(facilitator.name)
    for wallet in others:
        try:
            return _settle(wallet, facilitator, authorization, price, account_id=account_id)
        except Rejected as error:
            if error.reason != _INSUFFICIENT_GAS:
                raise
            # The periodic check reports it.
    return _settle(last, facilitator, authorization, price, account_id=account_id)


def _by_pending(chain: ChainName) -> list[WalletView]:
    """Return the wallets that may submit a payment, first the one with the fewest open."""
    found = treasury.submitters(chain)
    if len(found) > 1:
        with read_only_unit() as session:
            senders = select(Transaction.from_address).join(Payment, Payment.transaction_id == Transaction.id)
            is_open = claimed_payments.is_open_on(chain, PaymentStatus.SETTLING)
            pending = Counter(session.scalars(senders.where(is_open)))
        _random.shuffle(found)
        found.sort(key=lambda each: pending[each.address_on(chain)])
    return found


def _settle(
    wallet: WalletView, facilitator: Facilitator, authorization: PaymentAuthorization, price: PaymentPrice, *,
    account_id: str,
) -> str:  # fmt: skip
    chain = app_state().ports.chains[facilitator.name]
    draft = facilitator.draft_settlement(authorization, settler=wallet.address_on(facilitator.name))
    most_nanos = settlement_capacity.submission_nanos(facilitator.name, price.nanos, draft.fee_units)
    signer, intent = custody.signer_of(wallet.id, wallet.addresses), relayed.intent_of(chain.name, wallet, draft, KIND)
    payment = Payment(
        id=new_id(), rail=PaymentRail.SIGNED.value, chain=facilitator.name.value, payer=authorization.payer,
        units=authorization.units, required_units=price.units, provider=price.provider,
        fingerprint=claimed_payments.fingerprint_macs(price.fingerprint)[0], signed=True,
        recipient=authorization.recipient,
        terms={**authorization.terms, "claim": authorization.claim, "risky": draft.is_risky},
    )  # fmt: skip
    try:
        with intents.recording(intent) as session:
            # The claim comes first: of concurrent requests, all but one fail here, before they take a nonce.
            claimed_payments.claim(session, [authorization.claim, *authorization.further_claims], payment.id)
            claimed_payments.record_open(session, payment)
            # Whichever keys submit them, one at a time counts what the others of its payer take, and may cost.
            claimed_payments.lock_payer(session, payment.payer)
            if draft.is_risky:
                leases.lock(session, f"risky_payments:{chain.name}")
            recorded, signed = relayed.record_submission(session, chain, wallet, draft, signer, intent=intent)
            settlement_risks.reserve(session, payment, draft, most_nanos)
            payment.transaction_id, payment.tx_hash = recorded.id, signed.tx_hash
            claimed_payments.claim(
                session, [claimed_payments.transaction_claim_key(chain.name, signed.tx_hash)], payment.id
            )
            claimed_payments.add_payment(session, payment, status=PaymentStatus.SETTLING)
            payment_id = payment.id
    except Rejected as error:
        if error.reason == settlement_risks.PAUSED:
            settlement_risks.announce_pause(facilitator.name)
        raise
    pipeline.broadcast_and_wait(chain, recorded, signed, wait_seconds=None, account_id=account_id)
    return payment_id


def await_submitted(payment: PaymentRow, *, account_id: str, yields: bool) -> PaymentRow:
    """Wait as long as is usual for the outcome of a payment that another request submitted; return it as it is then.

    With `yields`, wait also until that request has used the payment or ended. The waiting thread counts against
    `account_id`.
    """
    payment_id, chain = payment.id, ChainName(payment.chain)
    payment = resolve(payment_id)
    if payment.status == PaymentStatus.SETTLING and payment.transaction_id is not None:
        query = open_transactions.query_of(payment.transaction_id, chain)
        if query is not None:
            outcome_polling.wait_for_outcome(chain, query, seconds=None, account_id=account_id)
        payment = resolve(payment_id)
    if yields and is_awaited(payment):
        with app_state().threads.try_acquire(ResourceUse.OUTCOME, account_id) as has_permit:
            deadline = time.monotonic() + _HANDOVER.total_seconds()
            while has_permit and is_awaited(payment) and time.monotonic() < deadline:
                time.sleep(_HANDOVER_POLL.total_seconds())
                payment = resolve(payment_id)
    return payment


def is_awaited(payment: PaymentRow) -> bool:
    """Return whether the request that submitted a payment may be about to use it: it comes first."""
    wait = timedelta(milliseconds=int(lifecycle.default_wait_seconds(ChainName(payment.chain)) * 1000))
    is_unused = payment.status == PaymentStatus.PAID and not payment.tries
    return bool(is_unused and clock.now() < payment.created_at + wait + _HANDOVER)


def resolve(payment_id: str) -> PaymentRow:
    """Apply the outcome of a submission, if there is one, to its payment; return the payment."""
    with read_only_unit() as session:
        payment = claimed_payments.get(session, payment_id)
    if payment.status != PaymentStatus.SETTLING or payment.transaction_id is None:
        return payment
    view = history.current_view(payment.transaction_id)
    with telemetry.caused_by(view.request_id):
        return _apply_outcome(payment, payment.transaction_id, view)


def _apply_outcome(payment: PaymentRow, transaction_id: str, view: TransactionView) -> PaymentRow:
    landed_hash: str | None = None
    if view.status == MovementStatus.PENDING:
        return payment
    if view.status == MovementStatus.CONFIRMED:
        landed_hash = view.tx_hash
    else:
        try:
            # If another party submitted it first, our transaction fails, and the payment has been made.
            landed_hash = _find_settlement(payment)
        except PortError as error:
            _log.warning("settlement_lookup_failed", payment_id=payment.id, reason=error.reason)
            return payment
    spent_nanos: int | None = None
    if landed_hash is None:
        with read_only_unit() as session:
            final = relayed.final_decision(session, transaction_id)
        if final is not None and final.fee_units is not None:
            spent_nanos = settlement_capacity.fee_nanos(ChainName(payment.chain), final.fee_units)
    with unit_of_work() as session:
        if landed_hash is not None:
            landed = claimed_payments.mark_landed(session, payment, tx_hash=landed_hash)
            if landed and payment.terms.get("risky"):
                settlement_risks.release(session, payment.id)
        # Until it is final, a reorg can turn the failure into a success, as it may have in the meantime: the claims
        # must not be released. If another party makes it land after all, its hash pays for a call.
        elif (final := relayed.final_decision(session, transaction_id)) is not None and (
            final.has_failed and claimed_payments.void(session, payment.id, is_reverted=final.is_reverted)
        ):
            settlement_risks.settle(session, payment, final, spent_nanos)
    with read_only_unit() as session:
        return claimed_payments.get(session, payment.id)


def resolve_pending(
    chain: ChainName, run: Callable[[str], object] = resolve, limit: int = _RESOLVE_BATCH,
    status: PaymentStatus = PaymentStatus.SETTLING,
) -> int:  # fmt: skip
    """Resolve open payments of one chain, which another cannot delay; return how many. For a worker."""
    with read_only_unit() as session:
        pending = claimed_payments.find_settling(session, chain, limit, status)
    for payment_id in pending:
        try:
            run(payment_id)
        except Exception:
            # One faulty payment must not block the others.
            _log.exception("payment_resolution_failed", payment_id=payment_id)
    return len(pending)


def detect_reversed_payments(chain: ChainName) -> int:
    """Report payments that were served and then permanently reversed by a reorg; return how many. For a worker.

    Confirmation rebroadcasts the same bytes after a reorg; what still failed did so because the payer had spent the
    money in between.
    """
    since = clock.now() - REVERSAL_WINDOW
    with read_only_unit() as session:
        failed = relayed.failed_hashes(session, treasury.OWNER_AGENT_ID, chain, kind=KIND, since=since)
        reversed_payments = claimed_payments.find_by_transactions(session, failed, since=since) if failed else []
    return sum(_check_reversed(payment) for payment in reversed_payments)


def _check_reversed(payment: Payment) -> bool:
    try:
        landed_hash = _find_settlement(payment)
    except PortError as error:
        _log.warning("settlement_lookup_failed", payment_id=payment.id, reason=error.reason)
        return False
    with unit_of_work() as session:
        if landed_hash is not None:
            claimed_payments.relink_transaction(session, payment.id, tx_hash=landed_hash)
            return False
        is_reversed = claimed_payments.mark_reversed(session, payment.id)
    if is_reversed:
        _log.critical(
            "payment_reversed", payment_id=payment.id, chain=payment.chain, units=payment.units, payer=payment.payer,
            tx_hash=payment.tx_hash,
        )  # fmt: skip
    return is_reversed


def _find_settlement(payment: PaymentRow) -> str | None:
    """Return the transaction in which a signed payment landed, by any submitter. Raises: PortError."""
    if payment.rail == PaymentRail.UPTO:  # only this service can submit it
        return None
    claim = str(payment.terms["claim"])
    authorization = PaymentAuthorization(claim, payment.payer or "", payment.recipient, payment.units, payment.terms)
    return app_state().ports.facilitators[ChainName(payment.chain)].find_settlement(authorization)
