"""A process that carries a transfer dies at every point of it; what the chain, the record and the caller then have."""

from __future__ import annotations

from functools import partial

import pytest

from app.ports.errors import Unreachable
from tests.crash.conftest import EvmScene
from tests.support.chains import usdc
from tests.support.processes import COMMIT, Point, Story, points, work
from workers import confirmations

pytestmark = pytest.mark.chain

AMOUNT = "2"


# The claim on the key; beat 0; beat 1 (signed inside its unit); beat 2; beat 3; the stored answer.
TRANSFER = points(COMMIT, "draft", "sign", COMMIT, "broadcast", "outcomes", COMMIT, COMMIT)
# The chain refuses in beat 0, so nothing comes after it but the record of the failure.
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
    pytest.param("postgres", point, marks=pytest.mark.postgres, id=f"postgres-{point}")
    for point in ON_POSTGRES
]


def _transfer(scene: EvmScene) -> Story:
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
    assert scene.spent_today() == 2 * len(confirmed)


@pytest.mark.parametrize(("database_url", "point"), EVERYWHERE, indirect=["database_url"], ids=str)
def test_a_transfer_whose_process_is_killed_pays_once_or_not_at_all(scene: EvmScene, point: Point) -> None:
    transfer = _transfer(scene)
    assert scene.in_child(transfer, point).killed
    scene.restart()
    recorded = [row["id"] for row in scene.history()]
    assert len(recorded) <= 1

    # Whoever repeats the request at once is told to wait, or gets the answer; never a second payment.
    status, body = scene.tell(transfer)
    assert status == 200 or body["code"] == "IDEMPOTENCY_CONFLICT"
    assert len(scene.history()) <= 1

    scene.recover()
    _assert_record_and_chain_agree(scene)
    if recorded:
        assert [row["status"] for row in scene.history()] == ["confirmed"]

    # Later the same key gets the right answer, rebuilt from the record; without a record it pays now.
    status, body = scene.tell(transfer)
    assert (status, body["status"]) == (200, "confirmed")
    assert [row["id"] for row in scene.history()] == [body["transaction_id"]]
    assert recorded in ([], [body["transaction_id"]])
    assert scene.tell(transfer) == (status, body)
    assert _paid(scene) == usdc(2)
    assert scene.spent_today() == 2


def test_the_points_of_a_transfer_are_all_that_it_passes(scene: EvmScene) -> None:
    end = scene.in_child(_transfer(scene))
    assert not end.killed
    # The chain may have to be asked more than once.
    assert [point for point in end.passed if point.step != "outcomes" or point.nth == 1] == TRANSFER


@pytest.mark.parametrize("point", REFUSAL, ids=str)
def test_a_refused_transfer_whose_process_is_killed_takes_nothing(scene: EvmScene, point: Point) -> None:
    refused = scene.asking("transfer", _body(scene, "50"))
    scene.node.fund_usdc(scene.recipient, 1)
    scene.tell(scene.asking("transfer", _body(scene, "1"), key="other"))
    assert scene.in_child(refused, point).killed
    scene.restart()
    scene.recover()
    status, body = scene.tell(refused)
    assert (status, body["details"]["reason"]) == (500, "insufficient_funds")
    again = scene.tell(refused)[1]
    assert again["details"]["transaction_id"] == body["details"]["transaction_id"]
    assert sorted(row["status"] for row in scene.history()) == ["confirmed", "failed"]
    assert scene.spent_today() == 1
    assert _paid(scene) == usdc(1) + 1


# What a worker's pass does with a movement that was signed and never sent.
SEND_AGAIN = points(COMMIT, COMMIT, "outcomes", "head", COMMIT, "rebroadcast", COMMIT, COMMIT, COMMIT, COMMIT)
# With one that lies in a block.
SETTLE = points(COMMIT, COMMIT, "outcomes", "head", COMMIT, COMMIT, COMMIT)
# With one that has waited for too long.
REPLACE = points(
    COMMIT, COMMIT, "outcomes", "head", COMMIT, "rebroadcast", COMMIT, "replacement", "sign", COMMIT,
    "broadcast", COMMIT, COMMIT,
)  # fmt: skip

# With one whose block was reorganised away after it had been confirmed.
REOPEN = points(COMMIT, COMMIT, "outcomes", "orphaned", COMMIT, COMMIT, COMMIT)


def _confirm() -> Story:
    return partial(work, job=confirmations.confirm, arguments=("base",))


@pytest.mark.parametrize("point", SEND_AGAIN, ids=str)
def test_a_worker_killed_while_it_sends_again_leads_to_one_payment(scene: EvmScene, point: Point) -> None:
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
    status, body = scene.tell(_transfer(scene))
    assert status == 200
    assert [row["id"] for row in scene.history()] == [body["transaction_id"]]


def _stuck(scene: EvmScene) -> None:
    """Let a transfer wait for longer than the service's patience, seen by one pass of a worker."""
    scene.configure(confirmation_wait_seconds="0")
    scene.restart()
    scene.node.set_automine(on=False)
    body = scene.tell(_transfer(scene))[1]
    scene.node.rpc("anvil_dropTransaction", body["tx_hash"])
    scene.chain.raising("rebroadcast", "before", Unreachable("dropped"))
    scene.now += scene.patience
    scene.tell(_confirm())
    scene.node.mine(4)
    scene.now += scene.patience


@pytest.mark.parametrize("point", REPLACE[REPLACE.index(Point("replacement", "before")) :], ids=str)
def test_a_worker_killed_while_it_replaces_leads_to_one_payment(scene: EvmScene, point: Point) -> None:
    _stuck(scene)
    assert scene.in_child(_confirm(), point).killed
    scene.node.set_automine(on=True)
    _assert_recovered_and_paid_once(scene)


def test_the_points_of_a_replacement_are_all_that_it_passes(scene: EvmScene) -> None:
    _stuck(scene)
    assert list(scene.in_child(_confirm()).passed) == REPLACE


def test_the_points_of_a_worker_s_pass_are_all_that_it_passes(scene: EvmScene) -> None:
    assert scene.in_child(_transfer(scene), Point("broadcast", "before")).killed
    scene.now += scene.patience
    assert list(scene.in_child(_confirm()).passed) == SEND_AGAIN
    scene.now += scene.patience
    assert list(scene.in_child(_confirm()).passed) == SETTLE


def _reorganised(scene: EvmScene) -> None:
    """Take a confirmed transfer's block away, out of the node's pool too."""
    assert scene.tell(_transfer(scene))[1]["status"] == "confirmed"
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
    # Until a worker has noticed, the record still says what was true before.
    for _ in range(3):
        scene.tell(_confirm())
        scene.now += scene.patience
    _assert_recovered_and_paid_once(scene)


def test_the_points_of_reopening_are_all_that_it_passes(scene: EvmScene) -> None:
    _reorganised(scene)
    assert list(scene.in_child(_confirm()).passed) == REOPEN
