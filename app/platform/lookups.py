"""Look-ups of operators across agents: their responses, and what one request did, for any agent or key."""

from typing import Any

from marshmallow import fields

from app.approvals import service as approvals
from app.approvals.schemas import ApprovalShape
from app.audit_log import trail
from app.core import identifiers
from app.core.chains import USDC
from app.core.money import TokenAmount
from app.core.pagination import PageRequest
from app.db.unit_of_work import read_only_unit
from app.errors import NotFound
from app.events import feed
from app.events.schemas import AccountEvent
from app.payments import claimed_payments
from app.payments.claimed_payments import PaymentStatus
from app.platform.schemas import AuditEntryShape, AuditHeadShape
from app.shopping import service as shopping
from app.shopping.routes import shown
from app.shopping.schemas import PurchaseQuery, PurchaseShape, PurchaseSummaryShape
from app.state import app_state
from app.usage import service as usage
from app.usage.routes import UsageLogShape
from app.wallets.api.schemas import TransactionShape
from app.wallets.views import history
from app.web.fields import Identifier, Instant
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


_LISTS = {
    "transactions": TransactionShape, "calls": ChargedCall, "purchases": SoldPurchaseSummary, "payments": CallPayment,
    "approvals": ApprovalShape, "events": AccountEvent, "audit_entries": AuditEntryShape,
}  # fmt: skip
_RECORDS = {name: fields.List(fields.Nested(of), required=True) for name, of in _LISTS.items()}


class RequestRecords(Schema.from_dict({"request_id": fields.UUID(required=True), **_RECORDS})):  # type: ignore[misc]
    """What one request did."""


_MOST = PageRequest(100, 0)


def find_request(request_id: str) -> dict[str, Any]:
    """Return what a request recorded, and the charges and events of that; at most 100 of a kind. Raises: NotFound."""
    days = app_state().settings.retention_days
    missing = NotFound(
        "Nothing is stored about a request with this id. One that only read, or was refused, leaves only log lines."
        f" Calls are kept for {days} days and events for {feed.RETENTION.days} days; the rest is not deleted."
    )
    of = {"request_id": identifiers.require_id(request_id, missing)}
    transactions, asked = history.page_of_wallets(None, _MOST, of).items, approvals.list_of(_MOST, **of).items
    purchases = shopping.list_of(_MOST, **of).items
    with read_only_unit() as session:
        payments, (page, _) = claimed_payments.of_request(session, **of), trail.list_entries(session, _MOST, **of)
        recorded: list[Any] = [*transactions, *purchases, *payments, *asked]
        made = [each.id for each in recorded]
        found = {
            "transactions": transactions, "purchases": [shown(each) for each in purchases], "payments": payments,
            "approvals": asked, "calls": usage.calls(session, [of["request_id"], *made]), "audit_entries": page.items,
            "events": feed.of_objects(session, made, limit=_MOST.limit),
        }  # fmt: skip
    if not any(found.values()):
        raise missing
    return {**of, **found}
