"""Chain anomalies: fee spikes, halts, forks between nodes, decreasing timestamps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask

from app.core.chains import ChainName
from sandbox.evm import EvmNode
from tests.support.chains import RECIPIENT, usdc
from tests.support.evm import GWEI, Calls, await_mined, chain_at, proxy
from tests.support.logs import written_logs
from tests.support.loopback_http import unused_url
from tests.support.stages import Stage
from workers import schedule

pytestmark = pytest.mark.chain

_SPIKE_GWEI = 500
_PATIENCE = 4
_HOUR = 3600


def _mine_dear(stage: Stage, blocks: int) -> None:
    for _ in range(blocks):
        stage.node.rpc("anvil_setNextBlockBaseFeePerGas", hex(_SPIKE_GWEI * GWEI))
        stage.node.mine(1)


def test_a_fee_spike_after_the_estimate_is_waited_out(stage: Stage) -> None:
    stage.node.set_automine(False)
    body = stage.agent.move("2", "USDC").get_json()
    stage.look()
    _mine_dear(stage, _PATIENCE)
    # Long enough for a replacement, which would cost more than MAX_NETWORK_FEE_USD.
    assert stage.look().replaced == 0
    assert stage.agent.transaction(body["transaction_id"])["status"] == "pending"
    refused = stage.agent.move("1", "USDC").get_json()
    assert refused["details"]["reason"] == "network_fee_too_high"
    assert stage.agent.spent_this_month() == 2
    assert stage.hashes() == [body["tx_hash"]]
    # The node may have dropped it, and receives it again.
    for _ in range(3):
        stage.node.rpc("anvil_setNextBlockBaseFeePerGas", hex(1))
        stage.node.mine(1)
        stage.look()
    row = stage.agent.transaction(body["transaction_id"])
    assert row["status"] == "confirmed"
    receipt = stage.node.rpc("eth_getTransactionReceipt", row["tx_hash"])
    assert int(receipt["effectiveGasPrice"], 16) < _SPIKE_GWEI * GWEI
    assert stage.paid_to(RECIPIENT) == usdc(2)


def test_a_halted_chain_is_waited_for_and_nothing_is_signed_again(stage: Stage) -> None:
    stage.node.set_automine(False)
    body = stage.agent.move("2", "USDC").get_json()
    stage.looks.append(_HOUR)
    for _ in range(10):
        done = stage.look()
        assert (done.settled, done.replaced) == (0, 0)
    assert stage.agent.transaction(body["transaction_id"])["status"] == "pending"
    assert stage.agent.spent_this_month() == 2
    stage.node.set_automine(True)
    stage.node.mine(1)
    stage.look()
    assert stage.agent.transaction(body["transaction_id"])["status"] == "confirmed"
    assert stage.hashes() == [body["tx_hash"]]
    assert stage.paid_to(RECIPIENT) == usdc(2)


def test_two_nodes_on_different_forks_lead_to_one_payment(stage: Stage) -> None:
    body = stage.agent.move("2", "USDC").get_json()
    await_mined(stage.node, body["tx_hash"])
    stage.look()
    number = stage.row(body["transaction_id"]).block_number
    assert number is not None
    honest = stage.chain.real

    def on_a_fork(calls: Calls, replies: Calls) -> Calls:
        answers = {call["id"]: _on_a_fork(call, number) for call in calls}
        return [{**reply, **answers[reply["id"]](reply)} for reply in replies]

    with proxy(stage.node.url) as forked:
        forked.after = on_a_fork
        stage.chain.real = chain_at(stage.node, forked.url)
        assert stage.look().reopened == 1
        for _ in range(3):
            stage.look()
            assert stage.agent.transaction(body["transaction_id"])["status"] == "pending"
            assert stage.agent.spent_this_month() == 2
    stage.chain.real = honest
    stage.look()
    row = stage.agent.transaction(body["transaction_id"])
    assert (row["status"], row["tx_hash"]) == ("confirmed", body["tx_hash"])
    assert stage.hashes() == [body["tx_hash"]]
    assert stage.agent.spent_this_month() == 2
    assert stage.paid_to(RECIPIENT) == usdc(2)


def _on_a_fork(call: dict[str, Any], number: int) -> Any:
    """Return the response of a node on a fork with another block at a height, without the transaction."""
    method, params = call["method"], call["params"]
    if method == "eth_getTransactionReceipt":
        return lambda _reply: {"result": None}
    if method == "eth_getTransactionCount":
        return lambda _reply: {"result": "0x0"}
    if method == "eth_getBlockByNumber" and params[0] == hex(number):
        return lambda reply: {"result": {**reply["result"], "hash": "0x" + "ab" * 32}}
    return lambda _reply: {}


def test_a_chain_with_decreasing_timestamps_is_followed_by_block_number(stage: Stage) -> None:
    clock = iter(range(2**31, 0, -_HOUR))

    def backwards(_calls: Calls, replies: Calls) -> Calls:
        return [
            {**reply, "result": {**reply["result"], "timestamp": hex(next(clock))}}
            if isinstance(reply.get("result"), dict) and "timestamp" in reply["result"]
            else reply
            for reply in replies
        ]

    with proxy(stage.node.url) as front:
        front.after = backwards
        stage.chain.real = chain_at(stage.node, front.url)
        body = stage.agent.move("2", "USDC").get_json()
        await_mined(stage.node, body["tx_hash"])
        stage.look()
        stage.node.mine(20)
        stage.look()
        assert stage.agent.transaction(body["transaction_id"])["status"] == "confirmed"
        assert stage.look().checked == 0
        assert stage.paid_to(RECIPIENT) == usdc(2)


def test_the_scheduler_logs_at_start_which_endpoint_serves_another_chain(
    build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode, ethereum_node: EvmNode
) -> None:
    good, wrong = chain_at(base_node), chain_at(base_node, base_node.url, ethereum_node.url)
    for chain, expected in (
        (good, []),
        (wrong, [("critical", 2, "wrong_chain")]),
        (chain_at(base_node, unused_url()), [("warning", 1, "it cannot be connected to (Connection refused)")]),
    ):
        app = build_app(sqlite_url, chains={ChainName.BASE: chain})
        with app.app_context(), written_logs() as lines:
            schedule._verify_chains()
            assert [(line["level"], line["endpoint"], line["reason"]) for line in lines()] == expected
