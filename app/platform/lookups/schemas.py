"""Responses about what operators look up across agents."""

import marshmallow as ma
from marshmallow import fields

from app.approvals.schemas import ApprovalShape
from app.core.chains import USDC
from app.core.money import TokenAmount
from app.events.schemas import AccountEvent
from app.payments.claimed_payments import PaymentStatus, is_refundable
from app.platform.schemas import AuditEntryShape, AuditHeadShape
from app.shopping.schemas import PurchaseQuery, PurchaseShape, PurchaseSummaryShape
from app.usage.routes import UsageLogShape
from app.wallets.api.schemas import TransactionShape
from app.web.fields import Identifier, Instant, Text, Usd
from app.web.schemas import PageQuery, Schema, page_schema


class AuditVerification(Schema):
    """Whether the newest 10 000 entries of the trail are intact, and what is wrong with them."""

    intact = fields.Boolean(required=True)
    problems = fields.List(fields.String(), required=True)
    head = fields.Nested(AuditHeadShape, required=True)


class StuckMovement(Schema):
    """A movement that is pending for long, and the command to run for it on a host of the service."""

    movement = fields.Nested(TransactionShape, required=True)
    agent_id = fields.UUID(required=True, allow_none=True)
    command = fields.String(required=True)


StuckMovements = page_schema("StuckMovements", "movements", StuckMovement, "Pending movements, oldest first.")


class AllPurchasesQuery(PurchaseQuery):
    """A filter and pagination of the purchases of one agent or gateway-only key, or of all."""

    account_id = Identifier(load_default=None)


class SoldPurchaseSummary(PurchaseSummaryShape):
    """A purchase, and the agent or gateway-only key that it belongs to."""

    account_id = fields.UUID(required=True, attribute="purchase.account_id")


class SoldPurchase(PurchaseShape, SoldPurchaseSummary):
    """A purchase with its steps, and the agent or gateway-only key that it belongs to."""


SoldPurchases = page_schema("SoldPurchases", "purchases", SoldPurchaseSummary, "A page of purchases, newest first.")


class ChargedCall(UsageLogShape):
    """One charged call, and the agent or gateway-only key that paid."""

    account_id = fields.UUID(required=True)


class CallPayment(Schema):
    """A payment by x402 or MPP for one call."""

    id = fields.UUID(required=True)
    provider, chain = fields.String(required=True), fields.String(required=True)
    amount = fields.Function(lambda row: str(TokenAmount(row.units, USDC)), required=True, metadata={"type": "string"})
    payer = fields.String(required=True, allow_none=True)
    status = fields.String(required=True, metadata={"enum": list(PaymentStatus)})
    tx_hash = fields.String(required=True, allow_none=True)
    created_at = Instant(required=True)


class ReceivedPayment(CallPayment):
    """A payment by x402 or MPP, and whether it can be returned to its payer."""

    required = fields.Function(lambda row: str(TokenAmount(row.required_units, USDC)), metadata={"type": "string"})
    refundable = fields.Function(
        lambda row: row.payer is not None and row.status != PaymentStatus.REFUNDED and is_refundable(row),
        required=True, metadata={"type": "boolean"},
    )  # fmt: skip
    request_id = fields.String(required=True, allow_none=True)


class PaymentsQuery(PageQuery):  # type: ignore[misc, valid-type]
    """Filters of payments."""

    status = fields.String(load_default=None, validate=ma.validate.OneOf(list(PaymentStatus)))
    provider, payer = Text(load_default=None), Text(load_default=None)


ReceivedPayments = page_schema("ReceivedPayments", "payments", ReceivedPayment, "Payments for calls, newest first.")


class PaymentRefundBody(Schema):
    """What to return; without an amount, all that was received."""

    amount_usd = Usd(load_default=None, allow_none=True, metadata={"example": 1})


_LISTS = {
    "transactions": TransactionShape, "calls": ChargedCall, "purchases": SoldPurchaseSummary, "payments": CallPayment,
    "approvals": ApprovalShape, "events": AccountEvent, "audit_entries": AuditEntryShape,
}  # fmt: skip
_RECORDS = {name: fields.List(fields.Nested(of), required=True) for name, of in _LISTS.items()}


class RequestRecords(Schema.from_dict({"request_id": fields.UUID(required=True), **_RECORDS})):  # type: ignore[misc]
    """What one request did."""
