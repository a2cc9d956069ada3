"""What an owner sees of an agent: gathered from the rooms below, each with units of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from app.core import clock
from app.core.pagination import Page, PageRequest
from app.core.unit_of_work import reading
from app.credits import by_day as grants
from app.credits import service as credits_service
from app.credits.service import Balance
from app.errors import NotFound
from app.identity import service as identity
from app.identity.owner_keys import OwnerKeyView
from app.identity.service import AgentSnapshot
from app.owner import drawings, holdings
from app.owner.drawings import Day
from app.owner.holdings import Holdings, Receiving
from app.platform import freezes
from app.spending import service as spending
from app.spending.service import ControlsView, Standing, WindowStanding
from app.usage import by_day as usage_by_day
from app.usage import service as usage
from app.usage.service import ProviderTotals
from app.wallets import history
from app.wallets import service as wallets
from app.wallets.history import Filters, TransactionView
from app.wallets.service import WalletView

SHOWN_DAYS = 30
_RECENT = 6


@dataclass(frozen=True, slots=True)
class AgentLine:
    """An agent in the list of those that a session opens."""

    agent: AgentSnapshot
    wallet_count: int
    locked: bool


@dataclass(frozen=True, slots=True)
class LimitBar:
    """One limit and how far it is used."""

    label: str
    window: WindowStanding
    limit_nanos: int
    drawing: str


@dataclass(frozen=True, slots=True)
class WalletPicture:
    """One wallet: what it holds, where it stands against its limits, what happened last."""

    wallet: WalletView
    holdings: Holdings
    receiving: Sequence[Receiving]
    standing: Standing
    bars: Sequence[LimitBar]
    recent: Page[TransactionView]


@dataclass(frozen=True, slots=True)
class CreditsPicture:
    """The credits of an agent, now and over the last days."""

    balance: Balance
    days: Sequence[Day]
    chart: str
    most_left_nanos: int
    most_used_nanos: int
    used_nanos: int
    calls: int
    by_provider: Sequence[tuple[str, ProviderTotals]]


@dataclass(frozen=True, slots=True)
class AgentPicture:
    """All of an agent's page."""

    agent: AgentSnapshot
    claimed_under: str | None
    wallets: Sequence[WalletView]
    locked: bool
    frozen_by_operator: bool
    shown: WalletPicture | None
    credits: CreditsPicture


def lines(keys: Sequence[OwnerKeyView]) -> list[AgentLine]:
    """Return the agents that some owner keys open."""
    found = []
    with reading():
        for key in keys:
            owned = wallets.all_of(key.agent_id)
            found.append(AgentLine(identity.agent(key.agent_id), len(owned), _locked(owned)))
    return found


def of_agent(key: OwnerKeyView, *, wallet_id: str | None) -> AgentPicture:
    """Return all of an agent's page, with one of its wallets: the named one, else the first.

    Raises: NotFound for a wallet of somebody else's.
    """
    with reading():
        agent = identity.agent(key.agent_id)
        owned = wallets.all_of(agent.id)
        by_operator = agent.is_frozen and freezes.frozen_by_operator(agent.id)
    chosen = _chosen(owned, wallet_id)
    return AgentPicture(
        agent=agent,
        claimed_under=agent.claimed_email,
        wallets=owned,
        locked=_locked(owned),
        frozen_by_operator=by_operator,
        shown=_wallet(chosen) if chosen else None,
        credits=_credits(agent),
    )


def wallet_of(key: OwnerKeyView, wallet_id: str) -> WalletView:
    """Return a wallet of the key's agent with its controls. Raises: NotFound, also for wallets of others."""
    return wallets.with_controls(wallets.owned(wallet_id, agent_id=key.agent_id))


def transactions(wallet: WalletView, page: PageRequest, *, status: str | None) -> Page[TransactionView]:
    """Return a page of a wallet's transactions, the newest first."""
    return history.page_of(wallet.id, page, filters=Filters(status=status), recorded=wallet.transaction_count)


def _chosen(owned: Sequence[WalletView], wallet_id: str | None) -> WalletView | None:
    if wallet_id is None:
        return owned[0] if owned else None
    for wallet in owned:
        if wallet.id == wallet_id:
            return wallet
    raise NotFound("This agent has no such wallet.")


def _locked(owned: Sequence[WalletView]) -> bool:
    return bool(owned) and all(
        wallet.spending_controls is not None and wallet.spending_controls.locked for wallet in owned
    )


def _wallet(wallet: WalletView) -> WalletPicture:
    with reading():
        standing = spending.standing(wallet.id)
    return WalletPicture(
        wallet=wallet,
        holdings=holdings.of(wallet),
        receiving=holdings.receiving(wallet),
        standing=standing,
        bars=_bars(standing, standing.controls),
        recent=transactions(wallet, PageRequest(_RECENT, 0), status=None),
    )


def _bars(standing: Standing, controls: ControlsView | None) -> Sequence[LimitBar]:
    limits = (
        ("Today", standing.today, controls.daily_limit_nanos if controls else 0),
        ("This week", standing.week, controls.weekly_limit_nanos if controls else 0),
        ("This month", standing.month, controls.monthly_limit_nanos if controls else 0),
    )
    return [
        LimitBar(label, window, limit, drawings.bar(window.spent_nanos, limit))
        for label, window, limit in limits
    ]


def _credits(agent: AgentSnapshot) -> CreditsPicture:
    agent_id = agent.id
    today = clock.now().date()
    first = today - timedelta(days=SHOWN_DAYS - 1)
    start = datetime.combine(first, time.min, UTC)
    with reading():
        balance = credits_service.balance(agent_id)
        used = {each.day: each for each in usage_by_day.since(agent_id, start)}
        granted = grants.granted_since(agent_id, start)
        totals = usage.by_provider(agent_id)
    days = _days(today, balance.credits_nanos, used, granted)
    return CreditsPicture(
        balance=balance,
        days=days,
        chart=drawings.chart(days, since=agent.created_at.date()),
        most_left_nanos=max(day.credits_nanos for day in days),
        most_used_nanos=max(day.cost_nanos for day in days),
        used_nanos=sum(day.cost_nanos for day in days),
        calls=sum(day.calls for day in days),
        by_provider=sorted(totals.items(), key=lambda item: -item[1].cost_nanos),
    )


def _days(
    today: date, credits_nanos: int, used: dict[date, usage_by_day.DayOfUse], granted: dict[date, int]
) -> list[Day]:
    """Walk back from what is left now: what a day began with is what it ended with, plus used, less granted."""
    days = []
    for back in range(SHOWN_DAYS):
        day = today - timedelta(days=back)
        use = used.get(day)
        cost = use.cost_nanos if use else 0
        days.append(Day(day, use.calls if use else 0, cost, credits_nanos))
        credits_nanos += cost - granted.get(day, 0)
    return days[::-1]
