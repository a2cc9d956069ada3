"""`/v1/receipts/{id}`: signed copies of what is recorded, which others can verify.

A receipt has what the API shows of a record, without what is secret or for its reader alone.
"""

from contextlib import suppress
from typing import Any

from marshmallow import fields

from app import signing
from app.approvals import service as approvals
from app.approvals.schemas import ApprovalShape
from app.catalog.payouts import service as payouts
from app.catalog.schemas import PayoutShape
from app.core import identifiers
from app.errors import NotFound, TransactionInProgress
from app.identity import guards
from app.shopping import service as shopping
from app.shopping.routes import shown
from app.shopping.schemas import PurchaseSummaryShape
from app.wallets.api.schemas import TransactionShape
from app.wallets.core import wallets
from app.wallets.views import history
from app.web.blueprint import Blueprint
from app.web.schemas import Schema

# A status that may change, or that nobody knows, is not among them.
_CERTAIN = {"confirmed", "paid", "completed", "executed", "failed", "rejected", "cancelled", "expired"}
_SHAPES = {
    "transaction": TransactionShape(exclude=("explorer_url",)),
    "approval": ApprovalShape(exclude=("url", "notified", "notices")),
    "purchase": PurchaseSummaryShape(exclude=("status_url",)),
    "payout": PayoutShape(),
}
blp = Blueprint("receipts", guard=guards.AGENT_KEY, url_prefix="/v1/receipts")


class ReceiptShape(Schema):
    """A receipt, and what it is of."""

    kind = fields.String(required=True, metadata={"enum": [*_SHAPES]})
    receipt = fields.String(required=True)


@blp.get("/<string:record_id>")
@blp.response(200, ReceiptShape)
@blp.raises(TransactionInProgress)
def get_receipt(record_id: str) -> dict[str, str]:
    """Get a signed copy of a record whose outcome is certain: what was paid, or refused, and why."""
    kind, found = _find(record_id)
    missing = TransactionInProgress("There is no receipt: the outcome is not certain yet, or the service has no key.")
    return {"kind": kind, "receipt": identifiers.require(sign(kind, found), missing)}


def sign(kind: str, found: Any) -> str | None:
    """Return the receipt of a record as it is now; None while its outcome is not certain, and without a key."""
    record = _SHAPES[kind].dump(found)
    is_certain = record["status"] in _CERTAIN
    return signing.sign_own(signing.Statement.RECORD, kind=kind, record=record) if is_certain else None


def _find(record_id: str) -> tuple[str, Any]:
    missing = NotFound("No transaction, approval, purchase, payout or refund with this id belongs to this key.")
    record_id, principal = identifiers.require_id(record_id, missing), guards.current_principal()
    with suppress(NotFound):
        transaction = history.get(record_id)
        wallets.get_owned(transaction.wallet_id, agent_id=principal.agent_id)
        return "transaction", transaction
    with suppress(NotFound):
        return "approval", approvals.get(record_id, agent_id=principal.agent_id)
    with suppress(NotFound):
        return "purchase", shown(shopping.get_owned(record_id, principal))
    with suppress(NotFound):
        if (payout := payouts.get(record_id)).agent_id == principal.agent_id:
            return "payout", payout
    raise missing
