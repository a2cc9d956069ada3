"""Kills at every point of a Solana transfer: a signed transfer is paid at most once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.crash.conftest import SolanaScene, counted_usd
from tests.support.processes import COMMIT, Point, Scenario, points, work
from tests.support.solana import CONFIRMED
from workers import confirmations, deposits

pytestmark = pytest.mark.chain

AMOUNT, UNITS = "2", 2_000_000
# With the rent of the recipient's token account.
COUNTED = 2.305892
# The idempotency claim; prepare; record (signed in its unit); broadcast; settle; the stored response.
TRANSFER = points(COMMIT, "draft", "sign", COMMIT, "broadcast", "outcomes", COMMIT, COMMIT)
ON_POSTGRES = [Point("sign", "after"), Point(COMMIT, "after", 2), Point("broadcast", "after")]
# Points of a request at which its transaction is signed and not broadcast.
NEVER_SENT = [Point("sign", "after"), Point(COMMIT, "after", 2)]


def _on(sqlite: list[Point], postgres: list[Point]) -> list[Any]:
    return [("sqlite", point) for point in sqlite] + [
        pytest.param("postgres", point, marks=pytest.mark.postgres, id=f"postgres-{point}") for point in postgres
    ]


# Steps of a worker's pass for a signed transfer that was never sent, and for one that landed or expired.
SEND_AGAIN = points(COMMIT, "outcomes", COMMIT, "rebroadcast", COMMIT, COMMIT, COMMIT)
SETTLE = points(COMMIT, "outcomes", COMMIT, COMMIT, COMMIT)


@contextmanager
def _passing(scene: SolanaScene) -> Iterator[None]:
    """Advance slots while the service runs."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(0.02):
            scene.node.advance(1)

    clock = threading.Thread(target=run)
    clock.start()
    try:
        yield
    finally:
        done.set()
        clock.join()


def _transfer(scene: SolanaScene) -> Scenario:
    body = {"amount": AMOUNT, "currency": "USDC", "chain": "solana", "to": scene.recipient}
    return scene.asking("transfer", body)


def _job(job: Callable[..., None]) -> Scenario:
    return partial(work, job=job, arguments=("solana",))


def _assert_record_and_chain_agree(scene: SolanaScene) -> None:
    rows = scene.history()
    confirmed = [row for row in rows if row["status"] == "confirmed"]
    assert {row["status"] for row in rows} <= {"confirmed", "failed"}
    assert scene.held_by(scene.recipient) == UNITS * len(confirmed) <= UNITS
    assert counted_usd(scene.app) == COUNTED * len(confirmed)


@pytest.mark.parametrize(("database_url", "point"), _on(TRANSFER, ON_POSTGRES), indirect=["database_url"], ids=str)
def test_a_transfer_of_a_killed_process_pays_at_most_once(solana_scene: SolanaScene, point: Point) -> None:
    scene, transfer = solana_scene, _transfer(solana_scene)
    with _passing(scene):
        assert scene.in_child(transfer, point).killed
        scene.restart()
        recorded = [row["id"] for row in scene.history()]
        assert len(recorded) <= 1
        status, body = scene.run_here(transfer)
        assert status == 200 or body["code"] == "IDEMPOTENCY_CONFLICT"
        assert len(scene.history()) <= 1
    scene.recover()
    _assert_record_and_chain_agree(scene)
    if recorded:
        assert [row["status"] for row in scene.history()] == ["confirmed"]
    with _passing(scene):
        status, body = scene.run_here(transfer)
    assert (status, body["status"]) == (200, "confirmed")
    assert [row["id"] for row in scene.history()] == [body["transaction_id"]]
    assert scene.run_here(transfer) == (status, body)
    assert scene.held_by(scene.recipient) == UNITS
    assert counted_usd(scene.app) == COUNTED


def test_every_step_of_a_transfer_is_a_kill_point(solana_scene: SolanaScene) -> None:
    with _passing(solana_scene):
        end = solana_scene.in_child(_transfer(solana_scene))
    assert not end.killed
    # The chain may be queried more than once.
    assert [point for point in end.passed if point.step != "outcomes" or point.nth == 1] == TRANSFER


