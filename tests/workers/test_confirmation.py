"""Confirmation of movements by workers: late, replaced, cancelled, reorganised."""

from __future__ import annotations

import dataclasses

import pytest
from sqlalchemy import select

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.send.transactions import hash_of
from app.core.chains import ETH, ChainName
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.ports.chain import BlockRef, TransactionOutcome, TransactionQuery, TransactionStatus
from app.ports.errors import Rejected, Unreachable
from app.wallets.core.models import Nonce, SignedAttempt
from app.wallets.transactions import settlement
from tests.support.chains import RECIPIENT, ether, usdc
from tests.support.evm import Calls, asks, await_mined, json_reply, proxy
from tests.support.key_services import move_keys
from tests.support.loopback_http import Reply
from tests.support.stages import Stage
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain


def test_a_pending_transfer_is_confirmed_by_a_worker_and_only_once(stage: Stage) -> None:
    transaction_id = stage.agent.move("2", "USDC").get_json()["transaction_id"]
    assert stage.agent.transaction(transaction_id)["status"] == "pending"
    assert stage.look().settled == 1
    assert stage.look().settled == 0
    row = stage.agent.transaction(transaction_id)
    assert row["status"] == "confirmed"
    assert [event["status"] for event in row["events"]] == ["pending", "confirmed"]
    assert stage.agent.spent_this_month() == 2


def test_a_transaction_unknown_to_all_nodes_is_rebroadcast(stage: Stage) -> None:
    stage.chain.raising("broadcast", "before", Unreachable("refused"))
    body = stage.agent.move("2", "USDC").get_json()
    assert stage.look().rebroadcast == 1
    await_mined(stage.node, body["tx_hash"])
    stage.look()
    assert stage.agent.transaction(body["transaction_id"])["status"] == "confirmed"
    assert stage.paid_to(RECIPIENT) == usdc(2)


def test_a_transaction_dropped_by_the_node_is_rebroadcast(stage: Stage) -> None:
    stage.node.set_automine(False)
    body = stage.agent.move("2", "USDC").get_json()
    stage.node.rpc("anvil_dropTransaction", body["tx_hash"])
    stage.node.set_automine(True)
    assert stage.look().rebroadcast == 1
    stage.look()
    assert stage.agent.transaction(body["transaction_id"])["status"] == "confirmed"


def test_a_transaction_that_a_private_endpoint_lost_is_published_once_it_is_stuck(stage: Stage) -> None:
    def swallow(calls: Calls) -> Reply | None:
        if not asks(calls, "eth_sendRawTransaction"):
            return None
        tx_hash = hash_of(bytes.fromhex(calls[0]["params"][0][2:]))
        return json_reply({"jsonrpc": "2.0", "id": 0, "result": tx_hash})

    with proxy(stage.node.url) as private:
        private.before = swallow
        stage.chain.real = EvmChain(
            ChainName.BASE,
            # A transaction is stuck after three blocks: 75 seconds.
            dataclasses.replace(stage.node.deployment, block_seconds=25.0),
            rpc_urls=[stage.node.url],
            private_rpc_urls=[private.url],
            deposit_confirmations=1,
        )
        body = stage.agent.move("2", "USDC").get_json()
        assert stage.look().rebroadcast == 1
        assert private.methods() == ["eth_chainId", *["eth_sendRawTransaction"] * 2]
        assert stage.node.rpc("eth_getTransactionByHash", body["tx_hash"]) is None
        assert stage.look().rebroadcast + stage.look().rebroadcast >= 1
        await_mined(stage.node, body["tx_hash"])
        stage.look()
    assert stage.agent.transaction(body["transaction_id"])["status"] == "confirmed"
    assert stage.paid_to(RECIPIENT) == usdc(2)


def _stuck(stage: Stage) -> dict[str, str]:
    """Send a transfer that is stuck in the mempool."""
    stage.node.set_automine(False)
    body: dict[str, str] = stage.agent.move("2", "USDC").get_json()
    stage.node.rpc("anvil_dropTransaction", body["tx_hash"])
    stage.chain.fail("rebroadcast", "before", _drop, times=3)
    stage.look()
    stage.node.mine(4)
    return body


def _drop() -> None:
    raise Unreachable("dropped")


def test_a_stuck_transaction_is_replaced_with_the_same_nonce_and_pays_once(stage: Stage) -> None:
    body = _stuck(stage)
    assert stage.look().replaced == 1
    stage.resume()
    row = stage.agent.transaction(body["transaction_id"])
    first, second = stage.hashes()
    assert (row["status"], row["tx_hash"], row["previous_hashes"]) == ("confirmed", second, [first])
    assert stage.paid_to(RECIPIENT) == usdc(2)
    assert stage.agent.spent_this_month() == 2


