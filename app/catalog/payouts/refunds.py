"""Refunds to the payers of calls, from what the service has earned, and of payments that no seller has earned."""

from decimal import Decimal

from sqlalchemy import select

from app.audit_log.actors import Actor
from app.catalog.models import PROVIDER_PREFIX, Payout, PayoutKind, PayoutStatus, Service
from app.catalog.payouts import service as payouts
from app.catalog.payouts.earnings import REFUND_PREFIX
from app.core import clock, identifiers
from app.core.chains import ChainName
from app.core.money import usd_string
from app.credits import accounts as credit_accounts
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput, NotFound
from app.events import outbox
from app.events.outbox import EventType
from app.idempotency.service import Claim
from app.identity import agents
from app.payments import claimed_payments
from app.payments.claimed_payments import NANOS_PER_UNIT, PaymentRail, PaymentStatus
from app.payments.models import Payment
from app.ports.errors import PortError
from app.state import app_state
from app.usage import service as usage
from app.wallets.transactions import relayed


def refund(
    service: Service, call_id: str, nanos: int | None, *, actor: Actor, wait_seconds: Decimal | None, claim: Claim
) -> Payout:
    """Refund a call of a service, all of it or an amount, once: in credits, or in USDC to the address that paid.

    It is taken from the earnings that were not paid out, held ones included. Raises: PayoutRefused, PayoutFailed,
    InvalidInput, NotFound.
    """
    made = _paid_call(service, call_id)
    return _refund(made, nanos, actor=actor, wait_seconds=wait_seconds, claim=claim)


def refund_payment(
    payment_id: str, nanos: int | None, *, actor: Actor, wait_seconds: Decimal | None, claim: Claim
) -> Payout:
    """Return a payment to its payer in USDC, all that was received or an amount, once; it then pays for no call.

    One that a service has earned is returned as its call is refunded. Raises: as `refund`.
    """
    not_found = NotFound("There is no such payment.")
    with read_only_unit() as session:
        canonical = identifiers.require_id(payment_id, not_found)
        payment = identifiers.require(session.get(Payment, canonical), not_found)
    of_service = payment.provider.removeprefix(PROVIDER_PREFIX)
    if of_service != payment.provider and payment.status == PaymentStatus.SERVED:
        made = _paid_call(payouts.find_service(of_service), canonical)
    elif claimed_payments.is_refundable(payment):
        made = _to_payer(None, payment, payment.units)
    else:
        raise payouts.refused("payment_not_refundable", "This payment was not received, or a call uses it.")
    return _refund(made, nanos, actor=actor, wait_seconds=wait_seconds, claim=claim)


def _refund(made: Payout, nanos: int | None, *, actor: Actor, wait_seconds: Decimal | None, claim: Claim) -> Payout:
    price_nanos, nanos = made.amount_nanos, made.amount_nanos if nanos is None else nanos
    if not 0 < nanos <= price_nanos or (made.chain and nanos % NANOS_PER_UNIT):
        text = f"must be more than 0, at most {usd_string(price_nanos)}, and for USDC have 6 decimals at most"
        raise InvalidInput.field("amount_usd", text)
    made.amount_nanos = nanos
    if made.chain is None:
        return _refund_in_credits(made, actor=actor, claim=claim)
    payouts.assert_offered()
    return payouts.send(made, actor=actor, wait_seconds=wait_seconds, claim=claim)


def _paid_call(service: Service, call_id: str) -> Payout:
    """Return the refund of all that was paid for a call. Raises: NotFound, PayoutRefused."""
    not_found = NotFound("This service has answered no call with this id that was paid for.")
    canonical, provider = identifiers.require_id(call_id, not_found), f"{PROVIDER_PREFIX}{service.id}"
    with read_only_unit() as session:
        charged = next((each for each in usage.calls(session, [canonical]) if each.provider == provider), None)
        payment = claimed_payments.find_served(session, canonical, provider=provider)
    if charged is not None:
        columns = {"recipient": charged.account_id, "call_id": canonical}
        return payouts.new(service, PayoutKind.REFUND, charged.cost_nanos, **columns)
    payment = identifiers.require(payment, not_found)
    return _to_payer(service, payment, payment.required_units)


def _to_payer(service: Service | None, payment: Payment, units: int) -> Payout:
    """Return the refund of units of a payment that is final. Reads the chain. Raises: PayoutRefused."""
    facilitator, submission = app_state().ports.facilitators[ChainName(payment.chain)], payment.transaction_id
    try:
        found = facilitator.incoming_payment(payment.tx_hash or "", payment.recipient)
    except PortError:
        found = None
    with read_only_unit() as session:
        is_final = submission is None or relayed.final_decision(session, submission) is not None
    if found is None or not (is_final and found.is_final and found.succeeded and found.units >= payment.units):
        text = "The chain does not show this payment, or not as final yet; try later."
        raise payouts.refused("payment_not_final", text)
    # What several addresses have paid in one transaction is not one's to get back, unless each has signed its own.
    if payment.payer is None or (payment.rail == PaymentRail.HASH and found.payers != {payment.payer}):
        text = "The address that paid for this call is not known, so it cannot be refunded."
        raise payouts.refused("payer_unknown", text)
    return payouts.new(
        service, PayoutKind.REFUND, units * NANOS_PER_UNIT, chain=payment.chain, recipient=payment.payer,
        call_id=payment.id, payment=payment,
    )  # fmt: skip


def _refund_in_credits(made: Payout, *, actor: Actor, claim: Claim) -> Payout:
    made.id, made.closed_at, account_id = identifiers.new_id(), clock.now(), str(made.recipient)
    with unit_of_work() as session:
        # First, because it locks the account. Each call has one reference.
        reference = f"{REFUND_PREFIX}{made.call_id}"
        if not credit_accounts.grant(session, account_id, made.amount_nanos, reference=reference):
            raise payouts.refunded_before()
        claim.bind(session, made.id)
        payouts.take(session, made, PayoutStatus.PAID, actor)
        if session.scalar(select(agents.exists_with(account_id))):
            data = {"call_id": made.call_id, "service_id": made.service_id, "amount_usd": usd_string(made.amount_nanos)}
            outbox.record(session, EventType.REFUND_RECEIVED, agent_id=account_id, object_id=made.id, data=data)
    return payouts.get(made.id)
