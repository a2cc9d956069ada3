"""The sweep and the ticker: what is due by time is done from the database, with or without Redis, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import select, text, update
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.core.leases import WorkLease
from app.core.money import TokenAmount
from app.core.unit_of_work import reading, unit_of_work
from app.credits.models import CreditAccount
from app.jobs import JobName
from app.ports.errors import Rejected, Unreachable
from app.wallets import lifecycle
from app.wallets.lifecycle import Status, TransactionType
from app.wallets.models import Transaction
from app.web.idempotency import IdempotencyKey
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.applications import RecordingQueue
from tests.support.chains import CONFIRMATIONS, fund
from workers import schedule, sweeps
from workers.context import job

_HOUR = timedelta(hours=1)


class Till:
    """A faucet that notes what it was asked to pay, and that can refuse."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.error: Exception | None = None

    def pay(self, reference: str, *, chain: ChainName, address: str, amount: TokenAmount) -> None:
        self.asked.append((reference, chain.value, address, str(amount)))
        if self.error is not None:
            raise self.error


class Stage:
    """An application with a till and a queue, and an agent."""

    def __init__(self, app: Flask, till: Till, queue: RecordingQueue) -> None:
        self.app, self.till, self.queue = app, till, queue
        self.agent: Agent = register(app.test_client())

    def open_request(
        self, *, age: timedelta = timedelta(seconds=30), ttl: timedelta = timedelta(days=7)
    ) -> str:
        """Record a funding request that was made a while ago, as `funding.request` does."""
        request_id, made = new_id(), clock.now() - age
        with unit_of_work():
            lifecycle.record(
                Transaction(
                    id=request_id, wallet_id=self.agent.wallet_id, type=TransactionType.FUNDING.value,
                    chain="base", to_address=self.agent.address, amount_units=2_500_000, currency="USDC",
                    cost_nanos=0, created_at=made, opened_block=1, expires_at=made + ttl, checks=0,
                ),
                status=Status.PENDING,
            )  # fmt: skip
        return request_id

    def status(self, request_id: str) -> str:
        status: str = self.agent.transaction(request_id)["status"]
        return status


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Stage]:
    till, queue = Till(), RecordingQueue()
    app = build_app(sqlite_url, faucet=till, queue=queue)
    with app.app_context():
        yield Stage(app, till, queue)


def test_what_expired_fails_once_and_what_is_open_stays(stage: Stage) -> None:
    expired = stage.open_request(age=timedelta(days=7, seconds=1))
    young = stage.open_request(age=timedelta(days=6, hours=23))
    sweeps.sweep()
    sweeps.sweep()
    assert (stage.status(expired), stage.status(young)) == ("failed", "pending")
    events = stage.agent.transaction(expired)["events"]
    assert [(event["status"], event["reason"]) for event in events] == [
        ("pending", None),
        ("failed", "expired"),
    ]


def test_the_faucet_is_asked_again_for_what_it_should_have_paid_by_now(stage: Stage) -> None:
    just_made = stage.open_request(age=timedelta(seconds=5))
    due = stage.open_request(age=timedelta(seconds=30))
    given_up = stage.open_request(age=timedelta(hours=2))
    sweeps.sweep()
    assert stage.queue.put_jobs == [(JobName.PAY_FROM_FAUCET, (due,))]
    assert stage.till.asked == []
    assert {stage.status(each) for each in (just_made, due, given_up)} == {"pending"}


def test_the_faucet_is_asked_even_while_redis_is_away(stage: Stage) -> None:
    due = stage.open_request()
    stage.queue.away = True
    schedule.tick(with_sweep=True)
    assert stage.till.asked == [(due, "base", stage.agent.address, "2.5")]


@pytest.mark.parametrize("error", [Rejected("faucet_refused"), Unreachable("faucet_unreachable")])
def test_a_faucet_that_fails_stops_nothing(error: Exception, stage: Stage) -> None:
    for _ in range(2):
        stage.open_request()
    expired = stage.open_request(age=timedelta(days=8))
    stage.queue.away = True
    stage.till.error = error
    schedule.tick(with_sweep=True)
    assert len(stage.till.asked) == 2
    assert stage.status(expired) == "failed"


def test_a_sweep_that_another_process_does_is_left_to_it_until_its_lease_ends(stage: Stage) -> None:
    expired = stage.open_request(age=timedelta(days=8))
    until = clock.now() + timedelta(seconds=60)
    with unit_of_work() as session:
        session.add(WorkLease(name="sweep", holder=new_id(), until=until))
    sweeps.sweep()
    assert stage.status(expired) == "pending"
    with time_machine.travel(until + timedelta(seconds=1), tick=True):
        sweeps.sweep()
    assert stage.status(expired) == "failed"


def test_answers_are_forgotten_after_a_day_and_not_before(stage: Stage) -> None:
    remember(stage.agent.id, "/v1/a", age=timedelta(hours=25))
    remember(stage.agent.id, "/v1/b", age=timedelta(hours=23))
    sweeps.sweep()
    with reading() as session:
        assert session.scalars(select(IdempotencyKey.path)).all() == ["/v1/b"]


