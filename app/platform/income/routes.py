"""`/v1/platform/payments`: what was paid for calls by x402 and MPP, and its return to the payer."""

from typing import Any

from app.audit_log.actors import current_actor
from app.catalog.models import Payout
from app.catalog.payouts import refunds
from app.catalog.payouts import routes as payout_routes
from app.catalog.payouts import schemas as payout_schemas
from app.core.pagination import Page
from app.db.tables import page_of
from app.db.unit_of_work import read_only_unit
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards
from app.payments.models import Payment
from app.platform.lookups.schemas import PaymentRefundBody, PaymentsQuery, ReceivedPayment, ReceivedPayments
from app.web.blueprint import Blueprint, offers_csv
from app.web.client_request import wait_seconds

blp = Blueprint("platform_income", guard=guards.MASTER_KEY, url_prefix="/v1/platform")


@blp.get("/payments")
@blp.arguments(PaymentsQuery, location="query")
@blp.response(200, ReceivedPayments)
@offers_csv(blp, "items", ReceivedPayment)
def list_payments(query: dict[str, Any]) -> Page[Payment]:
    """List the payments for calls, newest first."""
    with read_only_unit() as session:
        return page_of(session, Payment, query.pop("page"), newest_first=True, **query)


@blp.post("/payments/<string:payment_id>/refund")
@idempotent(owner=guards.acting_key_id, rebuild=payout_routes.rebuilt, note=payout_routes.NOTE)
@blp.arguments(PaymentRefundBody, required=False)
@blp.response(201, payout_schemas.PayoutShape)
@blp.raises(*payout_routes.REFUND_ERRORS)
def refund_payment(body: dict[str, Any], payment_id: str, claim: Claim) -> Payout:
    """Return a payment once, in USDC to the address that paid; it then pays for no call."""
    nanos, actor = body["amount_usd"], current_actor()
    return refunds.refund_payment(payment_id, nanos, actor=actor, wait_seconds=wait_seconds(), claim=claim)
