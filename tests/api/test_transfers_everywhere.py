"""Transfers on each chain: paid once, never beyond the funds, and certain about what failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest
from flask import Flask

from app.ports.errors import Unreachable
from tests.support.agents import register
from tests.support.chains import usdc
from tests.support.drivers import Stage, driver_of, stage_on

pytestmark = pytest.mark.chain
DOLLARS = 20


@pytest.fixture(params=["base", "solana"])
def stage(request: pytest.FixtureRequest, build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Stage]:
    with stage_on(build_app, sqlite_url, driver_of(request), dollars=DOLLARS) as made:
        yield made


def test_insufficient_funds_are_refused_before_signing_and_release_the_hold(stage: Stage) -> None:
    answer = stage.send("20.5", "USDC", stage.driver.new_address())
    body = answer.get_json()
    assert (answer.status_code, body["code"]) == (500, "TRANSFER_FAILED")
    assert (body["details"]["reason"], body["details"]["missing"]) == ("insufficient_funds", "0.5")
    row = stage.agent.transaction(body["details"]["transaction_id"])
    assert (row["status"], row["tx_hash"], row["error"]) == ("failed", None, "insufficient_funds")
    assert stage.agent.spent_this_month() == 0


@pytest.mark.parametrize("how", ["transfer", "withdraw"])
def test_missing_gas_is_reported_with_the_amount(stage: Stage, how: str) -> None:
    poor, driver = register(stage.agent.client), stage.driver
    driver.fund(driver.address(poor), native=0, dollars=10)
    answer = poor.move("1", "USDC", how=how, chain=driver.name.value, to=stage.address)
    details = answer.get_json()["details"]
    assert answer.get_json()["code"] == {"transfer": "TRANSFER_FAILED", "withdraw": "WITHDRAWAL_FAILED"}[how]
    assert (answer.status_code, details["reason"]) == (500, "insufficient_gas")
    assert details["currency"] == driver.native.symbol
    assert driver.least_fee <= float(details["missing"]) < 0.001
    [row] = poor.history()
    assert (row["status"], row["tx_hash"]) == ("failed", None)


def test_the_same_idempotency_key_pays_once(stage: Stage) -> None:
    to = stage.driver.new_address()
    first = stage.send("2", "USDC", to, Idempotency_Key="order-7")
    again = stage.send("2", "USDC", to, Idempotency_Key="order-7")
    assert first.get_json() == again.get_json()
    assert again.headers["Idempotent-Replayed"] == "true"
    assert stage.driver.dollars(to) == usdc(2)
    other = stage.send("3", "USDC", to, Idempotency_Key="order-7")
    assert (other.status_code, other.get_json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    assert len(stage.agent.history()) == 1


def test_a_wallet_may_pay_itself_and_it_counts(stage: Stage) -> None:
    for amount, currency in (("1", "USDC"), ("0.001", stage.driver.native.symbol)):
        assert stage.send(amount, currency, stage.address).get_json()["status"] == "confirmed"
    assert stage.agent.spent_this_month() == 1 + float(Decimal("0.001") * stage.driver.native_usd)
    assert stage.driver.dollars(stage.address) == usdc(DOLLARS)


def test_a_lost_response_of_the_node_never_leads_to_a_second_payment(stage: Stage) -> None:
    to = stage.driver.new_address()
    stage.driver.lose_answers()
    answer = stage.send("2", "USDC", to, Idempotency_Key="k")
    assert (answer.status_code, answer.get_json()["status"]) == (200, "confirmed")
    assert stage.send("2", "USDC", to, Idempotency_Key="k").get_json() == answer.get_json()
    assert stage.driver.dollars(to) == usdc(2)


def test_an_unreachable_chain_is_a_certain_failure_and_releases_the_hold(stage: Stage) -> None:
    stage.driver.chain.raising("draft", "before", Unreachable("refused"))
    body = stage.send("2", "USDC", stage.driver.new_address()).get_json()
    assert (body["code"], body["details"]["reason"]) == ("TRANSFER_FAILED", "chain_unreachable")
    assert stage.agent.spent_this_month() == 0
    assert stage.send("2", "USDC", stage.driver.new_address()).status_code == 200


def test_a_chain_that_becomes_unreachable_during_broadcast_leaves_the_transfer_pending_with_its_hold(
    stage: Stage,
) -> None:
    stage.driver.chain.raising("broadcast", "before", Unreachable("refused"))
    body = stage.send("2", "USDC", stage.driver.new_address(), Prefer="respond-async").get_json()
    assert body["status"] == "pending"
    assert stage.driver.is_hash(body["tx_hash"])
    assert stage.agent.spent_this_month() == 2 + stage.driver.rent_usd


def test_funds_of_pending_movements_are_not_spent_twice(stage: Stage) -> None:
    to = stage.driver.new_address()
    stage.driver.miss_broadcast()
    assert stage.send("15", "USDC", to, Prefer="respond-async").get_json()["status"] == "pending"
    body = stage.send("15", "USDC", to, Prefer="respond-async").get_json()
    assert (body["code"], body["details"]["missing"]) == ("TRANSFER_FAILED", "10")
    stage.driver.reset()
    assert stage.send("5", "USDC", to).get_json()["status"] == "confirmed"
