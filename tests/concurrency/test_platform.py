"""Races of operators on PostgreSQL: keys revoking each other, rotations, freezes and deletions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import func, select, text

from app.adapters.evm.chain import EvmChain
from app.agents.claims import ClaimCode
from app.audit_log import trail, verification
from app.audit_log.actors import Actor, ActorKind
from app.audit_log.trail import AuditAction, AuditEvent
from app.core.chains import USDC, ChainName
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import ServiceError
from app.extensions import db
from app.identity import master_keys
from app.identity.models import Agent as AgentRow
from app.identity.models import ApiKey, MasterKey
from app.spending.models import SpendingAccount
from app.wallets.core.models import Transaction, Wallet
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import fund, usdc
from tests.support.drivers import fresh_address
from tests.support.ledger import race
from tests.support.operators import Operator, entries, operator
from tests.support.processes import Asked, Service, crowds
from tests.support.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.postgres

CONCURRENT = 20
WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


@dataclass(frozen=True, slots=True)
class Stage:
    """An application, its operator, and requests from any thread."""

    app: Flask
    ops: Operator

    def ask(self, method: str, path: str, body: object = None, *, by: Operator | None = None) -> tuple[int, Any]:
        answer = (by or self.ops).with_client(self.app).ask(method, path, body)
        return answer.status_code, answer.get_json()

    def as_agent(self, agent: Agent, method: str, path: str, body: object = None) -> tuple[int, Any]:
        answer = self.app.test_client().open(path, method=method, json=body, headers=agent.headers())
        return answer.status_code, answer.get_json()

    def count(self, *conditions: Any) -> int:
        with read_only_unit() as session:
            return session.scalar(select(func.count()).where(*conditions)) or 0


def statuses(answers: list[Any]) -> Counter[int]:
    assert not [answer for answer in answers if isinstance(answer, ServiceError)], answers
    return Counter(answer[0] for answer in answers)


@pytest.fixture
def stage(postgres_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    app = build_app(postgres_url, settings={"database_pool_size": CONCURRENT + 20})
    with app.app_context():
        yield Stage(app, operator(app.test_client()))


def test_two_master_keys_that_revoke_each_other_leave_one(stage: Stage) -> None:
    for number in range(8):
        one, other = (operator(stage.app.test_client(), f"{side}{number}") for side in "ab")
        answers = race(
            stage.app,
            [
                partial(stage.ask, "DELETE", f"/master-keys/{other.id}", by=one),
                partial(stage.ask, "DELETE", f"/master-keys/{one.id}", by=other),
            ],
        )
        assert statuses(answers) == {200: 1, 401: 1}
        assert stage.count(MasterKey.active.is_(True), MasterKey.id.in_([one.id, other.id])) == 1


def test_many_master_keys_that_revoke_each_other_leave_exactly_one(stage: Stage) -> None:
    ring = [operator(stage.app.test_client(), f"k{number}") for number in range(6)]
    for_each = [stage.ops, *ring]
    answers = race(
        stage.app,
        [
            partial(stage.ask, "DELETE", f"/master-keys/{target.id}", by=by)
            for by in for_each
            for target in for_each
            if by is not target
        ],
    )
    assert set(statuses(answers)) <= {200, 401}
    assert stage.count(MasterKey.active.is_(True)) == 1


def test_a_change_that_waits_for_its_keys_revocation_is_rolled_back(stage: Stage) -> None:
    leaked = operator(stage.app.test_client(), "leaked")
    with ThreadPoolExecutor(1) as thread:
        with unit_of_work() as session:
            # As `keys.revoke_master_key` does, up to its commit.
            master_keys.revoke(session, leaked.id, revoked_by=stage.ops.id)
            act = AuditEvent(AuditAction.MASTER_KEY_REVOKED, leaked.id)
            trail.record(session, Actor(ActorKind.MASTER_KEY, stage.ops.id, "ops"), act)
            late = thread.submit(stage.ask, "POST", "/master-keys", {"name": "successor"}, by=leaked)
            wait_until(partial(waits_for_a_lock, stage.app), what="the act waits for the head")
        assert late.result(PATIENCE_SECONDS)[0] == 401
    assert stage.count(MasterKey.name == "successor") == 0
    assert entries()[-1].action == "master_key.revoked"


def waits_for_a_lock(app: Flask) -> bool:
    with app.app_context(), db.engine.connect() as onlooker:
        return bool(onlooker.scalar(WAITING))


def test_a_rotation_interrupts_clients_only_without_a_grace_period(stage: Stage) -> None:
    for grace in (60, 0):
        agent = register(stage.app.test_client())
        started, rotated = Event(), Event()

        def use(agent: Agent = agent, started: Event = started, rotated: Event = rotated) -> list[tuple[bool, int]]:
            seen = []
            while len([late for late, _ in seen if late]) < 3:
                late = rotated.is_set()
                seen.append((late, stage.as_agent(agent, "GET", "/v1/balance")[0]))
                started.set()
            return seen

        def rotate(
            agent: Agent = agent, grace: int = grace, started: Event = started, rotated: Event = rotated
        ) -> list[tuple[bool, int]]:
            started.wait(PATIENCE_SECONDS)
            status, body = stage.ask("POST", f"/agents/{agent.id}/rotate-key", {"grace_seconds": grace})
            rotated.set()
            assert status == 200, body
            return []

        answers = [each for one in race(stage.app, [use, use, use, rotate]) for each in one]  # type: ignore[union-attr]
        late = {status for was_late, status in answers if was_late}
        assert late == ({200} if grace else {401})
        early = {status for was_late, status in answers if not was_late}
        assert early <= ({200} if grace else {200, 401})


def test_concurrent_rotations_leave_one_permanent_key(stage: Stage) -> None:
    agent = register(stage.app.test_client())
    rotate = partial(stage.ask, "POST", f"/agents/{agent.id}/rotate-key", {"grace_seconds": 60})
    answers = race(stage.app, [rotate] * 8)
    assert statuses(answers) == {200: 8}
    lasting = stage.count(ApiKey.agent_id == agent.id, ApiKey.revoked_at.is_(None), ApiKey.expires_at.is_(None))
    assert lasting == 1
    keys = {answer[1]["apiKey"] for answer in answers if isinstance(answer, tuple)}
    assert len(keys) == 8
    shown = stage.ask("GET", f"/agents/{agent.id}")[1]["apiKey"]
    assert shown in keys


def test_concurrent_writers_keep_one_audit_chain(stage: Stage) -> None:
    with unit_of_work() as session:
        session.execute(text("DELETE FROM audit_entries"))
        session.execute(text("DELETE FROM audit_heads"))
    answers = race(stage.app, [partial(stage.ask, "POST", "/agents", {"name": f"n{n}"}) for n in range(CONCURRENT)])
    assert statuses(answers) == {201: CONCURRENT}
    found = entries()
    assert [entry.number for entry in found] == list(range(1, CONCURRENT + 1))
    assert len({entry.subject_id for entry in found}) == CONCURRENT
    with read_only_unit() as session:
        assert verification.find_problems(session) == []


def test_writers_in_several_processes_keep_one_audit_chain(
    each_database_url: str, build_app: Callable[..., Flask]
) -> None:
    with build_app(each_database_url).app_context() as context:
        ops = operator(context.app.test_client())
        agent = ops.make_agent()
        give = Asked("POST", f"/v1/platform/agents/{agent.id}/credits", {"credits_usd": 1}, ops.headers())
        answers = crowds(Service(each_database_url, ()), [give] * 5, [give] * 5, [give] * 5)
        assert Counter(status for status, _ in answers) == {200: 15}
        assert ops.get(f"/agents/{agent.id}").get_json()["credits_usd"] == 25.0
        assert sorted(body["credits_usd"] for _, body in answers) == [float(n) for n in range(11, 26)]
        given = entries(action="agent.credits_granted")
        assert [entry.after["credits_usd"] for entry in given if entry.after] == [str(n) for n in range(11, 26)]
        db.engine.dispose()


def test_concurrent_fleet_changes_are_atomic_per_agent(stage: Stage) -> None:
    agents = [register(stage.app.test_client()) for _ in range(12)]
    for agent in agents:
        for _ in range(2):
            agent.post("/v1/wallets", {})
    ids = [agent.id for agent in agents]

    def fleet(limit: int) -> tuple[int, Any]:
        order = ids if limit % 2 else list(reversed(ids))
        return stage.ask("PUT", "/controls", {"agent_ids": order, "daily_limit_usd": limit, "per_tx_limit_usd": limit})

    def make(agent: Agent) -> tuple[int, Any]:
        return stage.as_agent(agent, "POST", "/v1/wallets", {})

    answers = race(stage.app, [*[partial(fleet, n) for n in range(1, 7)], *[partial(make, agent) for agent in agents]])
    assert set(statuses(answers)) == {200, 201}
    assert not [body for status, body in answers if status == 200 and body["failed"]]  # type: ignore[misc]
    for agent in agents:
        rows = agent.get("/v1/wallets").get_json()["wallets"]
        limits = {
            (row["spending_controls"]["daily_limit_usd"], row["spending_controls"]["per_tx_limit_usd"])
            for row in rows
            if row["spending_controls"]
        }
        assert len(rows) == 4
        assert len(limits) == 1
        assert len(set(limits.pop())) == 1


def test_one_busy_wallet_fails_its_agent_and_not_the_fleet(postgres_url: str, build_app: Callable[..., Flask]) -> None:
    # A short lock timeout: 300 ms.
    app = build_app(f"{postgres_url}?options=-c%20lock_timeout%3D300ms", settings={})
    with app.app_context():
        ops = operator(app.test_client())
        agents = [register(app.test_client()) for _ in range(5)]
        with db.engine.connect() as holder, holder.begin():
            holder.execute(text("SET LOCAL lock_timeout = 0"))
            holder.execute(
                text("UPDATE spending_accounts SET lock_version = 1 WHERE wallet_id = :id"), {"id": agents[2].wallet_id}
            )
            body = ops.put("/controls", {"agent_ids": [agent.id for agent in agents], "locked": True}).get_json()
        assert sorted(body["changed"]) == sorted(agent.id for agent in agents if agent is not agents[2])
        assert [(each["agentId"], each["code"]) for each in body["failed"]] == [(agents[2].id, "OVERLOADED")]
        again = ops.put("/controls", {"agent_ids": [agent.id for agent in agents], "locked": True}).get_json()
        assert (again["changed"], len(again["unchanged"])) == ([agents[2].id], 4)


def test_a_wallet_created_during_a_freeze_is_frozen(stage: Stage) -> None:
    agent = register(stage.app.test_client())
    agent.delete(agent.wallet_url)
    make = partial(stage.as_agent, agent, "POST", "/v1/wallets", {})
    freeze = partial(stage.ask, "POST", f"/agents/{agent.id}/freeze")
    for _ in range(5):
        answers = race(stage.app, [make, make, make, freeze, make, make, make])
        assert statuses(answers) == {201: 6, 200: 1}
        of_agent = SpendingAccount.agent_id == agent.id
        assert stage.count(of_agent, SpendingAccount.frozen_at.is_(None)) == 0
        assert stage.ask("POST", f"/agents/{agent.id}/unfreeze")[0] == 200


def test_deletion_races_with_registration_claims_and_administration(stage: Stage) -> None:
    for _ in range(4):
        made = stage.app.test_client().post("/v1/agents/register", json={}).get_json()
        agent_id, key = made["agentId"], {"X-API-Key": made["apiKey"]}
        path = f"/agents/{agent_id}"

        def claim(code: str = made["claimCode"]) -> tuple[int, Any]:
            answer = stage.app.test_client().post("/v1/device/claim", json={"code": code})
            return answer.status_code, answer.get_json()

        def mine(where: str, body: object = None, key: dict[str, str] = key) -> tuple[int, Any]:
            answer = stage.app.test_client().post(where, json=body, headers=key)
            return answer.status_code, answer.get_json()

        def join() -> tuple[int, Any]:
            answer = stage.app.test_client().post("/v1/agents/register", json={})
            return answer.status_code, answer.get_json()

        answers = race(
            stage.app,
            [
                partial(stage.ask, "DELETE", path), claim, claim, join, join,
                partial(mine, "/v1/agents/claim-code"), partial(mine, "/v1/wallets", {}),
                partial(stage.ask, "POST", f"{path}/rotate-key", {"grace_seconds": 60}),
                partial(stage.ask, "POST", f"{path}/credits", {"credits_usd": 1}),
                partial(stage.ask, "PUT", f"{path}/controls", {"locked": True}),
                partial(stage.ask, "PUT", "/controls", {"agent_ids": [agent_id], "daily_limit_usd": 5}),
                partial(stage.ask, "DELETE", path),
            ],
        )  # fmt: skip
        assert set(statuses(answers)) <= {200, 201, 401, 404, 409}, answers
        deleted = [answers[0], answers[-1]]
        assert statuses(deleted) == {200: 1, 404: 1}
        assert stage.count(Wallet.agent_id == agent_id) == 0
        assert stage.count(SpendingAccount.agent_id == agent_id) == 0
        assert stage.count(ApiKey.agent_id == agent_id, ApiKey.revoked_at.is_(None)) == 0
        open_codes = ClaimCode.agent_id == agent_id, ClaimCode.revoked_at.is_(None), ClaimCode.claimed_at.is_(None)
        assert stage.count(*open_codes) == 0
        assert claim()[0] in {401, 404}, "a used code is as wrong as any other"
        assert stage.count(AgentRow.id == agent_id, AgentRow.deleted_at.is_(None)) == 0


@dataclass(frozen=True, slots=True)
class Ring:
    """A stage with a funded agent that makes transfers."""

    stage: Stage
    chain: EvmChain
    agent: Agent
    recipient: str
    accepted: list[str] = field(default_factory=list)

    def move(self, amount: str = "1") -> tuple[int, Any]:
        body = {"amount": amount, "currency": "USDC", "chain": "base", "to": self.recipient}
        status, answer = self.stage.as_agent(self.agent, "POST", f"{self.agent.wallet_url}/transfer", body)
        if status == 200:
            self.accepted.append(answer["transaction_id"])
        return status, answer

    def paid(self) -> int:
        return self.chain.balances(self.recipient).of(USDC).units


@pytest.fixture
def ring(
    postgres_url: str, build_app: Callable[..., Flask], chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Ring]:
    app = build_app(postgres_url, chains=chains, settings={"database_pool_size": CONCURRENT})
    with app.app_context():
        agent = register(app.test_client())
        agent.unlimited()
        fund(base_node, agent.address, eth=1, dollars=100)
        recipient = fresh_address()
        yield Ring(Stage(app, operator(app.test_client())), chains[ChainName.BASE], agent, recipient)


@pytest.mark.chain
def test_no_movement_starts_after_a_freeze_and_pending_ones_are_completed(ring: Ring) -> None:
    recorded: list[int] = []

    def freeze() -> int:
        wait_until(lambda: len(ring.accepted) >= 4, what="movements under way")
        assert ring.stage.ask("POST", f"/agents/{ring.agent.id}/freeze")[0] == 200
        recorded.append(ring.stage.count(Transaction.wallet_id == ring.agent.wallet_id))
        return 0

    def move() -> int:
        moved = 0
        while True:
            status, body = ring.move("0.1")
            if status == 403:
                assert body["code"] == "WALLET_FROZEN"
                return moved
            assert status == 200, body
            moved += 1

    answers = race(ring.stage.app, [*[move] * 5, freeze])
    moved = sum(answer for answer in answers if isinstance(answer, int))
    assert recorded == [moved] == [ring.stage.count(Transaction.wallet_id == ring.agent.wallet_id)]
    assert ring.paid() == moved * 100_000


@pytest.mark.chain
def test_deleting_an_agent_during_transfers_and_deposits_loses_no_payment(ring: Ring) -> None:
    deleted: list[int] = []

    def delete() -> None:
        wait_until(lambda: len(ring.accepted) >= 4, what="movements under way")
        while not deleted:
            status, body = ring.stage.ask("DELETE", f"/agents/{ring.agent.id}")
            assert status in {200, 409}, body
            if status == 200:
                deleted.append(ring.paid())

    def act() -> list[int]:
        fund_body = {"amount": "1", "currency": "USDC", "chain": "base"}
        seen = []
        for _ in range(4):
            seen.append(ring.move()[0])
            seen.append(ring.stage.as_agent(ring.agent, "POST", f"{ring.agent.wallet_url}/fund", fund_body)[0])
        return seen

    answers = race(ring.stage.app, [delete, *[act] * 4])
    seen = {status for of_one in answers if isinstance(of_one, list) for status in of_one}
    assert seen <= {200, 401, 404}, answers
    assert deleted == [ring.paid()] == [usdc(1) * len(ring.accepted)]
    for row_id in (Transaction.id, Wallet.id, SpendingAccount.wallet_id):
        assert ring.stage.count(row_id.is_not(None)) == 0
