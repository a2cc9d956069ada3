"""Payouts of earnings to sellers, and refunds to the payers of calls.

What is paid in USDC is a transfer of the treasury's wallet, in the phases of every movement. The unit that signs it
takes it from the earnings, which it locks: two payouts, or a payout and a refund, cannot take the same. It counts until
its transaction has finally failed. A refund in credits is a grant, once for each call.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import structlog
from sqlalchemy import ColumnElement, exists, func, select
from sqlalchemy.orm import Session

from app.audit_log import trail
from app.audit_log.actors import Actor, system_actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import seal_of
from app.catalog.models import Payout, PayoutKind, PayoutStatus, Service, ServiceTotal
from app.catalog.payouts import destinations, earnings
from app.catalog.payouts.destinations import PayoutOrder
from app.catalog.payouts.earnings import REFUND_PREFIX, Earnings
from app.catalog.services import service as services
from app.core import clock, identifiers
from app.core.chains import USDC, ChainName
from app.core.money import TokenAmount, nanos_from_usd, usd_from_nanos, usd_string
from app.core.movement_kinds import MovementKind
from app.core.pagination import Page, PageRequest
from app.credits import accounts as credit_accounts
from app.db import leases
from app.db.leases import once_per_period
from app.db.state_machine import StateMachine
from app.db.tables import count, page_of, update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput, NotFound, PayoutFailed, PayoutRefused, ServiceError
from app.events import outbox
from app.events.outbox import EventType
from app.idempotency.service import Claim
from app.identity import service as identity
from app.payments import claimed_payments, treasury
from app.payments.claimed_payments import NANOS_PER_UNIT, PAYMENTS, PaymentStatus
from app.payments.models import Payment
from app.payments.treasury import WalletRole
from app.ports.errors import PortError
from app.spending.policy import ApprovedPayment
from app.state import app_state
from app.wallets import transfers
from app.wallets.core import wallets
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.wallets import WalletView
from app.wallets.kinds.transfer import parse_movement
from app.wallets.transactions import relayed
from app.wallets.transactions.relayed import BlockDecision
from app.wallets.views import history
from app.wallets.views.history import TransactionView

_log = structlog.get_logger(__name__)
_BATCH = 200
_MOST_AT_ONCE = 5
_SCHEDULE_EVERY, _RETRY_AFTER = timedelta(minutes=10), timedelta(hours=1)


def _announce(session: Session, row: Any, status: PayoutStatus, _reason: str | None) -> None:
    data = {
        "payout_id": row.id, "service_id": row.service_id, "amount_usd": usd_string(row.amount_nanos),
        "chain": row.chain, "call_id": row.call_id,
    }  # fmt: skip
    event_type = EventType(f"{row.kind}.{status}")
    outbox.record(session, event_type, agent_id=row.agent_id, object_id=row.id, data=data)


PAYOUTS = StateMachine(
    Payout.status,
    # `paid` without a transaction of this service.
    initial={PayoutStatus.PENDING, PayoutStatus.PAID},
    permitted={
        PayoutStatus.PENDING: {PayoutStatus.PAID, PayoutStatus.FAILED},
        # A reorg removed the block of its transaction, which is sent again.
        PayoutStatus.PAID: {PayoutStatus.PENDING, PayoutStatus.FAILED},
        # A restored database lacked the bytes that executed it.
        PayoutStatus.FAILED: {PayoutStatus.PENDING},
    },
    logger=_log,
    announce=_announce,
    announced=(
        Payout.id, Payout.service_id, Payout.agent_id, Payout.kind, Payout.amount_nanos, Payout.chain, Payout.call_id,
    ),
)  # fmt: skip


def find_service(service_id: str, *conditions: ColumnElement[bool]) -> Service:
    """Return a service, also a retired one: its earnings remain its seller's. Raises: NotFound, RowChanged."""
    with read_only_unit() as session:
        found = services.find(session, service_id, *conditions)
        seal_of(Service).verify(session, found)
        return found


def first_wallet(seller_id: str) -> WalletView:
    with read_only_unit() as session:
        return wallets.first_wallet(session, seller_id)


def earnings_of(service_id: str) -> Earnings:
    with read_only_unit() as session:
        return earnings.read(session, service_id)


