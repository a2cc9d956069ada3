"""Kills at every point of a signed payment: it is charged once and served at most once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import pytest
from werkzeug.test import TestResponse

from app.core.chains import USDC, ChainName
from app.payments import treasury
from app.payments.settlement_capacity import SettlementCapacityCache
from app.state import app_state
from sandbox.evm import EvmNode
from tests.crash.conftest import EvmScene, on_both
from tests.support.chains import ether
from tests.support.gateway import SEARCH, provider_settings
from tests.support.mpp import answered
from tests.support.payments import PRICE, EvmPayer
from tests.support.processes import COMMIT, Point, ask, distinct, points, work
from tests.support.upstreams import MisbehavingUpstream, misbehaving_upstream
from workers import confirmations

pytestmark = pytest.mark.chain

Pays: TypeAlias = Callable[[EvmPayer, TestResponse], dict[str, str]]
# Claimed, signed and recorded; broadcast; settled; paid; attempt started; served.
PAYMENT = points(COMMIT, "broadcast", COMMIT, COMMIT, COMMIT, COMMIT)
# The call is made after its attempt was started.
KILLS = [*distinct(PAYMENT), Point(COMMIT, "after", 4)]
X402 = on_both(KILLS, [KILLS[0]])
BEGUN = {Point(COMMIT, "after", 4), Point(COMMIT, "before", 5), Point(COMMIT, "after", 5)}


@pytest.fixture
def upstream() -> Iterator[MisbehavingUpstream]:
    with misbehaving_upstream() as made:
        made.behave = lambda exchange: exchange.json({"results": []})
        yield made


def opened(scene: EvmScene, upstream: MisbehavingUpstream, node: EvmNode) -> tuple[str, EvmPayer]:
    """Start the service with a provider and gas; return the recipient of payments, and a payer."""
    scene.configure(**provider_settings(upstream.url))
    scene.restart()
    with scene.app.app_context():
        recipient, settler = treasury.recipient(ChainName.BASE), treasury.settler(ChainName.BASE)
        assert app_state().part(SettlementCapacityCache) is not None
    node.fund_eth(settler, ether(1))
    return recipient, EvmPayer(node)


def signed(scene: EvmScene, payer: EvmPayer, pays: Pays = EvmPayer.pays) -> dict[str, str]:
    """Return the headers of a new authorization for the search."""
    with scene.app.app_context():
        app_state().part(SettlementCapacityCache).clear()
        return pays(payer, scene.app.test_client().get(SEARCH))


@pytest.mark.parametrize("point", KILLS, ids=str)
def test_who_signs_anew_after_a_kill_pays_a_second_price_only_if_the_call_had_begun(
    scene: EvmScene, upstream: MisbehavingUpstream, crash_node: EvmNode, point: Point
) -> None:
    recipient, payer = opened(scene, upstream, crash_node)
    first = partial(ask, method="GET", path=SEARCH, headers=signed(scene, payer))
    assert scene.in_child(first, point).killed
    scene.restart()
    # The client cannot know what became of its payment, and cannot present it again.
    second = partial(ask, method="GET", path=SEARCH, headers=signed(scene, payer))
    for _ in range(6):
        status, body = scene.run_here(second)
        if status != 503:
            break
        assert body["code"] == "PAYMENT_PENDING"
        scene.now += scene.patience
        scene.run_here(partial(work, job=confirmations.confirm, arguments=("base",)))
        crash_node.mine(2)
    assert status == 200, body
    scene.now += scene.patience
    scene.run_here(partial(work, job=confirmations.confirm, arguments=("base",)))
    # A call that the killed process may have made is paid for; one that certainly was not, is not.
    prices = 2 if point in BEGUN else 1
    assert scene.chain.real.balances(recipient).of(USDC).units == prices * PRICE
    assert 1 <= len(upstream.asked) <= prices


@pytest.mark.parametrize(
    ("database_url", "point", "pays"),
    [
        *(pytest.param(*each.values, EvmPayer.pays, marks=each.marks, id=f"x402-{each.id}") for each in X402),
        # What is recorded of a payment is the same for both protocols: by MPP, one call that had begun and one before.
        *(pytest.param("sqlite", point, answered, id=f"mpp-sqlite-{point}") for point in (KILLS[1], KILLS[-1])),
    ],
    indirect=["database_url"],
)
def test_a_payment_of_a_killed_process_is_settled_and_served_at_most_once(
    scene: EvmScene, upstream: MisbehavingUpstream, crash_node: EvmNode, point: Point, pays: Pays
) -> None:
    recipient, payer = opened(scene, upstream, crash_node)
    headers = signed(scene, payer, pays)
    pay = partial(ask, method="GET", path=SEARCH, headers=headers)
    end = scene.in_child(pay, point)
    assert end.killed, end.passed
    scene.restart()
    for _ in range(3):
        scene.now += scene.patience
        scene.run_here(partial(work, job=confirmations.confirm, arguments=("base",)))
        crash_node.mine(2)
    status, body = scene.run_here(pay)
    served_before = len(upstream.asked) - (status == 200)
    if point in BEGUN:
        # The killed process may have served the call, so it is not served again.
        assert (status, body["code"]) == (402, "PAYMENT_ALREADY_USED")
    else:
        assert (status, served_before) == (200, 0), body
    assert scene.run_here(pay)[0] == 402
    assert len(upstream.asked) <= 1
    assert scene.chain.real.balances(recipient).of(USDC).units == PRICE
