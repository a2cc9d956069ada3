"""Kills at every point of an approved withdrawal of a foreign token; it is sent at most once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from flask import Flask

from app.approvals import service
from app.approvals.service import OwnerMethod
from app.audit_log.actors import shell_actor
from app.core.chains import address_for_chain
from app.db.unit_of_work import unit_of_work
from app.owner import address_book
from tests.crash.conftest import EvmScene
from tests.support.foreign_tokens import ForeignErc20
from tests.support.processes import COMMIT, Point, distinct, points
from workers import approvals

pytestmark = pytest.mark.chain
UNITS = 2 * 10**18
# The lease; prepare; record (signed in its unit); broadcast; its outcome is left to the workers.
EXECUTION = points(COMMIT, "draft", "sign", COMMIT, "broadcast", COMMIT)


def _approve(_app: Flask, approval_id: str) -> None:
    waiting = service.get(approval_id)
    with unit_of_work() as session:
        assert service.decide(session, waiting, is_approved=True, method=OwnerMethod.OWNER_KEY)


def _execute(_app: Flask) -> None:
    approvals.execute()


def _asked(scene: EvmScene, token: ForeignErc20) -> dict[str, Any]:
    """Ask for a withdrawal to a named address, and have it approved."""
    to = address_for_chain(scene.recipient, scene.on)
    scene.run_here(lambda _: address_book.set_name(shell_actor(), scene.agent.id, scene.on.value, to, "Mine"))
    body = {"amount": "2", "currency": f"{token.address}:18", "chain": scene.on.value, "to": to}
    status, answer = scene.run_here(scene.asking("withdraw", body))
    assert (status, answer["status"]) == (202, "awaiting_approval")
    scene.run_here(partial(_approve, approval_id=answer["approval"]["id"]))
    return dict(answer["approval"])


@pytest.fixture
def token(scene: EvmScene) -> ForeignErc20:
    made = ForeignErc20.deploy(scene.node)
    made.send(scene.address, 5 * 10**18)
    return made


@pytest.mark.parametrize("point", distinct(EXECUTION), ids=str)
def test_a_withdrawal_of_a_foreign_token_by_a_killed_worker_is_sent_once(
    scene: EvmScene, token: ForeignErc20, point: Point
) -> None:
    _asked(scene, token)
    scene.kill_in(_execute, point)
    scene.now += scene.patience * 2
    scene.run_here(_execute)
    scene.recover()
    rows = [row for row in scene.history() if row["type"] == "withdrawal"]
    assert [(row["status"], row["amount"], row["currency"]) for row in rows] == [
        ("confirmed", "2", f"{token.address}:18")
    ]
    assert token.held_by(scene.recipient) == UNITS


def test_every_step_of_the_execution_is_a_kill_point(scene: EvmScene, token: ForeignErc20) -> None:
    _asked(scene, token)
    assert list(scene.in_child(_execute).passed) == EXECUTION
