"""Refunds: of the price of a call, which its service earned, or of a payment from which no seller earned."""

from app.catalog.models import PROVIDER_PREFIX, Payout, PayoutKind, Service
from app.catalog.payouts.service import find_service, new, refused
from app.core import clock, identifiers
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit
from app.errors import NotFound
from app.payments.claimed_payments import COMPLETED, NANOS_PER_UNIT, RETRY_WINDOW, PaymentRail, PaymentStatus
from app.payments.models import Payment
from app.ports.errors import PortError
from app.state import app_state
from app.usage import service as usage
from app.wallets.transactions import relayed


def of_call(service: Service, call_id: str) -> Payout:
    """Return the refund of all that was paid for a call of a service. Raises: NotFound, PayoutRefused."""
    not_found = NotFound("This service has answered no call with this id that was paid for.")
    canonical, provider = identifiers.require_id(call_id, not_found), f"{PROVIDER_PREFIX}{service.id}"
    with read_only_unit() as session:
        charged = next((each for each in usage.calls(session, [canonical]) if each.provider == provider), None)
        payment = session.get(Payment, canonical)
    if charged is not None:
        return new(service, PayoutKind.REFUND, charged.cost_nanos, recipient=charged.account_id, call_id=canonical)
    if payment is None or (payment.provider, payment.status) != (provider, PaymentStatus.SERVED):
        raise not_found
    return _to_payer(service, payment, payment.required_units)


def of_payment(payment_id: str) -> Payout:
    """Return the refund of all that was received by a payment, which then pays for no call.

    One that a service has earned is the refund of its call. Raises: NotFound, PayoutRefused.
    """
    not_found = NotFound("There is no such payment.")
    with read_only_unit() as session:
        found = session.get(Payment, identifiers.require_id(payment_id, not_found))
    payment = identifiers.require(found, not_found)
    service_id = payment.provider.removeprefix(PROVIDER_PREFIX)
    if payment.status == PaymentStatus.SERVED and service_id != payment.provider:
        return of_call(find_service(service_id), payment.id)
    if not is_refundable(payment):
        raise refused("payment_not_refundable", "This payment was not received, or a call or purchase may use it.")
    return _to_payer(None, payment, payment.units)


def is_refundable(payment: Payment) -> bool:
    """Return whether a payment was received, from a known payer, and no call or purchase can be running on it."""
    if payment.paid_at is None or payment.payer is None or payment.status not in COMPLETED:
        return False
    # A purchase is `served` as soon as it is queued.
    running = PaymentStatus.SERVED if payment.provider == "shopping" else PaymentStatus.SERVING
    return payment.status != running or clock.now() > payment.paid_at + 2 * RETRY_WINDOW


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
        raise refused("payment_not_final", "The chain does not show this payment, or not as final yet; try later.")
    # What several addresses have paid in one transaction is not one's to get back, unless each has signed its own.
    if payment.payer is None or (payment.rail == PaymentRail.HASH and found.payers != {payment.payer}):
        raise refused("payer_unknown", "The address that paid for this call is not known, so it cannot be refunded.")
    return new(
        service, PayoutKind.REFUND, units * NANOS_PER_UNIT, chain=payment.chain, recipient=payment.payer,
        call_id=payment.id, payment=payment if service is None else None,
    )  # fmt: skip
