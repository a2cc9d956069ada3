"""Fixtures for the tests of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask

from app.core.chains import ChainName
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.chains import evm_chain, fund
from tests.support.faults import FaultyChain
from tests.support.stages import Stage


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode) -> Iterator[Stage]:
    """A Base node of this test's own, an agent with 1 ETH and 100 USDC on it, and the worker's pass."""
    chain = FaultyChain(evm_chain(own_base_node))
    app = build_app(
        sqlite_url, chains={ChainName.BASE: chain}, settings={"base_stuck_blocks": 3, "confirmation_wait_seconds": "0"}
    )
    with app.app_context():
        agent = register(app.test_client())
        fund(own_base_node, agent.address, eth=1, dollars=100)
        yield Stage(own_base_node, chain, agent, app)
