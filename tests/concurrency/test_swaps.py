"""Concurrent swaps from two processes with many threads each: no limit is exceeded, and none refused needlessly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
import time_machine
from flask import Flask

from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.money import parse_amount
from app.wallets.transactions import confirmation
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import fund, usdc
from tests.support.processes import Asked, NodeAddress, Service, Tripwire, crowds
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain

EACH = 8
LIMIT = 0.12
"""Three swaps of 0.002 ETH may lose 0.033 dollars each; a fourth would pass it."""


def _finish(app: Flask, agent: Agent) -> None:
    rounds = iter(range(1, 1000))

    def done() -> bool:
        at = clock.now() + timedelta(minutes=next(rounds))
        with time_machine.travel(at, tick=True):
            confirmation.confirm(ChainName.BASE)
        return not any(row["status"] == "pending" for row in agent.history())

    with app.app_context():
        wait_until(done, what="every swap's end")


def test_concurrent_swaps_of_one_wallet_never_lose_more_than_its_limit(
    each_database_url: str, base_node: EvmNode, build_app: Callable[..., Flask]
) -> None:
    service = Service(each_database_url, (NodeAddress.of(base_node),), {"log_level": "CRITICAL"})
    app = build_app(each_database_url, settings=dict(service.settings), **service.parts(Tripwire()))
    with app.app_context():
        agent = register(app.test_client())
        agent.unlimited()
        agent.controls(daily_limit_usd=LIMIT)
    fund(base_node, agent.address, eth=1, dollars=100)
    body = {"chain": "base", "input_token": "ETH", "output_token": "USDC", "amount": "0.002"}
    share = [Asked("POST", f"{agent.wallet_url}/swap", body, agent.headers())] * EACH
    answers = crowds(service, share, share)
    codes = Counter("ok" if status == 200 else answer["code"] for status, answer in answers)
    assert codes == {"ok": 3, "DAILY_LIMIT_EXCEEDED": 2 * EACH - 3}
    _finish(app, agent)
    with app.app_context():
        rows = agent.history()
        assert [row["status"] for row in rows] == ["confirmed"] * 3
        assert agent.spent_this_month() == pytest.approx(sum(row["cost_usd"] for row in rows))
        assert LIMIT * 3 / 4 < agent.spent_this_month() <= LIMIT
        chain = app.state.ports.chains[ChainName.BASE].real
        brought = sum(parse_amount(row["output_amount"], USDC).units for row in rows)
        assert chain.balances(agent.address).of(USDC).units == usdc(100) + brought
