"""Kills at every point of a swap; checks of the chain, the record and the response."""

from __future__ import annotations

from functools import partial

import pytest

from app.ports.errors import Unreachable
from tests.crash.conftest import EvmScene, Scene, SolanaScene, counted_usd
from tests.support.chains import usdc
from tests.support.processes import COMMIT, Point, Scenario, points, work
from tests.support.solana import CONFIRMED, passing
from workers import confirmations

pytestmark = pytest.mark.chain

# The idempotency claim; prepare; record (signed in its unit); broadcast; settle; the stored response.
SWAP = points(COMMIT, "quote", "draft", "sign", COMMIT, "broadcast", "outcomes", COMMIT, COMMIT)
ON_POSTGRES = [
    Point("sign", "after"),
    Point(COMMIT, "after", 2),
    Point("broadcast", "after"),
    Point(COMMIT, "after", 3),
]
EVERYWHERE = [("sqlite", point) for point in SWAP] + [
    pytest.param("postgres", point, marks=pytest.mark.postgres, id=f"postgres-{point}") for point in ON_POSTGRES
]


def _swap(scene: Scene) -> Scenario:
    body = {"chain": scene.on.value, "input_token": "USDC", "output_token": _other(scene), "amount": "10"}
    return scene.asking("swap", body)


def _other(scene: Scene) -> str:
    return "SOL" if isinstance(scene, SolanaScene) else "ETH"


def _own(scene: Scene) -> str:
    return scene.agent.solana_address if isinstance(scene, SolanaScene) else scene.agent.address


def _confirm(scene: Scene) -> Scenario:
    return partial(work, job=confirmations.confirm, arguments=(scene.on.value,))


def _assert_record_and_chain_agree(scene: Scene) -> None:
    rows = scene.history()
    confirmed = [row for row in rows if row["status"] == "confirmed"]
    assert {row["status"] for row in rows} <= {"confirmed", "failed"}
    assert scene.held_by(_own(scene)) == usdc(50) - usdc(10) * len(confirmed)
    assert counted_usd(scene.app) == sum(row["cost_usd"] for row in confirmed)


def _assert_ends_in_one_swap(scene: Scene) -> None:
    scene.recover()
    _assert_record_and_chain_agree(scene)
    # The idempotency claims of killed processes have expired, also on a slow machine.
    scene.now += scene.patience
    status, body = scene.run_here(_swap(scene))
    if body.get("status") == "pending":
        scene.recover()
        body = scene.run_here(_swap(scene))[1]
    assert status == 200, body
    rows = scene.history()
    assert [row["id"] for row in rows] == [body["transaction_id"]]
    assert rows[0]["status"] == "confirmed"
    assert float(rows[0]["output_amount"]) > 0
    assert scene.held_by(_own(scene)) == usdc(40)
    assert counted_usd(scene.app) == rows[0]["cost_usd"]


@pytest.mark.parametrize(("database_url", "point"), EVERYWHERE, indirect=["database_url"], ids=str)
def test_a_swap_of_a_killed_process_is_executed_at_most_once(scene: EvmScene, point: Point) -> None:
    assert scene.in_child(_swap(scene), point).killed
    scene.restart()
    recorded = [row["id"] for row in scene.history()]
    assert len(recorded) <= 1
    # An immediate retry gets a conflict or the response; never a second swap.
    status, body = scene.run_here(_swap(scene))
    assert status == 200 or body["code"] == "IDEMPOTENCY_CONFLICT"
    assert len(scene.history()) <= 1
    _assert_ends_in_one_swap(scene)
    assert recorded in ([], [scene.history()[0]["id"]])


def test_every_step_of_a_swap_is_a_kill_point(scene: EvmScene) -> None:
    end = scene.in_child(_swap(scene))
    assert not end.killed
    # The chain may be queried more than once.
    assert [point for point in end.passed if point.step != "outcomes" or point.nth == 1] == SWAP


@pytest.mark.parametrize("point", SWAP, ids=str)
def test_a_solana_swap_of_a_killed_process_is_executed_at_most_once(solana_scene: SolanaScene, point: Point) -> None:
    scene = solana_scene
    with passing(scene.node):
        assert scene.in_child(_swap(scene), point).killed
        scene.restart()
        assert len(scene.history()) <= 1
        status, body = scene.run_here(_swap(scene))
        assert status == 200 or body["code"] == "IDEMPOTENCY_CONFLICT"
        assert len(scene.history()) <= 1
    recorded = scene.history()
    scene.recover()
    _assert_record_and_chain_agree(scene)
    ends = [row["status"] for row in scene.history()]
    if recorded and ends == ["failed"]:
        # Signed, never sent, and expired: it has certainly failed.
        assert scene.history()[0]["error"] == "expired"
        return
    with passing(scene.node):
        _assert_ends_in_one_swap(scene)


def _stuck(scene: EvmScene) -> None:
    """Leave a swap pending for longer than the replacement threshold, with one pass of a worker."""
    scene.configure(confirmation_wait_seconds="0")
    scene.restart()
    scene.node.set_automine(on=False)
    body = scene.run_here(_swap(scene))[1]
    scene.node.rpc("anvil_dropTransaction", body["tx_hash"])
    scene.chain.raising("rebroadcast", "before", Unreachable("dropped"))
    scene.now += scene.patience
    scene.run_here(_confirm(scene))
    scene.node.mine(4)
    scene.now += scene.patience


@pytest.mark.parametrize("point", points("draft_replacement", "sign", "broadcast"), ids=str)
def test_a_worker_killed_while_it_replaces_a_swap_leads_to_one_swap(scene: EvmScene, point: Point) -> None:
    _stuck(scene)
    assert scene.in_child(_confirm(scene), point).killed
    scene.node.set_automine(on=True)
    scene.restart()
    _assert_ends_in_one_swap(scene)


def test_a_solana_swap_that_landed_unnoticed_is_settled_with_its_output(solana_scene: SolanaScene) -> None:
    scene = solana_scene
    assert scene.in_child(_swap(scene), Point("broadcast", "after")).killed
    scene.restart()
    scene.node.advance(CONFIRMED)
    scene.recover()
    (row,) = scene.history()
    assert (row["status"], row["currency"], row["output_currency"]) == ("confirmed", "USDC", "SOL")
    assert 0.06 < float(row["output_amount"]) < 0.07
