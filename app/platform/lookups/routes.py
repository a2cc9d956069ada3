"""Views of what operators look up: the events of an agent, and the service's own wallets."""

from typing import Any

from app.catalog.payouts import earnings
from app.core.chains import USDC, ChainName
from app.core.money import TokenAmount
from app.core.pagination import Page
from app.db.unit_of_work import read_only_unit
from app.events import feed
from app.events.models import Event
from app.payments import settlement_capacity, settlement_risks, treasury
from app.platform.agents.service import parse_agent_id
from app.platform.lookups import schemas
from app.platform.routes import blp
from app.web.schemas import PageQuery


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
