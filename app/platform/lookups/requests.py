"""Look-up of what one request did, for any agent or key."""

from typing import Any

from app.approvals import service as approvals
from app.audit_log import trail
from app.core import identifiers
from app.core.pagination import PageRequest
from app.db.unit_of_work import read_only_unit
from app.errors import NotFound
from app.events import feed
from app.payments import claimed_payments
from app.shopping import service as shopping
from app.shopping.routes import shown
from app.state import app_state
from app.usage import service as usage
from app.wallets.views import history

_MOST = PageRequest(100, 0)


def find(request_id: str) -> dict[str, Any]:
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
        payments = claimed_payments.of_request(session, **of, limit=_MOST.limit)
        page, _ = trail.list_entries(session, _MOST, **of)
        recorded: list[Any] = [*transactions, *purchases, *payments, *asked]
        made = [each.id for each in recorded]
        found = {
            "transactions": transactions, "purchases": [shown(each) for each in purchases], "payments": payments,
            "approvals": asked, "audit_entries": page.items,
            "calls": usage.calls(session, [of["request_id"], *made])[: _MOST.limit],
            "events": feed.of_objects(session, made, limit=_MOST.limit),
        }  # fmt: skip
    if not any(found.values()):
        raise missing
    return {**of, **found}
