"""Kills while a funding request is opened, paid, or confirmed by a deposit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from app.db.unit_of_work import read_only_unit
from app.wallets.core.models import FundingAllocation
from tests.crash.conftest import EvmScene
from tests.support.chains import usdc
from tests.support.processes import COMMIT, Point, Scenario, points, work
from workers import deposits

pytestmark = pytest.mark.chain

START = usdc(50)
AMOUNT = usdc(7)

# The idempotency claim; the head of the chain; the request; the job of the faucet; the stored response.
REQUEST = points(COMMIT, "head", "scan_state", COMMIT, "enqueue", COMMIT)
ON_POSTGRES = [Point(COMMIT, "after"), Point(COMMIT, "before", 2), Point(COMMIT, "after", 2)]
EVERYWHERE = [("sqlite", point) for point in REQUEST] + [
    pytest.param("postgres", point, marks=pytest.mark.postgres, id=f"postgres-{point}") for point in ON_POSTGRES
]
# The lease; the scan; deposit, allocation and scan state in one unit; release of the lease.
FIND = points(COMMIT, "deposits", COMMIT, COMMIT)
PAY = points("pay")


@pytest.fixture
def scene(scene: EvmScene, faucet_url: str) -> EvmScene:
    """The scene with the sandbox's faucet."""
    scene.service = replace(scene.service, faucet_url=faucet_url)
    scene.restart()
    return scene


def _request(scene: EvmScene) -> Scenario:
    return scene.asking("fund", {"amount": "7", "currency": "USDC", "chain": "base"})


def _requests(scene: EvmScene) -> list[dict[str, Any]]:
    """Return the funding requests; what the wallet held before them is listed as deposits."""
    return [row for row in scene.history() if row["kind"] is None]


def _assert_funded_once(scene: EvmScene) -> None:
    (row,) = _requests(scene)
    assert row["status"] == "confirmed"
    assert row["tx_hash"] is not None
    assert scene.held_by(scene.agent.address) == START + AMOUNT
    with scene.app.app_context(), read_only_unit() as session:
        of_request = FundingAllocation.transaction_id == row["id"]
        assert list(session.scalars(select(FundingAllocation.units).where(of_request))) == [AMOUNT]


@pytest.mark.parametrize(("database_url", "point"), EVERYWHERE, indirect=["database_url"], ids=str)
def test_a_funding_request_of_a_killed_process_is_open_or_absent(scene: EvmScene, point: Point) -> None:
    request = _request(scene)
    assert scene.in_child(request, point).killed
    scene.restart()
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
    assert scene.in_child(pay, point).killed
    scene.restart()
    scene.recover()
    _assert_funded_once(scene)


def _paid(scene: EvmScene) -> None:
    """Open a request and pay it with enough confirmations."""
    scene.run_here(_request(scene))
    scene.node.fund_usdc(scene.agent.address, AMOUNT)
    scene.node.mine(8)
    # The deposit is sent by this test, so the faucet must not pay.
    scene.service = replace(scene.service, faucet_url=None)
    scene.restart()


def _find() -> Scenario:
    return partial(work, job=deposits.find, arguments=("base",))


@pytest.mark.parametrize("point", FIND, ids=str)
def test_a_worker_killed_while_it_finds_a_deposit_counts_it_once(scene: EvmScene, point: Point) -> None:
    _paid(scene)
    assert scene.in_child(_find(), point).killed
    scene.restart()
    scene.recover()
    scene.run_here(_find())
    _assert_funded_once(scene)


def test_every_step_of_the_deposit_scan_is_a_kill_point(scene: EvmScene) -> None:
    _paid(scene)
    assert list(scene.in_child(_find()).passed) == FIND
