"""`/v1/services/{id}/payouts` and `/refunds`: what a seller is paid, and returns to payers; payments for operators."""

from dataclasses import replace
from typing import Any

import marshmallow as ma
from flask import Response, request
from marshmallow import fields

from app import errors
from app.approvals import service as approvals
from app.approvals.schemas import AwaitingApproval
from app.audit_log.actors import current_actor, system_actor
from app.catalog import schemas
from app.catalog.models import Payout, Service
from app.catalog.payouts import destinations, refunds
from app.catalog.payouts import service as payouts
from app.catalog.payouts.destinations import PayoutOrder
from app.core.chains import USDC
from app.core.money import TokenAmount
from app.core.movement_kinds import MovementKind
from app.core.pagination import Page
from app.db.tables import page_of
from app.db.unit_of_work import read_only_unit
from app.errors import NotFound
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards
from app.payments.claimed_payments import PaymentStatus
from app.payments.models import Payment
from app.wallets.api.routes import LIMIT_ERRORS
from app.wallets.kinds.definition import PREFER_NOTE, MovementDefinition, rebuild_from_record
from app.web.blueprint import Blueprint, offers_csv
from app.web.client_request import wait_seconds
from app.web.fields import Instant, Text
from app.web.schemas import PageQuery, Schema, page_schema

NOTE = "Repeating a request with the same key returns the first response and pays nothing again."
REFUND_ERRORS = (errors.PayoutRefused, errors.PayoutFailed)
PAYOUT = MovementDefinition(
    name=MovementKind.PAYOUT, title="Payout", body=schemas.ApprovablePayout(), send=payouts.pay_out,
    parse=lambda body: PayoutOrder(
        body["service_id"], system_actor("approvals"), body["chain"], body["address"], body["wallet_id"]
    ),
)  # fmt: skip
blp = Blueprint("payouts", guard=guards.AGENT_KEY, url_prefix="/v1/services")
platform = Blueprint("platform_payments", guard=guards.MASTER_KEY, url_prefix="/v1/platform")


class PaymentsQuery(PageQuery):  # type: ignore[misc, valid-type]
    """Filters of payments for calls."""

    status = fields.String(load_default=None, validate=ma.validate.OneOf(list(PaymentStatus)))
    provider, payer = Text(load_default=None), Text(load_default=None)


class CallPayment(Schema):
    """A payment by x402 or MPP for one call."""

    id = fields.UUID(required=True)
    provider, chain = fields.String(required=True), fields.String(required=True)
    amount = fields.Function(lambda row: str(TokenAmount(row.units, USDC)), required=True, metadata={"type": "string"})
    payer = fields.String(required=True, allow_none=True)
    status = fields.String(required=True, metadata={"enum": list(PaymentStatus)})
    refundable = fields.Function(
        lambda row: row.status != PaymentStatus.REFUNDED and refunds.is_refundable(row), required=True,
        metadata={"type": "boolean"},
    )  # fmt: skip
    tx_hash = fields.String(required=True, allow_none=True)
    created_at = Instant(required=True)


CallPayments = page_schema("CallPayments", "payments", CallPayment, "Payments for calls, newest first.")


@blp.before_request
def _find_service() -> None:
    """Replace the id in the path by the caller's service, also a retired one, before the body is parsed."""
    arguments = request.view_args or {}
    is_own = Service.agent_id == guards.require_agent()
    arguments["service"] = payouts.find_service(arguments.pop("service_id"), is_own)


def rebuilt(payout_id: str) -> Any:
    """Return a payout in its current state, or the response of its failure."""
    try:
        found = payouts.get(payout_id)
    except NotFound:
        return rebuild_from_record(payout_id)
    return rebuild_from_record(payout_id) if found.status == "failed" else found


@blp.get("/<string:service_id>/payouts")
@blp.arguments(PageQuery, location="query")
@blp.response(200, schemas.PayoutPage)
@offers_csv(blp, "payouts", schemas.PayoutShape)
def list_payouts(query: dict[str, Any], service: Service) -> dict[str, Any]:
    """List the payouts and refunds of a service, newest first, with its earnings; as CSV, they are its statement."""
    page = payouts.list_of(service.id, query["page"])
    return {"payouts": page.items, "pagination": page, "earnings": payouts.earnings_of(service.id)}


@blp.post("/<string:service_id>/payouts")
@idempotent(owner=guards.idempotency_owner, rebuild=rebuilt, note=NOTE)
@blp.arguments(schemas.PayoutBody, required=False)
@blp.response(201, schemas.PayoutShape)
@blp.alt_response(approvals.ACCEPTED, schema=AwaitingApproval, description=approvals.DESCRIPTION)
@blp.raises(*REFUND_ERRORS, errors.AddressNotAllowed, *LIMIT_ERRORS)
@blp.header("Prefer", PREFER_NOTE)
def request_payout(body: dict[str, Any], service: Service, claim: Claim) -> Payout | Response:
    """Pay out all that is payable. `pending` means that it was sent and the service completes it."""
    asked = {**body, "service_id": service.id, "chain": destinations.chain_of(body["chain"], body["address"])}
    order = replace(PAYOUT.parse(asked), actor=current_actor())
    return PAYOUT.request(payouts.first_wallet(service.agent_id), order, body=asked, claim=claim)


@blp.post("/<string:service_id>/refunds")
@idempotent(owner=guards.idempotency_owner, rebuild=rebuilt, note=NOTE)
@blp.arguments(schemas.RefundBody)
@blp.response(201, schemas.PayoutShape)
@blp.raises(*REFUND_ERRORS)
@blp.header("Prefer", PREFER_NOTE)
def refund_call(body: dict[str, Any], service: Service, claim: Claim) -> Payout:
    """Refund a call once: in credits if it was paid with them, or in USDC to the address that paid."""
    return refund(refunds.of_call(service, body["call_id"]), body, claim)


def refund(made: Payout, body: dict[str, Any], claim: Claim) -> Payout:
    return payouts.refund(made, body["amount_usd"], actor=current_actor(), wait_seconds=wait_seconds(), claim=claim)


@platform.get("/payments")
@platform.arguments(PaymentsQuery, location="query")
@platform.response(200, CallPayments)
@offers_csv(platform, "items", CallPayment)
def list_payments(query: dict[str, Any]) -> Page[Payment]:
    """List the payments for calls by x402 and MPP, newest first."""
    with read_only_unit() as session:
        return page_of(session, Payment, query.pop("page"), newest_first=True, **query)


@platform.post("/payments/<string:payment_id>/refund")
@idempotent(owner=guards.acting_key_id, rebuild=rebuilt, note=NOTE)
@platform.arguments(schemas.RefundAmount, required=False)
@platform.response(201, schemas.PayoutShape)
@platform.raises(*REFUND_ERRORS)
def refund_payment(body: dict[str, Any], payment_id: str, claim: Claim) -> Payout:
    """Return a payment once, in USDC to the address that paid; it then pays for no call."""
    return refund(refunds.of_payment(payment_id), body, claim)
