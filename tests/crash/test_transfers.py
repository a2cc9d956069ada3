"""Kills at every point of a transfer on each chain; checks of the chain, the record and the response."""

from __future__ import annotations

import pytest

from app.core.chains import ChainName
from tests.crash.conftest import EvmScene, Scene, SolanaScene, counted_usd, on_both
from tests.support.chains import usdc
from tests.support.faults import When
from tests.support.processes import COMMIT, Point, distinct, points

pytestmark = pytest.mark.chain
BASE, SOLANA = ChainName.BASE, ChainName.SOLANA

# The idempotency claim; prepare; record (signed in its unit); broadcast; settle; the stored response.
TRANSFER = points(COMMIT, "draft", "sign", COMMIT, "broadcast", "outcomes", COMMIT, COMMIT)
# The chain refuses in the prepare phase, so only the failure is recorded.
REFUSAL = points(COMMIT, "draft", COMMIT, COMMIT)
# Points of a request at which its transaction is signed and not broadcast.
NEVER_SENT = [Point("sign", "after"), Point(COMMIT, "after", 2)]
ON_POSTGRES = {BASE: [Point(COMMIT, "before", 2)], SOLANA: []}
# Steps of a worker's pass for a signed transfer that was never sent.
SEND_AGAIN = {
    BASE: points(COMMIT, "outcomes", "head", COMMIT, "rebroadcast", COMMIT, COMMIT, COMMIT, COMMIT),
    SOLANA: points(COMMIT, "outcomes", COMMIT, "rebroadcast", COMMIT, COMMIT, COMMIT),
}
# For one that landed or expired.
SETTLE = points(COMMIT, "outcomes", COMMIT, COMMIT, COMMIT)
# For one that is overdue.
REPLACE = points(
    COMMIT, "outcomes", "head", COMMIT, "rebroadcast", COMMIT, "draft_replacement", "sign", COMMIT,
    "broadcast", COMMIT, COMMIT,
)  # fmt: skip

# For a confirmed one in a reorged block.
REOPEN = points(COMMIT, "outcomes", "orphaned_blocks", COMMIT, COMMIT, COMMIT)


def _paid(scene: Scene) -> int:
    return scene.held_by(scene.recipient)


def _assert_record_and_chain_agree(scene: Scene) -> None:
    rows = scene.history()
    confirmed = [row for row in rows if row["status"] == "confirmed"]
    assert {row["status"] for row in rows} <= {"confirmed", "failed"}
    assert len(confirmed) <= 1
    assert _paid(scene) == usdc(2) * len(confirmed)
    assert counted_usd(scene.app) == (2 + scene.extra_usd) * len(confirmed)


@pytest.mark.parametrize(
    ("each_scene", "database_url", "point"),
    [row for chain, some in ON_POSTGRES.items() for row in on_both(distinct(TRANSFER), some, chain)],
    indirect=["each_scene", "database_url"],
)
def test_a_transfer_of_a_killed_process_pays_at_most_once(each_scene: Scene, point: Point) -> None:
    scene, transfer = each_scene, each_scene.transfer()
    with scene.passing():
        scene.kill_in(transfer, point)
        recorded = scene.retry_at_once(transfer)
    scene.recover()
    _assert_record_and_chain_agree(scene)
    if recorded:
        assert [row["status"] for row in scene.history()] == ["confirmed"]

    # Later the same key gets the response rebuilt from the record; without a record it pays now.
    with scene.passing():
        status, body = scene.run_here(transfer)
    assert (status, body["status"]) == (200, "confirmed")
    assert [row["id"] for row in scene.history()] == [body["transaction_id"]]
    assert recorded in ([], [body["transaction_id"]])
    assert scene.run_here(transfer) == (status, body)
    assert _paid(scene) == usdc(2)
    assert counted_usd(scene.app) == 2 + scene.extra_usd


def test_every_step_of_a_transfer_is_a_kill_point(each_scene: Scene) -> None:
    with each_scene.passing():
        end = each_scene.in_child(each_scene.transfer())
    assert not end.killed
    # The chain may be queried more than once.
    assert [point for point in end.passed if point.step != "outcomes" or point.nth == 1] == TRANSFER


@pytest.mark.parametrize("point", distinct(REFUSAL), ids=str)
def test_a_refused_transfer_of_a_killed_process_moves_nothing(scene: EvmScene, point: Point) -> None:
    refused = scene.transfer("50")
    scene.node.fund_usdc(scene.recipient, 1)
    scene.run_here(scene.transfer("1", key="other"))
    scene.kill_in(refused, point)
    scene.recover()
    status, body = scene.run_here(refused)
    assert (status, body["details"]["reason"]) == (500, "insufficient_funds")
    again = scene.run_here(refused)[1]
    assert again["details"]["transaction_id"] == body["details"]["transaction_id"]
    assert sorted(row["status"] for row in scene.history()) == ["confirmed", "failed"]
    assert counted_usd(scene.app) == 1
    assert _paid(scene) == usdc(1) + 1


