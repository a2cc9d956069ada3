"""Wire schemas of shared budgets."""

from collections.abc import Mapping
from typing import Any

import marshmallow as ma
from marshmallow import fields

from app.agents.schemas import Tag
from app.identity.principal import BudgetPeriod
from app.web.fields import Identifier, Instant, Name, Usd, WholeNumber
from app.web.schemas import PageQuery, Schema, page_schema

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
