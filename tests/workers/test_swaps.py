"""Confirmation of swaps by workers: stuck, replaced, expired, reverted, in orphaned blocks."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.chains import ETH, USDC
from app.core.money import parse_amount
from app.wallets.core.lifecycle import AttemptPurpose
from tests.support.chains import usdc
from tests.support.stages import Stage
from tests.support.swaps import router_may_take, swap

pytestmark = pytest.mark.chain


def _stuck(stage: Stage) -> dict[str, Any]:
    """Send a swap that is stuck, unknown to the node."""
    stage.node.set_automine(on=False)
    body: dict[str, Any] = swap(stage.agent, "USDC", "ETH", "10").get_json()
    assert body["status"] == "pending", body
    stage.look()
    stage.node.rpc("anvil_dropTransaction", body["tx_hash"])
    return body


def _held(stage: Stage) -> int:
    return stage.chain.real.balances(stage.agent.address).of(USDC).units


def test_a_stuck_swap_is_replaced_with_the_same_nonce_and_call_and_swaps_once(stage: Stage) -> None:
    body = _stuck(stage)
    stage.node.mine(4)
    assert stage.look().replaced == 1
    first, second = stage.attempts()
    assert first.terms["call_data"] == second.terms["call_data"]
    assert int(second.terms["max_fee_per_gas"]) > int(first.terms["max_fee_per_gas"])
    stage.resume()
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["tx_hash"], row["previous_hashes"]) == (
        "confirmed", second.tx_hash, [first.tx_hash],
    )  # fmt: skip
    assert _held(stage) == usdc(90)


def test_a_swap_past_its_deadline_is_cancelled_and_certainly_fails(stage: Stage) -> None:
    body = _stuck(stage)
    stage.node.rpc("evm_increaseTime", 700)
    stage.node.mine(4)
    assert stage.look().replaced == 1
    assert [attempt.purpose for attempt in stage.attempts()] == [AttemptPurpose.PAYMENT, AttemptPurpose.CANCELLATION]
    # It is not failed before its nonce is used.
    assert stage.agent.transaction(body["transaction_id"])["status"] == "pending"
    assert stage.agent.spent_this_month() > 0
    stage.resume()
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["error"], row["output_amount"]) == ("failed", "cancelled", None)
    assert _held(stage) == usdc(100)
    assert router_may_take(stage.chain.real, stage.agent.address) == 0
    assert stage.agent.spent_this_month() == 0


def test_a_swap_settled_by_a_worker_has_its_actual_output(stage: Stage) -> None:
    stage.node.set_automine(on=False)
    first = swap(stage.agent, "ETH", "USDC", "0.1").get_json()
    second = swap(stage.agent, "ETH", "USDC", "0.1").get_json()
    stage.resume()
    rows = [stage.agent.transaction(each["transaction_id"]) for each in (first, second)]
    assert [row["status"] for row in rows] == ["confirmed", "confirmed"]
    brought = [parse_amount(row["output_amount"], USDC).units for row in rows]
    assert _held(stage) == usdc(100) + sum(brought)
    # Both had the same quote, and the first moved the price for the second.
    assert first["output_amount"] == second["output_amount"]
    assert brought[0] > brought[1]


def test_two_swaps_in_one_block_each_have_their_own_permit(stage: Stage) -> None:
    stage.node.set_automine(on=False)
    asked = [swap(stage.agent, "USDC", "ETH", "10").get_json() for _ in range(3)]
    assert [body["status"] for body in asked] == ["pending"] * 3
    stage.resume()
    rows = [stage.agent.transaction(body["transaction_id"]) for body in asked]
    assert [row["status"] for row in rows] == ["confirmed"] * 3
    assert _held(stage) == usdc(70)


def test_a_swap_in_an_orphaned_block_is_pending_again_with_its_quote_and_lands_again(stage: Stage) -> None:
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
