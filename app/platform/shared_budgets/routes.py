"""`/v1/platform/budgets`: budgets over agents, keys and wallets; and further keys that operators make for an agent."""

from typing import Any

from app.agents import keys as agent_keys
from app.agents.routes import issued_key
from app.agents.schemas import KeyChanges, KeyRequest, KeyResponse, LimitedKeyPage, LimitedKeyShape
from app.audit_log.actors import current_actor
from app.core.pagination import Page
from app.errors import LimitReached
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards
from app.identity.budgets import SharedBudget
from app.identity.key_limits import LimitedKey
from app.platform.agents.service import parse_agent_id
from app.platform.shared_budgets import schemas
from app.platform.shared_budgets import service as budgets
from app.web.blueprint import Blueprint
from app.web.schemas import PageQuery, assert_any_field

blp = Blueprint("platform_budgets", guard=guards.MASTER_KEY, url_prefix="/v1/platform")


@blp.post("/budgets")
@idempotent(
    owner=guards.acting_key_id, rebuild=budgets.get, note="Repeating a request with the same key creates nothing."
)
@blp.arguments(schemas.NewBudget)
@blp.response(201, schemas.BudgetShape)
@blp.raises(LimitReached)
def create_budget(body: dict[str, Any], claim: Claim) -> SharedBudget:
    """Create a budget that agents, keys and wallets share."""
    return budgets.create(current_actor(), schemas.columns_of(body), claim=claim)


@blp.get("/budgets")
@blp.arguments(schemas.BudgetQuery, location="query")
@blp.response(200, schemas.BudgetPage)
def list_budgets(query: dict[str, Any]) -> Page[SharedBudget]:
    """List budgets with what is left of them, oldest first."""
    return budgets.list_budgets(**query)


@blp.get("/budgets/<string:budget_id>")
@blp.response(200, schemas.BudgetShape)
def get_budget(budget_id: str) -> SharedBudget:
    """Read a budget, and what is left of it."""
    return budgets.get(budget_id)


@blp.patch("/budgets/<string:budget_id>")
@blp.arguments(schemas.BudgetChanges)
@blp.response(200, schemas.BudgetShape)
def change_budget(body: dict[str, Any], budget_id: str) -> SharedBudget:
    """Change a budget; what was used stays used."""
    assert_any_field(body, schemas.BudgetChanges)
    return budgets.change(current_actor(), budget_id, schemas.columns_of(body))


@blp.delete("/budgets/<string:budget_id>")
@blp.response(200, schemas.BudgetShape)
def delete_budget(budget_id: str) -> SharedBudget:
    """Delete a budget; its members then spend without it."""
    return budgets.delete(current_actor(), budget_id)


@blp.post("/agents/<string:agent_id>/keys")
@idempotent(
    owner=guards.acting_key_id,
    rebuild=lambda key_id: issued_key(*agent_keys.reveal(None, key_id)),
    note="The same `Idempotency-Key` within 24 hours returns the same key.",
)
@blp.arguments(KeyRequest, required=False)
@blp.response(201, KeyResponse)
@blp.raises(LimitReached)
def create_agent_key(body: dict[str, Any], agent_id: str, claim: Claim) -> Any:
    """Make a further key of an agent, with limits; it spends the agent's credits."""
    email = body.pop("email")
    return issued_key(*agent_keys.create(current_actor(), parse_agent_id(agent_id), body, email=email, claim=claim))


@blp.get("/agents/<string:agent_id>/keys")
@blp.arguments(PageQuery, location="query")
@blp.response(200, LimitedKeyPage)
def list_agent_keys(query: dict[str, Any], agent_id: str) -> Page[LimitedKey]:
    """List an agent's further keys, masked, with what is left of their budgets."""
    return agent_keys.list_keys(parse_agent_id(agent_id), query["page"])


@blp.patch("/agents/<string:agent_id>/keys/<string:key_id>")
@blp.arguments(KeyChanges)
@blp.response(200, LimitedKeyShape)
def change_agent_key(body: dict[str, Any], agent_id: str, key_id: str) -> LimitedKey:
    """Change the limits of an agent's further key; they apply from its next call on."""
    assert_any_field(body, KeyChanges)
    return agent_keys.change(current_actor(), parse_agent_id(agent_id), key_id, body)


@blp.delete("/agents/<string:agent_id>/keys/<string:key_id>")
@blp.response(200, LimitedKeyShape)
def revoke_agent_key(agent_id: str, key_id: str) -> LimitedKey:
    """Revoke an agent's further key at once."""
    return agent_keys.revoke(current_actor(), parse_agent_id(agent_id), key_id)
