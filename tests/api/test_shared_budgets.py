"""Budgets over several agents, keys and wallets, on credits and on money that leaves wallets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import time_machine
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import delete, update

from app.core import identifiers
from app.core.chains import Family
from app.core.money import NANOS_PER_USD
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import BudgetLimitExceeded, PriceUnavailable
from app.events.models import Event
from app.identity import budget_counters, budgets
from app.identity.models import Budget, BudgetCounter, BudgetMember, BudgetReturn
from app.platform.shared_budgets import service as platform_budgets
from app.spending import holds as payments
from app.spending.policy import ApprovedPayment, SpendingRequest
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import fund
from tests.support.gateway import Stage, gateway_stage
from tests.support.ledger import race
from tests.support.operators import Operator, entries, operator
from tests.support.upstreams import chat_answer

CHAT_USD = 0.00625
PAYEE = "0x52908400098527886E0F7030069857D2E4169EE7"


@pytest.fixture
def stage(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    with gateway_stage(build_app, each_database_url, exa_api_key="") as made:
        made.behave(lambda exchange: exchange.json(chat_answer()))
        yield made


@pytest.fixture
def ops(stage: Stage) -> Operator:
    return operator(stage.app.test_client())


def budget(ops: Operator, **body: Any) -> str:
    made = ops.post("/budgets", {"name": "team", **body})
    assert made.status_code == 201, made.get_json()
    found: str = made.get_json()["id"]
    return found


def used(ops: Operator, budget_id: str) -> float:
    found: float = ops.get(f"/budgets/{budget_id}").get_json()["used_usd"]
    return found


def further_key(agent: Agent, **limits: Any) -> tuple[str, dict[str, str]]:
    made = agent.post("/v1/keys", limits).get_json()
    return made["id"], {"X-API-Key": made["api_key"]}


def retag(stage: Stage, key_id: str, tag: str) -> int:
    client = stage.app.test_client()
    return client.patch(f"/v1/keys/{key_id}", json={"tags": [tag]}, headers=stage.agent.headers()).status_code


def assert_audited() -> None:
    with read_only_unit() as session:
        assert platform_budgets.check(session) == []


def test_calls_of_two_agents_end_where_their_budget_ends(stage: Stage, ops: Operator) -> None:
    other = register(stage.app.test_client())
    budget_id = budget(ops, limit_usd=0.02, window="day", members={"agents": [stage.agent.id, other.id]})
    callers = [stage.agent.headers(), other.headers(), stage.agent.headers(), other.headers()]
    answers = [stage.chat(headers=caller, max_tokens=500) for caller in callers]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 402]
    assert [answer.headers["X-Budget-Remaining-Usd"] for answer in answers[:3]] == ["0.01375", "0.0075", "0.00125"]
    refused = answers[3].get_json()
    assert refused["code"] == "BUDGET_EXCEEDED"
    assert refused["error"].startswith("The shared budget 'team' does not cover this call.")
    assert refused["details"]["credits_usd"] == 0.00125
    assert (refused["details"]["budget_id"], refused["details"]["budget"]) == (budget_id, "team")
    assert used(ops, budget_id) == pytest.approx(3 * CHAT_USD)
    third = register(stage.app.test_client())
    answer = stage.chat(headers=third.headers())
    assert (answer.status_code, "X-Budget-Remaining-Usd" in answer.headers) == (200, False)
    assert_audited()


def test_a_budget_holds_for_calls_that_run_together(stage: Stage, ops: Operator) -> None:
    agents = [stage.agent, *(register(stage.app.test_client()) for _ in range(30))]
    key_id, key = further_key(stage.agent, limit_usd=1)
    inner = budget(ops, limit_usd=0.5, members={"agents": [each.id for each in agents], "keys": [key_id]})
    outer = budget(ops, limit_usd=0.7)
    assert ops.ask("PATCH", f"/budgets/{inner}", {"parent_id": outer}).status_code == 200
    callers = ([*(each.headers() for each in agents), key] * 7)[:200]

    def call(headers: dict[str, str]) -> int:
        status: int = stage.chat(headers=headers, max_tokens=500).status_code
        return status

    with ThreadPoolExecutor(32) as pool:
        statuses = list(pool.map(call, callers))
    assert set(statuses) <= {200, 402}
    assert 80 <= statuses.count(200) < 200
    spent = ops.get("/usage/sums").get_json()["sums"][0]["cost_usd"]
    assert used(ops, inner) == used(ops, outer) == spent <= 0.5
    stage.assert_nothing_held()
    assert_audited()


def test_a_key_with_a_tag_joins_and_leaves_with_it(stage: Stage, ops: Operator) -> None:
    budget_id = budget(ops, limit_usd=1, members={"tags": [{"agent_id": stage.agent.id, "tag": "a"}]})
    key_id, key = further_key(stage.agent, tags=["a", "b"])
    stranger = register(stage.app.test_client())
    _, strange_key = further_key(stranger, tags=["a"])
    for headers in (key, strange_key, stage.agent.headers()):
        assert stage.chat(headers=headers).status_code == 200
    assert used(ops, budget_id) == CHAT_USD
    assert retag(stage, key_id, "b") == 200
    assert stage.chat(headers=key).status_code == 200
    assert used(ops, budget_id) == CHAT_USD
    assert retag(stage, key_id, "a") == 200
    assert stage.chat(headers=key).status_code == 200
    assert used(ops, budget_id) == 2 * CHAT_USD


def test_who_joins_is_counted_from_the_next_call_on_although_the_key_is_remembered(stage: Stage, ops: Operator) -> None:
    assert stage.chat().status_code == 200
    budget_id = budget(ops, limit_usd=0.01, members={"agents": [stage.agent.id]})
    assert [stage.chat(max_tokens=500).status_code for _ in range(3)] == [200, 200, 402]
    assert used(ops, budget_id) == 0.01
    assert ops.ask("PATCH", f"/budgets/{budget_id}", {"members": {}}).status_code == 200
    assert stage.chat().status_code == 200
    assert used(ops, budget_id) == 0.01


def test_a_call_that_is_not_charged_returns_what_it_held(stage: Stage, ops: Operator) -> None:
    budget_id = budget(ops, limit_usd=0.01, members={"agents": [stage.agent.id]})
    stage.behave(lambda exchange: exchange.json({"error": {"message": "overloaded"}}, status=503))
    for _ in range(4):
        assert stage.chat(max_tokens=500).status_code == 503
    assert used(ops, budget_id) == 0
    stage.behave(lambda exchange: exchange.json(chat_answer()))
    assert stage.chat(max_tokens=500).status_code == 200
    assert_audited()


def test_a_window_begins_anew_and_what_was_held_before_does_not_widen_it(stage: Stage, ops: Operator) -> None:
    evening = datetime(2030, 1, 30, 23, 59, 58, tzinfo=UTC)
    with time_machine.travel(evening, tick=False) as clock:
        budget_id = budget(ops, limit_usd=0.01, window="day", members={"agents": [stage.agent.id]})
        assert [stage.chat(max_tokens=500).status_code for _ in range(3)] == [200, 200, 402]
        clock.shift(timedelta(seconds=4))
        assert used(ops, budget_id) == 0
        with unit_of_work() as session:
            budget_counters.give_back(session, [budget_id], 10**9, held_at=evening)
        assert stage.chat(max_tokens=500).status_code == 200
        assert used(ops, budget_id) == CHAT_USD
        body = ops.get(f"/budgets/{budget_id}").get_json()
        assert (body["resets_at"], body["remaining_usd"]) == ("2030-02-01T00:00:00.000Z", 0.00375)


def test_a_cost_beyond_the_hold_is_charged_up_to_the_budget(stage: Stage, ops: Operator) -> None:
    budget_id = budget(ops, limit_usd=0.01, members={"agents": [stage.agent.id]})
    stage.behave(lambda exchange: exchange.json(chat_answer(tokens_out=100_000)))
    answer = stage.chat(max_tokens=500)
    assert answer.status_code == 200
    assert used(ops, budget_id) == 0.01
    assert stage.spent_nanos() == 10_000_000
    assert stage.chat(max_tokens=500).status_code == 402
    assert_audited()


def test_a_lapsed_call_counts_its_estimate_until_its_cost_is_known(stage: Stage, ops: Operator) -> None:
    budget_id = budget(ops, limit_usd=1, members={"agents": [stage.agent.id]})
    call = UsageCall(identifiers.new_id(), "openai", "gpt-5")
    with unit_of_work() as session:
        usage.begin(
            session, stage.agent.id, call, hold_id=(hold := identifiers.new_id()), nanos=10**8,
            estimate=MeteredUsage(10**6), lease=timedelta(seconds=-1),
        )  # fmt: skip
    assert used(ops, budget_id) == 0.1
    assert usage.charge_lapsed() == 1
    assert used(ops, budget_id) == 0.001
    with unit_of_work() as session:
        usage.settle(session, hold, MeteredUsage(5 * 10**6))
    assert used(ops, budget_id) == 0.005
    assert_audited()


def test_levels_are_counted_together_and_a_circle_or_a_fourth_is_refused(stage: Stage, ops: Operator) -> None:
    top = budget(ops, limit_usd=0.01)
    middle = budget(ops, limit_usd=1, parent_id=top)
    low = budget(ops, limit_usd=1, parent_id=middle, members={"agents": [stage.agent.id]})
    assert [stage.chat(max_tokens=500).status_code for _ in range(3)] == [200, 200, 402]
    assert [used(ops, each) for each in (top, middle, low)] == [0.01] * 3
    for body in ({"name": "x", "parent_id": low}, {"name": "x", "parent_id": stage.agent.id}):
        refused = ops.post("/budgets", body)
        assert (refused.status_code, list(refused.get_json()["details"]["fields"])) == (400, ["parent_id"])
    circle = ops.ask("PATCH", f"/budgets/{top}", {"parent_id": low})
    assert (circle.status_code, list(circle.get_json()["details"]["fields"])) == (400, ["parent_id"])
    assert ops.ask("DELETE", f"/budgets/{top}").status_code == 400
    assert ops.ask("DELETE", f"/budgets/{low}").status_code == 200
    assert stage.chat(max_tokens=500).status_code == 200
    assert used(ops, top) == 0.01


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": " "}, "name"), ({"limit_usd": -1}, "limit_usd"), ({"window": "hour"}, "window"),
        ({"members": {"agents": ["x"]}}, "members.agents.0"), ({"velocity": {"minutes": 5}}, "velocity"),
        ({"velocity": {"payments": 1, "minutes": 0}}, "velocity.minutes"),
        ({"members": {"agents": ["5f0f6c1e-3b9c-4f0e-9a55-0d6a6a3c8a10"]}}, "members"),
        ({"members": {"wallets": ["5f0f6c1e-3b9c-4f0e-9a55-0d6a6a3c8a10"]}}, "members"),
    ],
)  # fmt: skip
def test_a_wrong_budget_is_refused_and_nothing_is_made(
    stage: Stage, ops: Operator, body: dict[str, Any], field: str
) -> None:
    del stage
    refused = ops.post("/budgets", {"name": "team", **body})
    assert (refused.status_code, list(refused.get_json()["details"]["fields"])) == (400, [field])
    assert ops.get("/budgets").get_json()["pagination"]["total"] == 0


def test_budgets_are_listed_changed_and_audited(stage: Stage, ops: Operator) -> None:
    body = {"name": "team", "limit_usd": 1, "window": "month", "velocity": {"payments": 3, "minutes": 5}}
    made = ops.post("/budgets", body, Idempotency_Key="one").get_json()
    assert ops.post("/budgets", body, Idempotency_Key="one").get_json() == made
    assert ops.get("/budgets").get_json()["budgets"] == [made]
    assert made["velocity"] == {"payments": 3, "usd": None, "minutes": 5}
    assert (made["used_usd"], made["remaining_usd"], made["members"]) == (0.0, 1.0, {})
    changed = ops.ask("PATCH", f"/budgets/{made['id']}", {"limit_usd": None, "velocity": None}).get_json()
    assert (changed["limit_usd"], changed["remaining_usd"], changed["velocity"]) == (None, None, None)
    assert ops.ask("PATCH", f"/budgets/{made['id']}", {}).status_code == 400
    assert ops.ask("DELETE", f"/budgets/{made['id']}").status_code == 200
    assert ops.get(f"/budgets/{made['id']}").status_code == 404
    acts = [entry.action for entry in entries() if entry.action.startswith("budget.")]
    assert sorted(acts) == ["budget.changed", "budget.created", "budget.deleted"]
    assert {entry.subject_kind for entry in entries() if entry.action in acts} == {"budget"}
    assert stage.agent.get("/v1/platform/budgets").status_code == 401


def test_what_was_read_of_a_budget_stays_what_it_was(stage: Stage, ops: Operator) -> None:
    shared, (own, _) = budget(ops, limit_usd=1, members={"agents": [stage.agent.id]}), further_key(stage.agent)
    with unit_of_work() as session:
        budgets.lock_all(session)
        before = budgets.lock(session, [own, shared])
        budget_counters.add(session, [own, shared], 10**8)
        budgets.change_budget(session, shared, {"limit_nanos": 2 * 10**9})
        after = budgets.read(session, [own, shared])
    read = [[(each.used_nanos, each.limit_nanos, each.remaining_nanos) for each in found] for found in (before, after)]
    assert read[0] == [(0, None, None), (0, 10**9, 10**9)]
    assert read[1] == [(10**8, None, None), (10**8, 2 * 10**9, 19 * 10**8)]


def test_operators_hear_of_each_threshold_once(stage: Stage, ops: Operator) -> None:
    budget_id = budget(ops, limit_usd=0.01, window="day", members={"agents": [stage.agent.id]})
    assert stage.chat(max_tokens=500).status_code == 200
    for _ in range(2):
        with unit_of_work() as session:
            session.execute(delete(Event).where(Event.object_id != budget_id))
            reached = budgets.mark_announced(session, budget_id)
            if reached is not None:
                platform_budgets._announce(session, *reached)
    events = ops.get("/events?types=budget.threshold_reached").get_json()["events"]
    assert [(each["object_id"], each["agent_id"], each["data"]["percent"]) for each in events] == [
        (budget_id, None, 50)
    ]
    assert events[0]["data"]["budget_name"] == "team"


def test_a_row_that_somebody_raised_in_the_database_stops_spending(stage: Stage, ops: Operator) -> None:
    budget_id = budget(ops, limit_usd=0.001, members={"agents": [stage.agent.id]})
    with unit_of_work() as session:
        session.execute(update(Budget).where(Budget.id == budget_id).values(limit_nanos=10**12))
    assert ops.get(f"/budgets/{budget_id}").status_code == 500


def test_an_operator_makes_changes_and_revokes_keys_of_an_agent(stage: Stage, ops: Operator) -> None:
    path = f"/agents/{stage.agent.id}/keys"
    made = ops.post(path, {"limit_usd": 0.01, "tags": ["a"], "name": "ci"}, Idempotency_Key="k").get_json()
    assert ops.post(path, {"limit_usd": 0.01, "tags": ["a"], "name": "ci"}, Idempotency_Key="k").get_json() == made
    headers = {"X-API-Key": made["api_key"]}
    assert [stage.chat(headers=headers, max_tokens=500).status_code for _ in range(3)] == [200, 200, 402]
    assert [each["id"] for each in ops.get(path).get_json()["keys"]] == [made["id"]]
    assert ops.ask("PATCH", f"{path}/{made['id']}", {"limit_usd": 1}).get_json()["limit_usd"] == 1.0
    assert stage.chat(headers=headers, max_tokens=500).status_code == 200
    stranger = register(stage.app.test_client())
    assert ops.ask("PATCH", f"/agents/{stranger.id}/keys/{made['id']}", {"limit_usd": 2}).status_code == 404
    assert ops.ask("DELETE", f"{path}/{made['id']}").status_code == 200
    assert stage.chat(headers=headers, max_tokens=500).status_code == 401
    for nobody in ("nobody", identifiers.new_id()):
        assert ops.post(f"/agents/{nobody}/keys", {}).status_code == 404
        assert ops.ask("DELETE", f"/agents/{nobody}/keys/{made['id']}").status_code == 404
    assert ops.get("/agents/nobody/keys").status_code == 404
    acts = [entry.action for entry in entries() if entry.action.startswith("agent.key")]
    assert sorted(acts) == ["agent.key_added", "agent.key_changed", "agent.key_revoked"]


def test_nothing_is_left_of_a_deleted_budget(stage: Stage, ops: Operator) -> None:
    budget_id = budget(ops, limit_usd=1, members={"agents": [stage.agent.id]})
    assert stage.chat().status_code == 200
    assert ops.ask("DELETE", f"/budgets/{budget_id}").status_code == 200
    with read_only_unit() as session:
        for model in (Budget, BudgetCounter, BudgetMember, BudgetReturn):
            assert session.query(model).count() == 0


@pytest.fixture
def client_of_each(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[FlaskClient]:
    app = build_app(each_database_url)
    with app.app_context():
        yield app.test_client()


def hold_payment(agent: Agent, dollars: int, *, reference: str | None = None, **more: Any) -> str:
    reference = reference or identifiers.new_id()
    with unit_of_work() as session:
        request = SpendingRequest(dollars * NANOS_PER_USD, PAYEE, Family.EVM, **more)
        payments.hold(session, agent.wallet_id, request, reference=reference)
    return reference


def test_payments_of_wallets_and_calls_share_one_budget(client_of_each: FlaskClient) -> None:
    ops, one, other = operator(client_of_each), register(client_of_each), register(client_of_each)
    budget_id = budget(ops, limit_usd=20, members={"agents": [one.id], "wallets": [other.wallet_id]})
    released, repeated = hold_payment(one, 5), hold_payment(other, 6)
    hold_payment(other, 6, reference=repeated)
    with unit_of_work() as session:
        call = UsageCall(identifiers.new_id(), "openai", "gpt-5")
        usage.charge(session, one.id, call, charge_id=identifiers.new_id(), metered=MeteredUsage(4 * NANOS_PER_USD))
    assert used(ops, budget_id) == 15
    with pytest.raises(BudgetLimitExceeded) as refused:
        hold_payment(other, 6)
    assert refused.value.details == {
        "rule": "budget", "budget_id": budget_id, "budget": "team", "requested_usd": 6, "limit_usd": 20,
        "spent_usd": 15, "remaining_usd": 5, "resets_at": None,
    }  # fmt: skip
    # Buying credits is not counted, because the calls that they pay for are.
    hold_payment(one, 20, buys_credits=True)
    with unit_of_work() as session:
        payments.release(session, released)
    assert used(ops, budget_id) == 10
    hold_payment(other, 10)
    with unit_of_work() as session:
        payments.restore_hold(session, released)
        payments.record_without_limits(session, one.wallet_id, reference="found", value_nanos=NANOS_PER_USD)
        payments.record_without_limits(session, one.wallet_id, reference="found", value_nanos=3 * NANOS_PER_USD)
    assert used(ops, budget_id) == 28
    assert_audited()


def test_a_dry_run_and_an_unknown_price_meet_the_budget(client_of_each: FlaskClient) -> None:
    ops, agent = operator(client_of_each), register(client_of_each)
    budget(ops, limit_usd=20, members={"agents": [agent.id]})
    for nanos, error in ((21 * NANOS_PER_USD, BudgetLimitExceeded), (None, PriceUnavailable)):
        with unit_of_work() as session, pytest.raises(error):
            payments.check(session, agent.wallet_id, SpendingRequest(nanos, PAYEE, Family.EVM))


def test_a_budget_without_a_limit_counts_up_to_what_can_be_counted(client_of_each: FlaskClient) -> None:
    ops, agents = operator(client_of_each), [register(client_of_each) for _ in range(2)]
    budget_id = budget(ops, members={"agents": [each.id for each in agents]})
    for agent in agents:
        agent.unlimited()
    with unit_of_work() as session:
        payments.hold(session, agents[0].wallet_id, SpendingRequest(None, PAYEE, Family.EVM), reference="unpriced")
    hold_payment(agents[0], 8_000_000_000)
    with pytest.raises(BudgetLimitExceeded):
        hold_payment(agents[1], 2_000_000_000)
    assert used(ops, budget_id) == 8_000_000_000


def test_an_approved_payment_is_counted_once(client_of_each: FlaskClient) -> None:
    ops, agent = operator(client_of_each), register(client_of_each)
    budget_id = budget(ops, limit_usd=20, members={"wallets": [agent.wallet_id]})
    asked = SpendingRequest(15 * NANOS_PER_USD, PAYEE, Family.EVM)
    with unit_of_work() as session:
        payments.hold(session, agent.wallet_id, asked, reference="asked", is_owner_asked=True)
    approved = replace(asked, approved=ApprovedPayment("asked", 15 * NANOS_PER_USD, PAYEE, None))
    with unit_of_work() as session:
        payments.check(session, agent.wallet_id, approved)
        payments.hold(session, agent.wallet_id, approved, reference="paid")
    assert used(ops, budget_id) == 15
    assert_audited()


def test_payments_that_run_together_end_where_the_budget_ends(client_of_each: FlaskClient) -> None:
    ops = operator(client_of_each)
    agents = [register(client_of_each) for _ in range(8)]
    budget_id = budget(ops, limit_usd=20, members={"agents": [each.id for each in agents]})
    made = race(client_of_each.application, [partial(hold_payment, agents[number % 8], 3) for number in range(16)])
    refused = [each for each in made if isinstance(each, BudgetLimitExceeded)]
    assert (len(made) - len(refused), used(ops, budget_id)) == (6, 18)
    assert_audited()


def test_a_velocity_rule_counts_payments_and_dollars_of_the_last_minutes(client_of_each: FlaskClient) -> None:
    ops, one, other = operator(client_of_each), register(client_of_each), register(client_of_each)
    members = {"agents": [one.id, other.id]}
    budget(ops, members=members, velocity={"payments": 3, "usd": 30, "minutes": 10})
    start = datetime(2030, 1, 30, 12, tzinfo=UTC)
    with time_machine.travel(start, tick=False) as clock:
        failed = hold_payment(one, 1)
        hold_payment(other, 1)
        hold_payment(one, 1)
        with pytest.raises(BudgetLimitExceeded) as refused:
            hold_payment(other, 1)
        assert (refused.value.details["payments"], refused.value.details["minutes"]) == (3, 10)
        with unit_of_work() as session:
            payments.release(session, failed)
        with pytest.raises(BudgetLimitExceeded):
            hold_payment(other, 29)
        hold_payment(other, 28)
        clock.shift(timedelta(minutes=10, seconds=1))
        hold_payment(other, 30)
        with pytest.raises(BudgetLimitExceeded):
            hold_payment(one, 1)


def test_a_transfer_is_refused_with_what_is_left(chain_app: Flask, base_node: EvmNode) -> None:
    with chain_app.app_context():
        client = chain_app.test_client()
        ops, agent = operator(client), register(client)
        fund(base_node, agent.address, eth=1, dollars=50)
        budget_id = budget(ops, limit_usd=10, members={"agents": [agent.id]})
        assert agent.move("6", "USDC").status_code == 200
        refused = agent.move("6", "USDC")
        assert (refused.status_code, refused.get_json()["code"]) == (403, "BUDGET_LIMIT_EXCEEDED")
        assert refused.get_json()["details"]["remaining_usd"] == 4
        assert used(ops, budget_id) == 6
