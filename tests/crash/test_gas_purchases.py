"""Kills at the points of a swap of a wallet without ether, which first buys ether for USDC."""

from __future__ import annotations

import pytest

from app.core.chains import ChainName
from app.payments import treasury
from tests.crash.conftest import EvmScene, SolanaScene, counted_usd, on_both
from tests.support.chains import fund, usdc
from tests.support.processes import COMMIT, Point, distinct, points

pytestmark = pytest.mark.chain
BASE = ChainName.BASE

# The claim is committed first, then payment, submission and delivery together, then what became of them; then the swap.
STEPS = points(
    COMMIT, "quote", "sign", "sign", COMMIT, "broadcast", "broadcast", COMMIT,
    "quote", "sign", COMMIT, "broadcast", COMMIT, COMMIT,
)  # fmt: skip
ON_POSTGRES = [Point(COMMIT, "before", 2), Point(COMMIT, "before", 4)]


@pytest.fixture
def wallets(scene: EvmScene) -> tuple[str, str]:
    """The treasury, and the settlement wallet, which has ether; the agent's wallet has none."""
    with scene.app.app_context():
        treasury_address, settler = treasury.recipient(BASE), treasury.settler(BASE)
    fund(scene.node, settler, eth=1)
    scene.node.rpc("anvil_setBalance", scene.agent.address, "0x0")
    return treasury_address, settler


def _assert_bought_and_swapped_once(scene: EvmScene, treasury_address: str) -> None:
    rows = {row["kind"]: row for row in scene.history()}
    assert set(rows) == {None, "gas"}
    assert len(scene.history()) == 2
    assert {row["status"] for row in rows.values()} == {"confirmed"}, rows
    price = usdc(float(rows["gas"]["amount"]))
    assert scene.held_by(treasury_address) == price > 0
    assert scene.held_by(scene.agent.address) == usdc(40) - price
    assert counted_usd(scene.app) == pytest.approx(rows[None]["cost_usd"] + price / 10**6)


@pytest.mark.usefixtures("wallets")
def test_every_step_of_a_swap_without_ether_is_a_kill_point(scene: EvmScene) -> None:
    end = scene.in_child(scene.swap())
    assert (end.answer[0], end.answer[1]["status"]) == (200, "confirmed")
    known = {point.step for point in STEPS}
    assert [point for point in end.passed if point.step in known] == STEPS


@pytest.mark.parametrize(("database_url", "point"), on_both(distinct(STEPS), ON_POSTGRES), indirect=["database_url"])
def test_ether_is_bought_once_and_swapped_once_whatever_is_killed(
    scene: EvmScene, wallets: tuple[str, str], point: Point
) -> None:
    scene.kill_in(scene.swap(), point)
    status, answer = scene.run_here(scene.swap())
    assert status == 200 or answer["code"] in ("IDEMPOTENCY_CONFLICT", "GAS_PENDING"), answer
    scene.recover()
    # The claim of the killed process has expired.
    scene.now += scene.patience
    scene.run_here(scene.swap())
    scene.recover()
    status, answer = scene.run_here(scene.swap())
    assert (status, answer["status"]) == (200, "confirmed"), answer
    _assert_bought_and_swapped_once(scene, wallets[0])


def test_a_reorg_of_purchase_and_swap_repeats_neither(scene: EvmScene, wallets: tuple[str, str]) -> None:
    # What was funded stays.
    scene.node.mine(5)
    assert scene.run_here(scene.swap())[1]["status"] == "confirmed"
    scene.node.reorg(4)
    assert scene.held_by(wallets[0]) == 0
    scene.recover()
    scene.recover()
    _assert_bought_and_swapped_once(scene, wallets[0])


@pytest.mark.parametrize("point", [Point(COMMIT, "after", 2), Point("broadcast", "after", 2)], ids=str)
def test_on_solana_too_sol_is_bought_and_swapped_once(scene_without_sol: SolanaScene, point: Point) -> None:
    scene = scene_without_sol
    with scene.app.app_context():
        treasury_address = treasury.recipient(scene.on)
    before = scene.held_by(treasury_address)
    with scene.passing():
        scene.kill_in(scene.swap(), point)
        scene.recover()
        scene.now += scene.patience
        status, answer = scene.run_here(scene.swap())
        assert (status, answer["status"]) == (200, "confirmed"), answer
        scene.recover()
    purchases = [row for row in scene.history() if row["kind"] == "gas"]
    # One that was signed and never sent has expired, and another one was made.
    assert sorted(row["status"] for row in purchases) in (["confirmed"], ["confirmed", "failed"])
    price = sum(usdc(float(row["amount"])) for row in purchases if row["status"] == "confirmed")
    assert scene.held_by(treasury_address) - before == price
    assert scene.held_by(scene.agent.solana_address) == usdc(40) - price
