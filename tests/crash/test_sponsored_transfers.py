"""Kills at the points of a transfer that the service submits for a wallet without ether."""

from __future__ import annotations

import pytest

from app.core.chains import ChainName
from app.payments import treasury
from tests.crash.conftest import EvmScene, counted_usd
from tests.support.chains import fund, usdc
from tests.support.processes import COMMIT, Point

pytestmark = pytest.mark.chain
BASE = ChainName.BASE

# The claim is committed first, then transfer, fee and submission together, then their outcomes.
POINTS = [
    Point("sign", "after"),
    Point(COMMIT, "before", 2),
    Point(COMMIT, "after", 2),
    Point("broadcast", "after"),
    Point(COMMIT, "after", 3),
]


@pytest.mark.parametrize("point", POINTS, ids=str)
@pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_amount_and_fee_of_a_killed_process_are_paid_once(scene: EvmScene, point: Point) -> None:
    with scene.app.app_context():
        treasury_address, settler = treasury.recipient(BASE), treasury.settler(BASE)
    fund(scene.node, settler, eth=1)
    scene.node.rpc("anvil_setBalance", scene.agent.address, "0x0")
    body = {"amount": "2", "currency": "USDC", "chain": "base", "to": scene.recipient}
    transfer = scene.asking("transfer", body)
    assert scene.in_child(transfer, point).killed
    scene.restart()
    recorded = {row["id"] for row in scene.history()}
    assert len(recorded) in (0, 2)

    status, answer = scene.run_here(transfer)
    assert status == 200 or answer["code"] == "IDEMPOTENCY_CONFLICT"
    scene.recover()
    status, answer = scene.run_here(transfer)
    assert (status, answer["status"]) == (200, "confirmed")
    scene.recover()
    rows = scene.history()
    assert [row["status"] for row in rows] == ["confirmed"] * 2
    assert recorded in (set(), {row["id"] for row in rows})
    fee = usdc(float(answer["gas_fee"]))
    assert fee > 0
    assert scene.held_by(scene.recipient) == usdc(2)
    assert scene.held_by(treasury_address) == fee
    assert counted_usd(scene.app) == pytest.approx(2 + fee / 10**6)
