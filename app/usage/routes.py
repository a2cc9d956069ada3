"""`/v1/usage`: the cost of the calls of a key."""

from typing import Any

import marshmallow as ma
from flask import Response
from marshmallow import fields

from app.core.pagination import Page
from app.db.replica import report_engine
from app.db.unit_of_work import read_only_unit
from app.errors import LimitReached, Unauthorized
from app.identity import guards
from app.identity.principal import Principal
from app.usage import service, sums
from app.web.blueprint import CSV, Blueprint, csv_response, offers_csv
from app.web.fields import Identifier, Instant, ParsedField, Text, Usd
from app.web.schemas import Pagination, Schema, page_query, page_schema

FOCUS = {"type": "string", "description": "One row for each day, provider, model and key, below one with the columns."}
_GROUPS = f"Some of {', '.join(sums.GROUPS)}, separated by commas."
FOCUS_EXAMPLE = ",".join(sums.FOCUS_COLUMNS) + "\r\n"

usage = Blueprint("usage", guard=guards.ANY_KEY, url_prefix="/v1/usage")


class UsageLogShape(Schema):
    """One charged call."""

    id = fields.UUID(required=True)
    api_key_id = fields.UUID(required=True)
    provider = fields.String(required=True)
    model = fields.String(required=True)
    tokens_in = fields.Integer(required=True)
    tokens_out = fields.Integer(required=True)
    cached_tokens = fields.Integer(required=True)
    reasoning_tokens = fields.Integer(required=True)
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


class UsageFilters(Schema):
    """The calls to look at."""

    provider = Text(load_default=None, metadata={"description": "Only calls to this provider, as in `provider`."})
    model = Text(load_default=None, metadata={"description": "Only calls of this model, as in `model`."})
    api_key_id = Identifier(load_default=None, metadata={"description": "Only calls with the key of this `id`."})
    tag = Text(load_default=None, metadata={"description": "Only calls with keys that have this tag."})


class UsageQuery(UsageFilters, page_query(default=100, maximum=500, has_period=True)):  # type: ignore[misc]
    """Filters and pagination of the log."""

    id = Identifier(
        load_default=None,
        data_key="request_id",
        metadata={"description": "Only the call with this `X-Gateway-Request-Id`."},
    )


class Groups(ParsedField):
    """Names of groups, separated by commas."""

    def _parse(self, value: Any) -> list[str]:
        names = list(dict.fromkeys(each.strip() for each in str(value).split(",") if each.strip()))
        if not names or any(name not in sums.GROUPS for name in names):
            raise ma.ValidationError(f"must be some of {', '.join(sums.GROUPS)}")
        return names


class UsageSumsQuery(UsageFilters, page_query(default=100, maximum=500, has_period=True)):  # type: ignore[misc]
    """What to sum, and by what."""

    group_by = Groups(
        load_default=lambda: ["model"], metadata={"description": _GROUPS, "type": "string", "default": "model"}
    )


_FocusPage = page_query(default=sums.MAX_SUMS, maximum=sums.MAX_SUMS, has_period=True)


class FocusQuery(UsageFilters, _FocusPage):  # type: ignore[misc, valid-type]
    """The calls to export."""


class UsageSumShape(Schema):
    """The calls of one group; of `day` to `agent_id`, it has those that it is a group of."""

    day = fields.Date()
    provider = fields.String()
    model = fields.String()
    api_key_id = fields.UUID()
    tag = fields.String(allow_none=True)
    agent_id = fields.UUID()
    calls = fields.Integer(required=True)
    cost_usd = Usd(required=True, attribute="cost_nanos")
    tokens_in = fields.Integer(required=True)
    tokens_out = fields.Integer(required=True)
    cached_tokens = fields.Integer(required=True)
    reasoning_tokens = fields.Integer(required=True)
    cost_per_call_usd = Usd(required=True, attribute="cost_per_call")
    cost_per_million_tokens_usd = Usd(required=True, allow_none=True, attribute="cost_per_million_tokens")


UsageSums = page_schema("UsageSums", "sums", UsageSumShape, "A page of sums, the dearest first.")


@usage.get("")
@usage.arguments(UsageQuery, location="query")
@usage.response(200, UsagePage)
@offers_csv(usage, "logs", UsageLogShape)
@usage.raises(Unauthorized)
def get_usage(query: dict[str, Any]) -> dict[str, Any]:
    """Read the log of charged calls, newest first, with the sums by provider over the whole log."""
    principal, page = _restrict(query), query.pop("page")
    only_key = None if principal.limits is None else principal.key_id
    with read_only_unit() as session:
        page = service.history(session, principal.account_id, page, query)
        totals = service.by_provider(session, principal.account_id, only_key)
    return {"logs": page.items, "summary": {"by_provider": totals}, "pagination": page}


@usage.get("/sums")
@usage.arguments(UsageSumsQuery, location="query")
@usage.response(200, UsageSums)
@offers_csv(usage, "items", UsageSumShape)
@usage.raises(Unauthorized, LimitReached)
def get_usage_sums(query: dict[str, Any]) -> Page[dict[str, Any]]:
    """Read what the calls of the log cost together, by day, provider, model, key or tag, the dearest first."""
    account_id, page = _restrict(query).account_id, query.pop("page")
    with read_only_unit(report_engine()) as session:
        return sums.page_of(sums.sums_of(session, account_id, query.pop("group_by"), page, query), page)


@usage.get("/focus")
@usage.arguments(FocusQuery, location="query")
@usage.response(200, FOCUS, content_type=CSV, example=FOCUS_EXAMPLE)
@usage.raises(Unauthorized, LimitReached)
def get_usage_as_focus(query: dict[str, Any]) -> Response:
    """Read the costs by day, provider, model and key as CSV in the format of FOCUS 1.2, for cost tools."""
    return focus_of(_restrict(query).account_id, query)


def focus_of(account_id: str | None, query: dict[str, Any]) -> Response:
    with read_only_unit(report_engine()) as session:
        lines = sums.focus_lines(session, account_id, query.pop("page"), query)
    response = csv_response(sums.FOCUS_COLUMNS, lines)
    response.headers["Content-Disposition"] = 'attachment; filename="usage-focus.csv"'
    return response


def _restrict(query: dict[str, Any]) -> Principal:
    """Restrict a query to the calls that its key may see: with limits, its own."""
    principal = guards.current_principal()
    if principal.limits is not None:
        # Another key's calls are not shown: no call has both ids.
        of_key = query["api_key_id"] in (None, principal.key_id)
        query["api_key_id"] = principal.key_id if of_key else principal.account_id
    return principal
