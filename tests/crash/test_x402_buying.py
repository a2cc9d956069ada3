"""Kills at every point of a payment to a web service: one authorization is signed, and the retry gets the answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.evm import EvmNode
from tests.crash.conftest import EvmScene, Scene, counted_usd
from tests.support.processes import COMMIT, Point, Scenario, ServiceThatBuys, points
from tests.support.sellers import ScriptedSeller, scripted_seller, uses_of

pytestmark = pytest.mark.chain

# The idempotency claim; the unpaid request; the signed payment, recorded; the paid request; its answer, stored;
# the outcome on the chain; the end of the claim's lease.
PURCHASE = points(COMMIT, COMMIT, "send", COMMIT, COMMIT, "send", COMMIT, "outcomes", COMMIT, COMMIT)


@pytest.fixture
def seller(crash_node: EvmNode) -> Iterator[ScriptedSeller]:
    with scripted_seller(crash_node) as made:
        made.offer()["maxTimeoutSeconds"] = 600
        yield made


def purchase(scene: Scene, seller: ScriptedSeller) -> Scenario:
    service = scene.service
    settings = {**service.settings, "allow_private_upstreams": True}
    scene.service = ServiceThatBuys(service.database_url, service.nodes, settings)
    scene.restart()
    return scene.asking("x402/fetch", {"url": seller.url + "/report", "max_amount_usd": 0.05})


def test_every_step_of_a_purchase_is_a_kill_point(scene: EvmScene, seller: ScriptedSeller) -> None:
    end = scene.in_child(purchase(scene, seller))
    assert end.answer[0] == 200, end.answer
    known = {point.step for point in PURCHASE}
    assert [point for point in end.passed if point.step in known] == PURCHASE


@pytest.mark.parametrize("point", PURCHASE, ids=str)
def test_a_killed_purchase_is_paid_once_and_the_retry_gets_the_answer(
    scene: EvmScene, seller: ScriptedSeller, crash_node: EvmNode, point: Point
) -> None:
    fetch = purchase(scene, seller)
    assert scene.in_child(fetch, point).killed
    scene.restart()
    scene.now += scene.patience
    status, body = scene.run_here(fetch)
    assert (status, body["status"], body["body"]) == (200, 200, '{"report": "sunny"}'), body
    scene.recover()
    # Sent once or more, but the same bytes each time.
    assert len(set(seller.headers)) == 1
    assert uses_of(crash_node, scene.agent.address) == 1
    [row] = scene.history()
    assert (row["id"], row["status"]) == (body["payment"]["transaction_id"], "confirmed")
    assert counted_usd(scene.app) == 0.01
