"""Kills at every point of a transfer; checks of the chain, the record and the response."""

from __future__ import annotations

from functools import partial

import pytest

from app.ports.errors import Unreachable
from tests.crash.conftest import EvmScene, counted_usd
from tests.support.chains import usdc
from tests.support.processes import COMMIT, Point, Scenario, points, work
from workers import confirmations

pytestmark = pytest.mark.chain

AMOUNT = "2"


# The idempotency claim; prepare; record (signed in its unit); broadcast; settle; the stored response.
TRANSFER = points(COMMIT, "draft", "sign", COMMIT, "broadcast", "outcomes", COMMIT, COMMIT)
# The chain refuses in the prepare phase, so only the failure is recorded.
REFUSAL = [point for point in points(COMMIT, "draft", COMMIT, COMMIT) if point != Point("draft", "after")]
ON_POSTGRES = [
    Point(COMMIT, "after"),
    Point("sign", "after"),
    Point(COMMIT, "before", 2),
    Point(COMMIT, "after", 2),
    Point("broadcast", "after"),
    Point(COMMIT, "after", 3),
]
EVERYWHERE = [("sqlite", point) for point in TRANSFER] + [
    pytest.param("postgres", point, marks=pytest.mark.postgres, id=f"postgres-{point}") for point in ON_POSTGRES
]


def _transfer(scene: EvmScene) -> Scenario:
    return scene.asking("transfer", _body(scene))


def _body(scene: EvmScene, amount: str = AMOUNT) -> dict[str, str]:
    return {"amount": amount, "currency": "USDC", "chain": "base", "to": scene.recipient}


def _paid(scene: EvmScene) -> int:
    return scene.held_by(scene.recipient)


def _assert_record_and_chain_agree(scene: EvmScene) -> None:
    rows = scene.history()
    confirmed = [row for row in rows if row["status"] == "confirmed"]
    assert {row["status"] for row in rows} <= {"confirmed", "failed"}
    assert len(confirmed) <= 1
    assert _paid(scene) == usdc(2) * len(confirmed)
    assert counted_usd(scene.app) == 2 * len(confirmed)


@pytest.mark.parametrize(("database_url", "point"), EVERYWHERE, indirect=["database_url"], ids=str)
def test_a_transfer_of_a_killed_process_pays_at_most_once(scene: EvmScene, point: Point) -> None:
    transfer = _transfer(scene)
    assert scene.in_child(transfer, point).killed
    scene.restart()
    recorded = [row["id"] for row in scene.history()]
    assert len(recorded) <= 1

    # An immediate retry gets a conflict or the response; never a second payment.
    status, body = scene.run_here(transfer)
    assert status == 200 or body["code"] == "IDEMPOTENCY_CONFLICT"
    assert len(scene.history()) <= 1

    scene.recover()
    _assert_record_and_chain_agree(scene)
    if recorded:
        assert [row["status"] for row in scene.history()] == ["confirmed"]

    # Later the same key gets the response rebuilt from the record; without a record it pays now.
    status, body = scene.run_here(transfer)
    assert (status, body["status"]) == (200, "confirmed")
    assert [row["id"] for row in scene.history()] == [body["transaction_id"]]
    assert recorded in ([], [body["transaction_id"]])
    assert scene.run_here(transfer) == (status, body)
    assert _paid(scene) == usdc(2)
    assert counted_usd(scene.app) == 2


def test_every_step_of_a_transfer_is_a_kill_point(scene: EvmScene) -> None:
    end = scene.in_child(_transfer(scene))
    assert not end.killed
    # The chain may be queried more than once.
    assert [point for point in end.passed if point.step != "outcomes" or point.nth == 1] == TRANSFER


@pytest.mark.parametrize("point", REFUSAL, ids=str)
def test_a_refused_transfer_of_a_killed_process_moves_nothing(scene: EvmScene, point: Point) -> None:
    refused = scene.asking("transfer", _body(scene, "50"))
    scene.node.fund_usdc(scene.recipient, 1)
    scene.run_here(scene.asking("transfer", _body(scene, "1"), key="other"))
    assert scene.in_child(refused, point).killed
    scene.restart()
    scene.recover()
    status, body = scene.run_here(refused)
    assert (status, body["details"]["reason"]) == (500, "insufficient_funds")
    again = scene.run_here(refused)[1]
    assert again["details"]["transaction_id"] == body["details"]["transaction_id"]
    assert sorted(row["status"] for row in scene.history()) == ["confirmed", "failed"]
    assert counted_usd(scene.app) == 1
    assert _paid(scene) == usdc(1) + 1


