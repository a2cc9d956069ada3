"""Kills at every point of a swap; checks of the chain, the record and the response."""

from __future__ import annotations

import pytest

from app.core.chains import ChainName
from tests.crash.conftest import EvmScene, Scene, SolanaScene, counted_usd, on_both
from tests.support.chains import usdc
from tests.support.processes import COMMIT, Point, distinct, points

pytestmark = pytest.mark.chain

# The idempotency claim; prepare; record (signed in its unit); broadcast; settle; the stored response.
SWAP = points(COMMIT, "quote", "draft", "sign", COMMIT, "broadcast", "outcomes", COMMIT, COMMIT)
ON_POSTGRES = [Point(COMMIT, "before", 2)]


def _assert_record_and_chain_agree(scene: Scene) -> None:
    rows = scene.history()
    confirmed = [row for row in rows if row["status"] == "confirmed"]
    assert {row["status"] for row in rows} <= {"confirmed", "failed"}
    assert scene.held_by(scene.address) == usdc(50) - usdc(10) * len(confirmed)
    assert counted_usd(scene.app) == sum(row["cost_usd"] for row in confirmed)


def _assert_ends_in_one_swap(scene: Scene) -> None:
    scene.recover()
    _assert_record_and_chain_agree(scene)
    # The idempotency claims of killed processes have expired, also on a slow machine.
    scene.now += scene.patience
    status, body = scene.run_here(scene.swap())
    if body.get("status") == "pending":
        scene.recover()
        body = scene.run_here(scene.swap())[1]
    assert status == 200, body
    rows = scene.history()
    assert [row["id"] for row in rows] == [body["transaction_id"]]
    assert rows[0]["status"] == "confirmed"
    assert float(rows[0]["output_amount"]) > 0
    assert scene.held_by(scene.address) == usdc(40)
    assert counted_usd(scene.app) == rows[0]["cost_usd"]


@pytest.mark.parametrize(
    ("each_scene", "database_url", "point"),
    on_both(distinct(SWAP), ON_POSTGRES, ChainName.BASE) + on_both(distinct(SWAP), [], ChainName.SOLANA),
    indirect=["each_scene", "database_url"],
)
def test_a_swap_of_a_killed_process_is_executed_at_most_once(each_scene: Scene, point: Point) -> None:
    scene = each_scene
    with scene.passing():
        scene.kill_in(scene.swap(), point)
        recorded = scene.retry_at_once(scene.swap())
    found = scene.history()
    scene.recover()
    _assert_record_and_chain_agree(scene)
    rows = scene.history()
    if scene.on is ChainName.SOLANA and found and [row["status"] for row in rows] == ["failed"]:
        # Signed, never sent, and expired: it has certainly failed.
        assert rows[0]["error"] == "expired"
        return
    with scene.passing():
        _assert_ends_in_one_swap(scene)
    assert recorded in ([], [scene.history()[0]["id"]])


def test_every_step_of_a_swap_is_a_kill_point(scene: EvmScene) -> None:
    end = scene.in_child(scene.swap())
    assert not end.killed
    # The chain may be queried more than once.
    assert [point for point in end.passed if point.step != "outcomes" or point.nth == 1] == SWAP


@pytest.mark.parametrize("point", [Point("sign", "after"), *points("broadcast")], ids=str)
def test_a_worker_killed_while_it_replaces_a_swap_leads_to_one_swap(scene: EvmScene, point: Point) -> None:
    scene.leave_stuck(scene.swap())
    scene.kill_in(scene.job(), point)
    scene.node.set_automine(on=True)
    _assert_ends_in_one_swap(scene)


def test_a_solana_swap_that_landed_unnoticed_is_settled_with_its_output(solana_scene: SolanaScene) -> None:
    scene = solana_scene
    scene.kill_in(scene.swap(), Point("broadcast", "after"))
    scene.land()
    scene.recover()
    (row,) = scene.history()
    assert (row["status"], row["currency"], row["output_currency"]) == ("confirmed", "USDC", "SOL")
    assert 0.06 < float(row["output_amount"]) < 0.07
