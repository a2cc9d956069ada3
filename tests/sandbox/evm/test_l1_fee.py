from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import requests
import rlp  # type: ignore[import-untyped]
from eth_account import Account
from eth_utils.crypto import keccak

from sandbox.evm import EvmNode
from sandbox.evm.abi import call_data, decode_result
from sandbox.evm.fastlz import compressed_length
from sandbox.evm.l1_fee_proxy import fjord_fee
from tests.support.evm import await_mined
from tests.support.waiting import wait_until

FEE_VAULT = "0x420000000000000000000000000000000000001A"


def l1_fee_by_oracle(node: EvmNode, transaction: bytes, block: str) -> int:
    oracle = node.deployment.gas_price_oracle
    call = {"to": oracle, "data": call_data("getL1Fee(bytes)", transaction)}
    (fee,) = decode_result("(uint256)", node.rpc("eth_call", call, block))
    return int(fee)


def reported_l1_fees(node: EvmNode, *hashes: str) -> list[int]:
    batch = [
        {"jsonrpc": "2.0", "id": number, "method": "eth_getTransactionReceipt", "params": [tx_hash]}
        for number, tx_hash in enumerate(hashes)
    ]
    replies = requests.post(node.url, json=batch, timeout=30).json()
    return [int(reply["result"]["l1Fee"], 16) for reply in sorted(replies, key=lambda reply: reply["id"])]


def vault_receives(node: EvmNode, block: str) -> int:
    blocks = (block, hex(int(block, 16) - 1))
    after, before = (int(node.rpc("eth_getBalance", FEE_VAULT, each), 16) for each in blocks)
    return after - before


def without_signature(raw: bytes) -> bytes:
    return raw[:1] + bytes(rlp.encode(rlp.decode(raw[1:])[:9]))


@pytest.mark.parametrize("currency", ["ETH", "USDC"])
def test_a_transfer_on_base_costs_exactly_the_l1_fee_of_the_oracle(base_node: EvmNode, currency: str) -> None:
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
    assert reported_l1_fees(base_node, signed.hash.to_0x_hex()) == [charged]


def test_receipts_of_a_batch_and_of_a_block_report_what_their_vault_received(base_node: EvmNode) -> None:
    recipient = Account.create().address
    hashes = [base_node.fund_eth(recipient, 1), base_node.fund_usdc(recipient, 1)]
    receipts = [base_node.rpc("eth_getTransactionReceipt", tx_hash) for tx_hash in hashes]
    charged = [vault_receives(base_node, receipt["blockNumber"]) for receipt in receipts]
    assert min(charged) > 0
    assert reported_l1_fees(base_node, *hashes) == charged
    block = {"jsonrpc": "2.0", "id": 1, "method": "eth_getBlockReceipts", "params": [receipts[1]["blockNumber"]]}
    (listed,) = requests.post(base_node.url, json=block, timeout=30).json()["result"]
    assert int(listed["l1Fee"], 16) == charged[1]


def test_a_deposit_from_ethereum_pays_no_l1_fee(base_node: EvmNode) -> None:
    sender = bytes.fromhex(Account.create().address[2:])
    fields = [keccak(sender), sender, sender, 10**17, 10**17, 21_000, 0, b""]
    raw = b"\x7e" + bytes(rlp.encode(fields))
    await_mined(base_node, base_node.rpc("eth_sendRawTransaction", "0x" + raw.hex()))
    assert reported_l1_fees(base_node, "0x" + keccak(raw).hex()) == [0]


def test_a_restarted_chain_still_reports_the_l1_fee_of_old_transactions(tmp_path: Path) -> None:
    with EvmNode("base", state=tmp_path / "base", state_interval=0.05) as node:
        tx_hash = node.fund_usdc(Account.create().address, 10**6)
        before = reported_l1_fees(node, tx_hash)
    with EvmNode("base", state=tmp_path / "base") as node:
        assert reported_l1_fees(node, tx_hash) == before


def test_the_address_of_a_stopped_chain_refuses_connections() -> None:
    with EvmNode("base") as node:
        connected = requests.Session()
        request = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
        assert connected.post(node.url, json=request, timeout=30).json()["result"] == hex(node.chain_id)
        node.kill()
        with pytest.raises(requests.ConnectionError):
            connected.post(node.url, json=request, timeout=30)


def test_only_a_long_call_exceeds_the_minimum_l1_fee() -> None:
    parameters = (8 * 10**9, 1, 2269, 1055762)
    smallest = fjord_fee(bytes(100), parameters)
    assert fjord_fee(bytes(range(256)) * 4, parameters) > smallest
    assert fjord_fee(bytes(1000), parameters) == smallest


@pytest.mark.parametrize("seed", range(6))
def test_the_compressed_length_is_that_of_the_chain_s_own_fastlz(seed: int, base_node: EvmNode) -> None:
    chance = random.Random(seed)
    data = b"".join(
        chance.choice([bytes(chance.randrange(40)), chance.randbytes(chance.randrange(60)), b"words and words " * 20])
        for _ in range(chance.randrange(3, 30))
    )
    oracle = base_node.deployment.gas_price_oracle
    l1_base_fee, blob_base_fee, base_scalar, blob_scalar = (
        int(base_node.rpc("eth_call", {"to": oracle, "data": call_data(f"{name}()")}, "latest"), 16)
        for name in ("l1BaseFee", "blobBaseFee", "baseFeeScalar", "blobBaseFeeScalar")
    )
    # The oracle adds 68 bytes for a signature that it has not seen.
    size = max(100_000_000, 836_500 * (compressed_length(data) + 68) - 42_585_600)
    fee = size * (16 * base_scalar * l1_base_fee + blob_scalar * blob_base_fee) // 10**12
    assert l1_fee_by_oracle(base_node, data, "latest") == fee
