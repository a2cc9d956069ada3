"""Kills at every point of a payment to a web service: it lands at most once, and the retry gets the answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.core.chains import ChainName
from tests.crash.conftest import Scene, SolanaScene, counted_usd
from tests.support.chains import usdc
from tests.support.mpp import mpp_seller
from tests.support.processes import COMMIT, Point, Scenario, ServiceThatBuys, distinct, points
from tests.support.sellers import CENT, ScriptedSeller, scripted_seller
from tests.support.solana import FINALIZED
from tests.support.solana_sellers import solana_seller

pytestmark = pytest.mark.chain

# The idempotency claim; the unpaid request; the signed payment, recorded; the paid request; its answer, stored;
# the outcome on the chain; the end of the claim's lease.
PURCHASE = points(COMMIT, COMMIT, "send", COMMIT, COMMIT, "send", COMMIT, "outcomes", COMMIT, COMMIT)
PAYING = [Point(COMMIT, "before", 3), Point("send", "before", 2), Point(COMMIT, "before", 5)]
SIGNED = Point(COMMIT, "after", 3)
EXPIRED_SLOTS = 1_700


@pytest.fixture
def seller(each_scene: Scene, request: pytest.FixtureRequest) -> Iterator[ScriptedSeller]:
    """A seller on the chain of the scene; on Base it can ask by MPP."""
    if isinstance(each_scene, SolanaScene):
        each_scene.node.advance(FINALIZED)
        with solana_seller(each_scene.node) as on_solana:
            yield on_solana
    else:
        asks_by_mpp = getattr(request, "param", "x402") == "mpp"
        with (mpp_seller if asks_by_mpp else scripted_seller)(each_scene.node) as made:
            made.offer()["maxTimeoutSeconds"] = 600
            yield made


def purchase(scene: Scene, seller: ScriptedSeller) -> Scenario:
    service = scene.service
    settings = {**service.settings, "allow_private_upstreams": True}
    scene.service = ServiceThatBuys(service.database_url, service.nodes, settings)
    scene.restart()
    return scene.asking("x402/fetch", {"url": seller.url + "/report", "max_amount_usd": 0.05})


def paid(scene: Scene) -> int:
    """Return what the wallet has paid."""
    return usdc(50) - scene.held_by(scene.address)


def test_every_step_of_a_purchase_is_a_kill_point(each_scene: Scene, seller: ScriptedSeller) -> None:
    end = each_scene.in_child(purchase(each_scene, seller))
    assert end.answer[0] == 200, end.answer
    known = {point.step for point in PURCHASE}
    assert [point for point in end.passed if point.step in known] == PURCHASE


@pytest.mark.parametrize(
    ("each_scene", "seller", "point"),
    [
        *((ChainName.BASE, "x402", point) for point in distinct(PURCHASE)),
        # The order of the steps is the same: what is signed, sent and read again differs.
        *((*other, point) for other in ((ChainName.BASE, "mpp"), (ChainName.SOLANA, "x402")) for point in PAYING),
    ],
    indirect=["each_scene", "seller"],
    ids=str,
)
def test_a_killed_purchase_is_paid_once_and_the_retry_gets_the_answer(
    each_scene: Scene, seller: ScriptedSeller, point: Point
) -> None:
    scene, fetch = each_scene, purchase(each_scene, seller)
    scene.kill_in(fetch, point)
    scene.now += scene.patience
    status, body = scene.run_here(fetch)
    assert (status, body["status"], body["body"]) == (200, 200, '{"report": "sunny"}'), body
    scene.recover()
    # Sent once or more, but the same bytes each time.
    assert (len(set(seller.headers)), paid(scene)) == (1, CENT)
    [row] = scene.history()
    assert (row["id"], row["status"]) == (body["payment"]["transaction_id"], "confirmed")
    assert counted_usd(scene.app) == 0.01


@pytest.mark.parametrize("each_scene", [ChainName.SOLANA], indirect=True)
def test_a_purchase_killed_before_it_was_sent_is_never_signed_again(each_scene: Scene, seller: ScriptedSeller) -> None:
    scene, fetch = each_scene, purchase(each_scene, seller)
    scene.kill_in(fetch, SIGNED)
    scene.pass_blocks(EXPIRED_SLOTS)
    scene.now += scene.patience
    status, body = scene.run_here(fetch)
    assert (status, body["payment"]["state"]) == (200, "pending"), body
    scene.recover()
    [row] = scene.history()
    assert (row["status"], row["error"], counted_usd(scene.app)) == ("failed", "expired", 0)
    status, body = scene.run_here(fetch)
    assert (body["payment"]["state"], len(set(seller.headers))) == ("expired", 1)
    assert paid(scene) == 0
