"""What operators look up: the events of an agent, and the service's own wallets."""

from contextlib import suppress
from typing import Any

from app.catalog.payouts import earnings
from app.core.chains import USDC, ChainName
from app.core.money import TokenAmount, nanos_from_usd
from app.core.pagination import Page
from app.db.unit_of_work import read_only_unit
from app.events import feed
from app.events.models import Event
from app.payments import settlement_capacity, settlement_risks, treasury
from app.platform.agents.service import parse_agent_id
from app.platform.lookups import schemas
from app.platform.routes import blp
from app.ports.errors import Rejected
from app.state import app_state


@blp.get("/agents/<string:agent_id>/events")
@blp.arguments(schemas.AgentEventsQuery, location="query")
@blp.response(200, schemas.AgentEvents)
def list_agent_events(query: dict[str, Any], agent_id: str) -> Page[Event]:
    """List the events of an agent, at most 30 days old, newest first."""
    return feed.of_agent(parse_agent_id(agent_id), **query)


@blp.get("/treasury")
@blp.response(200, schemas.TreasuryShape)
def get_treasury() -> dict[str, Any]:
    """Read what the service's own wallets held at the last check, what sellers are owed, and the cost of failures."""
    with read_only_unit() as session:
        rows, owed_nanos = settlement_capacity.reserves(session), earnings.owed_nanos(session)
        failed = settlement_risks.failed_by_chain(session)
        used = settlement_risks.failed_by_chain(session, of_budget=True)
    budget_usd = app_state().settings.x402_failed_gas_usd_per_day
    chains = [
        {
            "chain": row.chain, **_addresses(ChainName(row.chain)), "submissions_left": row.submissions_left,
            "treasury_usdc": None if row.treasury_units is None else str(TokenAmount(row.treasury_units, USDC)),
            "failed_nanos": nanos_from_usd(failed.get(row.chain, 0)), "read_at": row.read_at,
            "budget_left_nanos": max(0, nanos_from_usd(budget_usd - used.get(row.chain, 0))),
        }
        for row in rows
    ]  # fmt: skip
    units = sum(row.treasury_units or 0 for row in rows)
    return {
        "owed_nanos": owed_nanos, "treasury_usdc": str(TokenAmount(units, USDC)), "chains": chains,
        "failed_gas_budget_nanos": nanos_from_usd(budget_usd),
    }  # fmt: skip


def _addresses(chain: ChainName) -> dict[str, str | None]:
    with suppress(Rejected):
        return {"recipient": treasury.recipient(chain), "settler": treasury.settler(chain)}
    return {"recipient": None, "settler": None}
