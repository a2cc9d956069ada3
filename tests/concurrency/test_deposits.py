"""Concurrent scans, reversals, requests and deletions of deposits, with real locks: on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from threading import Barrier

import pytest
from flask import Flask
from sqlalchemy import select, update

from app.core import clock
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.wallets.core.models import (
    DepositScanState,
    FundingAllocation,
    FundingDeposit,
    Transaction,
    TransactionEvent,
    Wallet,
)
from app.wallets.deposits import funding
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import usdc
from tests.support.deposit_stages import DEPTH, Stage, deposit_stage
from tests.support.ledger import race
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.chain, pytest.mark.postgres]

WALLETS = 12
ROUNDS = 4


@pytest.fixture
def stage(postgres_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    # Blocks become safe late, so that deposits can be reversed for long.
    with (
        EvmNode(ChainName.BASE.value, slots_in_an_epoch=32) as node,
        deposit_stage(partial(build_app, settings={"database_pool_size": 40}), postgres_url, node) as made,
    ):
        yield made


def _together(stage: Stage, actions: int) -> Barrier:
    """Make the next scan wait with its result until the other actions begin."""
    begin = Barrier(actions)
    stage.chain.fail("deposits", "after", lambda: begin.wait(PATIENCE_SECONDS))
    return begin


def _call(stage: Stage, agent: Agent, method: str, path: str, body: object = None) -> int:
    # One client per thread: they are not thread-safe.
    client = stage.app.test_client()
    return client.open(path, method=method, json=body, headers=agent.headers()).status_code


def _delete(stage: Stage, agent: Agent, begin: Barrier) -> int:
    begin.wait(PATIENCE_SECONDS)
    return _call(stage, agent, "DELETE", f"{agent.wallet_url}?force=true")


def _ask(stage: Stage, agent: Agent, begin: Barrier) -> int:
    begin.wait(PATIENCE_SECONDS)
    body = {"amount": "1", "currency": "USDC", "chain": "base"}
    return _call(stage, agent, "POST", f"{agent.wallet_url}/fund", body)


def _expire(begin: Barrier) -> int:
    begin.wait(PATIENCE_SECONDS)
    funding.fail_expired(clock.now())
    return 200


def _find(stage: Stage) -> int:
    stage.find()
    return 200


def _paying(stage: Stage, agents: list[Agent]) -> list[str]:
    requests = [stage.ask("1", agent=agent) for agent in agents]
    for agent in agents:
        stage.pay(1, agent=agent)
    stage.node.mine(DEPTH)
    return requests


def assert_no_orphans() -> None:
    """Check that every row belongs to an existing one."""
    with read_only_unit() as session:
        wallets, transactions = select(Wallet.id), select(Transaction.id)
        for of_wallet in (Transaction, FundingDeposit, DepositScanState):
            assert session.scalars(select(of_wallet).where(of_wallet.wallet_id.not_in(wallets))).all() == []
        for of_transaction in (TransactionEvent, FundingAllocation):
            orphans = select(of_transaction).where(of_transaction.transaction_id.not_in(transactions))
            assert session.scalars(orphans).all() == []
        deposits = select(FundingDeposit.id)
        lost = select(FundingAllocation).where(FundingAllocation.deposit_id.not_in(deposits))
        assert session.scalars(lost).all() == []


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_wallets_deleted_while_deposits_are_stored_leave_no_rows_and_block_no_pass(
    stage: Stage, round_number: int
) -> None:
    agents = [register(stage.agent.client) for _ in range(WALLETS)]
    _paying(stage, agents)
    gone = agents[round_number % 2 :: 2]
    begin = _together(stage, len(gone) + 1)
    answers = race(stage.app, [partial(_find, stage), *(partial(_delete, stage, agent, begin) for agent in gone)])
    assert answers == [200] * len(answers)
    assert_no_orphans()
    assert stage.find() == 0
    assert stage.credited() == usdc(1) * (WALLETS - len(gone))


def test_requests_made_while_deposits_are_stored_do_not_deadlock(stage: Stage) -> None:
    agents = [register(stage.agent.client) for _ in range(WALLETS)]
    _paying(stage, agents)
    begin = _together(stage, WALLETS + 1)
    answers = race(stage.app, [partial(_find, stage), *(partial(_ask, stage, agent, begin) for agent in agents)])
    assert answers == [200] * len(answers)
    stage.find()
    assert stage.credited() == usdc(1) * WALLETS
    assert_no_orphans()


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_concurrent_scans_reversals_requests_expiries_and_deletions_stay_consistent(
    stage: Stage, round_number: int
) -> None:
    agents = [register(stage.agent.client) for _ in range(WALLETS)]
    gone, ending, stay = agents[:4], agents[4], agents[5:]
    over = stage.ask("5", agent=ending)
    requests = _paying(stage, agents)
    assert stage.find() == WALLETS
    with unit_of_work() as session:
        session.execute(
            update(Transaction).where(Transaction.id == over).values(expires_at=clock.now() - timedelta(seconds=1))
        )
    stage.reorganise(WALLETS + DEPTH + 1)
    for agent in agents:
        stage.pay(1, agent=agent)
    stage.node.mine(DEPTH)
    finders = 3
    begin = Barrier(len(gone) + len(stay) + finders + 1)
    stage.chain.fail("orphaned_blocks", "after", lambda: begin.wait(PATIENCE_SECONDS), times=finders)
    answers = race(
        stage.app,
        [
            *[partial(_find, stage)] * finders,
            *(partial(_delete, stage, agent, begin) for agent in gone),
            *(partial(_ask, stage, agent, begin) for agent in stay),
            partial(_expire, begin),
        ],
    )
    assert answers == [200] * len(answers), f"round {round_number}"
    assert_no_orphans()
    stage.find()
    stage.find()
    assert ending.transaction(over)["status"] == "failed"
    for agent, request in zip(stay, requests[5:], strict=True):
        assert agent.transaction(request)["status"] == "confirmed"
        assert sorted(row["status"] for row in agent.history()) == ["confirmed", "pending"]
