"""Deposit scans: each deposit counts once, despite reorgs, races and unreachable chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Barrier

import pytest
import time_machine
from flask import Flask
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from app.core import clock
from app.db.leases import WorkLease
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.ports.errors import Unreachable
from app.wallets.core.models import DepositCursor, DepositScanState, FundingDeposit
from app.wallets.deposits import funding
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.chains import usdc
from tests.support.deposit_stages import DEPTH, Stage, deposit_stage
from tests.support.evm import await_mined, pay_from_a_contract
from tests.support.foreign_tokens import ForeignErc20
from tests.support.ledger import race
from workers import confirmations
from workers import deposits as jobs

pytestmark = pytest.mark.chain
LATER = 400
"""More blocks than own movements are listed for before the block of a scan state."""


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode) -> Iterator[Stage]:
    with deposit_stage(build_app, sqlite_url, own_base_node) as made:
        yield made


def test_without_open_requests_the_chain_is_read_in_each_period_only(stage: Stage) -> None:
    jobs.find("base")
    stage.ask("1")
    stage.pay(1)
    stage.settle()
    stage.node.mine(70)
    stage.find()
    stage.chain.calls.clear()
    jobs.find("base")
    assert stage.chain.calls == []
    for _ in range(3):
        jobs.find("base", "active")
    assert stage.chain.calls.count("deposits") == 1


def test_a_repeated_job_counts_once_and_releases_its_lease(stage: Stage) -> None:
    request = stage.ask("2")
    stage.pay(1)
    stage.node.mine(DEPTH - 1)
    jobs.find("base")
    jobs.find("base")
    assert (stage.found(), stage.credited(), stage.status(request)) == (1, usdc(1), ["pending"])
    with read_only_unit() as session:
        assert session.scalars(select(WorkLease)).all() == []


def test_a_job_skips_work_that_another_process_is_doing(stage: Stage) -> None:
    stage.ask("1")
    stage.pay(1)
    stage.node.mine(DEPTH - 1)
    with unit_of_work() as session:
        session.add(
            WorkLease(name="deposits:base:open", holder=stage.agent.id, until=clock.now() + timedelta(seconds=60))
        )
    jobs.find("base")
    assert stage.found() == 0
    with time_machine.travel(clock.now() + timedelta(seconds=61), tick=True):
        jobs.find("base")
    assert stage.found() == 1


def test_concurrent_scans_count_a_deposit_once(stage: Stage) -> None:
    first, second = stage.ask("5"), stage.ask("5")
    for dollars in (3, 4):
        stage.pay(dollars)
    await_mined(stage.node, pay_from_a_contract(stage.node, {stage.agent.address: 10**15}))
    stage.node.mine(DEPTH - 1)
    # All of them have seen the same chain before the first one writes.
    all_have_looked = Barrier(4)
    stage.chain.fail("deposits", "after", lambda: all_have_looked.wait(20), times=4)
    found = race(stage.app, [stage.find] * 4)
    assert sorted(found, key=str) == [0, 0, 0, 3]
    assert (stage.found(), stage.credited()) == (3, usdc(7))
    assert stage.status(first, second) == ["confirmed", "pending"]
    assert stage.find() == 0


def test_a_pass_that_lost_a_race_stores_nothing_and_the_next_finds_all(stage: Stage) -> None:
    request = stage.ask("1")
    stage.find()
    stage.pay(1)
    stage.node.mine(DEPTH - 1)

    def overtake() -> None:
        with unit_of_work() as session:
            cursor = session.get(DepositCursor, ("base", "all"))
            assert cursor is not None
            assert cursor.block_number is not None
            cursor.block_number -= 1

    stage.chain.fail("deposits", "after", overtake)
    assert stage.find() == 0
    assert (stage.found(), stage.status(request)) == (0, ["pending"])
    assert stage.find() == 1
    assert stage.status(request) == ["confirmed"]


def test_an_error_while_storing_leaves_nothing_and_the_next_pass_finds_all(stage: Stage) -> None:
    request = stage.ask("1")
    before = positions()
    stage.pay(1)
    stage.node.mine(DEPTH - 1)
    stage.chain.adds_what_no_column_takes = True
    with pytest.raises(IntegrityError):
        jobs.find("base")
    assert (stage.found(), stage.status(request), positions()) == (0, ["pending"], before)
    stage.chain.adds_what_no_column_takes = False
    jobs.find("base")
    assert (stage.found(), stage.status(request)) == (1, ["confirmed"])


def positions() -> list[object]:
    with read_only_unit() as session:
        cursors = session.execute(select(DepositCursor.block_number, DepositCursor.block_hash)).all()
        marks = session.execute(select(DepositScanState.mark, DepositScanState.block_number)).all()
    return [*map(tuple, cursors), *map(tuple, marks)]


@pytest.mark.parametrize(
    ("verb", "when"), [("deposits", "before"), ("deposits", "after"), ("orphaned_blocks", "before")]
)
def test_an_unreadable_chain_changes_nothing(verb: str, when: str, stage: Stage) -> None:
    first = stage.ask("1")
    stage.pay(1)
    stage.settle()
    second = stage.ask("1")
    stage.pay(1)
    stage.node.mine(DEPTH - 1)
    before = positions()
    stage.chain.raising(verb, when, Unreachable("chain_unreachable"))  # type: ignore[arg-type]
    jobs.find("base")
    assert positions() == before
    assert stage.status(first, second) == ["confirmed", "pending"]
    jobs.find("base")
    assert stage.status(first, second) == ["confirmed", "confirmed"]
    assert stage.credited() == usdc(2)


def test_a_crashed_node_loses_nothing_and_earlier_deposits_are_found(stage: Stage) -> None:
    request = stage.ask("1")
    stage.pay(1)
    before = positions()
    stage.node.kill()
    assert stage.find() == 0
    assert positions() == before
    assert stage.status(request) == ["pending"]


def test_a_deposit_in_an_orphaned_block_is_reversed_and_counts_when_it_is_mined_again(stage: Stage) -> None:
    first, second = stage.ask("1"), stage.ask("1")
    tx_hash = stage.pay(1.5)
    stage.settle()
    assert stage.status(first, second) == ["confirmed", "pending"]
    raw = stage.node.rpc("eth_getRawTransactionByHash", tx_hash) or ""
    stage.node.reorg(DEPTH)
    assert stage.find() == 0
    entry = stage.agent.transaction(first)
    assert (entry["status"], entry["tx_hash"], entry["from_address"], entry["confirmed_at"]) == (
        "pending", None, None, None,
    )  # fmt: skip
    assert [(event["status"], event["reason"]) for event in entry["events"]] == [
        ("pending", None), ("confirmed", None), ("pending", "reorganised"),
    ]  # fmt: skip
    assert (stage.found(), stage.credited()) == (0, 0)
    stage.node.rpc("eth_sendRawTransaction", raw)
    await_mined(stage.node, tx_hash)
    assert stage.settle() == 1
    entry = stage.agent.transaction(first)
    assert (entry["status"], entry["tx_hash"]) == ("confirmed", tx_hash)
    assert stage.credited() == usdc(1.5)
    assert stage.find() == 0


def test_an_internal_transfer_in_an_orphaned_block_counts_once_when_it_is_mined_again(stage: Stage) -> None:
    request = stage.ask("0.001", "ETH")
    await_mined(stage.node, pay_from_a_contract(stage.node, {stage.agent.address: 10**15}))
    stage.settle()
    assert stage.status(request) == ["confirmed"]
    stage.node.reorg(DEPTH)
    stage.find()
    assert (stage.status(request), stage.credited()) == (["pending"], 0)
    await_mined(stage.node, pay_from_a_contract(stage.node, {stage.agent.address: 10**15}))
    stage.settle()
    assert (stage.status(request), stage.credited()) == (["confirmed"], 10**15)


def test_a_deposit_is_found_although_the_request_came_long_after_transfers_that_no_scan_has_seen(stage: Stage) -> None:
    first = paid_and_active(stage)
    stage.agent.move("0.01", "ETH")
    stage.node.mine(LATER)
    scan_others(stage)
    second = stage.ask("0.001", "ETH")
    stage.pay_wei(10**15)
    stage.node.mine(DEPTH - 1)
    jobs.find("base")
    assert (stage.status(first, second), stage.credited()) == (["confirmed", "confirmed"], 2 * 10**15)


def test_a_foreign_token_hides_no_deposit_while_an_own_transfer_is_pending(stage: Stage) -> None:
    first = paid_and_active(stage)
    stage.chain.raising("outcomes", "before", Unreachable("chain_unreachable"), times=10_000)
    assert stage.agent.move("0.01", "ETH", Prefer="respond-async").get_json()["status"] == "pending"
    stage.node.mine(LATER)
    ForeignErc20.deploy(stage.node).send(stage.agent.address, 5)
    second = stage.ask("0.001", "ETH")
    stage.pay_wei(10**15)
    assert stage.settle() == 0
    stage.chain.faults.clear()
    with time_machine.travel(clock.now() + timedelta(minutes=1), tick=True):
        confirmations.confirm("base")
    assert stage.find() == 1
    assert (stage.status(first, second), stage.credited()) == (["confirmed", "confirmed"], 2 * 10**15)


def paid_and_active(stage: Stage) -> str:
    """Return a request that was paid, for a wallet that may spend the rest of the payment."""
    stage.agent.unlimited()
    request = stage.ask("0.001", "ETH")
    stage.pay_wei(10**18)
    stage.settle()
    return request


def scan_others(stage: Stage) -> None:
    """Advance the cursor of wallets with open requests; the stage's own wallet has none."""
    stage.ask("1", agent=register(stage.agent.client))
    jobs.find("base")


