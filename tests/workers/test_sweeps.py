"""The sweep and the ticker: work that is due is read from the database and done once, with or without Redis."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import delete, insert, select, text
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from app import wiring
from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.credits.models import CreditAccount
from app.db.leases import WorkLease
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.idempotency.service import IdempotencyKey
from app.jobs import JobName
from app.ports.errors import Rejected, Unreachable
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import Transaction
from sandbox.evm import EvmNode
from tests.support import filled
from tests.support.agents import Agent, register
from tests.support.applications import RecordingQueue, settings_for
from tests.support.chains import CONFIRMATIONS, fund
from tests.support.ledger import change_balances_by
from workers import schedule, sweeps
from workers.context import job

_HOUR = timedelta(hours=1)


class RecordingFaucet:
    """A faucet that records payment requests, and that can refuse."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.error: Exception | None = None

    def pay(self, reference: str, *, chain: ChainName, address: str, amount: TokenAmount) -> None:
        self.asked.append((reference, chain.value, address, str(amount)))
        if self.error is not None:
            raise self.error


class Stage:
    """An application with a faucet and a queue, and an agent."""

    def __init__(self, app: Flask, faucet: RecordingFaucet, queue: RecordingQueue) -> None:
        self.app, self.faucet, self.queue = app, faucet, queue
        self.agent: Agent = register(app.test_client())

    def open_request(self, *, age: timedelta = timedelta(seconds=30), ttl: timedelta = timedelta(days=7)) -> str:
        """Record a funding request of some time ago, as `funding.create_request` does."""
        request_id, made = new_id(), clock.now() - age
        with unit_of_work() as session:
            lifecycle.record(
                session, Transaction(
                    id=request_id, wallet_id=self.agent.wallet_id, type=TransactionType.FUNDING.value,
                    chain="base", to_address=self.agent.address, amount_units=2_500_000, currency="USDC",
                    cost_nanos=0, created_at=made, opened_block=1, expires_at=made + ttl, checks=0,
                ),
                status=MovementStatus.PENDING,
            )  # fmt: skip
        return request_id

    def status(self, request_id: str) -> str:
        status: str = self.agent.transaction(request_id)["status"]
        return status


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Stage]:
    faucet, queue = RecordingFaucet(), RecordingQueue()
    app = build_app(sqlite_url, faucet=faucet, queue=queue)
    with app.app_context():
        yield Stage(app, faucet, queue)


@pytest.fixture
def chain_stage(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Stage]:
    """A stage with all chains, none of which is called."""
    faucet, queue = RecordingFaucet(), RecordingQueue()
    app = build_app(sqlite_url, faucet=faucet, queue=queue, chains=wiring.build(settings_for(sqlite_url)).chains)
    with app.app_context():
        yield Stage(app, faucet, queue)


def test_expired_requests_fail_once_and_open_ones_stay(stage: Stage) -> None:
    expired = stage.open_request(age=timedelta(days=7, seconds=1))
    young = stage.open_request(age=timedelta(days=6, hours=23))
    sweeps.sweep()
    sweeps.sweep()
    assert (stage.status(expired), stage.status(young)) == ("failed", "pending")
    events = stage.agent.transaction(expired)["events"]
    assert [(event["status"], event["reason"]) for event in events] == [("pending", None), ("failed", "expired")]


def test_the_faucet_is_asked_again_for_overdue_payments(stage: Stage) -> None:
    just_made = stage.open_request(age=timedelta(seconds=5))
    due = stage.open_request(age=timedelta(seconds=30))
    given_up = stage.open_request(age=timedelta(hours=2))
    sweeps.sweep()
    assert stage.queue.put_jobs == [(JobName.PAY_FROM_FAUCET, (due,))]
    assert stage.faucet.asked == []
    assert {stage.status(each) for each in (just_made, due, given_up)} == {"pending"}


def test_the_faucet_is_asked_even_while_redis_is_away(stage: Stage) -> None:
    due = stage.open_request()
    stage.queue.away = True
    schedule.tick(include_sweep=True)
    assert stage.faucet.asked == [(due, "base", stage.agent.address, "2.5")]


@pytest.mark.parametrize("error", [Rejected("faucet_refused"), Unreachable("faucet_unreachable")])
def test_a_faucet_that_fails_stops_nothing(error: Exception, stage: Stage) -> None:
    for _ in range(2):
        stage.open_request()
    expired = stage.open_request(age=timedelta(days=8))
    stage.queue.away = True
    stage.faucet.error = error
    schedule.tick(include_sweep=True)
    assert len(stage.faucet.asked) == 2
    assert stage.status(expired) == "failed"


def test_a_sweep_leased_by_another_process_is_skipped_until_the_lease_ends(stage: Stage) -> None:
    expired = stage.open_request(age=timedelta(days=8))
    until = clock.now() + timedelta(seconds=60)
    with unit_of_work() as session:
        session.add(WorkLease(name="sweep", holder=new_id(), until=until))
    sweeps.sweep()
    assert stage.status(expired) == "pending"
    with time_machine.travel(until + timedelta(seconds=1), tick=True):
        sweeps.sweep()
    assert stage.status(expired) == "failed"


