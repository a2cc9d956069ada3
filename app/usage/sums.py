"""Sums of the usage log by day, provider, model, key, tag or agent, and as lines of the FOCUS specification.

FOCUS 1.2 (focus.finops.org) is the format of cost data that financial tools read.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from sqlalchemy import case, func, or_, select
from sqlalchemy.orm import Session

from app.core.money import usd_string
from app.core.pagination import Page, PageRequest
from app.db.tables import day_of, table_of, utc_day, within
from app.errors import LimitReached
from app.identity import api_keys
from app.usage.models import UsageLog
from app.usage.service import filtered

GROUPS = ("day", "provider", "model", "api_key_id", "tag", "agent_id")
AMOUNTS = ("calls", "cost_nanos", "tokens_in", "tokens_out", "cached_tokens", "reasoning_tokens", "own_price_nanos")
MAX_SUMS = 50_000
_LOG = table_of(UsageLog)
# The operator has set these prices; the others are the provider's.
_OWN_PRICES = or_(_LOG.c.price_version.is_(None), *map(_LOG.c.price_version.startswith, ("fixed", "configured")))
_AMOUNTS = {**_LOG.c, "own_price_nanos": case((_OWN_PRICES, _LOG.c.cost_nanos), else_=0)}
_TOKENS_PER_MILLION = 1_000_000


def page_of(found: list[dict[str, Any]], page: PageRequest) -> Page[dict[str, Any]]:
    """Return a page of sums, the dearest first, with the costs per call and token."""
    found.sort(key=lambda each: each["cost_nanos"], reverse=True)
    for each in found:
        each["cost_per_call"] = each["cost_nanos"] // (each["calls"] or 1)
        tokens = each["tokens_in"] + each["tokens_out"]
        each["cost_per_million_tokens"] = each["cost_nanos"] * _TOKENS_PER_MILLION // tokens if tokens else None
    return Page(found[page.offset : page.offset + page.limit], len(found), page)


def focus_lines(
    session: Session, account_id: str | None, page: PageRequest, filters: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return a line for each day, provider, model, key and agent, in this order. Raises: LimitReached."""
    groups = ("day", "provider", "model", "api_key_id", "agent_id")
    found = sums_of(session, account_id, groups, page, filters)
    found.sort(key=lambda each: tuple(str(each[name]) for name in groups))
    tags = api_keys.tags_by_key(session, account_id)
    lines = found[page.offset : page.offset + page.limit]
    return [_focus_line(each, tags.get(each["api_key_id"], ())) for each in lines]


def sums_of(
    session: Session, account_id: str | None, group_by: Sequence[str], page: PageRequest, filters: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the sums of the calls of an account, or of all, for each combination of `group_by`, in no order.

    A call of a key with several tags counts for each of them. Raises: LimitReached.
    """
    day = utc_day(UsageLog.created_at, dialect=session.get_bind().dialect.name)
    columns: dict[str, Any] = {"day": day, "tag": _LOG.c.api_key_id, "agent_id": _LOG.c.account_id}
    conditions = within(_LOG, page) + ([] if account_id is None else [_LOG.c.account_id == account_id])
    conditions += filtered(session, account_id, filters)
    tags = api_keys.tags_by_key(session, account_id) if "tag" in group_by else {}
    by = [columns[name] if name in columns else _LOG.c[name] for name in group_by]
    amounts = [func.count(), *(func.sum(_AMOUNTS[name]) for name in AMOUNTS[1:])]
    rows = session.execute(select(*by, *amounts).where(*conditions).group_by(*by).limit(MAX_SUMS + 1)).all()
    if len(rows) > MAX_SUMS:
        raise LimitReached(f"These are more than {MAX_SUMS} sums; ask for less time, or with filters.")
    sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0] * len(AMOUNTS))
    for row in rows:
        for group in _groups(group_by, row[: len(by)], tags):
            total = sums[group]
            for position, amount in enumerate(row[len(by) :]):
                total[position] += int(amount)
    names = (*group_by, *AMOUNTS)
    return [dict(zip(names, (*group, *total), strict=True)) for group, total in sums.items()]


def _groups(
    group_by: Sequence[str], values: Iterable[Any], tags: Mapping[str, Sequence[str]]
) -> Iterator[tuple[Any, ...]]:
    """Yield the groups in which a row of the database counts: one for each tag of its key, if these are groups."""
    group: list[Any] = [day_of(value) if name == "day" else value for name, value in zip(group_by, values, strict=True)]
    if "tag" not in group_by:
        yield tuple(group)
        return
    position = group_by.index("tag")
    for tag in tags.get(group[position], (None,)):
        yield (*group[:position], tag, *group[position + 1 :])


def _focus_line(sums: Mapping[str, Any], tags: Sequence[str]) -> dict[str, Any]:
    day: date = sums["day"]
    month = day.replace(day=1)
    cost, tokens = usd_string(sums["cost_nanos"]), sums["tokens_in"] + sums["tokens_out"]
    is_by_token = tokens > 0
    quantity, unit = (tokens, "Tokens") if is_by_token else (sums["calls"], "Requests")
    return {
        "BilledCost": cost, "BillingAccountId": sums["agent_id"], "BillingAccountName": None, "BillingCurrency": "USD",
        "BillingPeriodEnd": _midnight((month + timedelta(days=32)).replace(day=1)),
        "BillingPeriodStart": _midnight(month), "ChargeCategory": "Usage", "ChargeClass": None,
        "ChargeDescription": f"{sums['calls']} calls of {sums['model']} at {sums['provider']}",
        "ChargeFrequency": "Usage-Based", "ChargePeriodEnd": _midnight(day + timedelta(days=1)),
        "ChargePeriodStart": _midnight(day), "ConsumedQuantity": quantity, "ConsumedUnit": unit, "ContractedCost": cost,
        "EffectiveCost": cost, "InvoiceIssuerName": "Purser", "ListCost": cost, "PricingCategory": "Standard",
        "PricingQuantity": quantity, "PricingUnit": unit, "ProviderName": "Purser", "PublisherName": sums["provider"],
        "ServiceCategory": "AI and Machine Learning" if is_by_token else "Other", "ServiceName": sums["provider"],
        "ServiceSubcategory": "Generative AI" if is_by_token else "Other (Other)",
        "SkuId": f"{sums['provider']}/{sums['model']}", "SubAccountId": sums["api_key_id"],
        "Tags": dict.fromkeys(tags, True),
    }  # fmt: skip


def _midnight(day: date) -> str:
    return f"{day.isoformat()}T00:00:00Z"


_NO_CALLS = {**dict.fromkeys(GROUPS, ""), **dict.fromkeys(AMOUNTS, 0), "day": date.min}
FOCUS_COLUMNS = tuple(_focus_line(_NO_CALLS, ()))