@pytest.mark.parametrize(("database_url", "point"), on_both(NEVER_SENT, NEVER_SENT[:1]), indirect=["database_url"])
def test_a_transfer_never_sent_before_expiry_is_failed_and_never_signed_again(
    solana_scene: SolanaScene, point: Point
) -> None:
    scene, transfer = solana_scene, solana_scene.transfer()
    scene.kill_in(transfer, point)
    recorded = [row["id"] for row in scene.history()]
    scene.node.advance(250)
    scene.recover()
    _assert_record_and_chain_agree(scene)
    if recorded:
        assert [row["error"] for row in scene.history()] == ["expired"]
        assert scene.run_here(transfer)[1]["details"]["transaction_id"] == recorded[0]
        assert [row["id"] for row in scene.history()] == recorded
    assert _paid(scene) == 0


def _die_at_broadcast(scene: Scene, when: When = "before") -> None:
    """Leave a signed transfer to the workers."""
    assert scene.in_child(scene.transfer(), Point("broadcast", when)).killed
    if when == "after":
        scene.land()
    scene.now += scene.patience


def _assert_recovered_and_paid_once(scene: Scene) -> None:
    scene.restart()
    scene.recover()
    _assert_record_and_chain_agree(scene)
    assert _paid(scene) == usdc(2)
    status, body = scene.run_here(scene.transfer())
    assert status == 200
    assert [row["id"] for row in scene.history()] == [body["transaction_id"]]


@pytest.mark.parametrize(
    ("database_url", "point"), on_both(distinct(SETTLE), [Point(COMMIT, "before", 2)]), indirect=["database_url"]
)
def test_a_worker_killed_while_it_fails_an_expired_transfer_releases_the_hold_once(
    solana_scene: SolanaScene, point: Point
) -> None:
    scene = solana_scene
    _die_at_broadcast(scene)
    scene.node.advance(250)
    scene.kill_in(scene.job(), point)
    scene.recover()
    _assert_record_and_chain_agree(scene)
    assert [row["error"] for row in scene.history()] == ["expired"]


@pytest.mark.parametrize(
    ("each_scene", "point"),
    [
        pytest.param(chain, point, id=f"{chain}-{point}")
        for chain, steps in SEND_AGAIN.items()
        for point in distinct(steps)
    ],
    indirect=["each_scene"],
)
def test_a_worker_killed_while_resending_leads_to_one_payment(each_scene: Scene, point: Point) -> None:
    _die_at_broadcast(each_scene)
    assert each_scene.in_child(each_scene.job(), point).killed
    _assert_recovered_and_paid_once(each_scene)


@pytest.mark.parametrize("point", distinct(SETTLE), ids=str)
def test_a_worker_killed_while_it_settles_spends_the_hold_once(each_scene: Scene, point: Point) -> None:
    _die_at_broadcast(each_scene, "after")
    assert each_scene.in_child(each_scene.job(), point).killed
    _assert_recovered_and_paid_once(each_scene)


@pytest.mark.parametrize("point", distinct(REPLACE[REPLACE.index(Point("draft_replacement", "before")) :]), ids=str)
def test_a_worker_killed_while_it_replaces_leads_to_one_payment(scene: EvmScene, point: Point) -> None:
    scene.leave_stuck(scene.transfer())
    assert scene.in_child(scene.job(), point).killed
    scene.node.set_automine(on=True)
    _assert_recovered_and_paid_once(scene)


def test_every_step_of_a_replacement_is_a_kill_point(scene: EvmScene) -> None:
    scene.leave_stuck(scene.transfer())
    assert list(scene.in_child(scene.job()).passed) == REPLACE


def test_every_step_of_a_worker_pass_is_a_kill_point(each_scene: Scene) -> None:
    scene = each_scene
    _die_at_broadcast(scene)
    assert list(scene.in_child(scene.job()).passed) == SEND_AGAIN[scene.on]
    scene.land()
    scene.now += scene.patience
    assert list(scene.in_child(scene.job()).passed) == SETTLE


def test_every_step_of_an_expiry_is_a_kill_point(solana_scene: SolanaScene) -> None:
    _die_at_broadcast(solana_scene)
    solana_scene.node.advance(250)
    assert list(solana_scene.in_child(solana_scene.job()).passed) == SETTLE


def _reorganised(scene: EvmScene) -> None:
    """Remove the block of a confirmed transfer in a reorg, and the transfer from the node's pool."""
    assert scene.run_here(scene.transfer())[1]["status"] == "confirmed"
    scene.node.mine(1)
    scene.node.reorg(2)
    assert _paid(scene) == 0
    scene.now += scene.patience


@pytest.mark.parametrize("point", distinct(REOPEN), ids=str)
def test_a_worker_killed_while_it_reopens_a_reorganised_transfer_leads_to_one_payment(
    scene: EvmScene, point: Point
) -> None:
    _reorganised(scene)
    scene.kill_in(scene.job(), point)
    # Until a worker has run, the record has the former status.
    for _ in range(3):
        scene.run_here(scene.job())
        scene.now += scene.patience
    _assert_recovered_and_paid_once(scene)


def test_every_step_of_reopening_is_a_kill_point(scene: EvmScene) -> None:
    _reorganised(scene)
    assert list(scene.in_child(scene.job()).passed) == REOPEN