def pay_out(wallet: WalletView, order: PayoutOrder, *, wait_seconds: Decimal | None, claim: Claim) -> Payout:
    """Pay all that is payable of a service's earnings, or what the owner has approved of it.

    `wallet` is the seller's first wallet, whose controls decide on other addresses.

    Raises: PayoutRefused, PayoutFailed, InvalidInput, NotFound, AddressNotAllowed; the errors of refused limits.
    """
    service = find_service(order.service_id, Service.agent_id == wallet.agent_id)
    _assert_offered()
    if service.is_suspended:
        raise refused("service_paused", "The operator has paused this service, so its earnings are not paid out.")
    nanos = earnings_of(service.id).payable_nanos
    if wallet.approved is not None:
        nanos = min(nanos, wallet.approved.max_nanos)
    minimum_nanos = nanos_from_usd(app_state().settings.payout_minimum_usd)
    if nanos < max(minimum_nanos, NANOS_PER_UNIT):
        text = f"Less is payable than the minimum of a payout, {usd_string(minimum_nanos)} USD."
        raise refused("below_minimum", text, payable_usd=usd_from_nanos(nanos))
    name, recipient, own = destinations.find(wallet, order, nanos=nanos)
    commission_nanos = earnings.commission_of(nanos, app_state().settings.payout_commission_bps)
    payout = new(
        service, PayoutKind.PAYOUT, nanos, commission_nanos=commission_nanos, chain=name.value, recipient=recipient
    )
    payout.wallet_id = None if own is None else own.id
    return _send(payout, actor=order.actor, wait_seconds=wait_seconds, claim=claim, approved=wallet.approved)


def write_off(service: Service, *, actor: Actor, claim: Claim) -> Payout:
    """Record that the operator keeps, or has paid elsewhere, what a deleted seller has earned; no money moves.

    Raises: PayoutRefused.
    """
    with unit_of_work() as session:
        if session.scalar(select(identity.exists_with(service.agent_id))):
            raise refused("seller_exists", "The seller of this service exists, so its earnings are paid out.")
        leases.lock(session, f"payouts:{service.id}")
        found = earnings.read(session, service.id)
        payout = new(service, PayoutKind.PAYOUT, found.unpaid_nanos - found.held_nanos)
        if payout.amount_nanos <= 0:
            text = "Nothing is owed for this service that is not held."
            raise refused("earnings_exceeded", text, available_usd=usd_from_nanos(payout.amount_nanos))
        payout.id, payout.closed_at = identifiers.new_id(), clock.now()
        claim.bind(session, payout.id)
        _take(session, payout, PayoutStatus.PAID, actor)
    return get(payout.id)


def refund(made: Payout, nanos: int | None, *, actor: Actor, wait_seconds: Decimal | None, claim: Claim) -> Payout:
    """Make a refund, of all or an amount, once: in credits, or in USDC to the address that paid.

    That of a call is taken from the earnings that were not paid out, held ones included. Raises: PayoutRefused,
    PayoutFailed, InvalidInput.
    """
    price_nanos, nanos = made.amount_nanos, made.amount_nanos if nanos is None else nanos
    if not 0 < nanos <= price_nanos or (made.chain and nanos % NANOS_PER_UNIT):
        text = f"must be more than 0, at most {usd_string(price_nanos)}, and for USDC have 6 decimals at most"
        raise InvalidInput.field("amount_usd", text)
    made.amount_nanos = nanos
    if made.chain is None:
        return _refund_in_credits(made, actor=actor, claim=claim)
    _assert_offered()
    return _send(made, actor=actor, wait_seconds=wait_seconds, claim=claim)


def new(service: Service | None, kind: PayoutKind, nanos: int, *, commission_nanos: int = 0, **columns: Any) -> Payout:
    of = {} if service is None else {"service_id": service.id, "agent_id": service.agent_id}
    return Payout(kind=kind.value, amount_nanos=nanos, commission_nanos=commission_nanos, **of, **columns)


def _refund_in_credits(made: Payout, *, actor: Actor, claim: Claim) -> Payout:
    made.id, made.closed_at, account_id = identifiers.new_id(), clock.now(), str(made.recipient)
    with unit_of_work() as session:
        # First, because it locks the account. Each call has one reference.
        reference = f"{REFUND_PREFIX}{made.call_id}"
        if not credit_accounts.grant(session, account_id, made.amount_nanos, reference=reference):
            raise _refunded_before()
        claim.bind(session, made.id)
        _take(session, made, PayoutStatus.PAID, actor)
        if session.scalar(select(identity.exists_with(account_id))):
            data = {"call_id": made.call_id, "service_id": made.service_id, "amount_usd": usd_string(made.amount_nanos)}
            outbox.record(session, EventType.REFUND_RECEIVED, agent_id=account_id, object_id=made.id, data=data)
    return get(made.id)


