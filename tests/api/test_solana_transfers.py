"""Transfers and withdrawals of SOL and USDC on a real Solana node: responses, records, limits and balances."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from app.adapters.solana.chain import SolanaChain
from app.core.chains import ChainName
from app.ports.errors import Unreachable
from solana_node import SolanaNode
from solana_node.addresses import USDC_MINT
from tests.support.agents import Agent, register
from tests.support.faults import FaultyChain
from tests.support.solana import LAMPORTS, fund_solana, held, running_solana, solana_address
from tests.support.solana_people import chain_at

pytestmark = pytest.mark.chain

RENT = 890_880
TOKEN_ACCOUNT_RENT = 2_039_280
SOME_SOL, SOME_DOLLARS = LAMPORTS, 20_000_000


@pytest.fixture(scope="module")
def node() -> Iterator[SolanaNode]:
    """A node with short slots; tests use their own addresses."""
    with running_solana(slot_ms=20) as started:
        yield started


@dataclass(frozen=True, slots=True)
class Stage:
    """An agent with 1 SOL and 20 USDC on Solana."""

    agent: Agent
    chain: FaultyChain
    real: SolanaChain
    node: SolanaNode

    def move(self, amount: object, currency: str, to: str, **headers: str) -> Any:
        return self.agent.move(amount, currency, chain="solana", to=to, **headers)

    def held(self, address: str) -> tuple[int, int]:
        return held(self.real, address)


@pytest.fixture
def commitment(request: pytest.FixtureRequest) -> str:
    """The level at which movements count as landed."""
    return str(getattr(request, "param", "confirmed"))


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str, node: SolanaNode, commitment: str) -> Iterator[Stage]:
    real = chain_at(node.url, commitment=commitment)
    chain = FaultyChain(real)
    app = build_app(sqlite_url, chains={ChainName.SOLANA: chain})
    with app.app_context():
        agent = register(app.test_client())
        fund_solana(node, agent.solana_address, sol=1, dollars=20)
        yield Stage(agent, chain, real, node)
    node.faults()


@pytest.mark.parametrize("how", ["transfer", "withdraw"])
def test_a_transfer_of_sol_is_confirmed_counted_and_on_the_chain(how: str, stage: Stage) -> None:
    to = solana_address()
    body = stage.agent.move("0.25", "sol", how=how, chain="solana", to=to).get_json()
    assert (body["status"], body["from"], body["to"]) == ("confirmed", stage.agent.solana_address, to)
    assert (body["amount"], body["currency"], body["chain"]) == ("0.25", "SOL", "solana")
    assert stage.held(to) == (LAMPORTS // 4, 0)
    left = SOME_SOL - LAMPORTS // 4 - stage.held(stage.agent.solana_address)[0]
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
    body = stage.move("3.5", "USDC", to).get_json()
    assert body["status"] == "confirmed"
    assert stage.held(to) == (0, 3_500_000)
    paid = SOME_SOL - stage.held(stage.agent.solana_address)[0]
    assert TOKEN_ACCOUNT_RENT + 5_000 <= paid <= float(quoted["network_fee"]) * LAMPORTS + 1
    again = stage.move("1", "USDC", to).get_json()
    assert again["status"] == "confirmed"
    assert SOME_SOL - stage.held(stage.agent.solana_address)[0] - paid < TOKEN_ACCOUNT_RENT


def test_the_rent_of_a_recipients_account_counts_against_the_limits(stage: Stage) -> None:
    stage.agent.controls(per_tx_limit_usd=0.30)
    order = {"amount": "0.000001", "currency": "USDC", "chain": "solana", "to": solana_address()}
    for dry_run in (True, False):
        refused = stage.agent.post(f"{stage.agent.wallet_url}/transfer", {**order, "dry_run": dry_run})
        assert (refused.status_code, refused.get_json()["code"]) == (403, "PER_TX_LIMIT_EXCEEDED")
        assert refused.get_json()["details"]["requested_usd"] == 0.305893
    assert stage.agent.spent_this_month() == 0

    stage.agent.controls(per_tx_limit_usd=0.31)
    quoted = stage.agent.post(f"{stage.agent.wallet_url}/transfer", {**order, "dry_run": True}).get_json()
    assert quoted["value_usd"] == 0.305893
    for spent in (0.305893, 0.305894):
        assert stage.agent.post(f"{stage.agent.wallet_url}/transfer", order).get_json()["status"] == "confirmed"
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
    answer = stage.agent.post(f"{stage.agent.wallet_url}/transfer", body)
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
    stage.node.mint_usdc(owner, 1)
    stage.node.advance(40)
    account = get_associated_token_address(Pubkey.from_string(owner), Pubkey.from_string(USDC_MINT))
    body = {"amount": "0.1", "currency": currency, "chain": "solana", "to": str(account), "dry_run": dry_run}
    answer = stage.agent.post(f"{stage.agent.wallet_url}/transfer", body)
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert "to" in answer.get_json()["details"]["fields"]
    assert stage.agent.history() == []
    assert stage.agent.spent_this_month() == 0


def test_less_than_the_minimum_balance_is_not_sent_to_a_new_account(stage: Stage) -> None:
    to = solana_address()
    answer = stage.move("0.0008", "SOL", to)
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert "0.00089088" in answer.get_json()["details"]["fields"]["amount"][0]
    assert stage.move("0.00089088", "SOL", to).get_json()["status"] == "confirmed"
    assert stage.move("0.000000001", "SOL", to).get_json()["status"] == "confirmed"
    assert stage.held(to) == (RENT + 1, 0)


def test_all_lamports_and_all_dollars_can_leave(stage: Stage) -> None:
    stage.agent.unlimited()
    to = solana_address()
    assert stage.move("max", "USDC", to).get_json()["amount"] == "20"
    body = stage.move("max", "SOL", to).get_json()
    assert body["status"] == "confirmed", body
    assert stage.held(stage.agent.solana_address) == (0, 0)
    assert stage.held(to)[0] == round(float(body["amount"]) * LAMPORTS)


def test_a_wallet_can_be_emptied_to_the_last_lamport_but_not_left_with_dust(stage: Stage) -> None:
    stage.agent.unlimited()
    to = solana_address()
    url = f"{stage.agent.wallet_url}/transfer"
    order = {"amount": "0.5", "currency": "SOL", "chain": "solana", "to": to, "dry_run": True}
    fee = round(float(stage.agent.post(url, order).get_json()["network_fee"]) * LAMPORTS)
    dust = f"0.{SOME_SOL - fee - RENT // 2:09d}"
    refused = stage.move(dust, "SOL", to)
    assert refused.status_code == 500
    assert refused.get_json()["details"]["reason"] == "leaves_dust"
    assert stage.agent.spent_this_month() == 0
    assert stage.move(f"0.{SOME_SOL - fee:09d}", "SOL", to).get_json()["status"] == "confirmed"
    assert stage.held(stage.agent.solana_address)[0] == 0


def test_missing_sol_is_reported_with_the_amount(stage: Stage) -> None:
    poor = register(stage.agent.client)
    fund_solana(stage.node, poor.solana_address, sol=0, dollars=5)
    answer = poor.move("1", "USDC", chain="solana", to=stage.agent.solana_address)
    details = answer.get_json()["details"]
    assert (answer.status_code, details["reason"], details["currency"]) == (500, "insufficient_gas", "SOL")
    assert 0.000005 <= float(details["missing"]) < 0.001
    [row] = poor.history()
    assert (row["status"], row["tx_hash"]) == ("failed", None)


def test_insufficient_funds_are_refused_before_signing_and_release_the_hold(stage: Stage) -> None:
    answer = stage.move("21", "USDC", solana_address())
    details = answer.get_json()["details"]
    assert (answer.status_code, details["reason"], details["missing"]) == (500, "insufficient_funds", "1")
    assert stage.agent.spent_this_month() == 0


def test_limits_apply_to_sol_at_its_price(stage: Stage) -> None:
    answer = stage.move("0.34", "SOL", solana_address())
    assert (answer.status_code, answer.get_json()["code"]) == (403, "PER_TX_LIMIT_EXCEEDED")
    stage.agent.controls(allowed_addresses=[solana_address()])
    answer = stage.move("0.1", "SOL", solana_address())
    assert (answer.status_code, answer.get_json()["code"]) == (403, "ADDRESS_NOT_ALLOWED")


def test_two_equal_concurrent_payments_are_two_payments(stage: Stage) -> None:
    to = solana_address()
    fund_solana(stage.node, to, sol=0, dollars=1)
    answers: list[Any] = []
    application = stage.agent.client.application

    def pay() -> None:
        agent = Agent(
            application.test_client(), stage.agent.id, stage.agent.key, stage.agent.wallet_id,
            stage.agent.address, stage.agent.solana_address,
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
    assert stage.held(to) == (0, 9_000_000)
    assert stage.agent.spent_this_month() == 8


def test_the_same_idempotency_key_pays_once(stage: Stage) -> None:
    to = solana_address()
    first = stage.move("1", "USDC", to, Idempotency_Key="k").get_json()
    assert stage.move("1", "USDC", to, Idempotency_Key="k").get_json() == first
    assert stage.held(to) == (0, 1_000_000)


@pytest.mark.parametrize(("commitment", "landed"), [("confirmed", 3), ("finalized", 40)], indirect=["commitment"])
def test_a_landed_but_unsettled_transfer_is_not_deducted_twice(stage: Stage, landed: int) -> None:
    to = solana_address()
    first = stage.move("15", "USDC", to, Prefer="respond-async").get_json()
    assert first["status"] == "pending"
    stage.node.advance(landed)
    second = stage.move("5", "USDC", to).get_json()
    assert second["status"] == "confirmed"
    assert stage.agent.transaction(first["transaction_id"])["status"] == "confirmed"
    assert stage.held(to) == (0, 20_000_000)


@pytest.mark.parametrize("commitment", ["confirmed", "finalized"], indirect=True)
def test_a_transfer_that_lands_during_preparation_is_not_deducted_twice(stage: Stage) -> None:
    to = solana_address()
    first = stage.move("12", "USDC", to, Prefer="respond-async").get_json()
    stage.node.advance(3)
    second = stage.move("8", "USDC", to).get_json()
    assert second.get("status") == "confirmed", second
    assert first["status"] == "pending"
    assert stage.held(to) == (0, 20_000_000)


def test_funds_of_pending_movements_are_not_spent_twice(stage: Stage) -> None:
    to = solana_address()
    stage.node.faults(drop=1)
    assert stage.move("15", "USDC", to, Prefer="respond-async").get_json()["status"] == "pending"
    answer = stage.move("6", "USDC", to).get_json()
    assert (answer["code"], answer["details"]["missing"]) == ("TRANSFER_FAILED", "1")
    assert stage.move("5", "USDC", to).get_json()["status"] == "confirmed"


def test_a_node_that_executes_and_loses_the_response_never_leads_to_a_second_payment(stage: Stage) -> None:
    to = solana_address()
    stage.node.faults(http_after={"sendTransaction": [503, 503, 503]})
    body = stage.move("2", "USDC", to, Idempotency_Key="k").get_json()
    assert body["status"] == "confirmed"
    assert stage.move("2", "USDC", to, Idempotency_Key="k").get_json() == body
    assert stage.held(to) == (0, 2_000_000)


def test_an_unreachable_chain_is_a_certain_failure_and_releases_the_hold(stage: Stage) -> None:
    stage.chain.raising("draft", "before", Unreachable("refused"))
    body = stage.move("2", "USDC", solana_address()).get_json()
    assert (body["code"], body["details"]["reason"]) == ("TRANSFER_FAILED", "chain_unreachable")
    assert stage.agent.spent_this_month() == 0


def test_a_chain_that_becomes_unreachable_during_broadcast_leaves_the_transfer_pending_with_its_hold(
    stage: Stage,
) -> None:
    stage.chain.raising("broadcast", "before", Unreachable("refused"))
    body = stage.move("2", "USDC", solana_address(), Prefer="respond-async").get_json()
    assert body["status"] == "pending"
    assert 86 <= len(body["tx_hash"]) <= 88
    assert stage.agent.spent_this_month() == 2.305892


def test_a_wallet_may_pay_itself_and_it_counts(stage: Stage) -> None:
    assert stage.move("1", "USDC", stage.agent.solana_address).get_json()["status"] == "confirmed"
    assert stage.move("0.1", "SOL", stage.agent.solana_address).get_json()["status"] == "confirmed"
    assert stage.agent.spent_this_month() == 16
    assert stage.held(stage.agent.solana_address)[1] == SOME_DOLLARS