def test_idempotency_keys_are_deleted_after_a_day_and_not_before(stage: Stage) -> None:
    remember(stage.agent.id, "/v1/a", age=timedelta(hours=25))
    remember(stage.agent.id, "/v1/b", age=timedelta(hours=23))
    sweeps.sweep()
    with read_only_unit() as session:
        assert session.scalars(select(IdempotencyKey.path)).all() == ["/v1/b"]


def remember(owner_id: str, path: str, *, age: timedelta) -> None:
    """Store an idempotency key that was used some time ago."""
    made = clock.now() - age
    with unit_of_work() as session:
        session.add(
            IdempotencyKey(
                id=new_id(), owner_id=owner_id, method="POST", path=path, key="k", body_hmac="0" * 64,
                holder=new_id(), lease_until=made, created_at=made,
            )
        )  # fmt: skip


def test_audits_run_once_an_hour_and_violations_are_reported(stage: Stage) -> None:
    change_balances_by(1)
    try:
        assert violations(sweeps.audit_hourly)
        assert not violations(sweeps.audit_hourly)
        with time_machine.travel(clock.now() + _HOUR, tick=True):
            reported = violations(sweeps.audit_hourly)
    finally:
        change_balances_by(-1)
    assert reported
    assert all(entry["log_level"] == "error" for entry in reported)
    assert stage.agent.get("/v1/balance").status_code == 200


def test_a_failing_step_of_the_sweep_does_not_prevent_the_others(stage: Stage) -> None:
    expired = stage.open_request(age=timedelta(days=8))
    stage.open_request()
    stage.queue.away = True
    stage.faucet.error = RuntimeError("boom")
    remember(stage.agent.id, "/v1/a", age=timedelta(hours=25))
    with unit_of_work() as session:
        session.execute(
            text("CREATE TRIGGER odd_row BEFORE DELETE ON idempotency_keys BEGIN SELECT RAISE(ABORT, 'odd row'); END")
        )
    with capture_logs() as logs:
        sweeps.sweep()
    failed = [entry["step"] for entry in logs if entry["event"] == "sweep_step_failed"]
    assert failed == ["retry_faucet", "prune_idempotency_keys"]
    assert stage.status(expired) == "failed"
    change_balances_by(1)
    try:
        assert violations(sweeps.audit_hourly)
    finally:
        change_balances_by(-1)
    with unit_of_work() as session:
        session.execute(text("DROP TRIGGER odd_row"))
    sweeps.sweep()
    with read_only_unit() as session:
        assert session.scalars(select(IdempotencyKey.path)).all() == []


def test_a_failed_audit_is_retried_before_the_next_hour(stage: Stage) -> None:
    assert stage.agent.get("/v1/balance").status_code == 200
    with unit_of_work() as session:
        session.execute(text("ALTER TABLE usage_logs RENAME TO hidden"))
    try:
        with pytest.raises(OperationalError):
            sweeps.audit_hourly()
    finally:
        with unit_of_work() as session:
            session.execute(text("ALTER TABLE hidden RENAME TO usage_logs"))
    change_balances_by(1)
    try:
        assert violations(sweeps.audit_hourly) == []
        with time_machine.travel(clock.now() + timedelta(minutes=16), tick=True):
            assert violations(sweeps.audit_hourly)
    finally:
        change_balances_by(-1)


def violations(work: Callable[[], object]) -> list[Any]:
    with capture_logs() as logs:
        work()
    return [entry for entry in logs if entry["event"] == "audit_violation"]


def test_a_clean_audit_reports_nothing(stage: Stage) -> None:
    assert stage.agent.post("/v1/wallets", {}).status_code == 201
    assert sweeps.audit() == []
    assert violations(sweeps.audit_hourly) == []


_PENDING: dict[str, dict[str, Any]] = {
    "transactions": {"type": "transfer", "status": "pending"},
    "funding requests": {"type": "funding", "status": "pending", "next_check_at": None},
    "funding_deposits": {"final": False},
    "payments": {"status": "settling"},
    "topups": {"closed_at": None},
    "bridges": {},
}
_JOBS = {
    "transactions": (JobName.CONFIRM, ("base",)),
    "funding requests": (JobName.FIND_DEPOSITS, ("base", "open")),
    "funding_deposits": (JobName.FIND_DEPOSITS, ("base", "open")),
    "payments": (JobName.CONFIRM, ("base",)),
    "topups": (JobName.CONFIRM, ("base",)),
    "bridges": (JobName.ADVANCE_MOVEMENTS, ()),
}


