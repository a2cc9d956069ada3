"""Responses about what operators look up across agents."""

from marshmallow import fields

from app.platform.schemas import AuditHeadShape
from app.shopping.schemas import PurchaseQuery, PurchaseShape, PurchaseSummaryShape
from app.wallets.api.schemas import TransactionShape
from app.web.fields import Identifier
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


class AllPurchasesQuery(PurchaseQuery):
    """A filter and pagination of the purchases of one agent or gateway-only key, or of all."""

    account_id = Identifier(load_default=None)


class SoldPurchaseSummary(PurchaseSummaryShape):
    """A purchase, and the agent or gateway-only key that it belongs to."""

    account_id = fields.UUID(required=True, attribute="purchase.account_id")


class SoldPurchase(PurchaseShape, SoldPurchaseSummary):
    """A purchase with its steps, and the agent or gateway-only key that it belongs to."""


SoldPurchases = page_schema("SoldPurchases", "purchases", SoldPurchaseSummary, "A page of purchases, newest first.")
