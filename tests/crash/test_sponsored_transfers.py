"""Kills at the points of a transfer that the service submits for a wallet without ether."""

from __future__ import annotations

import pytest

from app.core.chains import ChainName
from app.payments import treasury
from tests.crash.conftest import EvmScene, SolanaScene, counted_usd, on_both
from tests.support.chains import fund, usdc
from tests.support.processes import COMMIT, Point, distinct, points

pytestmark = pytest.mark.chain
BASE = ChainName.BASE

# The claim is committed first, then transfer, fee and submission together, then their outcomes; the stored response.
STEPS = points(COMMIT, "sign", COMMIT, "broadcast", COMMIT, COMMIT, COMMIT)
ON_POSTGRES = [Point(COMMIT, "before", 2)]


@pytest.fixture
def treasury_address(scene: EvmScene) -> str:
    """The treasury's address; the settlement wallet has ether, and the agent's wallet none."""
    with scene.app.app_context():
        address, settler = treasury.recipient(BASE), treasury.settler(BASE)
    fund(scene.node, settler, eth=1)
    scene.node.rpc("anvil_setBalance", scene.agent.address, "0x0")
    return address


@pytest.mark.usefixtures("treasury_address")
def test_every_step_of_a_sponsored_transfer_is_a_kill_point(scene: EvmScene) -> None:
    end = scene.in_child(scene.transfer())
    assert (end.answer[0], end.answer[1]["status"]) == (200, "confirmed")
    known = {point.step for point in STEPS}
    assert [point for point in end.passed if point.step in known] == STEPS


@pytest.mark.parametrize(("database_url", "point"), on_both(distinct(STEPS), ON_POSTGRES), indirect=["database_url"])
def test_amount_and_fee_of_a_killed_process_are_paid_once(scene: EvmScene, treasury_address: str, point: Point) -> None:
    transfer = scene.transfer()
    scene.kill_in(transfer, point)
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


@pytest.mark.parametrize(
    "point", [Point(COMMIT, "before", 2), Point(COMMIT, "after", 2), Point("broadcast", "after")], ids=str
)
def test_on_solana_a_killed_process_pays_amount_and_fee_together_or_neither(
    scene_without_sol: SolanaScene, point: Point
) -> None:
    scene = scene_without_sol
    with scene.app.app_context():
        treasury_address = treasury.recipient(scene.on)
    before = scene.held_by(treasury_address)
    transfer = scene.transfer()
    with scene.passing():
        scene.kill_in(transfer, point)
        recorded = {row["id"] for row in scene.history()}
        scene.recover()
        # The claim of the killed process has expired.
        scene.now += scene.patience
        status, answer = scene.run_here(transfer)
    scene.recover()
    rows = scene.history()
    assert len(rows) == 2
    assert recorded in (set(), {row["id"] for row in rows})
    [outcome] = {row["status"] for row in rows}
    fee = usdc(float(next(row for row in rows if row["type"] == "transfer")["gas_fee"]))
    paid = (scene.held_by(scene.recipient), scene.held_by(treasury_address) - before)
    if outcome == "failed":
        # Signed, never sent, and expired.
        assert (status, {row["error"] for row in rows}, paid) == (500, {"expired"}, (0, 0)), answer
        assert counted_usd(scene.app) == 0
    else:
        assert (outcome, paid) == ("confirmed", (usdc(2), fee))
        assert counted_usd(scene.app) == pytest.approx(2 + fee / 10**6)
