"""Retention: old rows are deleted in short units, and no sum changes."""

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
from app.core.identifiers import new_id
from app.core.pagination import PageRequest
from app.credits import accounts as credit_accounts
from app.credits.models import CreditHold, CreditLedgerEntry
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.platform import personal_data
from app.spending import controls as spending_controls
from app.spending import holds as spending_holds
from app.spending.models import SpendingHold
from app.spending.policy import SpendingRequest
from app.usage import retention, service
from app.usage.models import UsageLog
from app.usage.service import MeteredUsage, UsageCall
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import Transaction, TransactionEvent
from tests.support.agents import Agent, register
from tests.support.ledger import clear, ledger_app, read, statements, unit, violations
from workers import sweeps

BARE = ledger_app("sqlite://")
ESTIMATE = MeteredUsage(3, tokens_in=30)
ENDS = ("record", "over", "cancel", "lapse", "late", "charge", "refund", "open")


def call_once(account: str, provider: str, end: str, cost: int) -> None:
    """Make one call with a given end."""
    call, hold_id = UsageCall(new_id(), provider, "m"), new_id()
    if end in {"charge", "refund"}:
        unit(service.charge, account, call, charge_id=hold_id, metered=MeteredUsage(cost, tokens_in=1))
        if end == "refund":
            unit(service.refund, hold_id)
        return
    worst = cost if end == "over" else cost + 5
    unit(service.begin, account, call, hold_id=hold_id, nanos=worst, estimate=ESTIMATE, lease=timedelta(0))
    if end in {"lapse", "late"}:
        service.charge_lapsed()
    if end in {"record", "late"}:
        unit(service.settle, hold_id, MeteredUsage(cost, tokens_in=2, tokens_out=7))
    if end == "over":
        unit(service.settle, hold_id, MeteredUsage(cost * 2, tokens_out=1))
    if end == "cancel":
        unit(service.cancel, hold_id)


def seen_by(account: str) -> Any:
    """Return every sum that an agent sees."""
    return (read(credit_accounts.balance, account), read(service.by_provider, account))


def count(*tables: Any) -> list[int]:
    with read_only_unit() as session:
        return [session.scalar(select(func.count()).select_from(table)) or 0 for table in tables]


_calls = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(("openai", "brave")), st.sampled_from(ENDS), st.integers(1, 40)),
    max_size=14,
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(old=_calls, young=_calls)
def test_no_sum_changes_when_old_calls_are_deleted(old: list[Any], young: list[Any]) -> None:
    with BARE.app_context():
        clear()
        accounts = [new_id() for _ in range(2)]
        for account in accounts:
            unit(credit_accounts.open_account, account)
            unit(credit_accounts.grant, account, 10_000, reference=account)
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
        pruned = retention.prune(start + timedelta(hours=12), batch_size=3, max_batches=100)
        assert [seen_by(account) for account in accounts] == before
        assert violations() == []
        # An open hold of that age has lapsed, which charged its estimate, or is open.
        assert len(old) - still_open <= pruned <= len(old)
        assert count(CreditHold) == [holds - pruned]
        assert retention.prune(start + timedelta(hours=12)) == 0
        for account in accounts:
            page = read(service.history, account, PageRequest(100, 0), {})
            assert page.total == len(page.items)


def test_sums_stay_correct_after_they_were_carried_forward() -> None:
    with BARE.app_context():
        clear()
        account = new_id()
        unit(credit_accounts.open_account, account)
        unit(credit_accounts.grant, account, 1000, reference=account)
        for _ in range(3):
            call_once(account, "openai", "record", 7)
        with statements() as seen:
            assert retention.prune(clock.now() + timedelta(seconds=1)) == 3
        # What was not a full batch was the last one.
        assert sum("DELETE FROM credit_holds" in statement for statement in seen) == 1
        assert count(CreditHold, UsageLog) == [0, 0]
        assert count(CreditLedgerEntry) == [1]
        call_once(account, "openai", "record", 7)
        assert read(credit_accounts.balance, account).spent_nanos == 28
        assert read(service.by_provider, account)["openai"].calls == 4
        assert violations() == []


def test_a_grant_is_never_deleted_so_that_it_is_never_granted_twice() -> None:
    with BARE.app_context():
        clear()
        account = new_id()
        unit(credit_accounts.open_account, account)
        unit(credit_accounts.grant, account, 1000, reference="topup:1")
        call_once(account, "openai", "record", 7)
        retention.prune(clock.now() + timedelta(days=9999))
        assert unit(credit_accounts.grant, account, 1000, reference="topup:1") is False
        assert read(credit_accounts.balance, account).granted_nanos == 1000


