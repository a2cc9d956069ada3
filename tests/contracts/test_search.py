"""Exa, Tavily and Brave Search as their documentation describes cost and limits.

Read on 2026-11-23: https://exa.ai/docs/reference/search (`costDollars`), https://exa.ai/docs/reference/pricing,
https://docs.tavily.com/documentation/api-reference/endpoint/search (`include_usage`, `usage.credits`),
https://docs.tavily.com/documentation/api-credits (0.008 USD a credit),
https://api-dashboard.search.brave.com/app/documentation/web-search/responses (`X-RateLimit-…`).
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from app.forwarding import filters
from app.gateway.dialects.request import tool_costs
from app.gateway.dialects.request.cost_params import CostParams, Dialect, Surface
from app.gateway.dialects.response.usage_readers import Usage
from tests.support.response_readers import reader_of


def _usage(dialect: Dialect, surface: Surface, body: Any) -> Usage | None:
    reader = reader_of(CostParams(surface, dialect, model="m"), status=200, content_type="application/json")
    reader.feed(json.dumps(body).encode())
    reader.flush()
    return reader.finish(is_broken=False).usage


@pytest.mark.parametrize(
    ("dialect", "surface", "body", "usd"),
    [
        (
            Dialect.EXA,
            Surface.SEARCH,
            {"results": [], "costDollars": {"total": 0.007, "search": {"neural": 0.007}}},
            "0.007",
        ),
        (Dialect.EXA, Surface.CONTENTS, {"results": [], "costDollars": {"total": 0.002}}, "0.002"),
        (Dialect.EXA, Surface.ANSWER, {"answer": "Hi", "costDollars": {"total": 0.005}}, "0.005"),
        (Dialect.TAVILY, Surface.SEARCH, {"results": [], "usage": {"credits": 1}}, "0.008"),
        (Dialect.TAVILY, Surface.SEARCH, {"results": [], "usage": {"credits": 2}}, "0.016"),
        # Without `include_usage` there is none: the list price of the request counts.
        (Dialect.TAVILY, Surface.SEARCH, {"results": [], "response_time": 1.2}, None),
        (Dialect.EXA, Surface.SEARCH, {"error": "INVALID_REQUEST", "tag": "INVALID_REQUEST_BODY"}, None),
        (Dialect.TAVILY, Surface.SEARCH, {"detail": {"error": "Your request has been blocked"}}, None),
    ],
)
def test_the_reported_cost_is_read(dialect: Dialect, surface: Surface, body: Any, usd: str | None) -> None:
    expected = None if usd is None else Usage(cost_nanos=int(Decimal(usd) * 10**9))
    assert _usage(dialect, surface, body) == expected


@pytest.mark.parametrize(
    ("dialect", "surface", "request_", "usd"),
    [
        (Dialect.TAVILY, Surface.SEARCH, {"query": "agents"}, "0.008"),
        (Dialect.TAVILY, Surface.SEARCH, {"query": "agents", "search_depth": "advanced"}, "0.016"),
        # It may choose the advanced depth by itself.
        (Dialect.TAVILY, Surface.SEARCH, {"query": "agents", "auto_parameters": True}, "0.016"),
        (Dialect.TAVILY, Surface.CONTENTS, {"urls": ["https://a.example"] * 5}, "0.008"),
        (Dialect.TAVILY, Surface.CONTENTS, {"urls": ["https://a.example"] * 6, "extract_depth": "advanced"}, "0.032"),
        (Dialect.EXA, Surface.SEARCH, {"query": "agents"}, "0.007"),
        (Dialect.EXA, Surface.ANSWER, {"query": "agents"}, "0.005"),
        (Dialect.EXA, Surface.CONTENTS, {"urls": ["https://a.example"], "text": True}, "0.001"),
    ],
)
def test_the_list_price_bounds_a_call(dialect: Dialect, surface: Surface, request_: Any, usd: str) -> None:
    assert tool_costs.max_nanos(dialect, surface, request_) == int(Decimal(usd) * 10**9)


@pytest.mark.parametrize("name", ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After"])
def test_limits_of_a_provider_reach_the_client(name: str) -> None:
    assert (name, "1, 1419704") in list(filters.for_client([(name, "1, 1419704")]))
