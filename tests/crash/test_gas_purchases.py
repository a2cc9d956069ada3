"""Kills at the points of a swap of a wallet without ether, which first buys ether for USDC."""

from __future__ import annotations

import pytest

from app.core.chains import ChainName
from app.payments import treasury
from tests.crash.conftest import EvmScene, counted_usd
from tests.support.chains import fund, usdc
from tests.support.processes import COMMIT, Point

pytestmark = pytest.mark.chain
BASE = ChainName.BASE

# The claim is committed first, then payment, submission and delivery together, then what became of them; then the swap.
POINTS = [
    Point(COMMIT, "before", 2),
    Point(COMMIT, "after", 2),
    Point("broadcast", "after"),
    Point("broadcast", "after", 2),
    Point(COMMIT, "after", 3),
    Point("quote", "after", 2),
    Point("broadcast", "after", 3),
]


@pytest.mark.parametrize("point", POINTS, ids=str)
@pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_ether_is_bought_once_and_swapped_once_whatever_is_killed(scene: EvmScene, point: Point) -> None:
    with scene.app.app_context():
        treasury_address, settler = treasury.recipient(BASE), treasury.settler(BASE)
    fund(scene.node, settler, eth=1)
    scene.node.rpc("anvil_setBalance", scene.agent.address, "0x0")
    swap = scene.asking(
        "swap", {"chain": "base", "input_token": "USDC", "output_token": "ETH", "amount": "10"}
    )
    assert scene.in_child(swap, point).killed
    scene.restart()
    status, answer = scene.run_here(swap)
    assert status == 200 or answer["code"] in ("IDEMPOTENCY_CONFLICT", "GAS_PENDING"), answer
    scene.recover()
    # The claim of the killed process has expired.
    scene.now += scene.patience
    status, answer = scene.run_here(swap)
    scene.recover()
    status, answer = scene.run_here(swap)
    assert (status, answer["status"]) == (200, "confirmed"), answer
    rows = {row["kind"]: row for row in scene.history() if row["type"] != "deposit"}
    assert set(rows) == {None, "gas"}
    assert len(scene.history()) == 2
    assert {row["status"] for row in rows.values()} == {"confirmed"}
    price = usdc(float(rows["gas"]["amount"]))
    assert scene.held_by(treasury_address) == price > 0
    assert scene.held_by(scene.agent.address) == usdc(40) - price
    assert counted_usd(scene.app) == pytest.approx(rows[None]["cost_usd"] + price / 10**6)
