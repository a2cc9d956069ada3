"""Kills at every point of a payment to a web service on Solana: one transfer is signed, and it lands at most once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from solana_node import SolanaNode
from tests.crash.conftest import SolanaScene, counted_usd
from tests.crash.test_x402_buying import PURCHASE, purchase
from tests.support.processes import COMMIT, Point
from tests.support.sellers import CENT
from tests.support.solana_sellers import SolanaSeller, solana_seller

pytestmark = pytest.mark.chain
SIGNED = Point(COMMIT, "after", 3)
EXPIRED_SLOTS = 1_700


@pytest.fixture
def seller(solana_crash_node: SolanaNode) -> Iterator[SolanaSeller]:
    solana_crash_node.advance(40)
    with solana_seller(solana_crash_node) as made:
        yield made


def received(scene: SolanaScene, seller: SolanaSeller) -> int:
    """Return what the seller has, less the dollar that created its account."""
    return scene.held_by(seller.offer()["payTo"]) - 10**6


def test_every_step_of_a_purchase_is_a_kill_point(solana_scene: SolanaScene, seller: SolanaSeller) -> None:
    end = solana_scene.in_child(purchase(solana_scene, seller))
    assert end.answer[0] == 200, end.answer
    known = {point.step for point in PURCHASE}
    assert [point for point in end.passed if point.step in known] == PURCHASE


@pytest.mark.parametrize("point", PURCHASE, ids=str)
def test_a_killed_purchase_is_paid_once_and_the_retry_gets_the_answer(
    solana_scene: SolanaScene, seller: SolanaSeller, point: Point
) -> None:
    scene, fetch = solana_scene, purchase(solana_scene, seller)
    assert scene.in_child(fetch, point).killed
    scene.restart()
    scene.now += scene.patience
    status, body = scene.run_here(fetch)
    assert (status, body["status"], body["body"]) == (200, 200, '{"report": "sunny"}'), body
    scene.recover()
    assert (len(set(seller.headers)), received(scene, seller)) == (1, CENT)
    [row] = scene.history()
    assert (row["id"], row["status"]) == (body["payment"]["transaction_id"], "confirmed")
    assert counted_usd(scene.app) == 0.01


def test_a_purchase_killed_before_it_was_sent_is_never_signed_again(
    solana_scene: SolanaScene, seller: SolanaSeller
) -> None:
    scene, fetch = solana_scene, purchase(solana_scene, seller)
    assert scene.in_child(fetch, SIGNED).killed
    scene.restart()
    scene.node.advance(EXPIRED_SLOTS)
    scene.now += scene.patience
    status, body = scene.run_here(fetch)
    assert (status, body["payment"]["state"]) == (200, "pending"), body
    scene.recover()
    [row] = scene.history()
    assert (row["status"], row["error"], counted_usd(scene.app)) == ("failed", "expired", 0)
    status, body = scene.run_here(fetch)
    assert (body["payment"]["state"], len(set(seller.headers))) == ("expired", 1)
    assert received(scene, seller) == 0
