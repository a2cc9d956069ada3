"""The pages of an agent's activity: transactions, purchases in web shops, and calls by day, newest first."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from itertools import groupby
from typing import Any, NamedTuple

from flask import Response, request

from app.buying import records as service_purchases
from app.core import clock
from app.core.chains import ChainName
from app.core.money import usd_string
from app.core.pagination import PageRequest
from app.db.unit_of_work import read_only_unit
from app.identity.owner_keys import OwnerKeyView
from app.identity.principal import KeyKind, Principal
from app.identity.service import AgentSnapshot
from app.owner.pages import charts, overview
from app.owner.pages.template_filters import transaction_title
from app.owner.session.auth import agent_of, owned_wallet, printable, render_page, session_pages
from app.receipts import routes as receipts
from app.shopping import service as shopping
from app.shopping.models import OPEN_STATUSES, Purchase, PurchaseStatus
from app.shopping.schemas import advice_on
from app.spending import holds
from app.usage import service as usage
from app.usage import sums
from app.wallets.core import wallets
from app.wallets.core.lifecycle import PERPDEX_CHAIN, MovementStatus
from app.wallets.views import history
from app.web.blueprint import csv_response

_AGENT = "/agents/<string:agent_id>"
_PAGE_SIZE = 50
_TRANSACTIONS = (
    "transfer", "withdrawal", "funding", "swap", "bridge", "x402", "topup", "gas", "trading_order", "trading_query",
)  # fmt: skip
_OFFERED = {
    "kind": [*_TRANSACTIONS, "purchase", "calls"], "chain": [*ChainName, PERPDEX_CHAIN], "status": [*MovementStatus],
}  # fmt: skip
_FILTERS = (*_OFFERED, "wallet", "text", "first", "last", "before")
_BOUGHT = {PurchaseStatus.COMPLETED, PurchaseStatus.PREVIEW}
_PURCHASE_STATUSES = {
    "pending": OPEN_STATUSES, "confirmed": _BOUGHT, "failed": {*PurchaseStatus} - OPEN_STATUSES - _BOUGHT,
}  # fmt: skip
_COLUMNS = (
    "time", "what", "with", "amount", "currency", "value_usd", "calls", "chain", "status", "reason", "hash", "id",
)  # fmt: skip


class Entry(NamedTuple):
    """An entry of the timeline: a `transaction`, a `purchase`, or the `calls` of a day to a provider."""

    at: datetime
    what: str
    value: Any


@session_pages.get(f"{_AGENT}/activity")
def show_activity(key: OwnerKeyView) -> Response:
    """Show a page of the agent's activity, or return what the filters find as CSV."""
    agent = agent_of(key)
    with read_only_unit() as session:
        owned = wallets.all_of(session, key.agent_id)
    chosen, is_csv = _chosen([wallet.id for wallet in owned]), request.args.get("format") == "csv"
    ids = [wallet.id for wallet in owned if chosen.get("wallet") in (None, wallet.id)]
    entries, before = _timeline(agent, ids, chosen, 5_000 if is_csv else _PAGE_SIZE)
    bought = overview.bought([each.value for each in entries if each.what == "transaction"])
    if is_csv:
        response = csv_response(_COLUMNS, [_csv_row(each, bought) for each in entries])
        response.headers["Content-Disposition"] = 'attachment; filename="activity.csv"'
        return response
    # What the charts show is what the list begins with.
    spending = {} if chosen else _spending(agent, ids)
    days = [(day, list(group)) for day, group in groupby(entries, key=lambda each: each.at.date())]
    return render_page(
        "activity.html", agent=agent, wallets=owned, chosen=chosen, days=days, bought=bought, offered=_OFFERED,
        before=before and before.isoformat(), **spending,
    )  # fmt: skip


@session_pages.get(f"{_AGENT}/activity/<string:transaction_id>")
def show_transaction(key: OwnerKeyView, transaction_id: str) -> Response:
    """Show a transaction: its fees, its legs, and why it failed."""
    found = history.get(transaction_id)
    wallet = owned_wallet(key, found.wallet_id)
    return render_page(
        "transaction.html", agent=agent_of(key), wallet=wallet, each=found, bought=overview.bought([found]),
        receipt=receipts.sign("transaction", found),
    )  # fmt: skip


@session_pages.get(f"{_AGENT}/purchases/<string:purchase_id>")
def show_purchase(key: OwnerKeyView, purchase_id: str) -> Response:
    purchase = _owned_purchase(key, purchase_id)
    told = purchase.error and advice_on(purchase.error)
    return render_page("purchase.html", agent=agent_of(key), purchase=purchase, advice=told)


@session_pages.get(f"{_AGENT}/purchases/<string:purchase_id>/<string:evidence_id>.png")
def show_evidence(key: OwnerKeyView, purchase_id: str, evidence_id: str) -> Response:
    return Response(shopping.evidence(_owned_purchase(key, purchase_id), evidence_id), mimetype="image/png")