@contextmanager
def pending(kind: str, *, due: datetime | None) -> Iterator[None]:
    """Store a row of a kind on Base that is next checked at a time, with any value in the other columns."""
    table = db.metadata.tables.get(kind, db.metadata.tables["transactions"])
    known = {"chain": "base", "next_check_at": due, "next_step_at": due, **_PENDING[kind]}
    with unit_of_work() as session:
        known["account_id"] = session.scalar(select(CreditAccount.id).limit(1))
        row = filled.row(table, table, 0)
        session.execute(insert(table).values({name: known.get(name, value) for name, value in row.items()}))
    yield
    with unit_of_work() as session:
        session.execute(delete(table))


def scheduled(stage: Stage) -> list[tuple[JobName, tuple[str, ...]]]:
    """Return the jobs of one round, without a sweep and without the periodic scans for deposits."""
    stage.queue.put_jobs.clear()
    schedule.tick(include_sweep=False)
    return [(job, arguments) for job, arguments in stage.queue.put_jobs if arguments[1:] not in (("active",), ("all",))]


def test_a_round_without_anything_pending_enqueues_nothing_but_the_hourly_audit(chain_stage: Stage) -> None:
    assert scheduled(chain_stage) == [(JobName.AUDIT, ())]
    sweeps.audit_hourly()
    assert scheduled(chain_stage) == []
    with time_machine.travel(clock.now() + _HOUR, tick=False):
        assert scheduled(chain_stage) == [(JobName.AUDIT, ())]


@pytest.mark.parametrize("kind", _PENDING)
def test_a_round_enqueues_the_job_of_what_is_pending_on_the_chain(kind: str, chain_stage: Stage) -> None:
    sweeps.audit_hourly()
    with pending(kind, due=clock.now()):
        assert scheduled(chain_stage) == [_JOBS[kind]]
    assert scheduled(chain_stage) == []


@pytest.mark.parametrize("kind", ["transactions", "bridges"])
@pytest.mark.parametrize("due", [_HOUR, None], ids=["later", "never"])
def test_what_is_due_later_is_enqueued_only_then(kind: str, due: timedelta | None, chain_stage: Stage) -> None:
    sweeps.audit_hourly()
    with pending(kind, due=None if due is None else clock.now() + due):
        assert scheduled(chain_stage) == []
        with time_machine.travel(clock.now() + timedelta(minutes=61), tick=False):
            assert (_JOBS[kind] in scheduled(chain_stage)) == (due is not None)


def test_every_kind_of_job_is_due_while_the_database_does_not_answer(chain_stage: Stage) -> None:
    with unit_of_work() as session:
        session.execute(text("ALTER TABLE bridges RENAME TO away"))
    jobs = {job for job, _ in scheduled(chain_stage)}
    assert jobs == {
        JobName.CONFIRM, JobName.FIND_DEPOSITS, JobName.ADVANCE_MOVEMENTS, JobName.DELIVER, JobName.AUDIT,
        JobName.EXECUTE_APPROVALS,
    }  # fmt: skip
    with unit_of_work() as session:
        session.execute(text("ALTER TABLE away RENAME TO bridges"))


def test_a_sweep_records_the_heartbeat_of_an_idle_service(chain_stage: Stage) -> None:
    client = chain_stage.app.test_client()
    assert client.get("/v1/health").get_json()["checks"]["worker"] == "silent"
    sweeps.sweep()
    assert client.get("/v1/health").get_json()["checks"]["worker"] == "ok"


@pytest.mark.chain
def test_without_redis_the_ticker_settles_funding_and_transfers(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    queue = RecordingQueue()
    queue.away = True
    with build_app(sqlite_url, queue=queue, chains=chains).app_context() as context:
        agent = register(context.app.test_client())
        body = {"amount": "5", "currency": "USDC", "chain": "base"}
        asked = agent.post(f"{agent.wallet_url}/fund", body).get_json()
        fund(base_node, agent.address, eth=1, dollars=5)
        base_node.mine(CONFIRMATIONS[ChainName.BASE])
        moved = agent.move("2", "USDC", Prefer="respond-async").get_json()
        with time_machine.travel(clock.now() + timedelta(seconds=10), tick=True):
            schedule.tick(include_sweep=False)
        assert agent.transaction(asked["funding_request_id"])["status"] == "confirmed"
        assert agent.transaction(moved["transaction_id"])["status"] == "confirmed"
        health = agent.client.get("/v1/health").get_json()
        assert health["checks"] == {"database": "ok", "redis": "unreachable", "worker": "ok"}


def test_every_job_can_be_run_by_the_ticker() -> None:
    for name in JobName:
        run = pkgutil.resolve_name(name.value)
        assert f"{run.__module__}.{run.__name__}" == name.value


def test_a_job_that_fails_in_the_ticker_does_not_end_it(stage: Stage) -> None:
    @job
    def fail() -> None:
        raise RuntimeError("boom")

    expired = stage.open_request(age=timedelta(days=8))
    stage.queue.away = True
    stage.faucet.error = RuntimeError("boom")
    stage.open_request()
    schedule.tick(include_sweep=True)
    assert stage.status(expired) == "failed"
    with pytest.raises(RuntimeError, match="boom"):
        fail()
