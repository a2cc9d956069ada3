"""Payments that wait for the owner: asked for, held, decided on, and executed once, on real nodes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask.testing import FlaskClient
from sqlalchemy import func, select, update
from werkzeug.test import TestResponse

from app.approvals import service
from app.approvals.models import Approval
from app.approvals.service import OwnerMethod
from app.core import clock
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events import feed
from app.ports.errors import Unreachable
from app.spending import accounts as spending_accounts
from app.state import Application
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.applications import change_ports
from tests.support.chains import RECIPIENT, fund
from tests.support.drivers import fresh_address
from tests.support.faults import FaultyChain
from tests.support.operators import operator
from workers import approvals as worker
from workers import sweeps

pytestmark = pytest.mark.chain
THRESHOLD = 10
BY_KEY = OwnerMethod.OWNER_KEY


@pytest.fixture
def agent(funded_agent: Agent) -> Agent:
    """An agent whose owner approves payments above ten dollars."""
    funded_agent.controls(approval_threshold_usd=THRESHOLD)
    return funded_agent


def ask(agent: Agent, amount: str = "12.5", **options: Any) -> dict[str, Any]:
    """Request a payment above the threshold and return its approval."""
    answer = agent.move(amount, "USDC", **options)
    body: dict[str, Any] = answer.get_json()
    assert (answer.status_code, body["status"]) == (202, "awaiting_approval"), body
    approval: dict[str, Any] = body["approval"]
    return approval


def read(agent: Agent, approval: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = agent.client.get(f"/v1/approvals/{approval['id']}", headers=agent.headers()).get_json()
    return found


def decide(approval: dict[str, Any], *, is_approved: bool = True, **options: Any) -> bool:
    waiting = service.get(approval["id"])
    with unit_of_work() as session:
        return service.decide(session, waiting, is_approved=is_approved, method=BY_KEY, **options)


def cancel(agent: Agent, approval: dict[str, Any]) -> TestResponse:
    return agent.client.post(f"/v1/approvals/{approval['id']}/cancel", headers=agent.headers())


def test_a_payment_above_the_threshold_waits_and_is_paid_once_after_approval(agent: Agent) -> None:
    approval = ask(agent)
    assert agent.spent_this_month() == 12.5
    assert agent.history() == []
    assert approval["reason"] == "approval_threshold_usd"
    worker.execute()
    assert agent.history() == []

    assert decide(approval)
    assert agent.spent_this_month() == 12.5
    worker.execute()
    found = read(agent, approval)
    assert found["status"] == "executed", found
    [row] = agent.history()
    assert (row["id"], row["amount"], row["status"]) == (found["transaction_id"], "12.5", "pending")
    assert agent.spent_this_month() == 12.5

    worker.execute()
    assert not decide(approval)
    assert len(agent.history()) == 1


def test_an_approval_and_what_it_paid_are_found_by_the_request_that_asked_for_it(agent: Agent) -> None:
    answer = agent.move("12.5", "USDC")
    approval = answer.get_json()["approval"]
    ask(agent, "11")
    assert decide(approval)
    worker.execute()
    found = operator(agent.client).get(f"/requests/{answer.headers['X-Request-Id']}").get_json()
    assert [each["id"] for each in found["approvals"]] == [approval["id"]]
    assert [each["id"] for each in found["transactions"]] == [read(agent, approval)["transaction_id"]]
    assert {each["object_id"] for each in found["events"]} >= {approval["id"], found["transactions"][0]["id"]}


def test_an_owner_approves_the_amount_that_max_was_when_it_was_asked_for(agent: Agent, base_node: EvmNode) -> None:
    agent.unlimited()
    approval = ask(agent, "max")
    assert (read(agent, approval)["value_usd"], agent.spent_this_month()) == (100, 100)
    fund(base_node, agent.address, eth=0, dollars=50)
    assert decide(approval)
    worker.execute()
    assert [row["amount"] for row in agent.history()] == ["100"]


def test_every_kind_of_movement_asks_holds_and_is_executed_by_its_own_route(agent: Agent) -> None:
    agent.controls(approval_threshold_usd=0.000001)
    for how in ("transfer", "withdraw"):
        approval = ask(agent, "1", how=how)
        decide(approval)
        worker.execute()
        found = read(agent, approval)
        assert found["status"] == "executed", found
        assert agent.transaction(found["transaction_id"])["type"] == found["kind"]
    body = {"wallet_id": agent.wallet_id, "amount": "2", "chain": "base"}
    asked = agent.post("/v1/credits/topup", body)
    assert asked.status_code == 202, asked.get_json()
    decide(asked.get_json()["approval"])
    worker.execute()
    found = read(agent, asked.get_json()["approval"])
    assert (found["kind"], found["status"]) == ("topup", "executed"), found
    assert agent.transaction(found["transaction_id"])["kind"] == "topup"


def test_a_repeated_request_returns_the_same_approval_and_holds_once(agent: Agent) -> None:
    first = ask(agent, Idempotency_Key="order-1")
    again = agent.move("12.5", "USDC", Idempotency_Key="order-1")
    assert (again.status_code, again.get_json()["approval"]["id"]) == (202, first["id"])
    assert again.headers["Idempotent-Replayed"] == "true"
    assert agent.spent_this_month() == 12.5


def test_what_a_limit_refuses_is_not_asked_for_and_what_waits_fills_the_limit(agent: Agent) -> None:
    agent.controls(daily_limit_usd=30)
    assert agent.move("31", "USDC").get_json()["code"] == "DAILY_LIMIT_EXCEEDED"
    ask(agent, "20")
    assert agent.move("11", "USDC").get_json()["code"] == "DAILY_LIMIT_EXCEEDED"
    assert agent.move("5", "USDC").status_code == 200


def test_a_cancelled_or_refused_request_releases_its_hold_and_is_never_paid(agent: Agent) -> None:
    cancelled, refused = ask(agent), ask(agent)
    assert cancel(agent, cancelled).get_json()["status"] == "cancelled"
    assert decide(refused, is_approved=False, answer="Too dear.")
    assert agent.spent_this_month() == 0
    assert not decide(cancelled)
    assert read(agent, refused)["answer"] == "Too dear."
    assert cancel(agent, refused).get_json()["status"] == "rejected"
    worker.execute()
    assert agent.history() == []


def test_an_expired_request_is_not_paid_even_if_the_owner_decides_before_the_sweep(agent: Agent) -> None:
    early, late = ask(agent), ask(agent)
    with time_machine.travel(clock.now() + timedelta(hours=25), tick=True):
        assert not decide(late)
        sweeps.sweep()
        worker.execute()
        assert [read(agent, each)["status"] for each in (early, late)] == ["expired", "expired"]
    assert agent.spent_this_month() == 0
    assert agent.history() == []


def test_a_client_waits_for_the_decision_and_never_longer_than_it_prefers(agent: Agent) -> None:
    approval = ask(agent)
    path = f"/v1/approvals/{approval['id']}"
    waited = agent.client.get(path, headers=agent.headers(Prefer="wait=1")).get_json()
    assert waited["status"] == "awaiting"
    decide(approval, is_approved=False)
    assert agent.client.get(path, headers=agent.headers(Prefer="wait=25")).get_json()["status"] == "rejected"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"per_tx_limit_usd": 12}, "PER_TX_LIMIT_EXCEEDED"),
        ({"daily_limit_usd": 12}, "DAILY_LIMIT_EXCEEDED"),
        ({"allowed_addresses": ["0x" + "11" * 20]}, "ADDRESS_NOT_ALLOWED"),
        ({}, "WALLET_FROZEN"),
    ],
)
def test_what_changed_since_the_request_is_checked_again_at_its_execution(
    agent: Agent, change: dict[str, Any], code: str
) -> None:
    approval = ask(agent)
    decide(approval)
    if change:
        agent.controls(**change)
    else:
        with unit_of_work() as session:
            spending_accounts.set_frozen(session, agent.id, frozen=True)
    worker.execute()
    found = read(agent, approval)
    assert (found["status"], found["error"]["code"]) == ("failed", code)
    assert agent.history() == []
    assert agent.spent_this_month() == 0


def test_its_own_hold_does_not_count_against_an_approved_payment(agent: Agent) -> None:
    agent.controls(daily_limit_usd=20)
    approval = ask(agent, "20")
    decide(approval)
    worker.execute()
    assert read(agent, approval)["status"] == "executed"
    assert agent.spent_this_month() == 20


def test_a_payment_that_fails_before_signing_leaves_nothing_held(agent: Agent) -> None:
    agent.controls(per_tx_limit_usd=500, daily_limit_usd=500)
    first, second = ask(agent, "60"), ask(agent, "60.5")
    for approval in (first, second):
        assert decide(approval)
        worker.execute()
    found = read(agent, second)
    assert (found["status"], found["error"]["code"]) == ("executed", "TRANSFER_FAILED")
    assert [row["status"] for row in agent.history()].count("failed") == 1
    assert agent.spent_this_month() == 60


@pytest.mark.parametrize("how", ["transfer", "withdraw"])
def test_an_owner_is_not_asked_for_what_the_wallet_cannot_pay(agent: Agent, how: str) -> None:
    agent.controls(per_tx_limit_usd=500, daily_limit_usd=500)
    answer = agent.move("200", "USDC", how=how)
    body = answer.get_json()
    assert (answer.status_code, body["details"]["reason"]) == (500, "insufficient_funds"), body
    assert body["details"]["missing"] == "100"
    topup = agent.post("/v1/credits/topup", {"wallet_id": agent.wallet_id, "amount": "200", "chain": "base"})
    swap = {"chain": "base", "amount": "200", "input_token": "USDC", "output_token": "ETH"}
    assert topup.get_json()["details"]["reason"] == "insufficient_funds"
    agent.controls(approval_threshold_usd=0.000001)
    swapped = agent.post(f"{agent.wallet_url}/swap", swap).get_json()
    assert swapped["details"]["reason"] == "insufficient_funds", swapped
    assert agent.client.get("/v1/approvals", headers=agent.headers()).get_json()["pagination"]["total"] == 0
    assert agent.spent_this_month() == 0


def test_an_owner_is_asked_while_the_chain_cannot_be_read(agent: Agent, chain_app: Application) -> None:
    agent.controls(per_tx_limit_usd=500, daily_limit_usd=500)
    faulty = FaultyChain(chain_app.state.ports.chains[ChainName.BASE])
    faulty.raising("draft", "before", Unreachable("down"), times=9)
    before = chain_app.state
    change_ports(chain_app, chains={**chain_app.state.ports.chains, ChainName.BASE: faulty})
    try:
        ask(agent, "99")
    finally:
        chain_app.state = before


def test_waiting_requests_store_what_the_owner_was_shown_and_a_bounded_number_of_bytes(agent: Agent) -> None:
    for number in range(4):
        order = {"chain": "base", "to": RECIPIENT, "amount": f"{11 + number}", "currency": "USDC", "zz": "a" * 900_000}
        assert agent.post(f"{agent.wallet_url}/transfer", order).status_code == 202
    with read_only_unit() as session:
        sizes = session.scalars(select(func.length(Approval.sealed))).all()
    assert len(sizes) == 4
    assert sum(sizes) < 10_000
    with unit_of_work() as session:
        session.execute(update(Approval).values(sealed="x" * (service.MAX_SEALED_BYTES // 4)))
    refused = agent.move("15.5", "USDC")
    assert (refused.status_code, refused.get_json()["code"]) == (409, "LIMIT_REACHED")
    assert refused.get_json()["details"]["limit_bytes"] == service.MAX_SEALED_BYTES


def test_the_first_payment_to_each_recipient_waits_even_of_dust(agent: Agent) -> None:
    agent.controls(approval_threshold_usd=None, approve_new_recipients=True)
    approval = ask(agent, "1")
    assert approval["reason"] == "approve_new_recipients"
    decide(approval)
    worker.execute()
    # In any case of its letters, the same address; another one is new.
    assert agent.move("1", "USDC", to=RECIPIENT.lower()).status_code == 200
    other = fresh_address()
    assert agent.move("0.000000000000000001", "ETH", to=other).status_code == 202
    assert agent.move("1", "USDC", to=other).status_code == 202


def test_an_agent_with_locked_controls_cannot_turn_approvals_off_or_make_a_recipient_known(
    agent: Agent, lock: Callable[[Agent], None]
) -> None:
    agent.controls(approve_new_recipients=True)
    lock(agent)
    for loosening in (
        {"approval_threshold_usd": None},
        {"approval_threshold_usd": 0},
        {"approval_threshold_usd": 11},
        {"approve_new_recipients": False},
        {"allowed_addresses": [RECIPIENT]},
    ):
        refused = agent.put(f"{agent.wallet_url}/controls", loosening)
        assert refused.get_json().get("code") == "CONTROLS_LOCKED", loosening
    agent.controls(approval_threshold_usd=5, approve_new_domains=True)


def test_approvals_of_other_agents_are_not_found(agent: Agent, chain_client: FlaskClient) -> None:
    approval = ask(agent)
    other = register(chain_client)
    assert other.get(f"/v1/approvals/{approval['id']}").status_code == 404
    assert cancel(other, approval).status_code == 404
    assert other.get("/v1/approvals").get_json()["approvals"] == []
    assert [each["id"] for each in agent.get("/v1/approvals").get_json()["approvals"]] == [approval["id"]]


def test_a_dry_run_names_the_approval_and_asks_no_owner(agent: Agent) -> None:
    body = {"amount": "12.5", "currency": "USDC", "chain": "base", "to": RECIPIENT, "dry_run": True}
    answer = agent.post(f"{agent.wallet_url}/transfer", body)
    assert (answer.status_code, answer.get_json()["code"]) == (403, "APPROVAL_REQUIRED")
    assert agent.get("/v1/approvals").get_json()["approvals"] == []


def test_an_altered_request_in_the_database_is_not_executed(agent: Agent) -> None:
    first, second = ask(agent), ask(agent, "13")
    for each in (first, second):
        decide(each)
    with unit_of_work() as session:
        session.execute(update(Approval).where(Approval.id == first["id"]).values(request_hash=second["request_hash"]))
    worker.execute()
    assert "was changed outside" in read(agent, first)["error"]
    assert read(agent, second)["status"] == "executed"
    assert [row["amount"] for row in agent.history()] == ["13"]


def test_open_requests_of_a_wallet_are_limited(agent: Agent) -> None:
    agent.unlimited()
    for _ in range(service.MAX_OPEN_APPROVALS):
        ask(agent, "11")
    assert agent.move("11", "USDC").get_json()["code"] == "LIMIT_REACHED"


def test_each_step_is_an_event_without_the_agents_own_words(agent: Agent) -> None:
    body = {"amount": "12.5", "currency": "USDC", "chain": "base", "to": RECIPIENT, "approval_note": "secret plan"}
    approval = agent.post(f"{agent.wallet_url}/transfer", body).get_json()["approval"]
    refused = ask(agent)
    decide(approval)
    worker.execute()
    decide(refused, is_approved=False, answer="No.")
    feed.number_new()
    answer = agent.get("/v1/events", types="approval.*")
    events = answer.get_json()["events"]
    assert [(each["type"], each["data"]["approval_id"] == approval["id"]) for each in events] == [
        ("approval.requested", True),
        ("approval.requested", False),
        ("approval.approved", True),
        ("approval.executed", True),
        ("approval.rejected", False),
    ]
    assert "secret plan" not in answer.text
    assert events[0]["data"]["url"] == approval["url"]


def test_without_a_notice_to_the_owner_the_agent_reads_notified_false(agent: Agent) -> None:
    found = read(agent, ask(agent))
    assert (found["notified"], found["notices"]) == (False, [])


@pytest.fixture
def lock(chain_client: FlaskClient) -> Callable[[Agent], None]:
    """Return the function by which an operator locks an agent's controls."""

    def lock(agent: Agent) -> None:
        locked = operator(chain_client).put(f"/agents/{agent.id}/controls", {"locked": True})
        assert locked.status_code == 200, locked.get_json()

    return lock
