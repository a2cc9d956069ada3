"""Kills while a funding request is opened, paid, or confirmed by a deposit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from app.db.unit_of_work import read_only_unit
from app.wallets.core.models import FundingAllocation
from tests.crash.conftest import BLOCKS_TO_FINALITY, EvmScene, Scene, SolanaScene, on_both
from tests.support.chains import usdc
from tests.support.processes import COMMIT, Point, Scenario, distinct, points, work
from workers import deposits

pytestmark = pytest.mark.chain

START = usdc(50)
AMOUNT = usdc(7)

# The idempotency claim; the head of the chain; the request; the job of the faucet; the stored response.
REQUEST = points(COMMIT, "head", "scan_state", COMMIT, "enqueue", COMMIT)
ON_POSTGRES = [Point(COMMIT, "before", 2)]
# The lease; the scan; deposit, allocation and scan state in one unit; release of the lease.
FIND = points(COMMIT, "deposits", COMMIT, COMMIT)
PAY = points("pay")


@pytest.fixture
def scene(scene: EvmScene, faucet_url: str) -> EvmScene:
    """The scene with the sandbox's faucet."""
    scene.service = replace(scene.service, faucet_url=faucet_url)
    scene.restart()
    return scene


def _request(scene: Scene) -> Scenario:
    return scene.asking("fund", {"amount": "7", "currency": "USDC", "chain": scene.on.value})


def _requests(scene: Scene) -> list[Mapping[str, Any]]:
    """Return the funding requests; what the wallet held before them is listed as deposits."""
    return [row for row in scene.history() if row["kind"] is None]


def _assert_funded_once(scene: Scene) -> None:
    (row,) = _requests(scene)
    assert row["status"] == "confirmed"
    assert row["tx_hash"] is not None
    assert scene.held_by(scene.address) == START + AMOUNT
    with scene.app.app_context(), read_only_unit() as session:
        of_request = FundingAllocation.transaction_id == row["id"]
        assert list(session.scalars(select(FundingAllocation.units).where(of_request))) == [AMOUNT]


@pytest.mark.parametrize(("database_url", "point"), on_both(distinct(REQUEST), ON_POSTGRES), indirect=["database_url"])
def test_a_funding_request_of_a_killed_process_is_open_or_absent(scene: EvmScene, point: Point) -> None:
    request = _request(scene)
    scene.kill_in(request, point)
    recorded = [row["id"] for row in _requests(scene)]
    status, body = scene.run_here(request)
    assert status == 200 or body["code"] == "IDEMPOTENCY_CONFLICT"
    scene.recover()
    status, body = scene.run_here(request)
    assert status == 200
    assert recorded in ([], [body["funding_request_id"]])
    scene.recover()
    assert [row["id"] for row in _requests(scene)] == [body["funding_request_id"]]
    _assert_funded_once(scene)


def test_every_step_of_a_funding_request_is_a_kill_point(scene: EvmScene) -> None:
    assert sorted(scene.in_child(_request(scene)).passed) == sorted(REQUEST)


@pytest.mark.parametrize("point", PAY, ids=str)
def test_a_funding_request_killed_during_payment_is_paid_once(scene: EvmScene, point: Point) -> None:
    request_id = scene.run_here(_request(scene))[1]["funding_request_id"]
    pay = partial(work, job=deposits.pay_from_faucet, arguments=(request_id,))
    scene.kill_in(pay, point)
    scene.recover()
    _assert_funded_once(scene)


def _paid(scene: Scene) -> None:
    """Open a request and pay it with enough confirmations."""
    status, body = scene.run_here(_request(scene))
    assert status == 200, body
    scene.land()
    if isinstance(scene, SolanaScene):
        scene.node.mint_usdc(scene.address, AMOUNT)
    elif isinstance(scene, EvmScene):
        scene.node.fund_usdc(scene.address, AMOUNT)
    scene.pass_blocks(BLOCKS_TO_FINALITY[scene.on])
    # The deposit is sent by this test, so the faucet must not pay.
    scene.service = replace(scene.service, faucet_url=None)
    scene.restart()
    scene.now += scene.patience


@pytest.mark.parametrize("point", distinct(FIND), ids=str)
def test_a_worker_killed_while_it_finds_a_deposit_counts_it_once(each_scene: Scene, point: Point) -> None:
    _paid(each_scene)
    each_scene.kill_in(each_scene.job(deposits.find), point)
    each_scene.recover()
    each_scene.run_here(each_scene.job(deposits.find))
    _assert_funded_once(each_scene)


def test_every_step_of_the_deposit_scan_is_a_kill_point(each_scene: Scene) -> None:
    _paid(each_scene)
    assert list(each_scene.in_child(each_scene.job(deposits.find)).passed) == FIND
