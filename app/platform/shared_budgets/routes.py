"""`/v1/platform/budgets`: budgets over agents, keys and wallets; and further keys that operators make for an agent."""

from collections.abc import Mapping
from typing import Any

import marshmallow as ma
from marshmallow import fields

from app.agents import keys as agent_keys
from app.agents.routes import issued_key
from app.agents.schemas import KeyChanges, KeyRequest, KeyResponse, LimitedKeyPage, LimitedKeyShape, Tag
from app.audit_log.actors import current_actor
from app.core.pagination import Page
from app.errors import LimitReached
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards
from app.identity.api_keys import LimitedKey
from app.identity.budgets import SharedBudget
from app.identity.principal import BudgetPeriod
from app.platform.agents.service import parse_agent_id
from app.platform.shared_budgets import service as budgets
from app.web.blueprint import Blueprint
from app.web.fields import Identifier, Instant, Name, Usd, WholeNumber
from app.web.schemas import PageQuery, Schema, assert_any_field, page_schema

_MEMBERS = ma.validate.Length(max=1000, error="must have at most 1000 entries")
_MINUTES = ma.validate.Range(min=1, max=1440, error="must be between 1 and 1440")
_OF_AGENT = {"description": "Only those that this agent, one of its keys or one of its wallets belongs to."}
BudgetQuery: Any = PageQuery.from_dict({"agent_id": Identifier(load_default=None, metadata=_OF_AGENT)})
_PAYMENTS = ma.validate.Range(min=0, max=10**6, error="must be between 0 and 1000000")


class TaggedKeys(Schema):
    """The further keys of an agent that have a tag."""

    agent_id = Identifier(required=True)
    tag = Tag(required=True)


class BudgetMembers(Schema):
    """Who spends from a budget: whole agents, single keys or wallets, or the keys of an agent with a tag."""

    agents = fields.List(Identifier(), validate=_MEMBERS)
    keys = fields.List(Identifier(), validate=_MEMBERS)
    wallets = fields.List(Identifier(), validate=_MEMBERS)
    tags = fields.List(fields.Nested(TaggedKeys), validate=_MEMBERS)


class VelocityRule(Schema):
    """How many payments of wallets may leave in so many minutes, and how many dollars."""

    payments = WholeNumber(load_default=None, allow_none=True, validate=_PAYMENTS, metadata={"example": 5})
    usd = Usd(load_default=None, allow_none=True, attribute="nanos", metadata={"example": 100})
    minutes = WholeNumber(required=True, validate=_MINUTES, metadata={"example": 60})

    @ma.validates_schema
    def _has_a_limit(self, rule: dict[str, Any], **_: Any) -> None:
        if rule.get("payments") is None and rule.get("nanos") is None:
            raise ma.ValidationError("needs payments or usd")


class BudgetChanges(Schema):
    """A budget; omitted fields stay as they are, null is no limit."""

    name = Name(metadata={"example": "research"})
    limit_usd = Usd(allow_none=True, attribute="limit_nanos", metadata={"example": 100})
    members = fields.Nested(BudgetMembers)
    parent_id = Identifier(allow_none=True)
    velocity = fields.Nested(VelocityRule, allow_none=True)

    @ma.validates("name")
    def _is_given(self, name: Any, **_: Any) -> None:
        if name is None:
            raise ma.ValidationError("must have a letter or digit")


def columns_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a body sets in the columns of `budgets`."""
    columns = {**body}
    if "velocity" in columns:
        rule = columns.pop("velocity") or {}
        columns |= {f"velocity_{name}": rule.get(name) for name in ("payments", "nanos", "minutes")}
    if "period" in columns:
        columns["period"] = columns["period"].value
    return columns


class NewBudget(BudgetChanges):
    """A new budget."""

    name = Name(required=True, metadata={"example": "research"})
    members = fields.Nested(BudgetMembers, load_default=dict)
    window = fields.Enum(
        BudgetPeriod, by_value=True, attribute="period", metadata={"type": "string", "example": "month"}
    )


class BudgetShape(Schema):
    """A budget, and what is left of it."""

    id = fields.UUID(required=True)
    name = fields.String(required=True)
    parent_id = fields.UUID(required=True, allow_none=True)
    limit_usd = Usd(required=True, allow_none=True, attribute="limit_nanos")
    window = fields.Enum(BudgetPeriod, by_value=True, required=True, attribute="period", metadata={"type": "string"})
    used_usd = Usd(required=True, attribute="used_nanos")
    remaining_usd = Usd(required=True, allow_none=True, attribute="remaining_nanos")
    resets_at = Instant(required=True, allow_none=True)
    members = fields.Nested(BudgetMembers, required=True)
    velocity = fields.Nested(VelocityRule, required=True, allow_none=True)
    created_at = Instant(required=True)


BudgetPage = page_schema("BudgetPage", "budgets", BudgetShape, "A page of budgets, oldest first.")


blp = Blueprint("platform_budgets", guard=guards.MASTER_KEY, url_prefix="/v1/platform")


@blp.post("/budgets")
@idempotent(
    owner=guards.acting_key_id, rebuild=budgets.get, note="Repeating a request with the same key creates nothing."
)
@blp.arguments(NewBudget)
@blp.response(201, BudgetShape)
@blp.raises(LimitReached)
def create_budget(body: dict[str, Any], claim: Claim) -> SharedBudget:
    """Create a budget that agents, keys and wallets share."""
    return budgets.create(current_actor(), columns_of(body), claim=claim)


@blp.get("/budgets")
@blp.arguments(BudgetQuery, location="query")
@blp.response(200, BudgetPage)
def list_budgets(query: dict[str, Any]) -> Page[SharedBudget]:
    """List budgets with what is left of them, oldest first."""
    return budgets.list_budgets(**query)


@blp.get("/budgets/<string:budget_id>")
@blp.response(200, BudgetShape)
def get_budget(budget_id: str) -> SharedBudget:
    """Read a budget, and what is left of it."""
    return budgets.get(budget_id)


@blp.patch("/budgets/<string:budget_id>")
@blp.arguments(BudgetChanges)
@blp.response(200, BudgetShape)
def change_budget(body: dict[str, Any], budget_id: str) -> SharedBudget:
    """Change a budget; what was used stays used."""
    assert_any_field(body, BudgetChanges)
    return budgets.change(current_actor(), budget_id, columns_of(body))


@blp.delete("/budgets/<string:budget_id>")
@blp.response(200, BudgetShape)
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
    return issued_key(*agent_keys.create(current_actor(), parse_agent_id(agent_id), body, claim=claim))


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
