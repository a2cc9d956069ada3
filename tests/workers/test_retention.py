"""Retention: what is old goes, in short units, and no sum that anybody sees changes by a digit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update
from structlog.testing import capture_logs

from app.core import clock
from app.core.chains import Family
from app.core.identifiers import new_id
from app.core.pagination import PageRequest
from app.core.unit_of_work import reading, unit_of_work
from app.credits import service as credits_service
from app.credits.models import CreditHold, CreditPosting
from app.spending import retention as spending_retention
from app.spending import service as spending
from app.spending.models import SpendingHold
from app.usage import retention, service
from app.usage.models import UsageLog
from app.usage.service import Call, Metered
from app.wallets import lifecycle
from app.wallets.lifecycle import Status, TransactionType
from app.wallets.models import Transaction, TransactionEvent
from tests.support.agents import Agent, register
from tests.support.ledger import clear, ledger_app, read, unit, violations
from workers import sweeps

BARE = ledger_app("sqlite://")
ESTIMATE = Metered(3, tokens_in=30)
ENDS = ("record", "over", "cancel", "lapse", "late", "charge", "refund", "open")


def call_once(account: str, provider: str, end: str, cost: int) -> None:
    """Make one call that ends in a certain way."""
    call, hold_id = Call(new_id(), provider, "m"), new_id()
    if end in {"charge", "refund"}:
        unit(service.charge, account, call, charge_id=hold_id, metered=Metered(cost, tokens_in=1))
        if end == "refund":
            unit(service.refund, hold_id)
        return
    worst = Metered(cost if end == "over" else cost + 5)
    unit(service.begin, account, call, hold_id=hold_id, worst=worst, estimate=ESTIMATE, lease=timedelta(0))
    if end in {"lapse", "late"}:
        service.charge_lapsed()
    if end in {"record", "late"}:
        unit(service.record, hold_id, Metered(cost, tokens_in=2, tokens_out=7))
    if end == "over":
        unit(service.record, hold_id, Metered(cost * 2, tokens_out=1))
    if end == "cancel":
        unit(service.cancel, hold_id)


def seen_by(account: str) -> Any:
    """Return every sum that an owner sees."""
    return (read(credits_service.balance, account), read(service.by_provider, account))


def count(*tables: Any) -> list[int]:
    with reading() as session:
        return [session.scalar(select(func.count()).select_from(table)) or 0 for table in tables]


_calls = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(("openai", "brave")), st.sampled_from(ENDS), st.integers(1, 40)),
    max_size=14,
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(old=_calls, young=_calls)
def test_whatever_calls_ended_how_no_sum_changes_when_the_old_ones_are_forgotten(
    old: list[Any], young: list[Any]
) -> None:
    with BARE.app_context():
        clear()
        accounts = [new_id() for _ in range(2)]
        for account in accounts:
            unit(credits_service.open_account, account)
            unit(credits_service.grant, account, 10_000, reference=account)
        start = datetime(2026, 1, 1, tzinfo=UTC)
        with time_machine.travel(start, tick=True):
            for which, provider, end, cost in old:
                call_once(accounts[which], provider, end, cost)
        with time_machine.travel(start + timedelta(days=1), tick=True):
            for which, provider, end, cost in young:
                call_once(accounts[which], provider, end, cost)
        before = [seen_by(account) for account in accounts]
        assert violations() == []
        (holds,) = count(CreditHold)
        still_open = sum(1 for call in old if call[2] == "open")
        pruned = retention.prune(start + timedelta(hours=12), per_unit=3, units=100)
        assert [seen_by(account) for account in accounts] == before
        assert violations() == []
        # An open hold that is as old was charged its estimate by a later call's look for lapsed ones, or is open.
        assert len(old) - still_open <= pruned <= len(old)
        assert count(CreditHold) == [holds - pruned]
        assert retention.prune(start + timedelta(hours=12)) == 0
        for account in accounts:
            page = read(service.history, account, PageRequest(100, 0))
            assert page.total == len(page.items)


def test_sums_go_on_after_they_were_carried() -> None:
    with BARE.app_context():
        clear()
        account = new_id()
        unit(credits_service.open_account, account)
        unit(credits_service.grant, account, 1000, reference=account)
        for _ in range(3):
            call_once(account, "openai", "record", 7)
        assert retention.prune(clock.now() + timedelta(seconds=1)) == 3
        assert count(CreditHold, UsageLog) == [0, 0]
        assert count(CreditPosting) == [1]
        call_once(account, "openai", "record", 7)
        assert read(credits_service.balance, account).spent_nanos == 28
        assert read(service.by_provider, account)["openai"].calls == 4
        assert violations() == []


def test_a_grant_is_remembered_for_ever_so_that_it_is_never_given_twice() -> None:
    with BARE.app_context():
        clear()
        account = new_id()
        unit(credits_service.open_account, account)
        unit(credits_service.grant, account, 1000, reference="topup:1")
        call_once(account, "openai", "record", 7)
        retention.prune(clock.now() + timedelta(days=9999))
        assert unit(credits_service.grant, account, 1000, reference="topup:1") is False
        assert read(credits_service.balance, account).granted_nanos == 1000


def test_an_account_that_does_not_add_up_is_left_as_evidence_and_the_others_are_pruned() -> None:
    with BARE.app_context():
        clear()
        odd, sound = new_id(), new_id()
        for account in (odd, sound):
            unit(credits_service.open_account, account)
            unit(credits_service.grant, account, 1000, reference=account)
            for _ in range(4):
                call_once(account, "openai", "record", 7)
        with unit_of_work() as session:
            posting = select(func.max(CreditPosting.id)).where(
                CreditPosting.account_id == odd, CreditPosting.kind == "settle"
            )
            session.execute(
                update(CreditPosting)
                .where(CreditPosting.id == posting.scalar_subquery())
                .values(amount_nanos=8)
            )
        told = violations()
        with capture_logs() as logs:
            assert retention.prune(clock.now() + timedelta(seconds=1), per_unit=3) >= 4
        assert [entry["accounts"] for entry in logs if entry["event"] == "ledger_not_pruned"] == [[odd]]
        assert violations() == told != []
        with reading() as session:
            left = set(session.scalars(select(CreditHold.account_id)))
        assert left == {odd}
        clear()


class Stage:
    """An application with an agent and old rows of every kind."""

    def __init__(self, app: Flask) -> None:
        self.app = app
        self.agent: Agent = register(app.test_client())

    def record(self, kind: TransactionType, status: Status, at: datetime) -> str:
        row_id = new_id()
        with unit_of_work():
            lifecycle.record(
                Transaction(
                    id=row_id, wallet_id=self.agent.wallet_id, type=kind.value, chain="base",
                    to_address=self.agent.address, amount_units=int(kind is TransactionType.FUNDING),
                    currency="USDC", cost_nanos=0, created_at=at, checks=0,
                ),
                status=status,
            )  # fmt: skip
        return row_id

    def hold(self, at: datetime, wallet_id: str) -> str:
        reference = new_id()
        unit(
            spending.hold, wallet_id, reference=reference, value_nanos=5 * 10**9, recipient=None,
            family=Family.EVM, now=at,
        )  # fmt: skip
        return reference


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def stage(database_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    app = build_app(database_url)
    with app.app_context():
        yield Stage(app)


def test_the_sweep_forgets_what_is_older_than_the_setting_and_keeps_the_rest(stage: Stage) -> None:
    agent, now = stage.agent, clock.now()
    with time_machine.travel(now - timedelta(days=401), tick=True):
        old_query = stage.record(TransactionType.TRADING_QUERY, Status.CONFIRMED, clock.now())
        old_transfer = stage.record(TransactionType.TRANSFER, Status.CONFIRMED, clock.now())
        old_pending = stage.record(TransactionType.FUNDING, Status.PENDING, clock.now())
        for end in ("record", "cancel", "refund", "charge", "over"):
            call_once(agent.id, "openai", end, 1_000_000_007)
    with time_machine.travel(now - timedelta(days=399), tick=True):
        young_query = stage.record(TransactionType.TRADING_QUERY, Status.CONFIRMED, clock.now())
        call_once(agent.id, "openai", "record", 3)
    before = (agent.get("/v1/balance").get_json(), agent.get("/v1/usage").get_json()["summary"])
    assert agent.get("/v1/usage").get_json()["pagination"]["total"] == 4
    sweeps.sweep()
    usage = agent.get("/v1/usage").get_json()
    assert (agent.get("/v1/balance").get_json(), usage["summary"]) == before
    assert (usage["pagination"]["total"], len(usage["logs"])) == (1, 1)
    rows = agent.history()
    assert [row["id"] for row in rows] == [young_query, old_pending, old_transfer]
    assert old_query not in str(rows)
    assert agent.get(agent.wallet_url).get_json()["transaction_count"] == 3
    assert agent.get(f"{agent.wallet_url}/transactions").get_json()["pagination"]["total"] == 3
    assert agent.transaction(old_transfer)["events"] == []
    assert len(agent.transaction(old_pending)["events"]) == 1
    with reading() as session:
        assert session.scalar(select(func.count(TransactionEvent.id))) == 2
    assert sweeps.audit() == []


def test_old_holds_of_spending_go_and_no_window_changes(stage: Stage) -> None:
    today = datetime(2026, 3, 31, 12, tzinfo=UTC)
    with time_machine.travel(today - timedelta(days=600), tick=True):
        wallet = stage.agent.post("/v1/wallets", {}).get_json()["id"]
    for day in (500, 200, 1, 0):
        for end in (spending.spend, spending.release, None):
            at = today - timedelta(days=day)
            reference = stage.hold(at, wallet)
            if end is not None:
                unit(end, reference, now=at)
    standing = read(spending.standing, wallet, today)
    assert standing.month.spent_nanos == 4 * 5 * 10**9
    assert spending_retention.prune((today - timedelta(days=400)).date(), per_unit=1) == 2
    assert read(spending.standing, wallet, today) == standing
    assert count(SpendingHold) == [10]
    with time_machine.travel(today, tick=True):
        assert sweeps.audit() == []


def test_a_backlog_is_pruned_a_bounded_number_of_rows_at_a_time(stage: Stage) -> None:
    for _ in range(7):
        call_once(stage.agent.id, "openai", "record", 1)
    later = clock.now() + timedelta(seconds=1)
    assert retention.prune(later, per_unit=2, units=2) == 4
    assert sweeps.audit() == []
    assert retention.prune(later, per_unit=2, units=2) == 3
    assert sweeps.audit() == []