def test_an_account_that_does_not_add_up_is_kept_and_the_others_are_pruned() -> None:
    with BARE.app_context():
        clear()
        odd, sound = new_id(), new_id()
        for account in (odd, sound):
            unit(credit_accounts.open_account, account)
            unit(credit_accounts.grant, account, 1000, reference=account)
            for _ in range(4):
                call_once(account, "openai", "record", 7)
        with unit_of_work() as session:
            posting = select(func.max(CreditLedgerEntry.id)).where(
                CreditLedgerEntry.account_id == odd, CreditLedgerEntry.kind == "settle"
            )
            session.execute(
                update(CreditLedgerEntry)
                .where(CreditLedgerEntry.id == posting.scalar_subquery())
                .values(amount_nanos=8)
            )
        reported = violations()
        with capture_logs() as logs:
            assert retention.prune(clock.now() + timedelta(seconds=1), batch_size=3) == 7
        assert [entry["accounts"] for entry in logs if entry["event"] == "ledger_not_pruned"] == [[odd]]
        assert violations() == reported != []
        with read_only_unit() as session:
            left = set(session.scalars(select(CreditHold.account_id)))
        assert left == {odd}
        clear()


class Stage:
    """An application with an agent and old rows of every kind."""

    def __init__(self, app: Flask) -> None:
        self.app = app
        self.agent: Agent = register(app.test_client())

    def record(self, kind: TransactionType, status: MovementStatus, at: datetime) -> str:
        row_id = new_id()
        with unit_of_work() as session:
            lifecycle.record(
                session, Transaction(
                    id=row_id, wallet_id=self.agent.wallet_id, type=kind.value, chain="base",
                    to_address=self.agent.address, amount_units=int(kind is TransactionType.FUNDING),
                    currency="USDC", cost_nanos=0, created_at=at, checks=0,
                ),
                status=status,
            )  # fmt: skip
        return row_id

    def hold(self, at: datetime, wallet_id: str) -> str:
        reference = new_id()
        with time_machine.travel(at, tick=True):
            unit(spending_holds.hold, wallet_id, SpendingRequest(5 * 10**9), reference=reference)
        return reference


@pytest.fixture
def stage(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    app = build_app(each_database_url)
    with app.app_context():
        yield Stage(app)


def test_the_sweep_deletes_what_is_older_than_the_setting(stage: Stage) -> None:
    agent, now = stage.agent, clock.now()
    with time_machine.travel(now - timedelta(days=401), tick=True):
        old_query = stage.record(TransactionType.TRADING_QUERY, MovementStatus.CONFIRMED, clock.now())
        old_transfer = stage.record(TransactionType.TRANSFER, MovementStatus.CONFIRMED, clock.now())
        old_pending = stage.record(TransactionType.FUNDING, MovementStatus.PENDING, clock.now())
        for end in ("record", "cancel", "refund", "charge", "over"):
            call_once(agent.id, "openai", end, 1_000_000_007)
    with time_machine.travel(now - timedelta(days=399), tick=True):
        young_query = stage.record(TransactionType.TRADING_QUERY, MovementStatus.CONFIRMED, clock.now())
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
    with read_only_unit() as session:
        assert session.scalar(select(func.count(TransactionEvent.id))) == 2
    assert sweeps.audit() == []


def test_old_spending_holds_are_deleted_and_no_window_changes(stage: Stage) -> None:
    today = datetime(2026, 3, 31, 12, tzinfo=UTC)
    with time_machine.travel(today - timedelta(days=600), tick=True):
        wallet = stage.agent.post("/v1/wallets", {}).get_json()["id"]
    for day in (500, 200, 1, 0):
        for end in (spending_holds.spend, spending_holds.release, None):
            at = today - timedelta(days=day)
            reference = stage.hold(at, wallet)
            if end is not None:
                with time_machine.travel(at, tick=True):
                    unit(end, reference)
    with time_machine.travel(today, tick=True):
        standing = read(spending_controls.status_of, wallet)
    assert standing.month.spent_nanos == 4 * 5 * 10**9
    assert personal_data.prune("spending_holds", today) == 2
    assert count(SpendingHold) == [10]
    with time_machine.travel(today, tick=True):
        assert read(spending_controls.status_of, wallet) == standing
        assert sweeps.audit() == []


def test_a_backlog_is_pruned_a_bounded_number_of_rows_at_a_time(stage: Stage) -> None:
    for _ in range(7):
        call_once(stage.agent.id, "openai", "record", 1)
    later = clock.now() + timedelta(seconds=1)
    assert retention.prune(later, batch_size=2, max_batches=2) == 4
    assert sweeps.audit() == []
    assert retention.prune(later, batch_size=2, max_batches=2) == 3
    assert sweeps.audit() == []
