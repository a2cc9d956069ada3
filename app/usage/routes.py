"""`/v1/balance` and `/v1/usage`: the remaining credits of a key, and the cost of its calls."""

from typing import Any

from marshmallow import fields

from app.credits import accounts as credit_accounts
from app.credits.accounts import Balance
from app.db.unit_of_work import read_only_unit
from app.errors import Unauthorized
from app.identity import guards, key_limits
from app.usage import service
from app.web.blueprint import Blueprint, offers_csv
from app.web.fields import Identifier, Instant, Text, Usd
from app.web.schemas import Pagination, Schema, page_query

balance = Blueprint(
    "balance",
    guard=guards.ANY_KEY,
    url_prefix="/v1/balance",
    description="Credits that pay for gateway and catalog calls.",
)
usage = Blueprint(
    "usage", guard=guards.ANY_KEY, url_prefix="/v1/usage", description="What gateway and catalog calls were charged."
)


class BalanceShape(Schema):
    """The remaining credits of an account, and the total spent."""

    credits_usd = Usd(required=True, attribute="credits_nanos")
    total_spent = Usd(required=True, attribute="spent_nanos")


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
    """The total usage of one provider."""

    calls = fields.Integer(required=True)
    total_cost = Usd(required=True, attribute="cost_nanos")
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


class UsageQuery(page_query(default=100, maximum=500, has_period=True)):  # type: ignore[misc]
    """Filters and pagination of the log."""

    provider = Text(load_default=None, metadata={"description": "Only calls to this provider, as in `provider`."})
    model = Text(load_default=None, metadata={"description": "Only calls of this model, as in `model`."})
    api_key_id = Identifier(load_default=None, metadata={"description": "Only calls with the key of this `id`."})
    id = Identifier(
        load_default=None,
        data_key="request_id",
        metadata={"description": "Only the call with this `X-Gateway-Request-Id`."},
    )


@balance.get("")
@balance.response(200, BalanceShape)
@balance.raises(Unauthorized)
def get_balance() -> Balance:
    """Read the remaining credits and the total spent, in US dollars; a key with limits reads what its budget allows."""
    principal = guards.current_principal()
    with read_only_unit() as session:
        found = credit_accounts.balance(session, principal.account_id)
        if principal.limits is None:
            return found
        left_nanos, used_nanos, _ = key_limits.budget_of(session, principal.key_id)
    credits_nanos = found.credits_nanos if left_nanos is None else min(left_nanos, found.credits_nanos)
    return Balance(credits_nanos, 0, credits_nanos + used_nanos, used_nanos)


@usage.get("")
@usage.arguments(UsageQuery, location="query")
@usage.response(200, UsagePage)
@offers_csv(usage, "logs", UsageLogShape)
@usage.raises(Unauthorized)
def get_usage(query: dict[str, Any]) -> dict[str, Any]:
    """Read the log of charged calls, newest first, with the sums by provider over the whole log."""
    principal = guards.current_principal()
    account_id, page, only_key = principal.account_id, query.pop("page"), None
    if principal.limits is not None:
        only_key = principal.key_id
        # Another key's calls are not shown: no call has both ids.
        query["api_key_id"] = only_key if query["api_key_id"] in (None, only_key) else account_id
    with read_only_unit() as session:
        page = service.history(session, account_id, page, query)
        totals = service.by_provider(session, account_id, only_key)
    return {"logs": page.items, "summary": {"by_provider": totals}, "pagination": page}
