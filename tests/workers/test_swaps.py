"""Swaps in the hands of the workers: stuck, replaced, too late, reverted, reorganised away."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.chains import ETH, USDC
from app.core.money import parse_amount
from app.wallets.settlement import Purpose
from tests.support.chains import usdc
from tests.support.stages import Stage
from tests.support.swaps import router_may_take, swap

pytestmark = pytest.mark.chain


def _stuck(stage: Stage) -> dict[str, Any]:
    """Let a swap wait for longer than the worker's patience, unseen by the node."""
    stage.node.set_automine(on=False)
    body: dict[str, Any] = swap(stage.agent, "USDC", "ETH", "10").get_json()
    assert body["status"] == "pending", body
    stage.look()
    stage.node.rpc("anvil_dropTransaction", body["tx_hash"])
    return body


def _held(stage: Stage) -> int:
    return stage.chain.real.balances(stage.agent.address).of(USDC).units


def test_a_stuck_swap_is_signed_again_in_its_slot_with_the_same_call_and_swaps_once(stage: Stage) -> None:
    body = _stuck(stage)
    stage.node.mine(4)
    assert stage.look().replaced == 1
    first, second = stage.attempts()
    assert first.terms["call_data"] == second.terms["call_data"]
    assert int(second.terms["max_fee_per_gas"]) > int(first.terms["max_fee_per_gas"])
    stage.node.set_automine(on=True)
    stage.node.mine(1)
    stage.look()
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["tx_hash"], row["previous_hashes"]) == (
        "confirmed", second.tx_hash, [first.tx_hash],
    )  # fmt: skip
    assert _held(stage) == usdc(90)


def test_a_swap_past_its_deadline_has_its_slot_used_up_and_fails_for_certain(stage: Stage) -> None:
    body = _stuck(stage)
    stage.node.rpc("evm_increaseTime", 700)
    stage.node.mine(4)
    assert stage.look().replaced == 1
    assert [attempt.purpose for attempt in stage.attempts()] == [Purpose.PAYMENT, Purpose.CANCELLATION]
    # Until the slot is used, nobody calls it failed.
    assert stage.agent.transaction(body["transaction_id"])["status"] == "pending"
    assert stage.agent.spent_today() > 0
    stage.node.set_automine(on=True)
    stage.node.mine(1)
    stage.look()
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["error"], row["output_amount"]) == ("failed", "cancelled", None)
    assert _held(stage) == usdc(100)
    assert router_may_take(stage.chain.real, stage.agent.address) == 0
    assert stage.agent.spent_today() == 0


def test_a_swap_that_a_worker_finds_landed_tells_what_it_brought_and_not_what_was_quoted(
    stage: Stage,
) -> None:
    stage.node.set_automine(on=False)
    first = swap(stage.agent, "ETH", "USDC", "0.1").get_json()
    second = swap(stage.agent, "ETH", "USDC", "0.1").get_json()
    stage.node.set_automine(on=True)
    stage.node.mine(1)
    stage.look()
    rows = [stage.agent.transaction(each["transaction_id"]) for each in (first, second)]
    assert [row["status"] for row in rows] == ["confirmed", "confirmed"]
    brought = [parse_amount(row["output_amount"], USDC).units for row in rows]
    assert _held(stage) == usdc(100) + sum(brought)
    # Both had the same quote, and the first has moved the price for the second.
    assert first["output_amount"] == second["output_amount"]
    assert brought[0] > brought[1]


def test_two_swaps_that_wait_for_one_block_both_have_a_permit_of_their_own(stage: Stage) -> None:
    stage.node.set_automine(on=False)
    asked = [swap(stage.agent, "USDC", "ETH", "10").get_json() for _ in range(3)]
    assert [body["status"] for body in asked] == ["pending"] * 3
    stage.node.set_automine(on=True)
    stage.node.mine(1)
    stage.look()
    rows = [stage.agent.transaction(body["transaction_id"]) for body in asked]
    assert [row["status"] for row in rows] == ["confirmed"] * 3
    assert _held(stage) == usdc(70)


def test_a_swap_whose_block_is_reorganised_away_is_pending_again_with_the_quote_and_lands_again(
    stage: Stage,
) -> None:
    body = swap(stage.agent, "USDC", "ETH", "10").get_json()
    stage.look()
    quoted = body["output_amount"]
    before = stage.agent.transaction(body["transaction_id"])
    assert before["status"] == "confirmed"
    stage.node.mine(1)
    stage.node.reorg(2)
    stage.look()
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["output_amount"]) == ("pending", quoted)
    stage.look()
    stage.node.mine(1)
    stage.look()
    row = stage.agent.transaction(body["transaction_id"])
    assert row["status"] == "confirmed"
    assert _held(stage) == usdc(90)
    assert parse_amount(row["output_amount"], ETH).units > 0
