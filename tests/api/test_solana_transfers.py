"""Transfers and withdrawals of SOL and USDC on a real Solana node: responses, records, limits and balances."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from solana_node import SolanaNode
from solana_node.addresses import USDC_MINT
from tests.support.agents import Agent
from tests.support.drivers import SolanaDriver, Stage, stage_on
from tests.support.solana import LAMPORTS, solana_address
from tests.support.solana_people import chain_at

pytestmark = pytest.mark.chain

RENT = 890_880
TOKEN_ACCOUNT_RENT = 2_039_280
SOME_SOL, SOME_DOLLARS = LAMPORTS, 20_000_000


@pytest.fixture
def commitment(request: pytest.FixtureRequest) -> str:
    """The level at which movements count as landed."""
    return str(getattr(request, "param", "confirmed"))


@pytest.fixture
def stage(
    build_app: Callable[..., Flask], sqlite_url: str, solana_node: SolanaNode, commitment: str
) -> Iterator[Stage]:
    """An agent with 1 SOL and 20 USDC on Solana."""
    driver = SolanaDriver(node=solana_node, real=chain_at(solana_node.url, commitment=commitment))
    with stage_on(build_app, sqlite_url, driver, dollars=20) as made:
        yield made


@pytest.mark.parametrize("how", ["transfer", "withdraw"])
def test_a_transfer_of_sol_is_confirmed_counted_and_on_the_chain(how: str, stage: Stage) -> None:
    to = solana_address()
    body = stage.agent.move("0.25", "sol", how=how, chain="solana", to=to).get_json()
    assert (body["status"], body["from"], body["to"]) == ("confirmed", stage.address, to)
    assert (body["amount"], body["currency"], body["chain"]) == ("0.25", "SOL", "solana")
    assert stage.driver.balances(to) == (LAMPORTS // 4, 0)
    left = SOME_SOL - LAMPORTS // 4 - stage.driver.balances(stage.address)[0]
    assert 5_000 <= left < 100_000
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["tx_hash"], row["cost_usd"]) == ("confirmed", body["tx_hash"], 37.5)
    assert [event["status"] for event in row["events"]] == ["pending", "confirmed"]
    assert stage.agent.spent_this_month() == 37.5


def test_the_first_usdc_of_a_recipient_creates_their_account_at_the_sender_s_cost(stage: Stage) -> None:
    to = solana_address()
    quoted = stage.agent.post(
        f"{stage.agent.wallet_url}/transfer",
        {"amount": "3.5", "currency": "USDC", "chain": "solana", "to": to, "dry_run": True},
    ).get_json()
    assert quoted["network_fee_currency"] == "SOL"
    body = stage.send("3.5", "USDC", to).get_json()
    assert body["status"] == "confirmed"
    assert stage.driver.balances(to) == (0, 3_500_000)
    paid = SOME_SOL - stage.driver.balances(stage.address)[0]
    assert TOKEN_ACCOUNT_RENT + 5_000 <= paid <= float(quoted["network_fee"]) * LAMPORTS + 1
    again = stage.send("1", "USDC", to).get_json()
    assert again["status"] == "confirmed"
    assert SOME_SOL - stage.driver.balances(stage.address)[0] - paid < TOKEN_ACCOUNT_RENT


def test_the_rent_of_a_recipients_account_counts_against_the_limits(stage: Stage) -> None:
    stage.agent.controls(per_tx_limit_usd=0.30)
    order = {"amount": "0.000001", "currency": "USDC", "chain": "solana", "to": solana_address()}
    for dry_run in (True, False):
        refused = stage.order({**order, "dry_run": dry_run})
        assert (refused.status_code, refused.get_json()["code"]) == (403, "PER_TX_LIMIT_EXCEEDED")
        assert refused.get_json()["details"]["requested_usd"] == 0.305893
    assert stage.agent.spent_this_month() == 0

    stage.agent.controls(per_tx_limit_usd=0.31)
    quoted = stage.order({**order, "dry_run": True}).get_json()
    assert quoted["value_usd"] == 0.305893
    for spent in (0.305893, 0.305894):
        assert stage.order(order).get_json()["status"] == "confirmed"
        assert stage.agent.spent_this_month() == spent


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"to": "0x00000000000000000000000000000000C0FFEE00"}, "to"),
    ({"to": "11111111111111111111111111111111"}, "to"),
    ({"to": USDC_MINT}, "to"),
    ({"to": "l0O"}, "to"),
    ({"to": "1" * 44}, "to"),
    ({"currency": "ETH"}, "currency"),
    ({"currency": "SOL", "amount": "0.0000000001"}, "amount"),
    ({"amount": "0.0000001"}, "amount"),
]


@pytest.mark.parametrize(("change", "field"), BAD_FIELDS)
def test_an_invalid_field_moves_nothing_and_is_reported(change: dict[str, Any], field: str, stage: Stage) -> None:
    body = {"amount": "1", "currency": "USDC", "chain": "solana", "to": solana_address(), **change}
    answer = stage.order(body)
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert field in answer.get_json()["details"]["fields"]
    assert stage.agent.history() == []


@pytest.mark.parametrize("currency", ["SOL", "USDC"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_token_account_is_refused_as_recipient(
    dry_run: bool,  # noqa: FBT001 - a field of the body
    currency: str,
    stage: Stage,
) -> None:
    owner = solana_address()
    stage.driver.node.mint_usdc(owner, 1)
    stage.driver.node.advance(40)
    account = get_associated_token_address(Pubkey.from_string(owner), Pubkey.from_string(USDC_MINT))
    body = {"amount": "0.1", "currency": currency, "chain": "solana", "to": str(account), "dry_run": dry_run}
    answer = stage.order(body)
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert "to" in answer.get_json()["details"]["fields"]
    assert stage.agent.history() == []
    assert stage.agent.spent_this_month() == 0


def test_less_than_the_minimum_balance_is_not_sent_to_a_new_account(stage: Stage) -> None:
    to = solana_address()
    answer = stage.send("0.0008", "SOL", to)
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert "0.00089088" in answer.get_json()["details"]["fields"]["amount"][0]
    assert stage.send("0.00089088", "SOL", to).get_json()["status"] == "confirmed"
    assert stage.send("0.000000001", "SOL", to).get_json()["status"] == "confirmed"
    assert stage.driver.balances(to) == (RENT + 1, 0)


def test_all_lamports_and_all_dollars_can_leave(stage: Stage) -> None:
    stage.agent.unlimited()
    to = solana_address()
    assert stage.send("max", "USDC", to).get_json()["amount"] == "20"
    body = stage.send("max", "SOL", to).get_json()
    assert body["status"] == "confirmed", body
    assert stage.driver.balances(stage.address) == (0, 0)
    assert stage.driver.balances(to)[0] == round(float(body["amount"]) * LAMPORTS)


def test_a_wallet_can_be_emptied_to_the_last_lamport_but_not_left_with_dust(stage: Stage) -> None:
    stage.agent.unlimited()
    to = solana_address()
    url = f"{stage.agent.wallet_url}/transfer"
    order = {"amount": "0.5", "currency": "SOL", "chain": "solana", "to": to, "dry_run": True}
    fee = round(float(stage.agent.post(url, order).get_json()["network_fee"]) * LAMPORTS)
    dust = f"0.{SOME_SOL - fee - RENT // 2:09d}"
    refused = stage.send(dust, "SOL", to)
    assert refused.status_code == 500
    assert refused.get_json()["details"]["reason"] == "leaves_dust"
    assert stage.agent.spent_this_month() == 0
    assert stage.send(f"0.{SOME_SOL - fee:09d}", "SOL", to).get_json()["status"] == "confirmed"
    assert stage.driver.balances(stage.address)[0] == 0


def test_limits_apply_to_sol_at_its_price(stage: Stage) -> None:
    answer = stage.send("0.34", "SOL", solana_address())
    assert (answer.status_code, answer.get_json()["code"]) == (403, "PER_TX_LIMIT_EXCEEDED")
    stage.agent.controls(allowed_addresses=[solana_address()])
    answer = stage.send("0.1", "SOL", solana_address())
    assert (answer.status_code, answer.get_json()["code"]) == (403, "ADDRESS_NOT_ALLOWED")


def test_two_equal_concurrent_payments_are_two_payments(stage: Stage) -> None:
    to = solana_address()
    stage.driver.fund(to, native=0, dollars=1)
    answers: list[Any] = []
    application = stage.agent.client.application

    def pay() -> None:
        agent = Agent(
            application.test_client(), stage.agent.id, stage.agent.key, stage.agent.wallet_id,
            stage.agent.address, stage.address,
        )  # fmt: skip
        with application.app_context():
            answers.append(agent.move("2", "USDC", chain="solana", to=to).get_json())

    threads = [threading.Thread(target=pay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer["status"] for answer in answers] == ["confirmed"] * 4
    assert len({answer["tx_hash"] for answer in answers}) == 4
    assert stage.driver.balances(to) == (0, 9_000_000)
    assert stage.agent.spent_this_month() == 8


@pytest.mark.parametrize(("commitment", "landed"), [("confirmed", 3), ("finalized", 40)], indirect=["commitment"])
def test_a_landed_but_unsettled_transfer_is_not_deducted_twice(stage: Stage, landed: int) -> None:
    to = solana_address()
    first = stage.send("15", "USDC", to, Prefer="respond-async").get_json()
    assert first["status"] == "pending"
    stage.driver.node.advance(landed)
    second = stage.send("5", "USDC", to).get_json()
    assert second["status"] == "confirmed"
    assert stage.agent.transaction(first["transaction_id"])["status"] == "confirmed"
    assert stage.driver.balances(to) == (0, 20_000_000)


@pytest.mark.parametrize("commitment", ["confirmed", "finalized"], indirect=True)
def test_a_transfer_that_lands_during_preparation_is_not_deducted_twice(stage: Stage) -> None:
    to = solana_address()
    first = stage.send("12", "USDC", to, Prefer="respond-async").get_json()
    stage.driver.node.advance(3)
    second = stage.send("8", "USDC", to).get_json()
    assert second.get("status") == "confirmed", second
    assert first["status"] == "pending"
    assert stage.driver.balances(to) == (0, 20_000_000)
