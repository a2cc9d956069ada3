"""Deposits in orphaned blocks: reversed, and found again exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask

from app.core.chains import ChainName
from app.db.unit_of_work import unit_of_work
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import MovementStatus
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.chains import usdc
from tests.support.deposit_stages import DEPTH, Stage, deposit_stage

pytestmark = pytest.mark.chain

WEI = 10**15
"""What most payments here are: 0.001 ETH."""


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Stage]:
    # Blocks become safe late, so that several deposits can be orphaned together.
    with (
        EvmNode(ChainName.BASE.value, slots_in_an_epoch=32) as node,
        deposit_stage(build_app, sqlite_url, node) as made,
    ):
        yield made


def test_two_deposits_in_orphaned_blocks_are_both_found_again(stage: Stage) -> None:
    request = stage.ask("0.002", "ETH")
    for _ in range(2):
        stage.pay_wei_from_a_contract(WEI)
        stage.settle()
    assert stage.status(request) == ["confirmed"]
    stage.reorganise(2 * DEPTH + 1)
    for _ in range(2):
        stage.pay_wei_from_a_contract(WEI)
    stage.settle()
    assert (stage.status(request), stage.credited()) == (["confirmed"], 2 * WEI)


def test_own_movements_before_an_orphaned_deposit_still_explain_the_balance(stage: Stage) -> None:
    stage.agent.unlimited()
    stage.pay_wei(1000 * WEI)
    request = stage.ask("0.001", "ETH")
    assert stage.agent.move("0.01", "ETH").get_json()["status"] == "confirmed"
    stage.node.mine(400)
    stage.pay_wei_from_a_contract(WEI)
    stage.settle()
    assert stage.status(request) == ["confirmed"]
    stage.reorganise(DEPTH)
    stage.find()
    assert (stage.status(request), stage.credited()) == (["pending"], 0)
    stage.pay_wei_from_a_contract(WEI)
    stage.settle()
    assert (stage.status(request), stage.credited()) == (["confirmed"], WEI)


def test_a_deposit_found_along_with_an_orphaned_one_keeps_its_hash(stage: Stage) -> None:
    first, second = stage.ask("0.001", "ETH"), stage.ask("0.001", "ETH")
    standing = stage.pay_wei(WEI)
    stage.node.mine(150)
    stage.pay_wei(WEI)
    assert stage.settle() == 2
    stage.reorganise(DEPTH)
    stage.find()
    assert (stage.status(first, second), stage.credited()) == (["confirmed", "pending"], WEI)
    assert stage.agent.transaction(first)["tx_hash"] == standing


def test_a_deposit_found_along_with_an_orphaned_one_counts_once_after_a_long_pause(stage: Stage) -> None:
    first, second = stage.ask("0.001", "ETH"), stage.ask("0.009", "ETH")
    stage.pay_wei(WEI)
    stage.node.mine(150)
    lost = stage.pay_wei(WEI)
    assert stage.settle() == 2
    stage.reorganise(DEPTH, lost)
    # So far from the scan state that the transactions of deposits are no longer searched.
    stage.node.mine(150)
    stage.find()
    stage.settle()
    assert (stage.status(first, second), stage.credited()) == (["confirmed", "pending"], 2 * WEI)


@pytest.mark.parametrize("wallet", ["the same wallet", "another wallet"])
@pytest.mark.parametrize("currency", ["USDC", "ETH"])
def test_a_deposit_mined_again_before_scanning_restarted_is_found(stage: Stage, currency: str, wallet: str) -> None:
    amount, units = ("1", usdc(1)) if currency == "USDC" else ("0.001", WEI)
    request = stage.ask(amount, currency)
    stage.settle()
    tx_hash = stage.pay(1) if currency == "USDC" else stage.pay_wei(WEI)
    stage.settle()
    assert stage.status(request) == ["confirmed"]
    # No request is open now, so the second deposit is not scanned.
    stage.reorganise(DEPTH + 1, tx_hash)
    stage.node.mine(2 * DEPTH)
    newcomer = register(stage.agent.client) if wallet == "another wallet" else stage.agent
    later = stage.ask(amount, currency, agent=newcomer)
    stage.settle()
    stage.settle()
    entry = stage.agent.transaction(request)
    assert (entry["status"], entry["tx_hash"]) == ("confirmed", tx_hash)
    assert newcomer.transaction(later)["status"] == "pending"
    assert stage.credited() == units


def test_a_canonical_usdc_deposit_is_not_reversed_with_an_orphaned_ether_deposit(stage: Stage) -> None:
    dollars, ether = stage.ask("1"), stage.ask("0.001", "ETH")
    stage.pay(1)
    stage.node.mine(2)
    lost = stage.pay_wei(WEI)
    assert stage.settle() == 2
    stage.reorganise(DEPTH, lost)
    stage.find()
    assert [event["status"] for event in stage.agent.transaction(dollars)["events"]] == [
        "pending", "confirmed",
    ]  # fmt: skip
    stage.settle()
    assert stage.status(dollars, ether) == ["confirmed", "confirmed"]
    assert (stage.found(), stage.credited()) == (2, usdc(1) + WEI)


def test_a_scan_from_before_a_restart_does_not_reset_the_scan_state(stage: Stage) -> None:
    stage.ask("1", agent=register(stage.agent.client))
    ended = stage.ask("0.001", "ETH")
    stage.pay_wei_from_a_contract(WEI)
    stage.node.mine(DEPTH - 1)
    begun: list[str] = []

    def end_and_begin_anew() -> None:
        with unit_of_work() as session:
            lifecycle.TRANSACTIONS.move(session, ended, MovementStatus.PENDING, MovementStatus.FAILED, reason="expired")
        stage.pay_wei_from_a_contract(WEI)
        begun.append(stage.ask("0.001", "ETH"))

    stage.chain.fail("deposits", "after", end_and_begin_anew)
    stage.find()
    stage.node.mine(1)
    stage.settle()
    assert stage.status(*begun) == ["pending"], "what came before a request is no deposit"
