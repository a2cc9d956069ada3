"""Kills at the points of a payout and of refunds: each is made once, and earnings are never taken twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import select

from app.catalog.models import Payout
from app.catalog.payouts import earnings
from app.core.chains import ChainName
from app.credits import accounts as credit_accounts
from app.db.unit_of_work import read_only_unit
from app.payments import treasury
from app.payments.models import Payment
from app.payments.treasury import WalletRole
from sandbox.evm import EvmNode
from tests.crash.conftest import EvmScene, on_both, start
from tests.support.agents import register
from tests.support.chains import fund, usdc
from tests.support.drivers import fresh_address
from tests.support.earned import SETTINGS, earn, receive
from tests.support.market import sell
from tests.support.operators import operator
from tests.support.processes import COMMIT, NodeAddress, Point, Scenario, ask, distinct, points

pytestmark = pytest.mark.chain
BASE = ChainName.BASE
# The idempotency claim; payout and signed bytes together; broadcast; the outcome of each; the stored response.
PAYOUT = points(COMMIT, "sign", COMMIT, "broadcast", COMMIT, COMMIT, COMMIT, COMMIT)
ON_POSTGRES = [Point(COMMIT, "before", 2), Point(COMMIT, "before", 4)]
GRANT = points(COMMIT, COMMIT)[2:]


@pytest.fixture
def paid_scene(database_url: str, crash_node: EvmNode, build_app: Callable[..., Flask]) -> EvmScene:
    """A seller with an empty wallet, and a treasury with 50 USDC and no ether."""
    started = start(build_app, database_url, NodeAddress.of(crash_node), **SETTINGS)
    made = EvmScene(node=crash_node, pass_blocks=crash_node.mine, recipient=fresh_address(), **started)
    with made.app.app_context():
        fund(crash_node, treasury.settler(BASE), eth=1)
        fund(crash_node, treasury.wallet(WalletRole.TREASURY, BASE).address_on(BASE), eth=0, dollars=50)
    return made


def money_of(scene: EvmScene, service: str, what: str, **body: Any) -> Scenario:
    headers = scene.agent.headers(Idempotency_Key="once")
    return partial(ask, method="POST", path=f"/v1/services/{service}/{what}", body=body, headers=headers)


def books(scene: EvmScene, service: str) -> dict[str, Any]:
    with scene.app.app_context(), read_only_unit() as session:
        assert earnings.find_problems(session) == []
    answer = scene.run_here(
        partial(ask, method="GET", path=f"/v1/services/{service}/payouts", headers=scene.agent.headers())
    )
    found: dict[str, Any] = answer[1]
    return found


@pytest.mark.parametrize(("database_url", "point"), on_both(distinct(PAYOUT), ON_POSTGRES), indirect=["database_url"])
def test_a_payout_of_a_killed_process_is_made_once(paid_scene: EvmScene, point: Point) -> None:
    scene = paid_scene
    with scene.app.app_context():
        service = sell(scene.agent)["id"]
        buyer = register(scene.app.test_client())
        earn(service, buyer.id, calls=4)
    payout = money_of(scene, service, "payouts")
    scene.kill_in(payout, point)
    status, answer = scene.run_here(payout)
    assert status == 201 or answer["code"] == "IDEMPOTENCY_CONFLICT"
    for _ in range(3):
        scene.recover()
    status, answer = scene.run_here(payout)
    assert (status, answer["status"]) == (201, "paid")
    for _ in range(2):
        scene.recover()
    found = books(scene, service)
    assert [(row["status"], row["amount_usd"]) for row in found["payouts"]] == [("paid", 0.9)]
    assert found["payouts"][0]["closed_at"] is not None
    assert found["earnings"]["unpaid_usd"] == 0
    assert scene.held_by(scene.address) == usdc(0.9)


@pytest.mark.parametrize(("database_url", "point"), on_both(GRANT, GRANT[:1]), indirect=["database_url"])
def test_a_refund_of_a_killed_process_is_granted_once(paid_scene: EvmScene, point: Point) -> None:
    scene = paid_scene
    with scene.app.app_context():
        service = sell(scene.agent)["id"]
        buyer = register(scene.app.test_client())
        call_id, _ = earn(service, buyer.id, calls=2)
    refund = money_of(scene, service, "refunds", call_id=call_id)
    scene.kill_in(refund, point)
    scene.recover()
    status, answer = scene.run_here(refund)
    assert (status, answer["status"]) == (201, "paid"), answer
    found = books(scene, service)
    assert (found["earnings"]["refunded_usd"], len(found["payouts"])) == (0.25, 1)
    with scene.app.app_context(), read_only_unit() as session:
        assert credit_accounts.balance(session, buyer.id).credits_nanos == 9_750_000_000


# Nothing is recorded; signed and not sent; sent; settled; answered.
REFUND = [
    Point(COMMIT, "before", 2), Point("broadcast", "before"), Point("broadcast", "after"), Point(COMMIT, "before", 4),
    PAYOUT[-1],
]  # fmt: skip


@pytest.mark.parametrize(("database_url", "point"), on_both(REFUND, REFUND[:1]), indirect=["database_url"])
def test_a_refund_on_the_chain_of_a_killed_process_is_made_once(paid_scene: EvmScene, point: Point) -> None:
    scene = paid_scene
    with scene.app.app_context():
        payer, payment_id = receive(scene.node)
        who = operator(scene.app.test_client())
    headers = who.headers(Idempotency_Key="once")
    refund = partial(ask, method="POST", path=f"/v1/platform/payments/{payment_id}/refund", body={}, headers=headers)
    scene.kill_in(refund, point)
    status, answer = scene.run_here(refund)
    assert status == 201 or answer["code"] == "IDEMPOTENCY_CONFLICT"
    for _ in range(3):
        scene.recover()
    status, answer = scene.run_here(refund)
    assert (status, answer["status"]) == (201, "paid"), answer
    for _ in range(2):
        scene.recover()
    assert scene.held_by(payer) == usdc(1)
    with scene.app.app_context(), read_only_unit() as session:
        assert earnings.find_problems(session) == []
        assert session.scalars(select(Payment.status)).all() == ["refunded"]
        [row] = session.scalars(select(Payout))
        assert (row.status, row.closed_at is not None) == ("paid", True)


def test_every_step_of_a_payout_is_a_kill_point(paid_scene: EvmScene) -> None:
    scene = paid_scene
    with scene.app.app_context():
        service = sell(scene.agent)["id"]
        earn(service, register(scene.app.test_client()).id, calls=4)
    end = scene.in_child(money_of(scene, service, "payouts"))
    assert end.answer[0] == 201
    known = {point.step for point in PAYOUT}
    assert [point for point in end.passed if point.step in known] == PAYOUT
