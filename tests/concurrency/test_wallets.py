"""Races of creation, deletion, funding, controls and freezing of wallets with everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import func, select

from app.adapters.evm.chain import EvmChain
from app.core.chains import USDC, ChainName
from app.db.unit_of_work import read_only_unit
from app.idempotency.service import Claim
from app.wallets.core import wallets
from app.wallets.core.models import SignedAttempt, Transaction, TransactionEvent, Wallet
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import fund, usdc
from tests.support.drivers import fresh_address
from tests.support.ledger import race
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain

CONCURRENT = 30
MOVERS = 6
MOVES = 8


@dataclass(frozen=True, slots=True)
class Ring:
    """An agent with a wallet that all threads use concurrently."""

    app: Flask
    chain: EvmChain
    agent: Agent
    recipient: str
    accepted: list[str] = field(default_factory=list)
    """The ids of the movements that succeeded so far."""

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        # One client per thread: they are not thread-safe.
        answer = self.app.test_client().open(path, method=method, json=body, headers=self.agent.headers())
        return answer.status_code, answer.get_json()

    def move(self, amount: str = "1") -> tuple[int, Any]:
        body = {"amount": amount, "currency": "USDC", "chain": "base", "to": self.recipient}
        status, answer = self.ask("POST", f"{self.agent.wallet_url}/transfer", body)
        if status == 200:
            self.accepted.append(answer["transaction_id"])
        return status, answer

    def await_movements(self) -> None:
        """Wait until the others have started."""
        wait_until(lambda: len(self.accepted) >= MOVERS, what="movements under way")

    def paid(self) -> int:
        return self.chain.balances(self.recipient).of(USDC).units

    def count(self, *conditions: Any) -> int:
        with read_only_unit() as session:
            return session.scalar(select(func.count()).where(*conditions)) or 0


@pytest.fixture
def ring(
    each_database_url: str, build_app: Callable[..., Flask], chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Ring]:
    """An agent without limits, with 1 ETH and 100 USDC, on each kind of database."""
    app = build_app(each_database_url, chains=chains, settings={"database_pool_size": CONCURRENT})
    with app.app_context():
        agent = register(app.test_client())
        agent.unlimited()
        fund(base_node, agent.address, eth=1, dollars=100)
        yield Ring(app, chains[ChainName.BASE], agent, fresh_address())


def test_a_wallet_deleted_during_transfers_loses_no_payment_and_leaves_no_orphans(ring: Ring) -> None:
    deleted: list[int] = []

    def delete() -> None:
        ring.await_movements()
        while not deleted:
            status, body = ring.ask("DELETE", f"{ring.agent.wallet_url}?force=true")
            assert status in {200, 409}, body
            if status == 200:
                deleted.append(ring.paid())

    def move() -> list[tuple[int, Any]]:
        # The deletion waits for a gap between movements, so these must end eventually.
        return [ring.move() for _ in range(MOVES)]

    answers = race(ring.app, [delete, *[move] * MOVERS])
    moved = [answer for of_one in answers if isinstance(of_one, list) for answer in of_one]
    assert {status for status, _ in moved} <= {200, 404}, moved
    accepted = [body for status, body in moved if status == 200]
    assert {body["status"] for body in accepted} <= {"confirmed"}
    assert ring.paid() == usdc(1) * len(accepted)
    assert deleted == [ring.paid()]
    for row_id in (Transaction.id, SignedAttempt.id, TransactionEvent.id, Wallet.id):
        assert ring.count(row_id.is_not(None)) == 0


def test_concurrently_created_wallets_never_exceed_a_hundred(ring: Ring) -> None:
    for number in range(84):
        wallets.create_for_agent(ring.agent.id, name=f"w{number}", claim=Claim.none())
    answers = race(ring.app, [partial(ring.ask, "POST", "/v1/wallets", {})] * CONCURRENT)
    made = [answer for answer in answers if isinstance(answer, tuple)]
    assert Counter(status for status, _ in made) == {201: 15, 409: CONCURRENT - 15}
    assert {body["code"] for status, body in made if status == 409} == {"LIMIT_REACHED"}
    assert ring.count(Wallet.agent_id == ring.agent.id) == 100
    names = [body["name"] for status, body in made if status == 201]
    assert len(set(names)) == len(names)


def test_concurrent_funding_requests_never_exceed_twenty(ring: Ring) -> None:
    body = {"amount": "1", "currency": "USDC", "chain": "base"}
    answers = race(ring.app, [partial(ring.ask, "POST", f"{ring.agent.wallet_url}/fund", body)] * CONCURRENT)
    made = [answer for answer in answers if isinstance(answer, tuple)]
    assert Counter(status for status, _ in made) == {200: 20, 409: CONCURRENT - 20}
    assert ring.count(Transaction.type == "funding") == 20


def test_after_a_lower_limit_returned_nothing_exceeds_it(ring: Ring) -> None:
    limit = 8
    lowered: list[float] = []

    def lower() -> None:
        ring.await_movements()
        status, body = ring.ask("PUT", f"{ring.agent.wallet_url}/controls", {"daily_limit_usd": limit})
        assert status == 200, body
        lowered.append(ring.agent.spent_this_month())

    def move() -> list[int]:
        return [ring.move()[0] for _ in range(MOVES)]

    answers = race(ring.app, [*[move] * MOVERS, lower])
    statuses = Counter(status for of_one in answers if isinstance(of_one, list) for status in of_one)
    assert set(statuses) == {200, 403}
    assert ring.paid() == usdc(1) * statuses[200]
    assert statuses[200] <= max(limit, *lowered)
