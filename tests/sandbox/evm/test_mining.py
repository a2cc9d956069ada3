from __future__ import annotations

import time
from typing import Any

import time_machine
from eth_account import Account

from sandbox.evm import EvmNode
from sandbox.evm.block_producer import IDLE_BLOCK_SECONDS, SETTLING_BLOCKS, BlockProducer
from sandbox.evm.rpc import NodeClient
from tests.support.waiting import wait_until

HEADER_ONLY = False


def height(node: EvmNode, tag: str = "latest") -> int:
    return int(node.rpc("eth_getBlockByNumber", tag, HEADER_ONLY)["number"], 16)


def upkeep_by_hand(node: EvmNode) -> BlockProducer:
    return BlockProducer(node._connected(), block_time=1, mining_lock=node.mining_lock, store=None, state_interval=1)


def test_a_transaction_does_not_wait_for_the_next_block_of_the_clock() -> None:
    with EvmNode("ethereum", block_time=600) as node:
        # The next block of the clock would come after ten minutes.
        receipt = node.rpc("eth_getTransactionReceipt", node.fund_eth(Account.create().address, 1))
        assert int(receipt["status"], 16) == 1


def test_a_deposit_becomes_final_automatically() -> None:
    with EvmNode("base", block_time=0.02) as node:
        receipt = node.rpc("eth_getTransactionReceipt", node.fund_eth(Account.create().address, 1))
        wait_until(lambda: height(node, "finalized") >= int(receipt["blockNumber"], 16))


def test_an_idle_chain_stops_growing(own_base_node: EvmNode) -> None:
    upkeep = upkeep_by_hand(own_base_node)
    own_base_node.fund_eth(Account.create().address, 1)
    start = height(own_base_node)
    for _ in range(3 * SETTLING_BLOCKS):
        upkeep._mine_when_due(block_time=1)
    assert height(own_base_node) == start + SETTLING_BLOCKS


def test_an_idle_chain_still_shows_a_recent_head(own_base_node: EvmNode) -> None:
    upkeep = upkeep_by_hand(own_base_node)
    for _ in range(2 * SETTLING_BLOCKS):
        upkeep._mine_when_due(block_time=1)
    start = height(own_base_node)
    with time_machine.travel(time.time() + IDLE_BLOCK_SECONDS + 1):
        upkeep._mine_when_due(block_time=1)
    assert height(own_base_node) == start + 1


def test_a_transaction_stuck_in_the_pool_sees_blocks_go_by(own_base_node: EvmNode) -> None:
    node = own_base_node
    upkeep = upkeep_by_hand(node)
    for _ in range(2 * SETTLING_BLOCKS):
        upkeep._mine_when_due(block_time=1)
    head = node.rpc("eth_getBlockByNumber", "latest", HEADER_ONLY)
    node.set_automine(False)
    gas_price = int(head["baseFeePerGas"], 16) + 10**9
    sender = Account.create()
    node.rpc("anvil_setBalance", sender.address, hex(10**18))
    transaction = {
        "chainId": node.chain_id,
        "nonce": 0,
        "gas": 21_000,
        "gasPrice": gas_price,
        "to": sender.address,
        "value": 0,
    }
    node.rpc("eth_sendRawTransaction", sender.sign_transaction(transaction).raw_transaction.to_0x_hex())
    upkeep._mine_when_due(block_time=1)
    assert height(node) > int(head["number"], 16)


def test_a_reorganised_transaction_vanishes(own_base_node: EvmNode) -> None:
    tx_hash = own_base_node.fund_eth(Account.create().address, 1)
    own_base_node.mine(1)
    own_base_node.reorg(3)
    assert own_base_node.rpc("eth_getTransactionReceipt", tx_hash) is None


def test_safe_and_finalized_follow_the_head_closely(base_node: EvmNode) -> None:
    base_node.mine(10)
    head = height(base_node)
    assert (height(base_node, "safe"), height(base_node, "finalized")) == (head - 4, head - 8)


class CountingClient(NodeClient):
    calls = 0

    def call(self, method: str, *params: Any) -> Any:
        self.calls += 1
        return super().call(method, *params)

    def is_at_rest(self) -> bool:
        before = self.calls
        time.sleep(0.5)
        return self.calls == before


def test_an_idle_chain_is_not_polled_and_wakes_for_a_transaction(own_base_node: EvmNode) -> None:
    client, activities = CountingClient(own_base_node._connected().url), []
    upkeep = BlockProducer(
        client,
        block_time=0.01,
        mining_lock=own_base_node.mining_lock,
        store=None,
        state_interval=0.01,
        on_activity=lambda: activities.append(True),
    )
    upkeep.start()
    try:
        for _ in range(2):
            start, reported = height(own_base_node), len(activities)
            own_base_node.fund_eth(Account.create().address, 1)
            wait_until(lambda: height(own_base_node) >= start + SETTLING_BLOCKS)  # noqa: B023 - called here
            assert len(activities) > reported
            wait_until(client.is_at_rest, what="no call for half a second")
    finally:
        upkeep.stop()