def test_a_stuck_transaction_waits_for_a_key_service_that_is_out(stage: Stage) -> None:
    body = _stuck(stage)
    service, forget = move_keys(stage.app)
    service.is_out = True
    assert stage.look().replaced == 0
    assert stage.agent.transaction(body["transaction_id"])["status"] == "pending"
    service.is_out = False
    forget()
    assert stage.look().replaced == 1
    stage.resume()
    assert stage.agent.transaction(body["transaction_id"])["status"] == "confirmed"
    assert stage.paid_to(RECIPIENT) == usdc(2)


def test_a_stuck_transaction_is_replaced_in_time_while_newer_ones_arrive(stage: Stage) -> None:
    stage.node.set_automine(False)
    stage.chain.fail("rebroadcast", "before", _drop, times=4)
    for _ in range(2):
        body = stage.agent.move("2", "USDC").get_json()
        stage.node.rpc("anvil_dropTransaction", body["tx_hash"])
        assert stage.look().replaced == 0
        stage.node.mine(2)
    assert stage.look().replaced == 1
    oldest, newer, replacement = stage.attempts()
    assert replacement.transaction_id == oldest.transaction_id != newer.transaction_id


def test_the_replaced_transaction_may_be_the_one_that_lands(stage: Stage) -> None:
    body = _stuck(stage)
    with read_only_unit() as session:
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
    with read_only_unit() as session:
        old, new = list(session.scalars(select(SignedAttempt.terms).order_by(SignedAttempt.id)))
    for name in ("max_fee_per_gas", "max_priority_fee_per_gas"):
        assert int(new[name]) * 8 >= int(old[name]) * 9


def test_an_unaffordable_movement_is_cancelled_and_releases_its_hold(stage: Stage) -> None:
    stage.node.set_automine(False)
    body = stage.agent.move("0.01", "ETH").get_json()
    stage.node.rpc("anvil_dropTransaction", body["tx_hash"])
    stage.node.rpc("anvil_setBalance", stage.agent.address, hex(ether(0.005)))
    with read_only_unit() as session:
        raw = session.scalar(select(SignedAttempt.raw))
    with pytest.raises(Rejected) as refusal:
        stage.chain.real.broadcast(raw or b"")
    settlement.record_refusal(body["transaction_id"], body["tx_hash"], refusal.value.reason)
    stage.look()
    stage.node.mine(4)
    assert stage.look().replaced == 1
    stage.resume()
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["error"]) == ("failed", "cancelled")
    assert stage.agent.spent_this_month() == 0
    assert stage.paid_to(RECIPIENT, ETH) == 0


def test_a_movement_with_a_nonce_used_by_another_fails_only_once_that_is_final(stage: Stage) -> None:
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
    assert stage.agent.spent_this_month() == 2
    stage.node.mine(12)
    stage.look()
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["error"]) == ("failed", "slot_taken")
    assert stage.agent.spent_this_month() == 0


def test_a_confirmed_transfer_in_an_orphaned_block_is_pending_again_and_lands_again(stage: Stage) -> None:
    body = stage.agent.move("2", "USDC").get_json()
    stage.look()
    stage.node.mine(1)
    stage.node.reorg(2)
    assert stage.look().reopened == 1
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["events"][-1]["reason"]) == ("pending", "reorganised")
    assert stage.agent.spent_this_month() == 2
    stage.look()
    await_mined(stage.node, body["tx_hash"])
    stage.look()
    assert stage.agent.transaction(body["transaction_id"])["status"] == "confirmed"
    assert stage.paid_to(RECIPIENT) == usdc(2)


def test_a_decided_movement_is_checked_until_its_block_is_safe(stage: Stage) -> None:
    body = stage.agent.move("2", "USDC").get_json()
    await_mined(stage.node, body["tx_hash"])
    stage.look()
    assert stage.look().checked == 1
    stage.node.mine(20)
    assert stage.look().checked == 1
    assert stage.look().checked == 0