@pytest.mark.parametrize(("database_url", "point"), _on(NEVER_SENT, NEVER_SENT), indirect=["database_url"], ids=str)
def test_a_transfer_never_sent_before_expiry_is_failed_and_never_signed_again(
    solana_scene: SolanaScene, point: Point
) -> None:
    scene, transfer = solana_scene, _transfer(solana_scene)
    assert scene.in_child(transfer, point).killed
    scene.restart()
    recorded = [row["id"] for row in scene.history()]
    scene.node.advance(250)
    scene.recover()
    _assert_record_and_chain_agree(scene)
    if recorded:
        assert [row["error"] for row in scene.history()] == ["expired"]
        assert scene.run_here(transfer)[1]["details"]["transaction_id"] == recorded[0]
        assert [row["id"] for row in scene.history()] == recorded
    assert scene.held_by(scene.recipient) == 0


@pytest.mark.parametrize(("database_url", "point"), _on(SETTLE, SETTLE), indirect=["database_url"], ids=str)
def test_a_worker_killed_while_it_fails_an_expired_transfer_releases_the_hold_once(
    solana_scene: SolanaScene, point: Point
) -> None:
    scene = solana_scene
    assert scene.in_child(_transfer(scene), Point("broadcast", "before")).killed
    scene.node.advance(250)
    scene.now += scene.patience
    assert scene.in_child(_job(confirmations.confirm), point).killed
    scene.restart()
    scene.recover()
    _assert_record_and_chain_agree(scene)
    assert [row["error"] for row in scene.history()] == ["expired"]


@pytest.mark.parametrize("point", SEND_AGAIN, ids=str)
def test_a_worker_killed_while_resending_leads_to_one_payment(solana_scene: SolanaScene, point: Point) -> None:
    scene = solana_scene
    assert scene.in_child(_transfer(scene), Point("broadcast", "before")).killed
    scene.now += scene.patience
    assert scene.in_child(_job(confirmations.confirm), point).killed
    scene.restart()
    scene.recover()
    _assert_record_and_chain_agree(scene)
    assert scene.held_by(scene.recipient) == UNITS


@pytest.mark.parametrize("point", SETTLE, ids=str)
def test_a_worker_killed_while_it_settles_spends_the_hold_once(solana_scene: SolanaScene, point: Point) -> None:
    scene = solana_scene
    assert scene.in_child(_transfer(scene), Point("broadcast", "after")).killed
    scene.node.advance(CONFIRMED)
    scene.now += scene.patience
    assert scene.in_child(_job(confirmations.confirm), point).killed
    scene.restart()
    scene.recover()
    _assert_record_and_chain_agree(scene)
    assert scene.held_by(scene.recipient) == UNITS


def test_every_step_of_a_worker_pass_is_a_kill_point(solana_scene: SolanaScene) -> None:
    scene = solana_scene
    assert scene.in_child(_transfer(scene), Point("broadcast", "before")).killed
    scene.now += scene.patience
    assert list(scene.in_child(_job(confirmations.confirm)).passed) == SEND_AGAIN
    scene.node.advance(CONFIRMED)
    scene.now += scene.patience
    assert list(scene.in_child(_job(confirmations.confirm)).passed) == SETTLE


def test_every_step_of_an_expiry_is_a_kill_point(solana_scene: SolanaScene) -> None:
    scene = solana_scene
    assert scene.in_child(_transfer(scene), Point("broadcast", "before")).killed
    scene.node.advance(250)
    scene.now += scene.patience
    assert list(scene.in_child(_job(confirmations.confirm)).passed) == SETTLE


FIND = points(COMMIT, "deposits", COMMIT, COMMIT)


def _asked_and_paid(scene: SolanaScene) -> None:
    status, body = scene.run_here(
        scene.asking("fund", {"amount": "3", "currency": "USDC", "chain": "solana"}, key="fund")
    )
    assert status == 200, body
    scene.node.advance(CONFIRMED)
    scene.node.mint_usdc(scene.agent.solana_address, 3_000_000)
    scene.node.advance(40)
    scene.now += scene.patience


@pytest.mark.parametrize("point", FIND, ids=str)
def test_a_worker_killed_while_it_finds_a_deposit_counts_it_once(solana_scene: SolanaScene, point: Point) -> None:
    scene = solana_scene
    _asked_and_paid(scene)
    assert scene.in_child(_job(deposits.find), point).killed
    scene.restart()
    scene.recover()
    assert [row["status"] for row in scene.history() if row["kind"] is None] == ["confirmed"]


def test_every_step_of_the_deposit_scan_is_a_kill_point(solana_scene: SolanaScene) -> None:
    _asked_and_paid(solana_scene)
    assert list(solana_scene.in_child(_job(deposits.find)).passed) == FIND
