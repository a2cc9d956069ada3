"""Payments that wait for the owner: asked for, held, decided on, and executed once, on real nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app.approvals import service
from app.approvals.service import OwnerMethod, OwnerProof
from app.db.unit_of_work import unit_of_work
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import fund
from workers import approvals as worker

pytestmark = pytest.mark.chain
THRESHOLD = 10
BY_KEY = OwnerProof(OwnerMethod.OWNER_KEY)


@pytest.fixture
def chain_client(chain_app: Flask) -> Iterator[FlaskClient]:
    with chain_app.app_context():
        yield chain_app.test_client()


@pytest.fixture
def agent(chain_client: FlaskClient, base_node: EvmNode) -> Agent:
    """An agent with 1 ETH and 100 USDC on Base, whose owner approves above ten dollars."""
    made = register(chain_client)
    fund(base_node, made.address, eth=1, dollars=100)
    made.controls(approval_threshold_usd=THRESHOLD)
    return made


def ask(agent: Agent, amount: str = "12.5", **options: Any) -> dict[str, Any]:
    """Request a payment above the threshold and return its approval."""
    answer = agent.move(amount, "USDC", **options)
    body: dict[str, Any] = answer.get_json()
    assert (answer.status_code, body["status"]) == (202, "awaiting_approval"), body
    approval: dict[str, Any] = body["approval"]
    return approval


def read(agent: Agent, approval: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = agent.client.get(
        f"/v1/approvals/{approval['id']}", headers=agent.headers()
    ).get_json()
    return found


def decide(approval: dict[str, Any], *, is_approved: bool = True, **options: Any) -> bool:
    waiting = service.get(approval["id"])
    with unit_of_work() as session:
        return service.decide(session, waiting, is_approved=is_approved, proof=BY_KEY, **options)


def cancel(agent: Agent, approval: dict[str, Any]) -> TestResponse:
    return agent.client.post(f"/v1/approvals/{approval['id']}/cancel", headers=agent.headers())


def test_a_payment_above_the_threshold_waits_and_is_paid_once_after_approval(agent: Agent) -> None:
    approval = ask(agent)
    assert agent.spent_today() == 12.5
    assert agent.history() == []
    assert approval["reason"] == "approval_threshold_usd"
    worker.execute()
    assert agent.history() == []

    assert decide(approval)
    assert agent.spent_today() == 12.5
    worker.execute()
    found = read(agent, approval)
    assert found["status"] == "executed", found
    [row] = agent.history()
    assert (row["id"], row["amount"], row["status"]) == (found["transaction_id"], "12.5", "pending")
    assert agent.spent_today() == 12.5

    worker.execute()
    assert not decide(approval)
    assert len(agent.history()) == 1
