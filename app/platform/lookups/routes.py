"""Views of what operators look up: a request, the events of an agent, and the service's own wallets."""

from typing import Any

from app.approvals import service as approvals
from app.audit_log import trail
from app.catalog.payouts import earnings
from app.core import identifiers
from app.core.chains import USDC, ChainName
from app.core.money import TokenAmount
from app.core.pagination import Page, PageRequest
from app.db.unit_of_work import read_only_unit
from app.errors import NotFound
from app.events import feed
from app.events.models import Event
from app.payments import claimed_payments, settlement_capacity, settlement_risks, treasury
from app.platform.agents.service import parse_agent_id
from app.platform.lookups import schemas
from app.platform.routes import blp
from app.shopping import service as shopping
from app.shopping.routes import shown
from app.state import app_state
from app.usage import service as usage
from app.wallets.views import history
from app.web.schemas import PageQuery

_MOST = PageRequest(100, 0)


@blp.get("/requests/<string:request_id>")
@blp.response(200, schemas.RequestRecords)
def get_request(request_id: str) -> dict[str, Any]:
    """Read what a request did, by its `X-Request-Id`."""
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


@blp.get("/agents/<string:agent_id>/events")
@blp.arguments(PageQuery, location="query")
@blp.response(200, schemas.AgentEvents)
def list_agent_events(query: dict[str, Any], agent_id: str) -> Page[Event]:
    """List the events of an agent, at most 30 days old, newest first."""
    return feed.latest(parse_agent_id(agent_id), query["page"])


@blp.get("/treasury")
@blp.response(200, schemas.TreasuryShape)
def get_treasury() -> dict[str, Any]:
    """Read what the service's own wallets held when last read, what sellers are owed, and failed gas."""
    with read_only_unit() as session:
        rows, owed_nanos = settlement_capacity.reserves(session), earnings.owed_nanos(session)
        failed, used = (settlement_risks.failed_by_chain(session, of_budget=each) for each in (False, True))
    budget_nanos = settlement_risks.budget_nanos()
    chains = [
        {
            "row": row, "recipient": treasury.recipient(ChainName(row.chain)), "failed_nanos": failed[row.chain],
            "left_nanos": max(0, budget_nanos - used[row.chain]),
            "treasury_usdc": None if row.treasury_units is None else str(TokenAmount(row.treasury_units, USDC)),
        }
        for row in rows
    ]  # fmt: skip
    return {"owed_nanos": owed_nanos, "budget_nanos": budget_nanos, "chains": chains}