# Steps of a worker's pass for a signed transfer that was never sent.
SEND_AGAIN = points(COMMIT, "outcomes", "head", COMMIT, "rebroadcast", COMMIT, COMMIT, COMMIT, COMMIT)
# For one in a block.
SETTLE = points(COMMIT, "outcomes", COMMIT, COMMIT, COMMIT)
# For one that is overdue.
REPLACE = points(
    COMMIT, "outcomes", "head", COMMIT, "rebroadcast", COMMIT, "draft_replacement", "sign", COMMIT,
    "broadcast", COMMIT, COMMIT,
)  # fmt: skip

# For a confirmed one in a reorged block.
REOPEN = points(COMMIT, "outcomes", "orphaned_blocks", COMMIT, COMMIT, COMMIT)


def _confirm() -> Scenario:
    return partial(work, job=confirmations.confirm, arguments=("base",))


@pytest.mark.parametrize("point", SEND_AGAIN, ids=str)
def test_a_worker_killed_while_resending_leads_to_one_payment(scene: EvmScene, point: Point) -> None:
    assert scene.in_child(_transfer(scene), Point("broadcast", "before")).killed
    scene.now += scene.patience
    assert scene.in_child(_confirm(), point).killed
    _assert_recovered_and_paid_once(scene)


@pytest.mark.parametrize("point", SETTLE, ids=str)
def test_a_worker_killed_while_it_settles_spends_the_hold_once(scene: EvmScene, point: Point) -> None:
    assert scene.in_child(_transfer(scene), Point("broadcast", "after")).killed
    scene.now += scene.patience
    assert scene.in_child(_confirm(), point).killed
    _assert_recovered_and_paid_once(scene)


def _assert_recovered_and_paid_once(scene: EvmScene) -> None:
    scene.restart()
    scene.recover()
    _assert_record_and_chain_agree(scene)
    assert _paid(scene) == usdc(2)
    status, body = scene.run_here(_transfer(scene))
    assert status == 200
    assert [row["id"] for row in scene.history()] == [body["transaction_id"]]


def _stuck(scene: EvmScene) -> None:
    """Leave a transfer pending for longer than the replacement threshold, with one pass of a worker."""
    scene.configure(confirmation_wait_seconds="0")
    scene.restart()
    scene.node.set_automine(on=False)
    body = scene.run_here(_transfer(scene))[1]
    scene.node.rpc("anvil_dropTransaction", body["tx_hash"])
    scene.chain.raising("rebroadcast", "before", Unreachable("dropped"))
    scene.now += scene.patience
    scene.run_here(_confirm())
    scene.node.mine(4)
    scene.now += scene.patience


@pytest.mark.parametrize("point", REPLACE[REPLACE.index(Point("draft_replacement", "before")) :], ids=str)
def test_a_worker_killed_while_it_replaces_leads_to_one_payment(scene: EvmScene, point: Point) -> None:
    _stuck(scene)
    assert scene.in_child(_confirm(), point).killed
    scene.node.set_automine(on=True)
    _assert_recovered_and_paid_once(scene)


def test_every_step_of_a_replacement_is_a_kill_point(scene: EvmScene) -> None:
    _stuck(scene)
    assert list(scene.in_child(_confirm()).passed) == REPLACE


def test_every_step_of_a_worker_pass_is_a_kill_point(scene: EvmScene) -> None:
    assert scene.in_child(_transfer(scene), Point("broadcast", "before")).killed
    scene.now += scene.patience
    assert list(scene.in_child(_confirm()).passed) == SEND_AGAIN
    scene.now += scene.patience
    assert list(scene.in_child(_confirm()).passed) == SETTLE


def _reorganised(scene: EvmScene) -> None:
    """Remove the block of a confirmed transfer in a reorg, and the transfer from the node's pool."""
    assert scene.run_here(_transfer(scene))[1]["status"] == "confirmed"
    scene.node.mine(1)
    scene.node.reorg(2)
    assert _paid(scene) == 0
    scene.now += scene.patience


@pytest.mark.parametrize("point", REOPEN, ids=str)
def test_a_worker_killed_while_it_reopens_a_reorganised_transfer_leads_to_one_payment(
    scene: EvmScene, point: Point
) -> None:
    _reorganised(scene)
    assert scene.in_child(_confirm(), point).killed
    scene.restart()
    # Until a worker has run, the record has the former status.
    for _ in range(3):
        scene.run_here(_confirm())
        scene.now += scene.patience
    _assert_recovered_and_paid_once(scene)


def test_every_step_of_reopening_is_a_kill_point(scene: EvmScene) -> None:
    _reorganised(scene)
    assert list(scene.in_child(_confirm()).passed) == REOPEN