def test_a_final_deposit_is_not_checked_again(stage: Stage) -> None:
    stage.ask("1")
    stage.pay(1)
    stage.settle()
    stage.node.mine(70)
    stage.find()
    with read_only_unit() as session:
        assert session.scalars(select(FundingDeposit.final)).all() == [True]
    stage.chain.calls.clear()
    stage.find()
    assert "orphaned_blocks" not in stage.chain.calls


def test_a_deposit_reversed_after_its_request_expired_does_not_reopen_it(stage: Stage) -> None:
    partly = stage.ask("5")
    stage.pay(1)
    stage.settle()
    with time_machine.travel(clock.now() + timedelta(days=8), tick=True):
        assert funding.fail_expired(clock.now()) == 1
    stage.node.reorg(DEPTH)
    stage.find()
    assert (stage.status(partly), stage.found(), stage.credited()) == (["failed"], 0, 0)


def test_deposits_of_a_deleted_wallet_leave_no_rows_and_block_no_pass(stage: Stage) -> None:
    other = register(stage.agent.client)
    stage.ask("1")
    stage.pay(1)
    stage.settle()
    stage.ask("1")
    theirs = stage.ask("1", agent=other)
    stage.pay(1)
    stage.pay(1, agent=other)
    stage.node.mine(DEPTH - 1)
    # Gone between the look and the writing.
    stage.chain.fail("deposits", "after", lambda: stage.agent.delete(f"{stage.agent.wallet_url}?force=true"))
    stage.find()
    stage.find()
    assert other.transaction(theirs)["status"] == "confirmed"
    with read_only_unit() as session:
        assert session.scalars(select(FundingDeposit.wallet_id)).all() == [other.wallet_id]
        assert session.scalars(select(DepositScanState.wallet_id)).all() == [other.wallet_id]
    stage.node.reorg(1)
    stage.find()
    assert other.transaction(theirs)["status"] == "confirmed"


def test_many_wallets_are_watched_in_one_pass(stage: Stage) -> None:
    agents = [register(stage.agent.client) for _ in range(12)]
    requests = [stage.ask("1", agent=agent) for agent in agents]
    for agent in agents:
        stage.pay(1, agent=agent)
    stage.node.mine(DEPTH - 1)
    stage.chain.calls.clear()
    assert stage.find() == len(agents)
    assert stage.chain.calls.count("deposits") == 1
    assert {agent.transaction(request)["status"] for agent, request in zip(agents, requests, strict=True)} == {
        "confirmed"
    }
