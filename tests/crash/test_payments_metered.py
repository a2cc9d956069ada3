"""Kills at every point of a call that is paid by `upto`: what is on the chain is its usage, and it is made once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import pytest
from flask import Flask
from sqlalchemy import text

from app.core.chains import USDC, ChainName
from app.db.unit_of_work import read_only_unit
from app.payments import jobs as payment_jobs
from app.payments import treasury
from app.payments.settlement_capacity import SettlementCapacityCache
from app.state import app_state
from app.usage import service as usage
from app.wallets.transactions import confirmation
from sandbox.evm import EvmNode
from tests.crash.conftest import EvmScene, on_both
from tests.support.chains import ether
from tests.support.gateway import CHAT, provider_settings
from tests.support.payments import UptoPayer
from tests.support.processes import COMMIT, Point, ask, distinct, points
from tests.support.upstreams import MisbehavingUpstream, chat_answer, misbehaving_upstream

pytestmark = pytest.mark.chain
BODY = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 500}
MAXIMUM, COST = 10_000, 63
# Accepted; call begun; its cost recorded; settlement signed, recorded, broadcast; landed; served.
STEPS = points(COMMIT, COMMIT, COMMIT, "sign", COMMIT, "broadcast", COMMIT, COMMIT)
# The call is made between the second commit and the third.
KILLS = [*distinct(STEPS), Point(COMMIT, "after", 2)]
UNUSED = {Point(COMMIT, "before", 1), Point(COMMIT, "before", 2)}
# The process that knew the cost is gone: the estimate is charged.
ESTIMATED = {Point(COMMIT, "after", 2), Point(COMMIT, "before", 3)}


@pytest.fixture
def upstream() -> Iterator[MisbehavingUpstream]:
    with misbehaving_upstream() as made:
        made.behave = lambda exchange: exchange.json(chat_answer(tokens_in=10, tokens_out=5))
        yield made


def resume(_app: Flask) -> None:
    """Do what the workers do."""
    usage.charge_lapsed()
    payment_jobs.resume_settlements(ChainName.BASE)
    confirmation.confirm(ChainName.BASE)


def used_units(_app: Flask) -> int:
    """Return what the calls cost by the usage log, in units of USDC."""
    with read_only_unit() as session:
        return sum(-(-nanos // 1_000) for nanos in session.scalars(text("SELECT cost_nanos FROM usage_logs")))


@pytest.mark.parametrize(
    ("database_url", "point"),
    on_both(KILLS, [Point(COMMIT, "before", 3), Point(COMMIT, "before", 4)]),
    indirect=["database_url"],
)
def test_a_metered_call_that_was_killed_costs_what_its_usage_is_and_is_made_once(
    scene: EvmScene, upstream: MisbehavingUpstream, crash_node: EvmNode, point: Point
) -> None:
    scene.configure(**provider_settings(upstream.url))
    scene.restart()
    with scene.app.app_context():
        recipient = treasury.recipient(ChainName.BASE)
        crash_node.fund_eth(treasury.settler(ChainName.BASE), ether(1))
        app_state().part(SettlementCapacityCache).clear()
        unpaid = scene.app.test_client().post(CHAT, json=BODY)
    headers = UptoPayer(crash_node).metered(unpaid)
    pay = partial(ask, method="POST", path=CHAT, headers=headers, body=BODY)
    assert scene.in_child(pay, point).killed
    scene.restart()
    for _ in range(8):
        scene.now += timedelta(minutes=3)
        scene.run_here(resume)
        crash_node.mine(2)
    paid = scene.chain.real.balances(recipient).of(USDC).units
    assert paid == scene.run_here(used_units)
    if point in UNUSED:
        assert (paid, upstream.asked) == (0, [])
    elif point in ESTIMATED:
        assert 0 < paid <= MAXIMUM
    else:
        assert paid == COST
    begun = len(upstream.asked)
    assert begun <= 1
    if point not in UNUSED:
        # Whether the client got the answer is not known, so it is not made again for the same maximum.
        assert scene.run_here(pay)[0] == 402
        assert (len(upstream.asked), scene.chain.real.balances(recipient).of(USDC).units) == (begun, paid)
