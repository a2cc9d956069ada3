"""Movements whose end is found by workers: late, replaced, cancelled, reorganised, in crowds."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from app.core.chains import ETH
from app.core.unit_of_work import reading, unit_of_work
from app.ports.chain import Fate, Outcome, Watch
from app.ports.errors import Rejected, Unreachable
from app.wallets import settlement
from app.wallets.models import Nonce, SignedAttempt
from tests.support.chains import RECIPIENT, ether, usdc
from tests.support.evm import await_mined
from tests.support.stages import Stage

pytestmark = pytest.mark.chain


def test_a_pending_transfer_is_confirmed_by_a_worker_and_only_once(stage: Stage) -> None:
    transaction_id = stage.agent.move("2", "USDC").get_json()["transaction_id"]
    assert stage.agent.transaction(transaction_id)["status"] == "pending"
    assert stage.look().settled == 1
    assert stage.look().settled == 0
    row = stage.agent.transaction(transaction_id)
    assert row["status"] == "confirmed"
    assert [event["status"] for event in row["events"]] == ["pending", "confirmed"]
    assert stage.agent.spent_today() == 2


def test_a_transaction_that_no_node_has_seen_is_sent_again(stage: Stage) -> None:
    stage.chain.raising("broadcast", "before", Unreachable("refused"))
    body = stage.agent.move("2", "USDC").get_json()
    assert stage.look().sent_again == 1
    await_mined(stage.node, body["tx_hash"])
    stage.look()
    assert stage.agent.transaction(body["transaction_id"])["status"] == "confirmed"
    assert stage.paid_to(RECIPIENT) == usdc(2)


def test_a_transaction_that_the_node_dropped_is_sent_again(stage: Stage) -> None:
    stage.node.set_automine(False)
    body = stage.agent.move("2", "USDC").get_json()
    stage.node.rpc("anvil_dropTransaction", body["tx_hash"])
    stage.node.set_automine(True)
    assert stage.look().sent_again == 1
    stage.look()
    assert stage.agent.transaction(body["transaction_id"])["status"] == "confirmed"


def _stuck(stage: Stage) -> dict[str, str]:
    """Let a transfer wait in the pool for longer than the service's patience."""
    stage.node.set_automine(False)
    body: dict[str, str] = stage.agent.move("2", "USDC").get_json()
    stage.node.rpc("anvil_dropTransaction", body["tx_hash"])
    stage.chain.fail("rebroadcast", "before", _drop, times=3)
    stage.look()
    stage.node.mine(4)
    return body


def _drop() -> None:
    raise Unreachable("dropped")


def test_a_stuck_transaction_is_replaced_in_its_slot_and_pays_once(stage: Stage) -> None:
    body = _stuck(stage)
    assert stage.look().replaced == 1
    stage.node.set_automine(True)
    stage.node.mine(1)
    stage.look()
    row = stage.agent.transaction(body["transaction_id"])
    first, second = stage.hashes()
    assert (row["status"], row["tx_hash"], row["previous_hashes"]) == ("confirmed", second, [first])
    assert stage.paid_to(RECIPIENT) == usdc(2)
    assert stage.agent.spent_today() == 2


def test_the_old_transaction_may_be_the_one_that_lands(stage: Stage) -> None:
    body = _stuck(stage)
    with reading() as session:
        old_raw = session.scalar(select(SignedAttempt.raw))
    assert stage.look().replaced == 1
    first, second = stage.hashes()
    stage.node.rpc("anvil_dropTransaction", second)
    assert old_raw is not None
    stage.node.rpc("eth_sendRawTransaction", "0x" + old_raw.hex())
    stage.node.mine(1)
    stage.look()
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["tx_hash"], row["previous_hashes"]) == ("confirmed", first, [second])
    assert stage.paid_to(RECIPIENT) == usdc(2)


def test_a_replacement_costs_at_least_an_eighth_more(stage: Stage) -> None:
    _stuck(stage)
    stage.look()
    with reading() as session:
        old, new = list(session.scalars(select(SignedAttempt.terms).order_by(SignedAttempt.id)))
    for name in ("max_fee_per_gas", "max_priority_fee_per_gas"):
        assert int(new[name]) * 8 >= int(old[name]) * 9


def test_a_movement_that_cannot_be_paid_any_more_is_cancelled_and_given_back(stage: Stage) -> None:
    stage.node.set_automine(False)
    body = stage.agent.move("0.01", "ETH").get_json()
    stage.node.rpc("anvil_dropTransaction", body["tx_hash"])
    stage.node.rpc("anvil_setBalance", stage.agent.address, hex(ether(0.005)))
    with reading() as session:
        raw = session.scalar(select(SignedAttempt.raw))
    with pytest.raises(Rejected) as refusal:
        stage.chain.real.broadcast(raw or b"")
    settlement.note_refusal(body["transaction_id"], body["tx_hash"], refusal.value.reason)
    stage.look()
    stage.node.mine(4)
    assert stage.look().replaced == 1
    stage.node.set_automine(True)
    stage.node.mine(1)
    stage.look()
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["error"]) == ("failed", "cancelled")
    assert stage.agent.spent_today() == 0
    assert stage.paid_to(RECIPIENT, ETH) == 0