def remember(owner_id: str, path: str, *, age: timedelta) -> None:
    """Leave an Idempotency-Key that was used a while ago."""
    made = clock.now() - age
    with unit_of_work() as session:
        session.add(
            IdempotencyKey(
                id=new_id(), owner_id=owner_id, method="POST", path=path, key="k", body_hmac="0" * 64,
                holder=new_id(), lease_until=made, created_at=made,
            )
        )  # fmt: skip


def test_the_books_are_audited_once_an_hour_and_a_violation_is_told(stage: Stage) -> None:
    change_balances_by(1)
    try:
        assert violations(sweeps.audit_hourly)
        assert not violations(sweeps.audit_hourly)
        with time_machine.travel(clock.now() + _HOUR, tick=True):
            told = violations(sweeps.audit_hourly)
    finally:
        change_balances_by(-1)
    assert told
    assert all(entry["log_level"] == "error" for entry in told)
    assert stage.agent.get("/v1/balance").status_code == 200


def test_steps_of_the_sweep_that_fail_keep_none_of_the_others_from_being_done(stage: Stage) -> None:
    expired = stage.open_request(age=timedelta(days=8))
    stage.open_request()
    stage.queue.away = True
    stage.till.error = RuntimeError("boom")
    remember(stage.agent.id, "/v1/a", age=timedelta(hours=25))
    with unit_of_work() as session:
        session.execute(
            text(
                "CREATE TRIGGER odd_row BEFORE DELETE ON idempotency_keys "
                "BEGIN SELECT RAISE(ABORT, 'odd row'); END"
            )
        )
    with capture_logs() as logs:
        sweeps.sweep()
    failed = [entry["step"] for entry in logs if entry["event"] == "sweep_step_failed"]
    assert failed == ["ask_the_faucet", "forget_answers"]
    assert stage.status(expired) == "failed"
    change_balances_by(1)
    try:
        assert violations(sweeps.audit_hourly)
    finally:
        change_balances_by(-1)
    with unit_of_work() as session:
        session.execute(text("DROP TRIGGER odd_row"))
    sweeps.sweep()
    with reading() as session:
        assert session.scalars(select(IdempotencyKey.path)).all() == []


def test_an_audit_that_fails_is_made_again_and_not_an_hour_later(stage: Stage) -> None:
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


def change_balances_by(nanos: int) -> None:
    """Change what accounts say they were granted, without a posting that says so."""
    with unit_of_work() as session:
        session.execute(
            update(CreditAccount).values(
                available_nanos=CreditAccount.available_nanos + nanos,
                granted_nanos=CreditAccount.granted_nanos + nanos,
            )
        )


def violations(work: Callable[[], object]) -> list[Any]:
    with capture_logs() as logs:
        work()
    return [entry for entry in logs if entry["event"] == "audit_violation"]


def test_sound_books_are_told_nobody(stage: Stage) -> None:
    assert stage.agent.post("/v1/wallets", {}).status_code == 201
    assert sweeps.audit() == []
    assert violations(sweeps.audit_hourly) == []


@pytest.mark.chain
def test_a_tick_puts_one_job_of_each_kind_per_chain(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]
) -> None:
    queue = RecordingQueue()
    with build_app(sqlite_url, queue=queue, chains=chains).app_context():
        schedule.tick(with_sweep=True)
    assert sorted(queue.put_jobs) == [
        (JobName.STEP_BRIDGES, ()),
        (JobName.CONFIRM, ("base",)),
        (JobName.CONFIRM, ("ethereum",)),
        (JobName.FIND_DEPOSITS, ("base",)),
        (JobName.FIND_DEPOSITS, ("ethereum",)),
        (JobName.AUDIT, ()),
        (JobName.SWEEP, ()),
    ]


@pytest.mark.chain
def test_with_redis_away_a_tick_carries_funding_and_transfers_to_their_end_itself(
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
            schedule.tick(with_sweep=False)
        assert agent.transaction(asked["funding_request_id"])["status"] == "confirmed"
        assert agent.transaction(moved["transaction_id"])["status"] == "confirmed"
        health = agent.client.get("/v1/health").get_json()
        assert health["checks"] == {"database": "ok", "redis": "unreachable", "worker": "ok"}


def test_every_job_can_be_run_by_the_ticker_itself() -> None:
    # Only the shopper's own process drives a browser.
    assert set(schedule._INLINE) == set(JobName) - {JobName.BUY}
    for name, run in schedule._INLINE.items():
        assert f"{run.__module__}.{run.__name__}" == name.value


def test_a_job_that_fails_in_the_ticker_does_not_end_it(stage: Stage) -> None:
    @job
    def fail() -> None:
        raise RuntimeError("boom")

    expired = stage.open_request(age=timedelta(days=8))
    stage.queue.away = True
    stage.till.error = RuntimeError("boom")
    stage.open_request()
    schedule.tick(with_sweep=True)
    assert stage.status(expired) == "failed"
    with pytest.raises(RuntimeError, match="boom"):
        fail()
