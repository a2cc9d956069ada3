"""Wire shapes of the usage room."""

from __future__ import annotations

from marshmallow import fields

from app.web.fields import Instant, Usd
from app.web.schemas import Pagination, Schema


class BalanceShape(Schema):
    """What an account has left, and what it has spent in all."""

    credits_usd = Usd(required=True, attribute="credits_nanos")
    total_spent = Usd(required=True, attribute="spent_nanos", metadata={"description": "In US dollars."})


class UsageLogShape(Schema):
    """One charged call."""

    id = fields.UUID(required=True)
    api_key_id = fields.UUID(required=True)
    provider = fields.String(required=True)
    model = fields.String(required=True)
    tokens_in = fields.Integer(required=True)
    tokens_out = fields.Integer(required=True)
    cost_usd = Usd(required=True, attribute="cost_nanos")
    created_at = Instant(required=True)


class ProviderTotalsShape(Schema):
    """What was used of one provider, ever."""

    calls = fields.Integer(required=True)
    total_cost = Usd(required=True, attribute="cost_nanos", metadata={"description": "In US dollars."})
    total_tokens_in = fields.Integer(required=True, attribute="tokens_in")
    total_tokens_out = fields.Integer(required=True, attribute="tokens_out")


class UsageSummary(Schema):
    """Sums over the whole log, not just this page."""

    by_provider = fields.Dict(keys=fields.String(), values=fields.Nested(ProviderTotalsShape), required=True)


class UsagePage(Schema):
    """A page of the log, the newest call first."""

    logs = fields.List(fields.Nested(UsageLogShape), required=True)
    summary = fields.Nested(UsageSummary, required=True)
    pagination = fields.Nested(Pagination, required=True)