def _send(
    payout: Payout, *, actor: Actor, wait_seconds: Decimal | None, claim: Claim, approved: ApprovedPayment | None = None
) -> Payout:
    """Transfer USDC from the treasury, and take it from the earnings in the unit that signs the transfer.

    That unit first releases what was held since the owner was asked.
    """
    chain = ChainName(payout.chain or "")
    amount = TokenAmount(payout.amount_nanos // NANOS_PER_UNIT, USDC)
    body = {"chain": chain.value, "to": payout.recipient, "amount": str(amount), "currency": USDC.symbol}
    try:
        order = parse_movement(TransactionType.TRANSFER, body)
    except InvalidInput as error:
        raise InvalidInput.field("address", error.details["fields"].get("to", ["is not valid"])[0]) from None

    def record(session: Session, movement: TransactionView) -> None:
        payout.id = movement.id
        _take(session, payout, PayoutStatus.PENDING, actor)

    try:
        sent = transfers.send(
            replace(treasury.wallet(WalletRole.TREASURY, chain), approved=approved),
            # Otherwise a refund of almost nothing would cost the service a network fee.
            replace(
                order, kind=MovementKind(payout.kind), needs_allowlist=False, max_fee_nanos=payout.amount_nanos
            ),
            wait_seconds=wait_seconds, claim=claim, on_recorded=record,
        )  # fmt: skip
    except PayoutFailed as failure:
        if "missing" not in failure.details:
            raise
        text = f"The treasury of this service holds too little on {chain} at the moment; nothing was sent. Try later."
        raise PayoutFailed(text, details={"reason": "treasury_short"}) from None
    settle(Payout.id == sent.id)
    return get(sent.id)


def _take(session: Session, payout: Payout, status: PayoutStatus, actor: Actor) -> None:
    """Record a payout or refund if the earnings cover it, and lock them until the unit ends. Raises: PayoutRefused."""
    leases.lock(session, f"payouts:{payout.service_id or payout.call_id}")
    if payout.call_id is not None and count(session, Payout, Payout.call_id == payout.call_id, earnings.COUNTS):
        raise _refunded_before()
    if payout.payment is not None and not _mark_refunded(session, payout.payment):
        raise refused("payment_not_refundable", "Something else has used this payment or reversed it; try again.")
    if payout.service_id is not None:
        _assert_earned(session, payout, payout.service_id)
    payout.created_at = clock.now()
    PAYOUTS.add(session, payout, status)
    after = {
        "service_id": payout.service_id, "amount_usd": usd_string(payout.amount_nanos), "payout_id": payout.id,
        "commission_usd": usd_string(payout.commission_nanos), "chain": payout.chain, "to": payout.recipient,
        "call_id": payout.call_id,
    }  # fmt: skip
    action, subject_id = AuditAction.SERVICE_CALL_REFUNDED, payout.agent_id
    if payout.kind == PayoutKind.PAYOUT:
        action = AuditAction.SERVICE_PAID if payout.chain else AuditAction.SERVICE_WRITTEN_OFF
    elif payout.service_id is None:
        action, subject_id = AuditAction.PAYMENT_REFUNDED, payout.call_id
    trail.record(session, actor, AuditEvent(action, subject_id, after=after))


def _mark_refunded(session: Session, payment: Payment) -> bool:
    """Let a payment pay for no call from now on; return whether it is as it was read."""
    status = PaymentStatus(payment.status)
    if status is PaymentStatus.REFUNDED:  # what returned it has failed
        return bool(claimed_payments.get(session, payment.id).status == status)
    return bool(PAYMENTS.move(session, payment.id, status, PaymentStatus.REFUNDED))


def _assert_earned(session: Session, payout: Payout, service_id: str) -> None:
    if payout.wallet_id is not None:
        destinations.lock_wallet(session, payout.wallet_id, str(payout.agent_id))
    found = earnings.read(session, service_id)
    left_nanos = found.unpaid_nanos - (found.held_nanos if payout.kind == PayoutKind.PAYOUT else 0)
    if payout.amount_nanos + payout.commission_nanos > left_nanos:
        text = "The earnings of this service that were not paid out do not cover this."
        raise refused("earnings_exceeded", text, available_usd=usd_from_nanos(left_nanos))


def get(payout_id: str) -> Payout:
    """Return a payout or refund. Raises: NotFound."""
    with read_only_unit() as session:
        row = identifiers.require(session.get(Payout, payout_id), NotFound("There is no such payout."))
        row.transaction = history.views_of(session, [row.id]).get(row.id)
        return row


def list_of(service_id: str | None, page: PageRequest) -> Page[Payout]:
    """Return the payouts and refunds of a service, or of all, newest first."""
    with read_only_unit() as session:
        found = page_of(session, Payout, page, newest_first=True, service_id=service_id)
        transactions = history.views_of(session, [row.id for row in found.items])
    for row in found.items:
        row.transaction = transactions.get(row.id)
    return found


def has_open(chain: ChainName) -> ColumnElement[bool]:
    return exists().where(Payout.chain == chain.value, Payout.closed_at.is_(None))


def settle(which: ColumnElement[bool]) -> None:
    """Give open payouts and refunds the status of their transactions; one that fails does not stop the others."""
    with read_only_unit() as session:
        is_open = which, Payout.chain.is_not(None), Payout.closed_at.is_(None)
        rows = session.scalars(select(Payout).where(*is_open).order_by(Payout.created_at).limit(_BATCH)).all()
        decisions = relayed.decisions(session, [row.id for row in rows])
    for row in rows:
        status, is_closed = _outcome(decisions.get(row.id))
        if (status, is_closed) == (row.status, False):
            continue
        try:
            with unit_of_work() as session:
                if relayed.decisions(session, [row.id]).get(row.id) == decisions.get(row.id):
                    if status != row.status:
                        PAYOUTS.move(session, row.id, PayoutStatus(row.status), status)
                    closed_at = clock.now() if is_closed else None
                    update_rows(session, Payout, Payout.id == row.id, closed_at=closed_at)
        except Exception:
            _log.exception("payout_not_settled", payout_id=row.id)


def _outcome(decision: BlockDecision | None) -> tuple[PayoutStatus, bool]:
    """Return the status of a payout, and whether it is final. A failure that is not final may still be reversed."""
    if decision is None or (decision.has_failed and not decision.is_final):
        return PayoutStatus.PENDING, False
    is_paid = decision.status is MovementStatus.CONFIRMED
    return PayoutStatus.PAID if is_paid else PayoutStatus.FAILED, decision.is_final


def reopen(session: Session, transaction_id: str) -> None:
    """Let a failed payout count again, because the chain shows its transaction after a restore.

    If its call was refunded again meanwhile, it counts without the call.
    """
    call_id = session.scalar(select(Payout.call_id).where(Payout.id == transaction_id))
    is_repeated = call_id is not None and count(session, Payout, Payout.call_id == call_id, earnings.COUNTS)
    changed = {"closed_at": None, "call_id": None if is_repeated else call_id}
    PAYOUTS.move(session, transaction_id, PayoutStatus.FAILED, PayoutStatus.PENDING, **changed)


def pay_scheduled() -> None:
    """Pay services that are due by PAYOUT_SCHEDULE_DAYS to their sellers' first wallets. For a worker."""
    settings = app_state().settings
    period, minimum_nanos = timedelta(days=settings.payout_schedule_days), nanos_from_usd(settings.payout_minimum_usd)
    if not settings.payouts_enabled or settings.maintenance or not period:
        return
    with once_per_period(_SCHEDULE_EVERY, "payout-schedule", duration=_SCHEDULE_EVERY) as due:
        paid = 0
        for service_id in _earning(minimum_nanos) if due else ():
            if paid == _MOST_AT_ONCE:
                break
            if earnings_of(service_id).payable_nanos < max(minimum_nanos, NANOS_PER_UNIT):
                continue
            try:
                with once_per_period(period, f"payout-due:{service_id}", duration=_RETRY_AFTER) as is_due:
                    if is_due:
                        paid, order = paid + 1, PayoutOrder(service_id, system_actor("payouts"))
                        wallet = first_wallet(find_service(service_id).agent_id)
                        pay_out(wallet, order, wait_seconds=Decimal(0), claim=Claim.none())
            except (ServiceError, PortError) as error:
                _log.warning("scheduled_payout_failed", service_id=service_id, error=str(error))


def _earning(minimum_nanos: int) -> Sequence[str]:
    """Return the services that have ever earned the minimum, and may be paid."""
    earned = select(func.sum(ServiceTotal.revenue_nanos)).where(ServiceTotal.service_id == Service.id)
    is_seller = Service.suspended_at.is_(None), identity.exists_with(Service.agent_id)
    with read_only_unit() as session:
        return session.scalars(
            select(Service.id).where(*is_seller, earned.scalar_subquery() >= max(minimum_nanos, NANOS_PER_UNIT))
        ).all()


def _assert_offered() -> None:
    settings = app_state().settings
    if not settings.payouts_enabled:
        raise refused("not_offered", "This service does not pay out earnings; ask its operator.")
    with read_only_unit() as session:
        restored_at = claimed_payments.restore_cutoff(session)
    if restored_at is not None and (settings.payouts_checked_at is None or settings.payouts_checked_at < restored_at):
        raise refused("database_restored", "Payouts wait until the operator has compared them with the chains.")


def refused(reason: str, message: str, **details: Any) -> PayoutRefused:
    return PayoutRefused(message, details={"reason": reason, **details})


def _refunded_before() -> PayoutRefused:
    return refused("refunded_before", "This call or payment was refunded before; each is refunded once.")
