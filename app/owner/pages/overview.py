"""The data of an agent's page, gathered from the lower features, each in its own units."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from sqlalchemy.orm import Session

from app.agents import claims
from app.approvals import service as approvals
from app.approvals.models import ApprovalStatus
from app.audit_log import trail
from app.audit_log.trail import AuditAction, AuditEntryRow
from app.buying import records as service_purchases
from app.core import clock
from app.core.pagination import PageRequest
from app.credits import accounts as credit_accounts
from app.db.unit_of_work import read_only_unit
from app.errors import NotFound
from app.events import delivery_log, feed
from app.events.outbox import EventType
from app.identity import service as identity
from app.identity.owner_keys import OwnerKeyView
from app.identity.service import AgentSnapshot
from app.owner import address_book, wallet_keys
from app.owner.pages import charts
from app.platform.agents import service as platform
from app.shopping import service as shopping
from app.spending import accounts as spending_accounts
from app.spending import controls as spending_controls
from app.spending.policy import Controls
from app.usage import service as usage
from app.usage.service import UsageByDay
from app.wallets.core import wallets
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.wallets import WalletView
from app.wallets.views import balances, history
from app.wallets.views.history import TransactionView

CHART_DAYS = 30
_RECENT = 6
_MAX_INCIDENTS = 3
_MAX_LISTED = 5
READS = (TransactionType.TRADING_QUERY.value,)
"""The transactions that are shown only to owners who ask for them: they moved nothing."""


def agent_summaries(keys: Sequence[OwnerKeyView]) -> list[dict[str, Any]]:
    """Return the agents of some owner keys with what they spent today and what waits, for the session's list."""
    found = []
    with read_only_unit() as session:
        for key in keys:
            owned = wallets.all_of(session, key.agent_id)
            agent = identity.get_agent(session, key.agent_id)
            found.append({
                "agent": agent, "locked": _locked(owned), "waiting": approvals.count_awaiting(session, agent.id),
                "today_nanos": spending_accounts.spent_today(session, agent.id),
            })  # fmt: skip
    return found


def accounts_of(session: Session, key: OwnerKeyView) -> list[tuple[AgentSnapshot, WalletView | None]]:
    """Return an agent with each of its wallets, or once without one."""
    agent = identity.get_agent(session, key.agent_id)
    return [(agent, wallet) for wallet in wallets.all_of(session, agent.id)] or [(agent, None)]


def agent_overview(key: OwnerKeyView, *, wallet_id: str | None) -> dict[str, Any]:
    """Return the content of an agent's page, with the given wallet, or the first if none is given.

    Raises: NotFound for a wallet of another agent.
    """
    with read_only_unit() as session:
        agent = identity.get_agent(session, key.agent_id)
        owned = wallets.all_of(session, agent.id)
        by_operator = agent.is_frozen and platform.frozen_by_operator(session, agent.id)
        opened = {**claims.list_owner_codes(session, key.id), "transfers": wallet_keys.list_open(session, key)}
        claim_replays = _recent_claim_replays(session, agent, key)
    chosen = next((wallet for wallet in owned if wallet_id in (None, wallet.id)), None)
    if chosen is None and wallet_id is not None:
        raise NotFound("This agent has no wallet with this id.")
    waits = waiting_approvals(agent.id)
    return {
        "agent": agent,
        "wallets": owned,
        **waits,
        "held_nanos": sum(each.value_nanos for each in waits["waiting"] if chosen and each.wallet_id == chosen.id),
        "incidents": _incidents(agent, owned),
        "locked": _locked(owned),
        # A lock gives these the default limits.
        "without_controls": [wallet for wallet in owned if wallet.spending_controls is None],
        # Not even a lock limits an amount of these.
        "unlimited": [wallet for wallet in owned if _is_unlimited(wallet.spending_controls)],
        "frozen_by_operator": by_operator,
        "claim_replays": claim_replays,
        "opened": opened,
        "selected": _wallet_overview(chosen) if chosen else None,
        "credits": _credits_overview(agent),
    }


def waiting_approvals(agent_id: str) -> dict[str, Any]:
    """Return an agent's payments that wait for the owner, the next to expire first, and which to compare addresses of.

    The first `listed` of them have buttons.
    """
    found = approvals.list_of(PageRequest(200, 0), agent_id=agent_id, status=ApprovalStatus.AWAITING).items
    waiting = sorted((each for each in found if each.expires_at > clock.now()), key=lambda each: each.expires_at)
    listed = waiting[:_MAX_LISTED]
    similar = address_book.look_alikes(agent_id, [each.recipient for each in listed if each.recipient])
    to_compare = {each.id for each in listed if each.recipient in similar}
    return {"waiting": waiting, "to_compare": to_compare, "listed": _MAX_LISTED}


