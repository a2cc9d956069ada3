"""Finds out what became of many transactions in few requests.

"Void" promises that money stayed where it was, so it is said only when the nonce was used at `safe` depth and
the receipts were read after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from app.adapters.evm import l1_fees, proceeds
from app.adapters.evm.deployments import Deployment
from app.adapters.evm.endpoint import MAX_BATCH, Call, Endpoint, RpcError
from app.adapters.evm.rpc import JsonRpc
from app.adapters.evm.wire import Receipt, block_ref_or_none, count, receipt_or_none
from app.adapters.json_rpc import MalformedAnswerError
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
        head = _head()
        rides_along = sum(len(watch.tx_hashes) for watch in watches) % MAX_BATCH != 0
        landed, silent = self._receipts(watches, *([head] if rides_along else []))
        still_missing = [head] if landed and not rides_along else []
        counts = self._safe_counts({watch.sender for watch in silent}, *still_missing)
        found = {watch.key: Outcome(Fate.WAITING) for watch in watches}
        if landed:
            found |= self._settled(landed, watches, head=head.answer)
        for watch_group in _groups([watch for watch in silent if _is_used(watch, counts)]):
            found |= self._decided(watch_group)
        return found

    def orphaned(self, blocks: Sequence[BlockRef]) -> tuple[frozenset[BlockRef], int]:
        """Return which blocks were reorganised away, and the number of the newest `safe` block.

        A block beyond the node's head is not called orphaned: the node may lag behind. Raises: Unreachable.
        """
        safe = Call("eth_getBlockByNumber", ("safe", False), read=block_ref_or_none, tolerates=_anything)
        head = _head()
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

    def _decided(self, watches: Sequence[Watch]) -> Mapping[str, Outcome]:
        """Find out about movements whose nonce seems to be used: void only by the evidence of one endpoint.

        What one endpoint counts says nothing about the receipts of another, which may lag behind.
        """
        landed, void, head = self._rpc.first(lambda endpoint: _evidence(endpoint, watches))
        return {**dict.fromkeys(void, Outcome(Fate.VOID)), **self._settled(landed, watches, head=head)}

    def _receipts(self, watches: Sequence[Watch], *also: Call[int]) -> tuple[dict[str, Receipt], list[Watch]]:
        """Return the receipts by watch, and the watches none of whose hashes has one, to all certainty."""
        calls = _receipt_calls(watches)
        self._rpc.run(*(call for _, call in calls), *also)
        return _sorted_out(watches, calls)

    def _safe_counts(self, senders: Iterable[str], *also: Call[int]) -> Mapping[str, int]:
        """Return how many nonces each sender has used for good."""
        ordered = sorted(senders)
        counts = [_count(sender, "safe") for sender in ordered]
        self._rpc.run(*counts, *also)
        if any(call.error for call in counts):
            head = _head()
            self._rpc.run(head)
            if head.answer < _SAFE_DEPTH:
                return {}
            counts = [_count(sender, hex(head.answer - _SAFE_DEPTH)) for sender in ordered]
            self._rpc.run(*counts)
        return _answers(ordered, counts)

    def _settled(
        self, landed: Mapping[str, Receipt], watches: Sequence[Watch], *, head: int
    ) -> Mapping[str, Outcome]:
        l1 = l1_fees.charged(self._rpc, self._deployment, list(landed.values()))
        return {
            watch.key: self._outcome(watch, landed[watch.key], l1, head=head)
            for watch in watches
            if watch.key in landed
        }

    def _outcome(self, watch: Watch, receipt: Receipt, l1: Mapping[str, int], *, head: int) -> Outcome:
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
            received_units=None
            if watch.receives is None
            else proceeds.of_exchange(receipt, watch.sender, watch.receives, deployment=self._deployment),
        )


def _evidence(
    endpoint: Endpoint, watches: Sequence[Watch]
) -> tuple[Mapping[str, Receipt], Sequence[str], int]:
    """Return receipts by watch, the keys of the watches that are void, and the head. Raises: EndpointFailed.

    Only receipts that are read after the count, from where the count was read, prove that nothing of ours used
    the nonce.
    """
    senders = sorted({watch.sender for watch in watches})
    counts = [_count(sender, "safe") for sender in senders]
    receipts = _receipt_calls(watches)
    head = _head()
    after: list[Call[Any]] = [*(call for _, call in receipts), head]
    endpoint.run([*counts, *after])
    if any(call.error for call in counts):
        depth = head.answer - _SAFE_DEPTH
        counts = [_count(sender, hex(depth)) for sender in senders] if depth >= 0 else []
        endpoint.run([*counts, *after])
    used = _answers(senders, counts) if counts else {}
    landed, unused = _sorted_out(watches, receipts)
    return landed, [watch.key for watch in unused if _is_used(watch, used)], head.answer


def _groups(watches: Sequence[Watch]) -> Iterator[Sequence[Watch]]:
    """Split watches so that all that is asked about a group goes in one HTTP request."""
    group: list[Watch] = []
    room = MAX_BATCH
    for watch in watches:
        # A count for its sender and a receipt for each hash; the head and a first call's identity take two.
        needed = 1 + len(watch.tx_hashes)
        if group and needed + 2 > room:
            yield group
            group, room = [], MAX_BATCH
        group.append(watch)
        room -= needed
    if group:
        yield group


def _is_used(watch: Watch, counts: Mapping[str, int]) -> bool:
    return watch.sequence is not None and counts.get(watch.sender, 0) > watch.sequence


def _sorted_out(
    watches: Sequence[Watch], calls: Sequence[tuple[Watch, Call[Receipt | None]]]
) -> tuple[dict[str, Receipt], list[Watch]]:
    """Return the receipts by watch, and the watches none of whose hashes has one, to all certainty."""
    landed: dict[str, Receipt] = {}
    unclear: set[str] = set()
    for watch, call in calls:
        if call.error is not None:
            unclear.add(watch.key)
        elif call.answer is not None:
            landed[watch.key] = call.answer
    known = landed.keys() | unclear
    return landed, [watch for watch in watches if watch.key not in known]


def _receipt_calls(watches: Sequence[Watch]) -> list[tuple[Watch, Call[Receipt | None]]]:
    return [(watch, _receipt(tx_hash)) for watch in watches for tx_hash in watch.tx_hashes]


def _answers(senders: Sequence[str], counts: Sequence[Call[int]]) -> Mapping[str, int]:
    return {sender: call.answer for sender, call in zip(senders, counts, strict=True) if call.error is None}


def _receipt(tx_hash: str) -> Call[Receipt | None]:
    def read(answer: object) -> Receipt | None:
        receipt = receipt_or_none(answer)
        if receipt is not None and receipt.tx_hash != tx_hash:
            raise MalformedAnswerError("expected the receipt that was asked for")
        return receipt

    return Call("eth_getTransactionReceipt", (tx_hash,), read=read, tolerates=_anything)


def _count(sender: str, block: str) -> Call[int]:
    return Call("eth_getTransactionCount", (sender, block), read=count, tolerates=_anything)


def _head() -> Call[int]:
    return Call("eth_blockNumber", (), read=count)


def _anything(_error: RpcError) -> bool:
    return True
