"""Schemas of payouts and refunds."""

import marshmallow as ma
from marshmallow import fields

from app.approvals.schemas import APPROVAL_NOTE
from app.catalog.models import PayoutKind, PayoutStatus
from app.catalog.payouts.refunds import is_refundable
from app.core.chains import USDC
from app.core.money import TokenAmount
from app.payments.claimed_payments import PaymentStatus
from app.web.fields import Address, Identifier, Instant, Symbol, Text, Usd
from app.web.schemas import EXAMPLE_ID, PageQuery, Pagination, Schema, page_schema


class PayoutBody(Schema):
    """Where a payout goes; by default, to the seller's first wallet on Base."""

    chain = Symbol(load_default=None, metadata={"enum": ["ethereum", "base", "solana"], "example": "base"})
    address = Address(load_default=None, metadata={"example": "0x52908400098527886E0F7030069857D2E4169EE7"})
    wallet_id = Text(load_default=None, metadata={"example": EXAMPLE_ID})
    approval_note = APPROVAL_NOTE


class ApprovablePayout(PayoutBody):
    """A payout as an approval stores it."""

    service_id = fields.String(required=True)


class RefundAmount(Schema):
    """What to refund; without an amount, all that was paid."""

    amount_usd = Usd(load_default=None, allow_none=True, metadata={"example": 1})


class RefundBody(RefundAmount):
    """The call to refund; without an amount, all that was paid for it."""

    call_id = Text(required=True, metadata={"example": EXAMPLE_ID})


class PayoutShape(Schema):
    """A payout or a refund. Without a chain, it is a refund in credits, or was made by the operator elsewhere."""

    id = fields.UUID(required=True)
    service_id = fields.UUID(required=True, allow_none=True)
    kind = fields.String(required=True, metadata={"enum": list(PayoutKind)})
    status = fields.String(required=True, metadata={"enum": list(PayoutStatus)})
    amount_usd = Usd(required=True, attribute="amount_nanos")
    commission_usd = Usd(required=True, attribute="commission_nanos")
    chain = fields.String(required=True, allow_none=True)
    to = fields.String(required=True, allow_none=True, attribute="transaction.to_address", dump_default=None)
    tx_hash = fields.String(required=True, allow_none=True, attribute="transaction.tx_hash", dump_default=None)
    call_id = fields.UUID(required=True, allow_none=True)
    created_at = Instant(required=True)
    closed_at = Instant(required=True, allow_none=True)


class EarningsShape(Schema):
    """The earnings of a service: revenue = paid + commission + refunded + unpaid."""

    revenue_usd = Usd(required=True, attribute="revenue_nanos")
    paid_usd = Usd(required=True, attribute="paid_nanos")
    commission_usd = Usd(required=True, attribute="commission_nanos")
    refunded_usd = Usd(required=True, attribute="refunded_nanos")
    unpaid_usd = Usd(required=True, attribute="unpaid_nanos")
    held_usd = Usd(required=True, attribute="held_nanos")
    payable_usd = Usd(required=True, attribute="payable_nanos")


AllPayouts = page_schema("AllPayouts", "payouts", PayoutShape, "Payouts and refunds of all services, newest first.")


class PayoutPage(Schema):
    """The payouts and refunds of a service, newest first, and its earnings."""

    payouts = fields.List(fields.Nested(PayoutShape), required=True)
    earnings = fields.Nested(EarningsShape, required=True)
    pagination = fields.Nested(Pagination, required=True)


class PayoutQuery(PageQuery):  # type: ignore[misc, valid-type]
    """A page of payouts, of one service or of all."""

    service_id = Identifier(load_default=None)


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
