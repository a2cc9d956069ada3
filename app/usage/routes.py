"""`/v1/balance` and `/v1/usage`: what a key has left, and what its calls cost."""

from __future__ import annotations

from typing import Any

from app.core.pagination import PageRequest
from app.core.unit_of_work import reading
from app.credits import service as credits_service
from app.credits.service import Balance
from app.errors import Unauthorized
from app.identity import guards
from app.usage import schemas, service
from app.web.blueprint import Blueprint
from app.web.schemas import page_query

balance = Blueprint(
    "balance",
    __name__,
    guard=guards.ANY_KEY,
    url_prefix="/v1/balance",
    description="Credits that pay for gateway and catalog calls.",
)
usage = Blueprint(
    "usage",
    __name__,
    guard=guards.ANY_KEY,
    url_prefix="/v1/usage",
    description="What gateway and catalog calls were charged.",
)


@balance.get("")
@balance.response(200, schemas.BalanceShape)
@balance.raises(Unauthorized)
def get_balance() -> Balance:
    """Read the credits that are left and what was spent in all, in US dollars."""
    with reading():
        return credits_service.balance(guards.caller().account_id)


@usage.get("")
@usage.arguments(page_query(default=100, maximum=500), location="query")
@usage.response(200, schemas.UsagePage)
@usage.raises(Unauthorized)
def get_usage(query: dict[str, PageRequest]) -> dict[str, Any]:
    """Read the log of charged calls, the newest first, with the sums by provider over all of it."""
    account_id = guards.caller().account_id
    with reading():
        page = service.history(account_id, query["page"])
        totals = service.by_provider(account_id)
    return {"logs": page.items, "summary": {"by_provider": totals}, "pagination": page}
