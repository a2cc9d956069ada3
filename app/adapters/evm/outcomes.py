"""Finds out what became of many transactions in few requests.

"Void" promises that money stayed where it was, so it is said only when the nonce was used at `safe` depth and
the receipts were read after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from app.adapters.evm import l1_fees
from app.adapters.evm.deployments import Deployment
from app.adapters.evm.endpoint import MAX_BATCH, Call, RpcError
from app.adapters.evm.rpc import JsonRpc
from app.adapters.evm.wire import (
    MalformedAnswerError,
    Receipt,
    block_ref_or_none,
    quantity,
    receipt_or_none,
)
from app.ports.chain import BlockRef, Fate, Outcome, Watch

_SAFE_DEPTH = 64
"""Where a node does not know the tag `safe`: two epochs of Ethereum, after which its blocks are final."""


class Lookout:
    """Looks for the ends of movements on one chain."""

    def __init__(self, rpc: JsonRpc, deployment: Deployment) -> None:
        """Take the chain's nodes and contracts."""
        self._rpc = rpc
        self._deployment = deployment

    def outcomes(self, watches: Sequence[Watch]) -> Mapping[str, Outcome]:
        """Find out about movements, keyed like the watches. Raises: Unreachable."""
        # The head goes after the receipts, so that it is not below their blocks, and with them where that makes
        # no further request: a single movement that has landed is settled by one request less.
        head = Call("eth_blockNumber", (), read=quantity)
        rides_along = sum(len(watch.tx_hashes) for watch in watches) % MAX_BATCH != 0
        landed, silent = self._receipts(watches, *([head] if rides_along else []))
        still_missing = [head] if landed and not rides_along else []
        counts = self._safe_counts({watch.sender for watch in silent}, *still_missing)
        passed = [
            watch
            for watch in silent
            if watch.sequence is not None and counts.get(watch.sender, 0) > watch.sequence
        ]
        found = {watch.key: Outcome(Fate.WAITING) for watch in watches}
        if passed:
            # Only receipts that are read after the count prove that nothing of ours used the nonce.
            late, unused = self._receipts(passed, head)
            landed |= late
            found |= {watch.key: Outcome(Fate.VOID) for watch in unused}
        if landed:
            found |= self._settled(landed, head=head.answer)
        return found

    def orphaned(self, blocks: Sequence[BlockRef]) -> tuple[frozenset[BlockRef], int]:
        """Return which blocks were reorganised away, and the number of the newest `safe` block.

        A block beyond the node's head is not called orphaned: the node may lag behind. Raises: Unreachable.
        """
        safe = Call("eth_getBlockByNumber", ("safe", False), read=block_ref_or_none, tolerates=_anything)
        head = Call("eth_blockNumber", (), read=quantity)
        standing = {
            number: Call("eth_getBlockByNumber", (hex(number), False), read=block_ref_or_none)
            for number in sorted({ref.number for ref in blocks})
        }
        self._rpc.run(head, safe, *standing.values())
        gone = frozenset(
            ref for ref in blocks if (now := standing[ref.number].answer) is not None and now.hash != ref.hash
        )
        if safe.error is None and safe.answer is not None:
            return gone, safe.answer.number
        return gone, max(head.answer - _SAFE_DEPTH, 0)

    def _receipts(self, watches: Sequence[Watch], *also: Call[int]) -> tuple[dict[str, Receipt], list[Watch]]:
        """Return the receipts by watch, and the watches none of whose hashes has one, to all certainty."""
        calls = [(watch, _receipt(tx_hash)) for watch in watches for tx_hash in watch.tx_hashes]
        self._rpc.run(*(call for _, call in calls), *also)
        landed: dict[str, Receipt] = {}
        unclear: set[str] = set()
        for watch, call in calls:
            if call.error is not None:
                unclear.add(watch.key)
            elif call.answer is not None:
                landed[watch.key] = call.answer
        settled = landed.keys() | unclear
        return landed, [watch for watch in watches if watch.key not in settled]

    def _safe_counts(self, senders: Iterable[str], *also: Call[int]) -> Mapping[str, int]:
        """Return how many nonces each sender has used for good."""
        ordered = sorted(senders)
        counts = [_count(sender, "safe") for sender in ordered]
        self._rpc.run(*counts, *also)
        if any(call.error for call in counts):
            head = Call("eth_blockNumber", (), read=quantity)
            self._rpc.run(head)
            if head.answer < _SAFE_DEPTH:
                return {}
            counts = [_count(sender, hex(head.answer - _SAFE_DEPTH)) for sender in ordered]
            self._rpc.run(*counts)
        return {
            sender: call.answer for sender, call in zip(ordered, counts, strict=True) if call.error is None
        }

    def _settled(self, landed: Mapping[str, Receipt], *, head: int) -> Mapping[str, Outcome]:
        l1 = l1_fees.charged(self._rpc, self._deployment, list(landed.values()))
        return {key: self._outcome(receipt, l1, head=head) for key, receipt in landed.items()}

    def _outcome(self, receipt: Receipt, l1: Mapping[str, int], *, head: int) -> Outcome:
        l1_fee: int | None = 0
        if self._deployment.gas_price_oracle is not None:
            told = receipt.l1_fee_units
            l1_fee = l1.get(receipt.tx_hash) if told is None else told
        return Outcome(
            fate=Fate.SUCCEEDED if receipt.succeeded else Fate.REVERTED,
            tx_hash=receipt.tx_hash,
            block=receipt.block,
            # The node that told the head may lag behind the one that had the receipt.
            confirmations=max(head - receipt.block.number + 1, 0),
            fee_units=None if l1_fee is None else receipt.gas_used * receipt.price_units + l1_fee,
        )


def _receipt(tx_hash: str) -> Call[Receipt | None]:
    def read(answer: object) -> Receipt | None:
        receipt = receipt_or_none(answer)
        if receipt is not None and receipt.tx_hash != tx_hash:
            raise MalformedAnswerError("expected the receipt that was asked for")
        return receipt

    return Call("eth_getTransactionReceipt", (tx_hash,), read=read, tolerates=_anything)


def _count(sender: str, block: str) -> Call[int]:
    return Call("eth_getTransactionCount", (sender, block), read=quantity, tolerates=_anything)


def _anything(_error: RpcError) -> bool:
    return True
