"""What the console shows of money: the treasury, wallets' limits and usage, shared budgets, and services' health."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask

from app.catalog import statistics
from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.identity.principal import MasterKeyRole
from app.payments import settlement_capacity, settlement_risks
from app.payments.models import SettlementRisk
from app.ports.facilitator import SettlementCapacity
from tests.api.test_console import ADMIN, OPERATOR, VIEWER, signed_in, text_of
from tests.support.agents import Agent, register
from tests.support.market import offer
from tests.support.owner_world import World

GWEI = 10**9
RESERVE = SettlementCapacity(native_units=70 * GWEI, fee_units=GWEI, max_fee_units=GWEI, recipient_can_receive=True)


@pytest.fixture
def world(build_app: Callable[..., Flask], sqlite_url: str) -> World:
    return World(build_app(sqlite_url, settings={"x402_failed_gas_usd_per_day": "2"}), "http://purser.test", {})


def _lose(chain: str, nanos: int, *, risky: bool, failed: bool) -> None:
    with unit_of_work() as session:
        session.add(SettlementRisk(
            payment_id=new_id(), chain=chain, payer="0x1", claim=new_id(), risky=risky, failed=failed, cost_nanos=nanos,
            created_at=clock.now(),
        ))  # fmt: skip


def test_the_treasury_and_what_is_left_for_failed_payments_are_shown(world: World) -> None:
    browser, ops = signed_in(world.app, VIEWER)
    assert ops.get("/treasury").get_json() == {"owed_usd": 0, "failed_gas_budget_usd": 2, "chains": []}
    assert "No worker has read the chains yet" in text_of(browser.get("/treasury"))
    with world.app.app_context():
        settlement_capacity.store_gas_reserve(ChainName.BASE, RESERVE, 12_345_678)
        settlement_capacity.store_gas_reserve(ChainName.ETHEREUM, RESERVE)
        # On Base a risky one failed, one is open, and one that was not risky failed; on Ethereum the budget is gone.
        _lose("base", 500_000_000, risky=True, failed=True)
        _lose("base", 250_000_000, risky=True, failed=False)
        _lose("base", 125_000_000, risky=False, failed=True)
        _lose("ethereum", 3_000_000_000, risky=True, failed=True)
        found = ops.get("/treasury").get_json()["chains"]
        assert [(each["chain"], each["failed_gas_usd"], each["failed_gas_left_usd"]) for each in found] == [
            ("base", 0.625, 1.25), ("ethereum", 3, 0),
        ]  # fmt: skip
        assert [(each["treasury_usdc"], each["submissions_left"]) for each in found] == [("12.345678", 70), (None, 70)]
        assert settlement_risks.budget_nanos() == 2_000_000_000
        page = text_of(browser.get("/treasury"))
    assert all(each in page for each in ("12.345678", "0.62 USD", "1.25 USD", "2.00 USD", found[0]["recipient"]))


def test_limits_and_usage_of_wallets_and_the_masked_key_are_on_the_page_of_an_agent(world: World) -> None:
    made = world.register(name="Ada")
    wallet = made["wallet"]["id"]
    limits = {"daily_limit_usd": 40, "weekly_limit_usd": 0}
    assert world.call(made, "PUT", f"/v1/wallets/{wallet}/controls", limits)[0] == 200
    world.add_transaction(made)
    browser, ops = signed_in(world.app, ADMIN)
    [shown] = ops.get(f"/agents/{made['agentId']}").get_json()["wallets"]
    today = shown["usage_today"]
    assert (today["spent_usd"], today["remaining_usd"], shown["usage_week"]["unlimited"]) == (12.5, 27.5, True)
    page = text_of(browser.get(f"/agents/{made['agentId']}"))
    masked = f"{made['apiKey'][:7]}…{made['apiKey'][-4:]}"
    assert all(each in page for each in ("40.00 USD", "12.50 USD", "none", masked))
    assert made["apiKey"] not in page


def test_an_agents_events_and_budgets_are_its_own_and_the_newest_first(app: Flask) -> None:
    ada, bob = register(app.test_client(), name="Ada"), register(app.test_client(), name="Bob")
    browser, ops = signed_in(app)
    for name, members in (("of the agent", {"agents": [ada.id]}), ("of its wallet", {"wallets": [ada.wallet_id]}),
                          ("of another", {"agents": [bob.id]})):  # fmt: skip
        assert ops.post("/budgets", {"name": name, "limit_usd": 5, "members": members}).status_code == 201
    key = ops.post(f"/agents/{ada.id}/keys", {"limit_usd": 3, "tags": ["night"]}).get_json()
    by_key = {"keys": [key["id"]]}
    assert ops.post("/budgets", {"name": "of its key", "limit_usd": 5, "members": by_key}).status_code == 201
    found = ops.get(f"/budgets?agent_id={ada.id}").get_json()
    assert {each["name"] for each in found["budgets"]} == {"of the agent", "of its wallet", "of its key"}
    assert found["pagination"]["total"] == 3
    assert ops.get("/budgets").get_json()["pagination"]["total"] == 4
    assert ops.get(f"/budgets?agent_id={new_id()}").get_json()["budgets"] == []
    assert "of another" not in text_of(browser.get(f"/budgets?agent_id={ada.id}"))
    for act in ("freeze", "unfreeze"):
        ops.post(f"/agents/{ada.id}/{act}", {})
    ops.post(f"/agents/{bob.id}/freeze", {})
    ops.get("/events")  # numbers them, as a worker does
    events = ops.get(f"/agents/{ada.id}/events?limit=1").get_json()
    assert [each["type"] for each in events["events"]] == ["wallet.unfrozen"]
    assert events["pagination"] == {"total": 2, "limit": 1, "offset": 0, "has_more": True}
    assert "1 to 2 of 2" in text_of(browser.get(f"/events?agent_id={ada.id}"))
    assert ops.get(f"/agents/{new_id()}/events").get_json()["events"] == []


def test_agents_are_listed_with_what_they_spent_and_whether_they_were_claimed(app: Flask) -> None:
    agent = register(app.test_client(), name="Ada")
    browser, ops = signed_in(app, VIEWER)
    assert [each["total_spent"] for each in ops.get("/agents").get_json()["agents"]] == [0]
    assert "Spent" in text_of(browser.get("/agents?claimed=false"))
    assert [each["id"] for each in ops.get("/agents?claimed=false").get_json()["agents"]] == [agent.id]
    assert ops.get("/agents?claimed=true").get_json()["agents"] == []
    assert ops.get("/agents?claimed=perhaps").status_code == 400


def test_the_health_of_each_service_is_its_own(app: Flask) -> None:
    agent = register(app.test_client())
    good, bad, idle = (agent.post("/v1/services", {**offer(), "name": each}).get_json()["id"] for each in "abc")
    with app.app_context(), unit_of_work() as session:
        for _ in range(3):
            statistics.record_failed_call(session, bad)
        statistics.record_answered_call(session, good, wallet_id=None, charged_nanos=0, microseconds=1000)
    browser, ops = signed_in(app, VIEWER)
    found = {each["id"]: each["last_24h"] for each in ops.get("/services").get_json()["services"]}
    assert {each: found[each]["success_rate"] for each in (good, bad, idle)} == {good: 1, bad: 0, idle: None}
    assert "Share that succeeded" in text_of(browser.get("/services"))


@pytest.mark.parametrize(("role", "names"), [(VIEWER, set()), (OPERATOR, {"Freeze", "Revoke the claim code"})])
def test_a_page_has_the_buttons_of_its_role_only(app: Flask, role: MasterKeyRole, names: set[str]) -> None:
    agent: Agent = register(app.test_client())
    browser, _ = signed_in(app, role)
    page = text_of(browser.get(f"/agents/{agent.id}"))
    buttons = {line.partition(">")[2].partition("<")[0] for line in page.split("<button ")[1:]}
    assert buttons - {"Sign out"} == names
    assert ("<h2>Actions</h2>" in page) is bool(names)
    assert "Create a master key" not in text_of(browser.get("/master-keys"))
