"""Solana's RPC as validators and providers document it: errors that are about the node, the call or the chain.

Read on 2026-11-23:
https://github.com/anza-xyz/agave/blob/master/rpc-client-api/src/custom_error.rs (codes and messages),
https://github.com/anza-xyz/agave/blob/master/ledger/src/blockstore.rs (`is_skipped`),
https://www.helius.dev/docs/api-reference/common-error-codes, https://www.helius.dev/docs/billing/rate-limits,
https://www.quicknode.com/docs/solana/error-references.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from solders.keypair import Keypair
from structlog.testing import capture_logs

from app.adapters.jsonrpc.calls import RpcError, RpcErrorKind
from app.adapters.solana.client.calls import MAX_LARGE_BATCH
from app.adapters.solana.send.refusals import SEND_REFUSALS
from app.ports.chain import BlockRef, WatchedAddress
from app.ports.errors import Unreachable
from solana_node import SolanaNode
from tests.support.evm import After, Calls, proxy, refuse
from tests.support.solana_people import FINALIZED_SLOTS, chain_at, funded, signed

CALL, RATE_LIMIT, UNHEALTHY = RpcErrorKind.CALL, RpcErrorKind.RATE_LIMIT, RpcErrorKind.UNHEALTHY

SKIPPED = (
    (-32007, "Slot {} was skipped, or missing due to ledger jump to recent snapshot"),
    (-32009, "Slot {} was skipped, or missing in long-term storage"),
)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        # Agave: about the requested slot, signature or transaction.
        (-32001, "Block 5 cleaned up, does not exist on node. First available block: 9", CALL),
        (-32004, "Block not available for slot 5", CALL),
        (-32007, SKIPPED[0][1].format(5), CALL),
        (-32009, SKIPPED[1][1].format(5), CALL),
        (-32014, "Block status not yet available for slot 5", CALL),
        (-32015, "Transaction version (1) is not supported by the requesting client.", CALL),
        (-32016, "Minimum context slot has not been reached", CALL),
        # Agave: about the node.
        (-32005, "Node is behind by 42 slots", UNHEALTHY),
        (-32005, "Node is unhealthy", UNHEALTHY),
        (-32011, "Transaction history is not available from this node", UNHEALTHY),
        (-32019, "Failed to query long-term storage; please try again", UNHEALTHY),
        # QuickNode uses the codes of skipped slots and of unhealthy nodes for its limits.
        (-32007, "50/second request limit reached - reduce calls per second or upgrade your account", RATE_LIMIT),
        (-32003, "daily request limit reached - upgrade your account", RATE_LIMIT),
        # Helius, and the public endpoints.
        (-32429, "rate limited", RATE_LIMIT),
        (429, "Too many requests for a specific RPC call", RATE_LIMIT),
    ],
)
def test_errors_are_about_the_node_or_the_call(code: int, message: str, kind: RpcErrorKind) -> None:
    assert RpcError(code, message).kind is kind


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (-32002, "Transaction simulation failed: This transaction has already been processed", "already_processed"),
        (-32003, "Transaction signature verification failure", "invalid_transaction"),
        (-32602, "failed to deserialize solana_transaction::versioned::VersionedTransaction", "invalid_transaction"),
        (-32602, "base64 encoded solana_transaction::versioned::VersionedTransaction too large: 1648 bytes",
         "invalid_transaction"),
        (-32602, "invalid transaction: Transaction failed to sanitize accounts offsets correctly",
         "invalid_transaction"),
        # It may have been accepted before, or by another node: the status decides.
        (-32002, "Transaction simulation failed: Blockhash not found", None),
        (-32005, "Node is behind by 42 slots", None),
        (-32603, "Internal error", None),
    ],
)  # fmt: skip
def test_only_a_final_answer_refuses_a_transaction(code: int, message: str, reason: str | None) -> None:
    assert RpcError(code, message).look_up(SEND_REFUSALS) == reason


def test_batches_of_history_stay_within_helius_limits() -> None:
    """Helius: 10 calls in one request for historical methods other than `getTransaction`."""
    assert MAX_LARGE_BATCH <= 10


@pytest.fixture
def node() -> Iterator[SolanaNode]:
    with SolanaNode(slot_ms=0) as started:
        yield started


def _without_block(slot: int, *, code: int, message: str, parent: int) -> After:
    """Return an alteration: a slot has no block, and the next block has this parent."""

    def after(calls: Calls, replies: Calls) -> Calls:
        shown = []
        for call, reply in zip(calls, replies, strict=True):
            if call["method"] == "getBlock" and call["params"][0] == slot:
                error = {"code": code, "message": message.format(slot)}
                shown.append({"jsonrpc": "2.0", "id": reply["id"], "error": error})
                continue
            if call["method"] == "getBlock" and call["params"][0] == slot + 1:
                reply["result"]["parentSlot"] = parent
            shown.append(reply)
        return shown

    return after


@pytest.mark.chain
@pytest.mark.parametrize(("code", "message"), SKIPPED)
def test_a_slot_that_a_node_lacks_reverses_no_payment(node: SolanaNode, code: int, message: str) -> None:
    sender = funded(node)
    _, transaction = signed(chain_at(node.url), sender, str(Keypair().pubkey()), 10**8)
    slot = node.call("getSlot", {"commitment": "confirmed"}) + 5
    node.advance(FINALIZED_SLOTS + 10)
    seen = BlockRef(slot, transaction.tx_hash)
    with proxy(node.url) as between, capture_logs():
        chain = chain_at(between.url)
        # The next block follows one at or after this slot: the node jumped over it.
        for parent in (slot, slot + 1):
            between.after = _without_block(slot, code=code, message=message, parent=parent)
            assert chain.orphaned_blocks([seen]) == (frozenset(), slot - 1)
        between.after = _without_block(slot, code=code, message=message, parent=slot - 1)
        gone, final = chain.orphaned_blocks([seen])
        assert (gone, final >= slot) == (frozenset({seen}), True)


@pytest.mark.chain
@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-32019, "Failed to query long-term storage; please try again"),
        (-32011, "Transaction history is not available from this node"),
    ],
)
def test_a_node_without_its_history_loses_no_deposit(node: SolanaNode, code: int, message: str) -> None:
    watched = funded(node).address
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        entries = [WatchedAddress(watched, chain.scan_state(watched))]
        paid = node.airdrop(watched, 5)
        # Older than the time for which a transaction that cannot be shown is awaited.
        node.advance(2_000)
        between.after = refuse("getTransaction", message, code=code)
        with capture_logs(), pytest.raises(Unreachable):
            chain.deposits(entries, cursor=None)
        between.after = lambda _calls, replies: replies
        assert [deposit.tx_hash for deposit in chain.deposits(entries, cursor=None).deposits] == [paid]