def _spending(agent: AgentSnapshot, wallet_ids: Sequence[str]) -> dict[str, Any]:
    """Return the charts of what wallets paid by day, and what credits paid by provider."""
    today = clock.now().date()
    with read_only_unit() as session:
        paid = holds.counted_by_day(session, wallet_ids, overview.chart_start(today))
        used = overview.recent_calls(session, agent.id)
        recent = PageRequest(10_000, 0, created_after=datetime.combine(overview.chart_start(today), time.min, UTC))
        models = sums.page_of(sums.sums_of(session, agent.id, ["model"], recent, {}), recent).items
    return {
        "paid": charts.daily_chart(paid.items(), today, overview.CHART_DAYS),
        "providers": charts.shares((each.provider, each.cost_nanos) for each in used),
        "models": charts.shares((each["model"], each["cost_nanos"]) for each in models),
    }


def _owned_purchase(key: OwnerKeyView, purchase_id: str) -> Purchase:
    return shopping.get_owned(purchase_id, Principal(KeyKind.AGENT, key.agent_id, key.agent_id, key.agent_id))


def _chosen(wallet_ids: Sequence[str]) -> dict[str, str]:
    """Return the filters of the query. A value that is not offered counts as absent."""
    offered = {**_OFFERED, "wallet": wallet_ids}
    given = {name: printable(request.args.get(name, ""))[:100].strip() for name in _FILTERS}
    return {name: text for name, text in given.items() if text and text in offered.get(name, [text])}


def _instant(text: str | None) -> datetime | None:
    """Return an instant, or the beginning of a day (UTC); None if the text is neither."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or UTC) if 2000 <= moment.year < 3000 else None  # noqa: PLR2004


def _timeline(
    agent: AgentSnapshot, wallet_ids: Sequence[str], chosen: Mapping[str, str], limit: int
) -> tuple[list[Entry], datetime | None]:
    """Return a page of the timeline, and the instant before which the next one begins; None for the last page."""
    kind, status, text, chain, wallet = (chosen.get(each, "") for each in ("kind", "status", "text", "chain", "wallet"))
    since, last, before = (_instant(chosen.get(name)) for name in ("first", "last", "before"))
    until = min(filter(None, (before, last and last + timedelta(days=1), clock.now() + timedelta(days=1))))
    begins, entries = since, []
    if kind in ("", "calls") and status in ("", "confirmed") and not (wallet or chain):
        # A log may be long: a page has the calls of 92 days.
        midnight = datetime.combine(until.date(), time.min, UTC) + timedelta(days=1)
        begins = max(filter(None, (since, midnight - timedelta(days=92) * (limit // _PAGE_SIZE))))
        with read_only_unit() as session:
            calls = usage.by_day(session, agent.id, begins, midnight, text=text)
        entries += [Entry(each.last_at, "calls", each) for each in calls if each.last_at < until]
    page = PageRequest(limit + 1, 0, None, begins, until)
    if kind in ("", *_TRANSACTIONS):
        found = history.latest(
            wallet_ids, page, kind=kind, without=overview.READS, chain=chain, status=status, text=text,
            ids=service_purchases.payments_for(wallet_ids, text) if text else (),
        )  # fmt: skip
        entries += [Entry(each.created_at, "transaction", each) for each in found]
    if kind in ("", "purchase") and not chain:
        statuses = _PURCHASE_STATUSES.get(status, ())
        bought = shopping.list_of(page, account_id=agent.id, wallet_id=wallet or None, statuses=statuses, text=text)
        entries += [Entry(each.created_at, "purchase", each) for each in bought.items]
    entries.sort(key=lambda each: each.at, reverse=True)
    if len(entries) <= limit:
        return entries, begins if begins and begins != since and agent.created_at < begins else None
    # Entries of one instant stay on one page.
    edge = entries[limit].at
    shown = [each for each in entries if each.at > edge]
    return (shown, edge + timedelta(microseconds=1)) if shown else (entries, edge)


def _csv_row(entry: Entry, bought: Mapping[str, str]) -> dict[str, Any]:
    each, row = entry.value, {"time": clock.isoformat(entry.at), "status": "confirmed"}
    if entry.what == "calls":
        cost = usd_string(each.cost_nanos)
        return row | {"what": "Calls", "with": each.provider, "calls": each.calls, "value_usd": cost}
    row |= {"id": each.id, "status": str(each.status)}
    if entry.what == "purchase":
        total = each.total_nanos and usd_string(each.total_nanos)
        reason = each.error and each.error["code"]
        return row | {"what": "Web shop", "with": each.url, "amount": total, "currency": "USD", "reason": reason}
    return row | {
        "what": transaction_title(each), "with": bought.get(each.id, each.to_address), "amount": each.amount,
        "currency": each.currency, "value_usd": usd_string(each.cost_nanos), "chain": each.chain,
        "reason": each.error, "hash": each.tx_hash,
    }  # fmt: skip
