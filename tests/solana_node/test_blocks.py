"""Blocks, pruned history, and the genesis hash of another cluster."""

from __future__ import annotations

import pytest
from solders.keypair import Keypair

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS
from solana_node import RpcError, SolanaNode
from tests.solana_node.client import SOL

_SIGNATURES = {"transactionDetails": "signatures", "rewards": False, "commitment": "confirmed"}


def test_a_block_lists_what_landed_in_it_once_it_is_confirmed(node: SolanaNode) -> None:
    signatures = [node.airdrop(Keypair().pubkey(), SOL) for _ in range(3)]
    slot = node.call("getSlot", {"commitment": "processed"})

    with pytest.raises(RpcError) as early:
        node.call("getBlock", slot, _SIGNATURES)
    node.advance(1)
    block = node.call("getBlock", slot, _SIGNATURES)

    assert early.value.code == -32004
    assert block["signatures"] == signatures
    assert block["blockHeight"] == node.call("getBlockHeight", {"commitment": "confirmed"})
    assert node.call("getBlocksWithLimit", slot, 1, {"commitment": "confirmed"}) == [slot]
    assert node.call("getBlocksWithLimit", slot + 9, 1, {"commitment": "confirmed"}) == []
    assert block["previousBlockhash"] == node.call("getBlock", slot - 1, _SIGNATURES)["blockhash"]


def test_pruned_history_is_gone_for_every_method_and_reports_its_start(node: SolanaNode) -> None:
    recipient = Keypair().pubkey()
    old = node.airdrop(recipient, SOL)
    node.advance(50)
    new = node.airdrop(recipient, SOL)
    slot = node.call("getSlot", {"commitment": "processed"})
    node.advance(40)

    node.prune_before(slot)

    assert node.call("getFirstAvailableBlock") == slot
    statuses = node.call("getSignatureStatuses", [old, new], {"searchTransactionHistory": True})["value"]
    assert [status is None for status in statuses] == [True, False]
    assert [entry["signature"] for entry in node.call("getSignaturesForAddress", str(recipient))] == [new]
    assert node.call("getTransaction", old, {"maxSupportedTransactionVersion": 0}) is None
    with pytest.raises(RpcError) as gone:
        node.call("getBlock", slot - 1, _SIGNATURES)
    assert gone.value.code == -32001
    assert node.call("getBalance", str(recipient))["value"] == 2 * SOL, "balances remain"


def test_a_node_behind_the_requested_slot_returns_no_history(node: SolanaNode) -> None:
    finalized = node.call("getSlot")
    assert node.call("getSignaturesForAddress", str(Keypair().pubkey()), {"minContextSlot": finalized}) == []
    with pytest.raises(RpcError) as behind:
        node.call("getSignaturesForAddress", str(Keypair().pubkey()), {"minContextSlot": finalized + 1})
    assert behind.value.code == -32016


@pytest.mark.parametrize("network", ["mainnet", "testnet"])
def test_a_local_node_can_stand_in_for_a_public_cluster_and_the_sandbox_refuses_it(network: str) -> None:
    genesis_hash = DEPLOYMENTS[network].genesis_hash
    with SolanaNode(slot_ms=0, genesis_hash=genesis_hash) as stand_in:
        SolanaChain(DEPLOYMENTS[network], rpc_urls=[stand_in.url]).head()
        (endpoint,) = SolanaChain(DEPLOYMENTS["sandbox"], rpc_urls=[stand_in.url]).diagnose().endpoints
        assert endpoint.problem == "wrong_chain"


def test_a_malformed_genesis_hash_is_refused_immediately() -> None:
    with pytest.raises(ValueError, match="is not a genesis hash"):
        SolanaNode(slot_ms=0, genesis_hash="not a hash")
