"""Concurrent transfers from a wallet without ether, of two processes: limits and the agent's number per day hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from flask import Flask

from app.core.chains import USDC, ChainName
from app.payments import treasury
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.chains import fund, usdc
from tests.support.drivers import fresh_address
from tests.support.processes import Asked, NodeAddress, Service, Tripwire, crowds
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chain, pytest.mark.postgres]
BASE = ChainName.BASE
PER_PROCESS, MOST = 10, 6


def test_concurrent_transfers_never_exceed_the_number_per_day(
    postgres_url: str, base_node: EvmNode, build_app: Callable[..., Flask]
) -> None:
    settings = {"log_level": "CRITICAL", "sponsored_per_day": MOST, "confirmation_wait_seconds": "5"}
    service = Service(postgres_url, (NodeAddress.of(base_node),), settings)
    app = build_app(postgres_url, settings=dict(settings), **service.parts(Tripwire()))
    with app.app_context():
        agent = register(app.test_client())
        fund(base_node, treasury.settler(BASE), eth=1)
    fund(base_node, agent.address, eth=0, dollars=50)
    recipient = fresh_address()
    body = {"amount": "1", "currency": "USDC", "chain": "base", "to": recipient}
    asked = [Asked("POST", f"{agent.wallet_url}/transfer", body, agent.headers()) for _ in range(2 * PER_PROCESS)]
    answers = crowds(service, asked[:PER_PROCESS], asked[PER_PROCESS:])
    outcomes = Counter(answer.get("status") or answer["details"]["reason"] for _, answer in answers)
    assert outcomes.keys() <= {"confirmed", "pending", "sponsored_limit"}
    assert outcomes["sponsored_limit"] == 2 * PER_PROCESS - MOST
    chain = app.state.ports.chains[BASE].real
    wait_until(lambda: chain.balances(recipient).of(USDC).units == usdc(1) * MOST, what="all are paid")