def bought(transactions: Sequence[TransactionView]) -> dict[str, str]:
    """Return what the payments among some transactions bought from web services, by transaction id."""
    payments = [each.id for each in transactions if each.type == TransactionType.PAYMENT]
    return service_purchases.requests_of(payments) if payments else {}


def read_holdings(wallet: WalletView) -> dict[str, Any]:
    """Return a wallet's balances on the chains that respond, and their value.

    That is `complete` if every chain responded and every balance has a price.
    """
    rows, unreadable = balances.read_available(wallet)
    is_complete = not unreadable and all(row.usd_nanos is not None for row in rows if row.amount.units)
    total_nanos = sum(row.usd_nanos or 0 for row in rows)
    return {"rows": rows, "unreadable": unreadable, "total_nanos": total_nanos, "complete": is_complete}


def _locked(owned: Sequence[WalletView]) -> bool:
    return bool(owned) and all(each.spending_controls and each.spending_controls.locked for each in owned)


def _incidents(agent: AgentSnapshot, owned: Sequence[WalletView]) -> dict[str, Any]:
    """Return what went wrong in the last days, or was done by the agent's key to its own limits."""
    since = clock.now() - timedelta(days=7)
    page = PageRequest(_MAX_INCIDENTS, 0, created_after=since)
    changes = feed.latest(agent.id, PageRequest(_MAX_INCIDENTS * _RECENT, 0), [EventType.CONTROLS_CHANGED]).items
    with read_only_unit() as session:
        undelivered = delivery_log.count_undelivered(session, agent.id, since)
    return {
        "failed": history.latest([each.id for each in owned], page, status=MovementStatus.FAILED.value, without=READS),
        "loosened": [each for each in changes if each.data["loosens"] and each.created_at >= since][:_MAX_INCIDENTS],
        "undelivered": undelivered,
    }


def _recent_claim_replays(session: Session, agent: AgentSnapshot, key: OwnerKeyView) -> list[AuditEntryRow]:
    """Return the latest repetitions of the claim, for a month and until the owner key is replaced."""
    if agent.claimed_at is None or agent.claimed_at < clock.now() - timedelta(days=CHART_DAYS):
        return []
    repeated = AuditAction.CLAIM_REPEATED.value
    found, _ = trail.list_entries(session, PageRequest(5, 0), action=repeated, subject_id=agent.id)
    return [entry for entry in found.items if entry.at >= key.created_at]


def _is_unlimited(controls: Controls | None) -> bool:
    limits = ("per_tx_limit_nanos", "daily_limit_nanos", "weekly_limit_nanos", "monthly_limit_nanos")
    return controls is not None and not any(getattr(controls, each) for each in limits)


def _wallet_overview(wallet: WalletView) -> dict[str, Any]:
    with read_only_unit() as session:
        status = spending_controls.status_of(session, wallet.id)
    page = PageRequest(_RECENT, 0)
    transactions = history.latest([wallet.id], page, without=READS)
    both: list[Any] = [*transactions, *shopping.list_of(page, account_id=wallet.agent_id, wallet_id=wallet.id).items]
    recent = sorted(both, key=lambda each: each.created_at, reverse=True)
    return {
        "wallet": wallet, "holdings": read_holdings(wallet), "foreign": balances.read_foreign(wallet)["tokens"],
        "spending": status, "recent": recent[:_RECENT], "bought": bought(transactions),
    }  # fmt: skip


def _credits_overview(agent: AgentSnapshot) -> dict[str, Any]:
    with read_only_unit() as session:
        balance = credit_accounts.balance(session, agent.id)
        used = recent_calls(session, agent.id)
        totals = usage.by_provider(session, agent.id)
    are_low = balance.granted_nanos > 0 and balance.credits_nanos < credit_accounts.LOW_NANOS
    return {
        "balance": balance, "are_low": are_low,
        "total_by_provider": sorted(totals.items(), key=lambda it: -it[1].cost_nanos),
        "used": charts.daily_chart(((each.day, each.cost_nanos) for each in used), clock.now().date(), CHART_DAYS),
        "calls": sum(each.calls for each in used),
    }  # fmt: skip


def recent_calls(session: Session, agent_id: str) -> list[UsageByDay]:
    """Return the calls that credits paid in the days of a chart."""
    return usage.by_day(session, agent_id, datetime.combine(chart_start(clock.now().date()), time.min, UTC))


def chart_start(today: date) -> date:
    return today - timedelta(days=CHART_DAYS - 1)