def test_a_late_worker_does_not_end_the_checks_of_an_outcome_in_another_block(stage: Stage) -> None:
    body = stage.agent.move("2", "USDC").get_json()
    stage.look()
    stage.node.mine(20)
    found = stage.row(body["transaction_id"])
    query = TransactionQuery(found.id, stage.agent.address, 0, (body["tx_hash"],))
    elsewhere = BlockRef((found.block_number or 0) + 1, "0x" + "ab" * 32)

    def settle_elsewhere() -> None:
        # A concurrent worker, with a node that has the transaction in another block.
        assert settlement.reopen(found.id)
        landed = TransactionOutcome(TransactionStatus.SUCCEEDED, body["tx_hash"], elsewhere, confirmations=1)
        assert settlement.settle(query, landed)

    stage.chain.fail("orphaned_blocks", "after", settle_elsewhere)
    stage.look()
    row = stage.row(found.id)
    assert (row.status, row.block_hash) == ("confirmed", elsewhere.hash)
    assert row.next_check_at is not None
    assert stage.look().reopened == 1


def test_the_fee_of_a_movement_is_taken_from_the_block_of_its_outcome_only(stage: Stage) -> None:
    body = stage.agent.move("2", "USDC").get_json()
    transaction_id = body["transaction_id"]

    def record_fee(fee_units: int | None, block: BlockRef | None) -> bool:
        outcome = TransactionOutcome(TransactionStatus.SUCCEEDED, body["tx_hash"], block, fee_units=fee_units)
        return settlement.record_fee(transaction_id, outcome)

    elsewhere = BlockRef(1, "0x" + "ab" * 32)
    assert not record_fee(1, elsewhere)
    stage.look()
    settled = stage.row(transaction_id)
    own = BlockRef(settled.block_number or 0, settled.block_hash or "")
    assert not record_fee(1, elsewhere)
    assert not record_fee(None, own)
    assert stage.row(transaction_id).fee_units == settled.fee_units
    assert record_fee(1, own)
    assert stage.row(transaction_id).fee_units == 1
    assert not settlement.record_fee("none", TransactionOutcome(TransactionStatus.SUCCEEDED, "", own, fee_units=1))


def test_a_reverted_transfer_fails_with_its_hash_and_releases_the_hold(stage: Stage) -> None:
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
    stage.resume()
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["error"], row["tx_hash"]) == ("failed", "reverted", body["tx_hash"])
    assert stage.agent.spent_this_month() == 0


def test_an_unreachable_chain_changes_nothing(stage: Stage) -> None:
    body = stage.agent.move("2", "USDC").get_json()
    stage.chain.raising("outcomes", "before", Unreachable("refused"))
    assert stage.look().settled == 0
    assert stage.agent.transaction(body["transaction_id"])["status"] == "pending"
    assert stage.look().settled == 1


def test_a_nonce_gap_is_filled_by_the_next_movement(stage: Stage) -> None:
    with unit_of_work() as session:
        session.add(Nonce(chain="base", address=stage.agent.address, next_nonce=3))
    stage.agent.move("1", "USDC")

    def is_confirmed() -> bool:
        stage.look()
        return bool(stage.agent.history()[0]["status"] == "confirmed")

    # The node accepts a transaction before it has mined its block.
    wait_until(is_confirmed)


def test_a_node_that_lost_its_last_blocks_receives_the_transactions_again(stage: Stage) -> None:
    bodies = [stage.agent.move("1", "USDC").get_json() for _ in range(3)]
    stage.look()
    stage.node.reorg(3)
    stage.look()
    stage.look()
    stage.look()
    assert {stage.agent.transaction(body["transaction_id"])["status"] for body in bodies} == {"confirmed"}
    assert stage.paid_to(RECIPIENT) == usdc(3)


def test_a_movement_is_void_only_if_all_its_signed_hashes_are(stage: Stage) -> None:
    body = _stuck(stage)
    assert stage.look().replaced == 1
    first, second = stage.hashes()
    stale = TransactionQuery(body["transaction_id"], stage.agent.address, 0, (first,))
    assert not settlement.settle(stale, TransactionOutcome(TransactionStatus.VOID))
    assert stage.agent.transaction(body["transaction_id"])["status"] == "pending"
    complete = TransactionQuery(body["transaction_id"], stage.agent.address, 0, (second, first))
    assert settlement.settle(complete, TransactionOutcome(TransactionStatus.VOID))


def test_a_node_with_an_implausibly_high_nonce_gets_no_signature(stage: Stage) -> None:
    stage.node.rpc("anvil_setNonce", stage.agent.address, hex(1000))
    body = stage.agent.move("1", "USDC").get_json()
    assert (body["code"], body["details"]["reason"]) == ("TRANSFER_FAILED", "chain_unreachable")
    assert stage.hashes() == []
    assert stage.agent.spent_this_month() == 0
