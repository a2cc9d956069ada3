"""`Idempotency-Key` beyond transfers: nothing is created twice, over time, in crashes and races, or across agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import select, update
from werkzeug.test import TestResponse

from app.core import clock, identifiers
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.idempotency.service import IdempotencyKey
from app.ports.errors import Unreachable
from app.wallets.core.models import Transaction, Wallet
from sandbox.evm import EvmNode
from tests.support import rows
from tests.support.agents import Agent, register
from tests.support.applications import change_ports
from tests.support.chains import evm_chain, fund
from tests.support.faults import FaultyChain
from tests.support.ledger import race

_MINUTE = timedelta(minutes=1)
_WANTED = {"amount": "2", "currency": "USDC", "chain": "base"}


def create(agent: Agent, key: str = "k", *, name: str = "savings") -> TestResponse:
    return agent.post("/v1/wallets", {"name": name}, Idempotency_Key=key)


def wallets(agent: Agent) -> int:
    total: int = agent.get("/v1/wallets").get_json()["pagination"]["total"]
    return total


def claim() -> dict[str, Any]:
    """Return the only claim."""
    with read_only_unit() as session:
        row = session.execute(select(*IdempotencyKey.__table__.columns)).one()
        return dict(row._mapping)


def change_claim(**values: object) -> None:
    with unit_of_work() as session:
        session.execute(update(IdempotencyKey).values(**values))


def assert_conflict(answer: TestResponse) -> None:
    assert (answer.status_code, answer.get_json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")


def test_the_same_key_creates_one_wallet_and_returns_the_same_response(agent: Agent) -> None:
    first, again = create(agent), create(agent)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.get_json() == first.get_json()
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.headers["X-Request-Id"] != first.headers["X-Request-Id"]
    assert wallets(agent) == 2
    assert_conflict(create(agent, name="other"))
    assert wallets(agent) == 2


def test_a_replay_is_the_first_response_even_after_later_changes(agent: Agent) -> None:
    first = create(agent)
    url = f"/v1/wallets/{first.get_json()['id']}"
    agent.put(f"{url}/controls", {"daily_limit_usd": 5})
    assert create(agent).get_json() == first.get_json()
    agent.delete(url)
    assert create(agent).get_json() == first.get_json()
    assert wallets(agent) == 1


def test_without_a_key_every_request_is_executed(agent: Agent) -> None:
    for _ in range(2):
        agent.post("/v1/wallets", {"name": "savings"})
    assert wallets(agent) == 3
    with read_only_unit() as session:
        assert session.scalars(select(IdempotencyKey)).all() == []


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "a b", "é", "\t"])
def test_a_malformed_key_creates_nothing(key: str, agent: Agent) -> None:
    answer = create(agent, key)
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert "Idempotency-Key" in answer.get_json()["details"]["fields"]
    assert wallets(agent) == 1


def test_keys_that_differ_in_one_character_are_distinct(agent: Agent) -> None:
    for key in ("!", "~" * 255, "~" * 254 + "!", "'; DROP TABLE wallets;--".replace(" ", "_"), "A", "a"):
        assert create(agent, key).status_code == 201
        assert create(agent, key).headers["Idempotent-Replayed"] == "true"
    assert wallets(agent) == 7


def test_another_agent_and_another_path_may_use_the_same_key(agent: Agent) -> None:
    other = register(agent.client)
    made = [create(agent), create(other)]
    assert [answer.status_code for answer in made] == [201, 201]
    assert made[0].get_json()["id"] != made[1].get_json()["id"]
    assert (wallets(agent), wallets(other)) == (2, 2)
    assert "Idempotent-Replayed" not in agent.post("/v1/agents/claim-code", {}, Idempotency_Key="k").headers


def test_a_claim_code_is_replaced_once_per_key(agent: Agent) -> None:
    plain = agent.post("/v1/agents/claim-code", {})
    first, again = (agent.post("/v1/agents/claim-code", {}, Idempotency_Key="k") for _ in range(2))
    assert [answer.status_code for answer in (plain, first, again)] == [201, 201, 201]
    assert first.get_json() == again.get_json() != plain.get_json()
    assert set(first.get_json()) == set(plain.get_json())
    rows.lose_responses(bound=False)
    rebuilt = agent.post("/v1/agents/claim-code", {}, Idempotency_Key="k")
    assert (rebuilt.status_code, set(rebuilt.get_json())) == (201, set(plain.get_json()))


def test_a_key_can_be_reused_after_a_day_and_not_before(agent: Agent) -> None:
    first = create(agent).get_json()
    made = clock.now()
    with time_machine.travel(made + timedelta(hours=23, minutes=59), tick=True):
        assert create(agent).get_json() == first
    with time_machine.travel(made + timedelta(hours=24, minutes=1), tick=True):
        second = create(agent, name="another body")
        assert second.status_code == 201
        assert second.get_json()["id"] != first["id"]
        assert create(agent, name="another body").get_json() == second.get_json()
        assert_conflict(create(agent))
    assert wallets(agent) == 3


def test_a_repetition_of_a_running_request_is_a_conflict(agent: Agent) -> None:
    create(agent)
    rows.lose_responses(bound=False)
    change_claim(lease_until=clock.now() + _MINUTE)
    answer = create(agent)
    assert_conflict(answer)
    assert int(answer.headers["Retry-After"]) >= 1
    assert "running" in answer.get_json()["error"]
    # Another body is a conflict, also later.
    other = create(agent, name="other")
    assert_conflict(other)
    assert "Retry-After" not in other.headers
    assert wallets(agent) == 2


def test_a_request_that_crashed_before_its_record_is_executed_again(agent: Agent) -> None:
    lost = create(agent).get_json()["id"]
    agent.delete(f"/v1/wallets/{lost}")
    rows.lose_responses(bound=False)
    answer = create(agent)
    assert answer.status_code == 201
    assert "Idempotent-Replayed" not in answer.headers
    assert create(agent).get_json() == answer.get_json()
    assert wallets(agent) == 2


def test_a_request_that_crashed_after_its_record_is_replayed_from_the_record(agent: Agent) -> None:
    first = create(agent)
    rows.lose_responses(bound=True)
    again = create(agent)
    assert (again.status_code, again.get_json()) == (201, first.get_json())
    assert again.headers["Idempotent-Replayed"] == "true"
    assert wallets(agent) == 2


def test_a_claim_that_was_taken_over_records_nothing(agent: Agent, app: Flask) -> None:
    vault = app.state.ports.vault

    class SlowVault:
        """Loses the claim, as a suspended machine does, while it creates the key."""

        def __getattr__(self, name: str) -> Any:
            return getattr(vault, name)

        def create_wallet(self, location: Any) -> Any:
            change_claim(holder=identifiers.new_id())
            return vault.create_wallet(location)

    change_ports(app, vault=SlowVault())
    assert_conflict(create(agent))
    assert wallets(agent) == 1


def test_concurrent_requests_with_one_key_create_one_wallet(agent: Agent, app: Flask) -> None:
    def send() -> tuple[int, str]:
        answer = app.test_client().post("/v1/wallets", json={"name": "x"}, headers=agent.headers(Idempotency_Key="k"))
        return answer.status_code, answer.get_json().get("id", answer.get_json().get("code"))

    answers = race(app, [send] * 6)
    made = {answer for answer in answers if answer != (409, "IDEMPOTENCY_CONFLICT")}
    assert len(made) == 1
    assert wallets(agent) == 2


def test_a_refused_request_does_not_keep_its_key(agent: Agent) -> None:
    assert agent.post("/v1/wallets", {"name": 1}, Idempotency_Key="k").status_code == 400
    with read_only_unit() as session:
        assert session.scalars(select(IdempotencyKey)).all() == []
    assert create(agent).status_code == 201


def test_stored_responses_are_sealed_and_bodies_are_not_stored(agent: Agent) -> None:
    create(agent, name="a-very-private-name")
    stored = repr(claim())
    assert "a-very-private-name" not in stored
    assert claim()["answer_status"] == 201


def test_an_unauthenticated_request_claims_no_key_and_creates_no_wallet(client: FlaskClient) -> None:
    headers = {"X-API-Key": "ak_" + "A" * 43, "Idempotency-Key": "k"}
    assert client.post("/v1/wallets", json={}, headers=headers).status_code == 401
    with read_only_unit() as session:
        assert session.scalars(select(IdempotencyKey)).all() == []
        assert session.scalars(select(Wallet)).all() == []


Funded = tuple[Agent, FaultyChain]


@pytest.fixture
def funded(build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode) -> Iterator[Funded]:
    """An agent with money on a Base that can fail."""
    chain = FaultyChain(evm_chain(base_node))
    app = build_app(sqlite_url, chains={chain.name: chain})
    with app.app_context():
        made = register(app.test_client())
        fund(base_node, made.address, eth=1, dollars=20)
        yield made, chain


def ask(agent: Agent, key: str = "k", **changes: str) -> TestResponse:
    return agent.post(f"{agent.wallet_url}/fund", {**_WANTED, **changes}, Idempotency_Key=key)


@pytest.mark.chain
def test_the_same_key_creates_one_funding_request_through_every_crash(funded: Funded) -> None:
    agent, chain = funded
    first = ask(agent)
    assert first.status_code == 200
    assert ask(agent).get_json() == first.get_json()
    rows.lose_responses(bound=True)
    rebuilt = ask(agent)
    assert (rebuilt.status_code, rebuilt.get_json()) == (200, first.get_json())
    assert_conflict(ask(agent, amount="3"))
    assert len(agent.history()) == 1
    chain.raising("head", "before", Unreachable("chain_unreachable"))
    assert ask(agent, "other").status_code == 502
    assert ask(agent, "other").status_code == 200
    assert len(agent.history()) == 2


@pytest.mark.chain
def test_a_key_is_scoped_to_its_path(funded: Funded) -> None:
    agent, _ = funded
    asked = ask(agent).get_json()
    moved = [agent.move("1", "USDC", how=how, Idempotency_Key="k").get_json() for how in ("transfer", "withdraw")]
    other = agent.post("/v1/wallets", {}).get_json()
    elsewhere = agent.post(f"/v1/wallets/{other['id']}/fund", _WANTED, Idempotency_Key="k").get_json()
    ids = {asked["funding_request_id"], elsewhere["funding_request_id"], *(each["transaction_id"] for each in moved)}
    assert len(ids) == 4
    assert len(agent.history()) == 3


@pytest.mark.chain
@pytest.mark.parametrize("amount", ["1", "500"])
def test_a_transfer_that_crashed_after_its_record_is_replayed_and_not_sent_again(amount: str, funded: Funded) -> None:
    agent, chain = funded
    agent.unlimited()
    first = agent.move(amount, "USDC", Idempotency_Key="k")
    rows.lose_responses(bound=True)
    chain.calls.clear()
    again = agent.move(amount, "USDC", Idempotency_Key="k")
    assert again.status_code == first.status_code == (200 if amount == "1" else 500)
    same = {"request_id", "error", "details"}
    assert {name: value for name, value in again.get_json().items() if name not in same} == {
        name: value for name, value in first.get_json().items() if name not in same
    }
    assert chain.calls == []
    with read_only_unit() as session:
        assert len(session.scalars(select(Transaction)).all()) == 1