def test_a_slot_that_another_transaction_used_fails_only_when_it_is_certain(stage: Stage) -> None:
    stage.node.set_automine(False)
    body = stage.agent.move("2", "USDC").get_json()
    stage.node.rpc("anvil_dropTransaction", body["tx_hash"])
    stage.node.rpc("anvil_impersonateAccount", stage.agent.address)
    stage.node.rpc(
        "eth_sendTransaction", {"from": stage.agent.address, "to": RECIPIENT, "value": "0x1", "nonce": "0x0"}
    )
    stage.node.mine(1)
    stage.look()
    assert stage.agent.transaction(body["transaction_id"])["status"] == "pending"
    assert stage.agent.spent_today() == 2
    stage.node.mine(12)
    stage.look()
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["error"]) == ("failed", "slot_taken")
    assert stage.agent.spent_today() == 0


def test_a_confirmed_transfer_that_is_reorganised_away_is_pending_again_and_lands_again(stage: Stage) -> None:
    body = stage.agent.move("2", "USDC").get_json()
    stage.look()
    stage.node.mine(1)
    stage.node.reorg(2)
    assert stage.look().reopened == 1
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["events"][-1]["reason"]) == ("pending", "reorganised")
    assert stage.agent.spent_today() == 2
    stage.look()
    stage.look()
    assert stage.agent.transaction(body["transaction_id"])["status"] == "confirmed"
    assert stage.paid_to(RECIPIENT) == usdc(2)


def test_a_decided_movement_is_looked_at_until_it_is_safe_and_then_no_more(stage: Stage) -> None:
    stage.agent.move("2", "USDC")
    stage.look()
    assert stage.look().looked_at == 1
    stage.node.mine(20)
    assert stage.look().looked_at == 1
    assert stage.look().looked_at == 0


def test_a_reverted_transfer_fails_with_its_hash_and_gives_the_amount_back(stage: Stage) -> None:
    stage.node.set_automine(False)
    body = stage.agent.move("2", "USDC").get_json()
    pauser, contract = stage.node.rpc("eth_accounts")[0], stage.node.deployment.usdc
    stage.node.rpc(
        "eth_sendTransaction",
        {
            "from": pauser,
            "to": contract,
            "data": "0x8456cb59",
            "maxFeePerGas": hex(10**12),
            "maxPriorityFeePerGas": hex(10**11),
        },
    )
    stage.node.set_automine(True)
    stage.node.mine(1)
    stage.look()
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["error"], row["tx_hash"]) == ("failed", "reverted", body["tx_hash"])
    assert stage.agent.spent_today() == 0


def test_an_unreachable_chain_changes_nothing(stage: Stage) -> None:
    body = stage.agent.move("2", "USDC").get_json()
    stage.chain.raising("outcomes", "before", Unreachable("refused"))
    assert stage.look().settled == 0
    assert stage.agent.transaction(body["transaction_id"])["status"] == "pending"
    assert stage.look().settled == 1


def test_a_gap_in_the_slots_is_closed_by_the_next_movement(stage: Stage) -> None:
    with unit_of_work() as session:
        session.add(Nonce(chain="base", address=stage.agent.address, next_nonce=3))
    stage.agent.move("1", "USDC")
    stage.look()
    assert stage.agent.history()[0]["status"] == "confirmed"


def test_a_node_that_loses_its_last_blocks_in_a_crash_gets_them_again(stage: Stage) -> None:
    bodies = [stage.agent.move("1", "USDC").get_json() for _ in range(3)]
    stage.look()
    stage.node.reorg(3)
    stage.look()
    stage.look()
    stage.look()
    assert {stage.agent.transaction(body["transaction_id"])["status"] for body in bodies} == {"confirmed"}
    assert stage.paid_to(RECIPIENT) == usdc(3)


def test_that_nothing_can_land_any_more_is_only_believed_of_all_that_was_signed(stage: Stage) -> None:
    body = _stuck(stage)
    assert stage.look().replaced == 1
    first, second = stage.hashes()
    stale = Watch(body["transaction_id"], stage.agent.address, 0, (first,))
    assert not settlement.settle(stale, Outcome(Fate.VOID))
    assert stage.agent.transaction(body["transaction_id"])["status"] == "pending"
    complete = Watch(body["transaction_id"], stage.agent.address, 0, (second, first))
    assert settlement.settle(complete, Outcome(Fate.VOID))


def test_a_node_that_counts_far_ahead_of_us_gets_no_signature(stage: Stage) -> None:
    stage.node.rpc("anvil_setNonce", stage.agent.address, hex(1000))
    body = stage.agent.move("1", "USDC").get_json()
    assert (body["code"], body["details"]["reason"]) == ("TRANSFER_FAILED", "chain_unreachable")
    assert stage.hashes() == []
    assert stage.agent.spent_today() == 0
