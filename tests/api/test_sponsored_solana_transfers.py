"""Transfers of USDC from wallets without SOL: amount and fee are in one transaction that the service completes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solders.pubkey import Pubkey
from solders.signature import Signature

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS
from app.core.chains import ChainName
from app.payments import treasury
from app.ports.errors import Unreachable
from solana_node import SolanaNode
from tests.support.agents import Agent
from tests.support.coroutines import run_apart
from tests.support.drivers import SolanaDriver, sponsored_on
from tests.support.evm import proxy, spoil
from tests.support.solana import LAMPORTS, solana_address, solana_chain
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain
SOLANA = ChainName.SOLANA
DOLLAR = 10**6


@dataclass(frozen=True, slots=True)
class Sponsored:
    """An agent with 20 USDC and no SOL, and the service that submits its transfers."""

    agent: Agent
    driver: SolanaDriver

    def send(self, amount: str, to: str, **body: Any) -> Any:
        order = {"amount": amount, "currency": "USDC", "chain": "solana", "to": to, **body}
        return self.agent.post(f"{self.agent.wallet_url}/transfer", order)

    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["type"]: row for row in self.agent.history()}


@pytest.fixture
def sponsored(
    build_app: Callable[..., Flask], sqlite_url: str, solana_node: SolanaNode, settings: dict[str, Any]
) -> Iterator[Sponsored]:
    driver = SolanaDriver(node=solana_node, real=solana_chain(solana_node))
    with sponsored_on(build_app, sqlite_url, driver, dollars=20, **settings) as agent:
        driver.fund(treasury.recipient(SOLANA), native=0, dollars=1)
        yield Sponsored(agent, driver)


@pytest.mark.parametrize("dollars", [0, 1], ids=["a new recipient", "a known recipient"])
def test_a_wallet_without_sol_transfers_usdc_and_pays_the_fee_in_usdc(sponsored: Sponsored, dollars: int) -> None:
    to = solana_address()
    if dollars:
        sponsored.driver.fund(to, native=0, dollars=dollars)
    before = sponsored.driver.balances(to)[1]
    lamports = sponsored.driver.balances(treasury.settler(SOLANA))[0]
    quoted = sponsored.send("2", to, dry_run=True).get_json()
    answer = sponsored.send("2", to).get_json()
    assert answer["status"] == "confirmed", answer
    assert answer["gas_fee"] == quoted["gas_fee"]
    sponsored.driver.run_workers()
    fee = round(float(answer["gas_fee"]) * DOLLAR)
    assert sponsored.driver.balances(to)[1] - before == 2 * DOLLAR
    assert sponsored.driver.balances(sponsored.agent.solana_address) == (0, 18 * DOLLAR - fee)
    assert sponsored.driver.balances(treasury.recipient(SOLANA))[1] == DOLLAR + fee
    # The fee covers what the service paid: at 150 USD, a lamport is 0.15 micro-USDC.
    paid = (lamports - sponsored.driver.balances(treasury.settler(SOLANA))[0]) * 150 * DOLLAR // LAMPORTS
    assert paid <= fee <= paid * 1.2 + 1
    rows = sponsored.rows()
    assert {row["status"] for row in rows.values()} == {"confirmed"}
    assert rows["transfer"]["tx_hash"] == rows["payment"]["tx_hash"]
    assert sponsored.agent.spent_this_month() == pytest.approx(2 + fee / DOLLAR)


def test_a_transfer_with_a_history_that_strangers_fill_is_found_by_its_submission(sponsored: Sponsored) -> None:
    with proxy(sponsored.driver.node.url) as flooded:
        flooded.after = spoil("getSignaturesForAddress", [])
        sponsored.driver.chain.real = SolanaChain(DEPLOYMENTS["sandbox"], rpc_urls=[flooded.url])
        sent = sponsored.send("2", solana_address()).get_json()
        assert sent["status"] == "confirmed"
        sponsored.driver.run_workers()
    rows = sponsored.rows()
    assert {(row["status"], row["tx_hash"]) for row in rows.values()} == {("confirmed", sent["tx_hash"])}


def test_an_observer_sees_that_the_service_pays_and_the_wallet_never_has_sol(sponsored: Sponsored) -> None:
    sent = sponsored.send("2", solana_address()).get_json()
    wallet = Pubkey.from_string(sponsored.agent.solana_address)

    async def observe() -> tuple[Any, int]:
        async with AsyncClient(sponsored.driver.node.url, Confirmed) as observer:
            signature = Signature.from_string(sent["tx_hash"])
            found = await observer.get_transaction(signature, max_supported_transaction_version=0)
            return found.value, (await observer.get_balance(wallet)).value

    found, lamports = run_apart(observe())
    seen = json.loads(found.to_json())
    keys = seen["transaction"]["message"]["accountKeys"]
    assert (seen["meta"]["err"], keys[0]) == (None, treasury.settler(SOLANA))
    place = keys.index(sponsored.agent.solana_address)
    assert (seen["meta"]["preBalances"][place], seen["meta"]["postBalances"][place]) == (0, 0)
    assert lamports == 0


@pytest.mark.parametrize("settings", [{"sponsored_free_per_day": 5}], indirect=True)
def test_a_new_account_is_never_free_because_its_owner_could_close_it(sponsored: Sponsored) -> None:
    to = solana_address()
    assert float(sponsored.send("1", to).get_json()["gas_fee"]) > 0
    assert sponsored.send("1", to).get_json()["gas_fee"] == "0"


def test_invalid_recipients_and_too_little_usdc_are_refused(sponsored: Sponsored) -> None:
    token_program = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
    assert sponsored.send("1", token_program, gas="sponsored").status_code == 400
    details = sponsored.send("19.99", solana_address()).get_json()["details"]
    assert details["reason"] == "insufficient_funds"
    assert sponsored.agent.spent_this_month() == 0


# The blockhash expires within three seconds.
@pytest.mark.parametrize("settings", [{"confirmation_wait_seconds": "0.2"}], indirect=True)
def test_a_submission_that_was_lost_is_broadcast_again_and_pays_once(sponsored: Sponsored) -> None:
    to = solana_address()
    sponsored.driver.chain.raising("broadcast", "before", Unreachable("node_down"), times=10)
    assert sponsored.send("2", to).get_json()["status"] == "pending"
    sponsored.driver.run_workers()
    wait_until(lambda: sponsored.driver.balances(to)[1] == 2 * DOLLAR, what="the transfer lands")
    sponsored.driver.run_workers(minutes=2)
    assert {row["status"] for row in sponsored.rows().values()} == {"confirmed"}
    assert sponsored.driver.balances(to)[1] == 2 * DOLLAR
