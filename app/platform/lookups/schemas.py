"""Responses about what operators look up across agents."""

from marshmallow import fields

from app.approvals.schemas import ApprovalShape
from app.catalog.payouts.routes import CallPayment
from app.events.schemas import AccountEvent
from app.platform.schemas import AuditEntryShape, AuditHeadShape
from app.shopping.schemas import PurchaseQuery, PurchaseShape, PurchaseSummaryShape
from app.usage.routes import UsageLogShape, UsageSumShape
from app.wallets.api.schemas import TransactionShape
from app.web.fields import Identifier, Instant, Usd
from app.web.schemas import Schema, page_schema


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


AllPurchasesQuery = PurchaseQuery.from_dict({"account_id": Identifier(load_default=None)})
"""A filter and pagination of the purchases of one agent or gateway-only key, or of all."""


class SoldPurchaseSummary(PurchaseSummaryShape):
    """A purchase, and the agent or gateway-only key that it belongs to."""

    account_id = fields.UUID(required=True, attribute="purchase.account_id")


class SoldPurchase(PurchaseShape, SoldPurchaseSummary):
    """A purchase with its steps, and the agent or gateway-only key that it belongs to."""


SoldPurchases = page_schema("SoldPurchases", "purchases", SoldPurchaseSummary, "A page of purchases, newest first.")


AgentEvents = page_schema("AgentEvents", "events", AccountEvent, "A page of events, newest first.")


class TreasuryChain(Schema):
    """What the service's wallets held on a chain when they were last read, and who receives payments."""

    chain = fields.String(required=True, attribute="row.chain")
    recipient = fields.String(required=True)
    treasury_usdc = fields.String(required=True, allow_none=True)
    submissions_left = fields.Integer(required=True, attribute="row.submissions_left")
    failed_gas_usd = Usd(required=True, attribute="failed_nanos")
    failed_gas_left_usd = Usd(required=True, attribute="left_nanos")
    read_at = Instant(required=True, attribute="row.read_at")


class TreasuryShape(Schema):
    """The service's own wallets, what sellers are owed, and the daily budget of each chain for payments that fail."""

    owed_usd = Usd(required=True, attribute="owed_nanos")
    failed_gas_budget_usd = Usd(required=True, attribute="budget_nanos")
    chains = fields.List(fields.Nested(TreasuryChain), required=True)


class ChargedCall(UsageLogShape):
    """One charged call, and the agent or gateway-only key that paid."""

    account_id = fields.UUID(required=True)


class MarginShape(UsageSumShape):
    """The calls of one group, paid with credits or by payments, and their margin."""

    model = fields.String(allow_none=True)
    paid_usd = Usd(required=True, attribute="paid_nanos")
    refunded_usd = Usd(required=True, attribute="refunded_nanos")
    provider_usd = Usd(required=True, attribute="provider_nanos")
    own_price_usd = Usd(required=True, attribute="own_price_nanos")
    margin_usd = Usd(required=True, attribute="margin_nanos")


Margins = page_schema("Margins", "sums", MarginShape, "A page of sums, the dearest first.")
_LISTS = {
    "transactions": TransactionShape, "calls": ChargedCall, "purchases": SoldPurchaseSummary, "payments": CallPayment,
    "approvals": ApprovalShape, "events": AccountEvent, "audit_entries": AuditEntryShape,
}  # fmt: skip
_RECORDS = {name: fields.List(fields.Nested(of), required=True) for name, of in _LISTS.items()}


class RequestRecords(Schema.from_dict({"request_id": fields.UUID(required=True), **_RECORDS})):  # type: ignore[misc]
    """What one request did."""
