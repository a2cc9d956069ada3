"""Spending controls over the API: responses, windows, and attempts to bypass them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import select

from app.core import identifiers
from app.core.chains import Family
from app.core.money import NANOS_PER_USD
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.spending import accounts as spending_accounts
from app.spending import controls as spending_controls
from app.spending import holds as spending_holds
from app.spending.controls import ControlsChange
from app.spending.models import SpendingControls
from app.spending.policy import SpendingRequest
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import fund
from tests.support.ledger import race

EVM = "0x52908400098527886E0F7030069857D2E4169EE7"
SOLANA = "oeYf6KAJkLYhBuR8CiGc6L4D4Xtfepr85fuDgA9kq96"
NO_APPROVALS = {"approval_threshold_usd": None, "approve_new_recipients": False, "approve_new_domains": False}
LIMITS = ("daily_limit_usd", "weekly_limit_usd", "monthly_limit_usd", "per_tx_limit_usd")
# A Wednesday in the middle of a month; the week ends on Sunday the 17th.
WEDNESDAY = "2026-05-13T10:00:00Z"


@pytest.fixture
def bare(agent: Agent) -> Agent:
    """An agent that uses a wallet without controls."""
    wallet = agent.post("/v1/wallets", {}).get_json()
    return Agent(agent.client, agent.id, agent.key, wallet["id"], wallet["addresses"]["base"], "")


def controls_of(agent: Agent) -> dict[str, Any]:
    body: dict[str, Any] = agent.get(f"{agent.wallet_url}/controls").get_json()
    return body


def put(agent: Agent, **changes: object) -> dict[str, Any]:
    answer = agent.put(f"{agent.wallet_url}/controls", changes)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    body: dict[str, Any] = answer.get_json()
    return body


def hold(agent: Agent, dollars: int) -> str:
    reference = identifiers.new_id()
    with unit_of_work() as session:
        request = SpendingRequest(dollars * NANOS_PER_USD, EVM, Family.EVM)
        spending_holds.hold(session, agent.wallet_id, request, reference=reference)
    return reference


def spend(agent: Agent, dollars: int) -> None:
    """Hold and spend as a movement does, without a chain."""
    reference = hold(agent, dollars)
    with unit_of_work() as session:
        spending_holds.spend(session, reference)


def spent(body: dict[str, Any]) -> tuple[float, ...]:
    return tuple(body[f"usage_{name}"]["spent_usd"] for name in ("today", "week", "month"))


def test_controls_are_read_in_the_contract_s_shape(agent: Agent) -> None:
    with time_machine.travel(WEDNESDAY, tick=False):
        agent = register(agent.client)
        spend(agent, 30)
        body = controls_of(agent)
    assert body == {
        "wallet_id": agent.wallet_id,
        "controls": {
            "daily_limit_usd": 100,
            "weekly_limit_usd": 500,
            "monthly_limit_usd": 1000,
            "per_tx_limit_usd": 50,
            "allowed_addresses": [],
            "allowed_domains": [],
            "locked": False,
            **NO_APPROVALS,
            "updated_at": "2026-05-13T10:00:00.000Z",
        },
        "usage_today": {
            "spent_usd": 30, "remaining_usd": 70, "unlimited": False, "resets_at": "2026-05-14T00:00:00.000Z",
        },
        "usage_week": {
            "spent_usd": 30, "remaining_usd": 470, "unlimited": False, "resets_at": "2026-05-18T00:00:00.000Z",
        },
        "usage_month": {
            "spent_usd": 30, "remaining_usd": 970, "unlimited": False, "resets_at": "2026-06-01T00:00:00.000Z",
        },
    }  # fmt: skip


def test_a_wallet_without_controls_reports_how_to_set_them(bare: Agent) -> None:
    body = controls_of(bare)
    assert set(body) == {"wallet_id", "controls", "message"}
    assert (body["wallet_id"], body["controls"]) == (bare.wallet_id, None)
    assert "PUT" in body["message"]


def test_the_first_put_creates_controls_and_omitted_fields_are_zero_or_empty(bare: Agent) -> None:
    body = put(bare, per_tx_limit_usd=5)
    controls = body["controls"]
    assert (body["wallet_id"], body["updated"]) == (bare.wallet_id, True)
    assert set(body) == {"wallet_id", "controls", "updated"}
    assert controls.pop("updated_at")
    assert controls == {
        "daily_limit_usd": 0, "weekly_limit_usd": 0, "monthly_limit_usd": 0, "per_tx_limit_usd": 5,
        "allowed_addresses": [], "allowed_domains": [], "locked": False, **NO_APPROVALS,
    }  # fmt: skip
    usage = controls_of(bare)["usage_today"]
    assert (usage["unlimited"], usage["remaining_usd"], usage["spent_usd"]) == (True, 0, 0)


def test_a_later_put_changes_only_the_given_fields(agent: Agent) -> None:
    before = put(agent, allowed_addresses=[EVM], allowed_domains=["shop.example"])["controls"]
    for field, value in {
        "daily_limit_usd": 12.34, "weekly_limit_usd": 0, "monthly_limit_usd": 10**9, "per_tx_limit_usd": 0.000000001,
        "allowed_addresses": [SOLANA], "allowed_domains": [],
    }.items():  # fmt: skip
        after = put(agent, **{field: value})["controls"]
        assert after["updated_at"] >= before["updated_at"]
        before = {**before, field: value, "updated_at": after["updated_at"]}
        assert after == before
    assert controls_of(agent)["controls"] == before
    assert agent.get(agent.wallet_url).get_json()["spending_controls"] == before
    with read_only_unit() as session:
        assert len(session.scalars(select(SpendingControls)).all()) == 1


def test_lists_contain_each_entry_once_in_canonical_form(agent: Agent) -> None:
    controls = put(
        agent,
        allowed_addresses=[EVM.lower(), EVM, "0x" + EVM[2:].upper(), SOLANA, SOLANA],
        allowed_domains=["Shop.Example.", "shop.example", "bücher.example", " shop.example "],
    )["controls"]
    assert controls["allowed_addresses"] == [EVM, SOLANA]
    assert controls["allowed_domains"] == ["shop.example", "xn--bcher-kva.example"]


_BAD_DOLLARS = [-1, -0.01, "100", "NaN", "Infinity", None, True, [], {}, 10**9 + 1, 10**400, 0.0000000001]
_BAD_ADDRESSES: list[object] = [
    EVM, None, {}, [None], [1], [""], ["0x123"], ["0x" + "g" * 40], [EVM[:-1] + "e"],
    ["0x5AAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"], [SOLANA + "1"], ["0" * 44], [f" {EVM}"], ["vitalik.eth"],
    [[EVM]], [EVM] * 501,
]  # fmt: skip
_BAD_DOMAINS: list[object] = [
    "shop.example", None, [None], [1], [""], ["https://shop.example"], ["shop.example/x"], ["shop.example:443"],
    ["*"], ["*.shop.example"], ["-shop.example"], ["shop..example"], ["a" * 64 + ".example"], ["shop example"],
    ["a_b.example"], [".".join(["a" * 60] * 5)], ["shop.example\x00"], ["user@shop.example"],
]  # fmt: skip
BAD = [
    *[(limit, value) for limit in LIMITS for value in _BAD_DOLLARS],
    *[("allowed_addresses", value) for value in _BAD_ADDRESSES],
    *[("allowed_domains", value) for value in _BAD_DOMAINS],
]


def test_an_invalid_value_is_reported_and_changes_nothing(agent: Agent) -> None:
    before = controls_of(agent)["controls"]
    for field, value in BAD:
        answer = agent.put(f"{agent.wallet_url}/controls", {field: value, "locked": True})
        body = answer.get_json()
        assert (answer.status_code, body["code"]) == (400, "INVALID_INPUT"), (field, value)
        assert all(name.split(".")[0] == field for name in body["details"]["fields"]), body
        assert controls_of(agent)["controls"] == before


def test_a_valid_value_along_with_an_invalid_one_changes_nothing(agent: Agent) -> None:
    before = controls_of(agent)["controls"]
    changes = {"daily_limit_usd": 1, "weekly_limit_usd": -1, "allowed_domains": ["*"]}
    answer = agent.put(f"{agent.wallet_url}/controls", changes)
    assert set(answer.get_json()["details"]["fields"]) == {"weekly_limit_usd", "allowed_domains.0"}
    assert controls_of(agent)["controls"] == before


RAW = [
    b'{"daily_limit_usd": NaN}', b'{"daily_limit_usd": Infinity}', b'{"daily_limit_usd": 1e999999}',
    b'{"daily_limit_usd": 1e99999999999999999999}', b'{"daily_limit_usd": 1e-99999999999999999999}',
    b'{"daily_limit_usd": ' + b"9" * 5000 + b"}", b"[]", b"null", b"1", b'"x"', b"{", b"\xff\xfe", b"{}", b"",
    b'{"daily_limit": 5}', b'{"locked": true}', b'{"updated_at": "2020-01-01"}',
]  # fmt: skip


def test_a_body_that_sets_nothing_or_cannot_be_read_changes_nothing(agent: Agent) -> None:
    before = controls_of(agent)["controls"]
    for raw in RAW:
        answer = agent.client.put(f"{agent.wallet_url}/controls", data=raw, headers=agent.headers())
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT"), raw
        assert controls_of(agent)["controls"] == before


def test_a_wallet_without_controls_still_has_none_after_a_refused_put(bare: Agent) -> None:
    assert bare.put(f"{bare.wallet_url}/controls", {"daily_limit_usd": -1}).status_code == 400
    assert controls_of(bare)["controls"] is None


def test_windows_end_at_midnight_on_monday_and_with_the_month_in_utc(agent: Agent) -> None:
    with time_machine.travel(WEDNESDAY, tick=False) as clock:
        agent = register(agent.client)
        agent.unlimited()
        seen = {}
        for instant in (
            "2026-05-13T23:59:59.999Z", "2026-05-14T00:00:00Z", "2026-05-17T23:59:59Z", "2026-05-18T00:00:00Z",
            "2026-05-31T23:59:59Z", "2026-06-01T00:00:00Z", "2026-06-07T23:59:59Z",
        ):  # fmt: skip
            clock.move_to(instant)
            spend(agent, 1)
            seen[instant[5:16]] = spent(controls_of(agent))
    assert seen == {
        "05-13T23:59": (1, 1, 1),
        "05-14T00:00": (1, 2, 2),
        "05-17T23:59": (1, 3, 3),
        "05-18T00:00": (1, 1, 4),
        "05-31T23:59": (1, 1, 5),
        "06-01T00:00": (1, 1, 1),
        "06-07T23:59": (1, 2, 2),
    }


def test_reading_rolls_the_windows_over(agent: Agent) -> None:
    with time_machine.travel("2026-12-31T23:59:00Z", tick=False) as clock:
        agent = register(agent.client)
        spend(agent, 40)
        assert spent(controls_of(agent)) == (40, 40, 40)
        clock.move_to("2027-01-01T00:00:00Z")
        body = controls_of(agent)
    # New Year 2027 is a Friday: the week continues.
    assert spent(body) == (0, 40, 0)
    assert body["usage_today"]["remaining_usd"] == 100
    assert body["usage_week"]["resets_at"] == "2027-01-04T00:00:00.000Z"
    assert body["usage_month"]["resets_at"] == "2027-02-01T00:00:00.000Z"


def test_a_release_is_deducted_from_the_window_of_its_hold(agent: Agent) -> None:
    with time_machine.travel("2026-05-13T23:59:00Z", tick=False) as clock:
        agent = register(agent.client)
        reference = hold(agent, 40)
        clock.move_to("2026-05-14T00:01:00Z")
        spend(agent, 10)
        assert spent(controls_of(agent)) == (10, 50, 50)
        with unit_of_work() as session:
            spending_holds.release(session, reference)
        assert spent(controls_of(agent)) == (10, 10, 10)


def test_a_limit_below_the_spent_amount_leaves_zero_and_never_a_negative_remainder(agent: Agent) -> None:
    spend(agent, 45)
    put(agent, daily_limit_usd=20)
    usage = controls_of(agent)["usage_today"]
    assert (usage["spent_usd"], usage["remaining_usd"], usage["unlimited"]) == (45, 0, False)


def test_an_agent_may_tighten_locked_controls_and_not_loosen_them(agent: Agent) -> None:
    put(agent, allowed_addresses=[EVM, SOLANA], allowed_domains=["shop.example"])
    with unit_of_work() as session:
        spending_controls.replace_controls(session, [agent.wallet_id], ControlsChange(locked=True))
    url = f"{agent.wallet_url}/controls"
    locked = controls_of(agent)["controls"]
    assert locked["locked"] is True
    for loosening in (
        *({limit: 0} for limit in LIMITS), {"daily_limit_usd": 100.000000001}, {"per_tx_limit_usd": 51},
        {"allowed_addresses": []}, {"allowed_addresses": [EVM, SOLANA, "0x" + "1" * 40]}, {"allowed_domains": []},
        {"allowed_domains": ["example"]}, {"allowed_domains": ["shop.example", "other.example"]},
        {"daily_limit_usd": 1, "weekly_limit_usd": 501},
    ):  # fmt: skip
        answer = agent.put(url, loosening)
        assert (answer.status_code, answer.get_json()["code"]) == (403, "CONTROLS_LOCKED"), loosening
        assert controls_of(agent)["controls"] == locked
    for tightening in (
        {"daily_limit_usd": 99}, {"weekly_limit_usd": 500}, {"allowed_addresses": [EVM]},
        {"allowed_domains": ["eu.shop.example"]}, {"locked": False, "per_tx_limit_usd": 1},
    ):  # fmt: skip
        controls = put(agent, **tightening)["controls"]
        assert controls["locked"] is True
        assert {name: controls[name] for name in tightening if name != "locked"} == {
            name: value for name, value in tightening.items() if name != "locked"
        }
    assert agent.put(url, {"daily_limit_usd": 100}).status_code == 403


def test_a_lock_on_a_wallet_without_controls_still_lets_it_be_tightened_only(bare: Agent) -> None:
    with unit_of_work() as session:
        spending_controls.replace_controls(session, [bare.wallet_id], ControlsChange(locked=True))
    assert put(bare, daily_limit_usd=10)["controls"]["locked"] is True
    assert bare.put(f"{bare.wallet_url}/controls", {"daily_limit_usd": 0}).status_code == 403


def test_controls_of_a_frozen_agent_can_be_read_and_tightened(agent: Agent) -> None:
    with unit_of_work() as session:
        spending_accounts.set_frozen(session, agent.id, frozen=True)
    assert put(agent, daily_limit_usd=10)["controls"]["daily_limit_usd"] == 10
    assert controls_of(agent)["controls"]["daily_limit_usd"] == 10


def test_concurrent_first_puts_leave_one_row_with_all_changes(bare: Agent, app: Flask) -> None:
    def put_one(limit: str) -> Callable[[], int]:
        def run() -> int:
            url, headers = f"{bare.wallet_url}/controls", {"X-API-Key": bare.key}
            return app.test_client().put(url, json={limit: 7}, headers=headers).status_code

        return run

    assert race(app, [put_one(limit) for limit in LIMITS]) == [200] * len(LIMITS)
    controls = controls_of(bare)["controls"]
    assert [controls[limit] for limit in LIMITS] == [7] * len(LIMITS)


@pytest.mark.chain
def test_a_frozen_agent_moves_and_deletes_nothing_until_it_is_unfrozen(chain_app: Flask, base_node: EvmNode) -> None:
    with chain_app.app_context():
        agent = register(chain_app.test_client())
        fund(base_node, agent.address, eth=1, dollars=5)
        with unit_of_work() as session:
            spending_accounts.set_frozen(session, agent.id, frozen=True)
        for how in ("transfer", "withdraw"):
            answer = agent.move("1", "USDC", how=how)
            assert (answer.status_code, answer.get_json()["code"]) == (403, "WALLET_FROZEN")
        # The freeze takes precedence over every other rule.
        assert agent.move("1000", "USDC", to="0x" + "1" * 40).get_json()["code"] == "WALLET_FROZEN"
        assert agent.delete(agent.wallet_url).get_json()["code"] == "WALLET_FROZEN"
        assert agent.history() == []
        assert agent.spent_this_month() == 0
        with unit_of_work() as session:
            spending_accounts.set_frozen(session, agent.id, frozen=False)
        assert agent.move("1", "USDC").get_json()["status"] == "confirmed"


def test_a_limit_computed_with_floats_is_stored_as_the_intended_limit(agent: Agent) -> None:
    answer = agent.put(f"{agent.wallet_url}/controls", {"daily_limit_usd": 0.1 + 0.2})
    assert answer.get_json()["controls"]["daily_limit_usd"] == 0.3
    refused = agent.put(f"{agent.wallet_url}/controls", {"daily_limit_usd": 1e-10})
    assert refused.status_code == 400
    assert "at most 9 decimals" in refused.get_json()["details"]["fields"]["daily_limit_usd"][0]
