"""Concurrent transfers from two processes with many threads each: limits, nonces and idempotency keys hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import partial
from http import HTTPStatus
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import select

from app.core import clock
from app.core.chains import USDC, ChainName
from app.db.unit_of_work import read_only_unit
from app.ports.chain import TransactionOutcome, TransactionQuery, TransactionStatus
from app.wallets.core.models import Transaction
from app.wallets.transactions import confirmation, settlement
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import fund, usdc
from tests.support.drivers import fresh_address
from tests.support.ledger import race
from tests.support.processes import Asked, NodeAddress, Service, Tripwire, crowds
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain

Answers = list[tuple[int, Any]]


@dataclass(frozen=True, slots=True)
class Crowd:
    """An agent with a wallet that many processes use concurrently."""

    service: Service
    app: Flask
    agent: Agent
    recipient: str

    def asking(self, amount: str, *, key: str | None = None) -> Asked:
        body = {"amount": amount, "currency": "USDC", "chain": "base", "to": self.recipient}
        headers = self.agent.headers(Idempotency_Key=key) if key else self.agent.headers()
        return Asked("POST", f"{self.agent.wallet_url}/transfer", body, headers)

    def paid(self) -> int:
        chain = self.app.state.ports.chains[ChainName.BASE].real
        units: int = chain.balances(self.recipient).of(USDC).units
        return units

    def rows(self) -> list[tuple[str, int | None, int]]:
        """Return status, nonce and micro-USDC of all movements."""
        with self.app.app_context(), read_only_unit() as session:
            columns = select(Transaction.status, Transaction.nonce, Transaction.amount_units)
            return [(row.status, row.nonce, row.amount_units) for row in session.execute(columns)]

    def finish(self) -> None:
        """Run the worker until nothing is pending."""
        rounds = iter(range(1, 1000))

        def done() -> bool:
            at = clock.now() + timedelta(minutes=next(rounds))
            with self.app.app_context(), time_machine.travel(at, tick=True):
                confirmation.confirm(ChainName.BASE)
            return not any(status == "pending" for status, _, _ in self.rows())

        wait_until(done, what="every movement's end")


@pytest.fixture
def crowd(each_database_url: str, base_node: EvmNode, build_app: Callable[..., Flask]) -> Crowd:
    """An agent without limits, with 1 ETH and 150 USDC."""
    service = Service(each_database_url, (NodeAddress.of(base_node),), {"log_level": "CRITICAL"})
    app = build_app(each_database_url, settings=dict(service.settings), **service.parts(Tripwire()))
    with app.app_context():
        agent = register(app.test_client())
        agent.unlimited()
    fund(base_node, agent.address, eth=1, dollars=150)
    return Crowd(service, app, agent, fresh_address())


def _limit(crowd: Crowd, dollars: float) -> None:
    with crowd.app.app_context():
        crowd.agent.controls(daily_limit_usd=dollars)


def _spent(crowd: Crowd) -> float:
    with crowd.app.app_context():
        return crowd.agent.spent_this_month()


def _micro(dollars: str) -> int:
    return int(Decimal(dollars).scaleb(USDC.decimals))


def _codes(answers: Answers) -> Counter[str]:
    return Counter("ok" if status == 200 else body["code"] for status, body in answers)


def _assert_accepted_are_paid(crowd: Crowd, answers: Answers) -> int:
    """Return the micro-USDC of the accepted transfers, every one of which has moved."""
    crowd.finish()
    accepted = sum(_micro(body["amount"]) for status, body in answers if status == 200)
    rows = crowd.rows()
    assert sum(units for status, _, units in rows if status == "confirmed") == accepted
    nonces = sorted(nonce for _, nonce, _ in rows if nonce is not None)
    assert nonces == list(range(len(nonces)))
    assert crowd.paid() == accepted
    assert _micro(str(_spent(crowd))) == accepted
    return accepted


@pytest.mark.parametrize("each_database_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_two_hundred_concurrent_transfers_never_exceed_a_limit_of_a_hundred_dollars(crowd: Crowd) -> None:
    _limit(crowd, 100)
    share = [crowd.asking("1")] * 100
    answers = crowds(crowd.service, share, share)
    # Two hundred wait for one row, and on a slow machine some time out: they retry, as the response asks.
    while turned_away := _codes(answers)["OVERLOADED"]:
        answers = [answer for answer in answers if answer[0] != HTTPStatus.SERVICE_UNAVAILABLE]
        answers += crowds(crowd.service, share[:turned_away])
    assert _codes(answers) == {"ok": 100, "DAILY_LIMIT_EXCEEDED": 100}
    assert {status for status, body in answers if "code" in body} == {403}
    assert _assert_accepted_are_paid(crowd, answers) == usdc(100)


def test_concurrent_transfers_announce_each_threshold_once(crowd: Crowd) -> None:
    _limit(crowd, 10)
    share = [crowd.asking("1")] * 8
    assert _codes(crowds(crowd.service, share, share)) == {"ok": 10, "DAILY_LIMIT_EXCEEDED": 6}
    with crowd.app.app_context():
        events = crowd.agent.get("/v1/events", types="budget.threshold_reached").get_json()["events"]
    # Of several that one payment reaches, the highest: the last dollar reaches 95 and 100 %.
    assert sorted(each["data"]["percent"] for each in events) == [50, 80, 100]


def test_concurrent_transfers_of_odd_amounts_never_exceed_a_limit_by_one_unit(crowd: Crowd) -> None:
    _limit(crowd, 10)
    amounts = [f"{0.7 + number * 0.113377:.6f}" for number in range(12)]
    share = [crowd.asking(amount) for amount in amounts]
    answers = crowds(crowd.service, share, share)
    assert set(_codes(answers)) == {"ok", "DAILY_LIMIT_EXCEEDED"}
    accepted = _assert_accepted_are_paid(crowd, answers)
    assert accepted <= usdc(10)
    # No transfer within the limit was refused.
    refused = [amount for amount, (status, _) in zip(amounts * 2, answers, strict=True) if status == 403]
    assert accepted + min(map(_micro, refused)) > usdc(10)


def test_concurrent_unaffordable_transfers_fail_and_release_their_holds(crowd: Crowd) -> None:
    share = [crowd.asking("14")] * 8
    answers = crowds(crowd.service, share, share)
    assert set(_codes(answers)) == {"ok", "TRANSFER_FAILED"}
    assert {body["details"]["reason"] for status, body in answers if status == 500} == {"insufficient_funds"}
    assert _assert_accepted_are_paid(crowd, answers) <= usdc(150)
    with crowd.app.app_context():
        while crowd.paid() + usdc(14) <= usdc(150):
            assert crowd.agent.move("14", "USDC", to=crowd.recipient).status_code == 200
    assert crowd.paid() == usdc(140)


def test_concurrent_requests_with_one_idempotency_key_pay_once(crowd: Crowd) -> None:
    share = [crowd.asking("3", key="order-1")] * 6
    answers = crowds(crowd.service, share, share)
    assert set(_codes(answers)) <= {"ok", "IDEMPOTENCY_CONFLICT"}
    accepted = [body for status, body in answers if status == 200]
    assert accepted
    assert all(body == accepted[0] for body in accepted)
    crowd.finish()
    assert crowd.paid() == usdc(3)
    assert _spent(crowd) == 3


def test_concurrent_settlements_of_one_movement_settle_it_once(crowd: Crowd) -> None:
    with crowd.app.app_context():
        body = crowd.agent.move("3", "USDC", to=crowd.recipient, Prefer="respond-async").get_json()
        transaction_id = body["transaction_id"]
        watch = TransactionQuery(transaction_id, body["from"], 0, (body["tx_hash"],))
        chain = crowd.app.state.ports.chains[ChainName.BASE].real

        def landed() -> TransactionOutcome | None:
            outcome: TransactionOutcome = chain.outcomes([watch])[transaction_id]
            return None if outcome.status is TransactionStatus.WAITING else outcome

        outcome = wait_until(landed, what="the block")
        assert outcome is not None
        settled = race(crowd.app, [partial(settlement.settle, watch, outcome)] * 12)
        assert Counter(settled) == {True: 1, False: 11}
        assert [event["status"] for event in crowd.agent.transaction(transaction_id)["events"]] == [
            "pending",
            "confirmed",
        ]
        reopened = race(crowd.app, [partial(settlement.reopen, transaction_id)] * 12)
        assert Counter(reopened) == {True: 1, False: 11}
        assert crowd.agent.spent_this_month() == 3
    crowd.finish()
    assert _spent(crowd) == 3
