from __future__ import annotations

from typing import Any

import pytest
import rlp  # type: ignore[import-untyped]
from eth_account import Account

from sandbox.evm import EvmNode
from sandbox.evm.abi import call_data, decode_result
from tests.support.waiting import wait_until


def l1_fee_by_oracle(node: EvmNode, transaction: bytes, block: str) -> int:
    oracle = node.deployment.gas_price_oracle
    call = {"to": oracle, "data": call_data("getL1Fee(bytes)", transaction)}
    (fee,) = decode_result("(uint256)", node.rpc("eth_call", call, block))
    return int(fee)


def without_signature(raw: bytes) -> bytes:
    return raw[:1] + bytes(rlp.encode(rlp.decode(raw[1:])[:9]))


@pytest.mark.parametrize("currency", ["ETH", "USDC"])
def test_a_transfer_on_base_costs_exactly_the_l1_fee_that_the_oracle_tells(
    base_node: EvmNode, currency: str
) -> None:
    sender = Account.create()
    recipient = Account.create().address
    base_node.fund_eth(sender.address, 10**18)
    base_node.fund_usdc(sender.address, 10**9)
    usdc_data = call_data("transfer(address,uint256)", recipient, 123_456_789)
    transaction: dict[str, Any] = {
        "chainId": base_node.chain_id,
        "nonce": 0,
        "gas": 120_000,
        "maxFeePerGas": 3_123_456_789,
        "maxPriorityFeePerGas": 1_234_567,
        "to": recipient if currency == "ETH" else base_node.deployment.usdc,
        "value": 123_456_789_012_345_678 if currency == "ETH" else 0,
        "data": "0x" if currency == "ETH" else usdc_data,
    }
    signed = sender.sign_transaction(transaction)
    base_node.rpc("eth_sendRawTransaction", signed.raw_transaction.to_0x_hex())
    receipt = wait_until(lambda: base_node.rpc("eth_getTransactionReceipt", signed.hash.to_0x_hex()))
    balance = int(base_node.rpc("eth_getBalance", sender.address, receipt["blockNumber"]), 16)
    gas_cost = int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16)
    charged = 10**18 - balance - transaction["value"] - gas_cost
    unsigned = without_signature(bytes(signed.raw_transaction))
    assert charged == l1_fee_by_oracle(base_node, unsigned, receipt["blockNumber"]) > 0
