"""Schemas of the payments that operators list and return."""

import marshmallow as ma
from marshmallow import fields

from app.catalog.payouts.refunds import is_refundable
from app.core.chains import USDC
from app.core.money import TokenAmount
from app.payments.claimed_payments import PaymentStatus
from app.web.fields import Instant, Text
from app.web.schemas import PageQuery, Schema, page_schema


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
        lambda row: row.status != PaymentStatus.REFUNDED and is_refundable(row), required=True,
        metadata={"type": "boolean"},
    )  # fmt: skip
    tx_hash = fields.String(required=True, allow_none=True)
    created_at = Instant(required=True)


CallPayments = page_schema("CallPayments", "payments", CallPayment, "Payments for calls, newest first.")
