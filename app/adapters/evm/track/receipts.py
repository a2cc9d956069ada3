"""Outcomes of many transactions in few requests, and the transactions that used our addresses' nonces.

A nonce that the newest block has not used is in no block, so one count for each sender replaces the receipts of all
its movements. "Void" promises that no money moved, so it is returned only when the nonce was used at `safe` depth and
the receipts were read after that.

A restored database does not know what used a nonce. A node returns how many transactions an address had sent at a
block, and a binary search finds the block. A node that keeps no old states finds only the latest nonces. What others
submitted is in the logs of USDC, in which the use of an authorization directly precedes its transfer.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from eth_utils.crypto import keccak

from app.adapters.evm import calls
from app.adapters.evm.calls import MAX_BATCH, RpcTransaction, TransactionReceipt, read_logs
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.calls import AUTHORIZATION_USED_EVENT, TRANSFER_EVENT, ContractEvent, EvmConnection
from app.adapters.evm.foreign_tokens import CONTRACT_TERM
from app.adapters.evm.send import transactions
from app.adapters.evm.send.transactions import CallTarget, FeeTerms, GasPrice
from app.adapters.evm.track.authorizations import AuthorizationPoller, OpenAuthorization
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.core import clock
from app.core.chains import USDC
from app.core.identifiers import require
from app.core.money import TokenAmount
from app.ports.chain import (
    BlockRef,
    NonceUse,
    SentTransaction,
    StoredTransaction,
    Terms,
    TransactionOutcome,
    TransactionQuery,
    TransactionStatus,
)
from app.ports.errors import Unreachable

_WITHDRAWAL_EVENT = ContractEvent("weth9", "Withdrawal")
_SAFE_DEPTH = 64
"""Where a node does not support the tag `safe`: two epochs of Ethereum, after which its blocks are final."""


class EvmReceiptPoller(AuthorizationPoller):
    def outcomes(
        self, queries: Sequence[TransactionQuery], *, landed_only: bool = False
    ) -> Mapping[str, TransactionOutcome]:
        authorizations = {
            query.key: found for query in queries if (found := OpenAuthorization.from_terms(query.terms)) is not None
        }
        queries = [query for query in queries if query.key not in authorizations]
        return {
            **self._transaction_outcomes(queries, landed_only=landed_only),
            **self._authorization_outcomes(authorizations),
        }

    def _transaction_outcomes(
        self, queries: Sequence[TransactionQuery], *, landed_only: bool
    ) -> Mapping[str, TransactionOutcome]:
        found = {query.key: TransactionOutcome(TransactionStatus.WAITING) for query in queries}
        possible = queries if landed_only else self._with_used_nonce(queries)
        if not possible:
            return found
        receipts, head = {query.key: _receipt_calls(query) for query in possible}, calls.head()
        # The head is read after the receipts, so that it is not below their blocks.
        self.rpc.run(*chain.from_iterable(receipts.values()), head)
        unmined = []
        for query in possible:
            outcome = self._landed(query, receipts[query.key], head)
            found[query.key] = outcome or found[query.key]
            is_readable = not any(call.error for call in receipts[query.key])
            if outcome is None and is_readable and not landed_only and query.sequence is not None:
                unmined.append(query)
        # With the head and the chain's identity, the calls for a group fit into one HTTP request.
        size = max(1, (MAX_BATCH - 2) // (1 + max((len(query.tx_hashes) for query in unmined), default=0)))
        for start in range(0, len(unmined), size):
            found |= self.rpc.run_on_first(partial(self._evidence, unmined[start : start + size]))
        return found

    def orphaned_blocks(self, blocks: Sequence[BlockRef]) -> tuple[frozenset[BlockRef], int]:
        """Return removed blocks, none beyond a head that may lag, and the newest `safe` number. Raises: Unreachable."""
        safe = calls.header_or_none("safe", tolerates=accept_any_error)
        canonical = {number: calls.header_or_none(number) for number in {ref.number for ref in blocks}}
        self.rpc.run(safe, *canonical.values())
        orphaned = frozenset(
            ref for ref in blocks if (now := canonical[ref.number].result) is not None and now.hash != ref.hash
        )
        if safe.error is None and safe.result is not None:
            return orphaned, safe.result.number
        return orphaned, max(self.rpc.ask(calls.head()) - _SAFE_DEPTH, 0)

    def _with_used_nonce(self, queries: Sequence[TransactionQuery]) -> Sequence[TransactionQuery]:
        """Return the queries with a nonce that was used by the newest block. Raises: Unreachable."""
        counts = {sender: calls.nonce(sender) for sender in sorted({query.sender for query in queries})}
        self.rpc.run(*counts.values())
        return [query for query in queries if query.sequence is None or _is_used(query, counts[query.sender])]

    def _evidence(self, queries: Sequence[TransactionQuery], endpoint: RpcEndpoint) -> Mapping[str, TransactionOutcome]:
        """Return the outcomes that one endpoint proves. Raises: EndpointError.

        Only receipts that are read after the count, and from the same endpoint, prove that none of our transactions
        used the nonce; in one request, also one node of a pool answers.
        """
        counts = _counts(queries, "safe")
        receipts, head = {query.key: _receipt_calls(query) for query in queries}, calls.head()
        after: list[RpcCall[Any]] = [*chain.from_iterable(receipts.values()), head]
        endpoint.run([*counts.values(), *after])
        if any(count.error for count in counts.values()) and head.result >= _SAFE_DEPTH:
            counts = _counts(queries, head.result - _SAFE_DEPTH)
            endpoint.run([*counts.values(), *after])
        proven = {}
        for query in queries:
            if landed := self._landed(query, receipts[query.key], head):
                proven[query.key] = landed
            elif _is_used(query, counts[query.sender]) and not any(call.error for call in receipts[query.key]):
                proven[query.key] = TransactionOutcome(TransactionStatus.VOID)
        return proven

    def _landed(
        self, query: TransactionQuery, receipts: Sequence[RpcCall[TransactionReceipt | None]], head: RpcCall[int]
    ) -> TransactionOutcome | None:
        receipt = next((found for call in receipts if (found := call.result_or_none) is not None), None)
        if receipt is None:
            return None
        foreign = query.terms.get(CONTRACT_TERM)
        sent = (TRANSFER_EVENT.decode(log) for log in receipt.logs if log.contract == foreign)
        # A foreign token whose transfer returns false has moved nothing.
        has_sent = foreign is None or query.sender in {fields[0] for fields in sent if fields}
        has_l1_fee = self.deployment.gas_price_oracle is not None
        l1_fee = receipt.l1_fee_units if has_l1_fee else 0
        return TransactionOutcome(
            status=TransactionStatus.SUCCEEDED if receipt.succeeded and has_sent else TransactionStatus.REVERTED,
            tx_hash=receipt.tx_hash,
            block=receipt.block,
            # The node that returned the head may lag behind the one that had the receipt.
            confirmations=max(head.result - receipt.block.number + 1, 0),
            fee_units=None if l1_fee is None else receipt.gas_used * receipt.gas_price_units + l1_fee,
            received_units=None if query.expected_token is None else self._swap_output(receipt, query),
        )

    def _swap_output(self, receipt: TransactionReceipt, query: TransactionQuery) -> int:
        """Return what a swap paid its owner: USDC logs transfers; of ether, the router pays out all that it unwraps."""
        received, owner, is_usdc, deployment = 0, query.sender, query.expected_token == USDC, self.deployment
        for log in receipt.logs:
            if not is_usdc and log.contract == deployment.weth and (fields := _WITHDRAWAL_EVENT.decode(log)):
                holder, units = fields
                received += units * (holder == deployment.uniswap_router)
            if is_usdc and log.contract == deployment.usdc and (fields := TRANSFER_EVENT.decode(log)):
                payer, recipient, units = fields
                received += units * ((recipient == owner) - (payer == owner))
        return max(received, 0)


def _receipt_calls(query: TransactionQuery) -> list[RpcCall[TransactionReceipt | None]]:
    return [calls.receipt(tx_hash, tolerates=accept_any_error) for tx_hash in query.tx_hashes]


def _counts(queries: Sequence[TransactionQuery], block: str | int) -> Mapping[str, RpcCall[int]]:
    return {query.sender: calls.nonce(query.sender, block, tolerates=accept_any_error) for query in queries}


def _is_used(query: TransactionQuery, count: RpcCall[int]) -> bool:
    return query.sequence is not None and (count.result_or_none or 0) > query.sequence


class NonceHistoryReader(EvmConnection):
    def transaction_counts(self, addresses: Sequence[str]) -> Mapping[str, int]:
        """Return the highest counts of all endpoints: one that lags would hide what was sent. Raises: Unreachable."""
        if not addresses:
            return {}

        def latest(endpoint: RpcEndpoint) -> list[int]:
            counts = [calls.nonce(address) for address in addresses]
            endpoint.run(counts)
            return [call.result for call in counts]

        counts = list(self.rpc.run_on_each(latest))
        if not counts:
            raise Unreachable("chain_unreachable")
        return dict(zip(addresses, map(max, *counts, [0] * len(addresses)), strict=True))

    def transaction_at_nonce(
        self, sender: str, sequence: int, *, expected: StoredTransaction | None = None
    ) -> SentTransaction | None:
        best: SentTransaction | None = None
        answered = False
        # An endpoint may lag, keep no old states, or omit fields: another one may have everything.
        for sent in self.rpc.run_on_each(lambda endpoint: self._find_at_nonce(endpoint, sender, sequence, expected)):
            answered = True
            best = sent or best
            if sent is not None and (sent.raw is not None or sent.nonce_use is NonceUse.OTHER):
                return sent
        if not answered:
            raise Unreachable("chain_unreachable")
        return best

    def _find_at_nonce(
        self, endpoint: RpcEndpoint, sender: str, sequence: int, expected: StoredTransaction | None
    ) -> SentTransaction | None:
        found = _find_by_nonce(endpoint, sender, sequence)
        if found is None:
            return None
        target = CallTarget(found.recipient or "", found.value_units, found.data)
        recipient, amount = found.recipient, None
        if not found.data or found.value_units:
            amount = TokenAmount(found.value_units, self.native)
        elif found.recipient == self.deployment.usdc and (moved := contracts.read_transfer(found.data)):
            recipient, amount = moved[0], TokenAmount(moved[1], USDC)
        nonce_use = NonceUse.OTHER
        if target == CallTarget(sender, 0, b""):
            nonce_use = NonceUse.NOTHING
        elif expected is not None and target == transactions.target_of(
            expected.intent, expected.terms, usdc=self.deployment.usdc
        ):
            nonce_use = NonceUse.SAME
        (raw, terms), of = self._signed_bytes(found, target), found.tx_hash
        return SentTransaction(of, sender, recipient, amount, (of,), terms, sequence, raw, nonce_use)

    def outflows(self, senders: Collection[str], *, since: int) -> Sequence[SentTransaction]:
        return self.rpc.run_on_first(lambda endpoint: [*self._outflows(endpoint, senders, since)])

    def _outflows(self, endpoint: RpcEndpoint, senders: Collection[str], since: int) -> Iterator[SentTransaction]:
        (moves, payers), (uses,) = TRANSFER_EVENT.topics(senders), AUTHORIZATION_USED_EVENT.topics()
        head, used = endpoint.ask(calls.head()), None
        taken: dict[tuple[str, str, bytes], tuple[str, int]] = {}
        for _until, logs in read_logs(endpoint, self.deployment.usdc, [[moves, uses], payers], first=since, last=head):
            for log in logs:
                # Anyone can make the token log a transfer of nothing from any address; one to oneself takes nothing.
                if (moved := TRANSFER_EVENT.decode(log)) and moved[0] != moved[1] and moved[2]:
                    key = log.tx_hash, moved[0], used[1] if used and used[0] == moved[0] else b""
                    taken[key] = moved[1], taken.get(key, ("", 0))[1] + moved[2]
                used = AUTHORIZATION_USED_EVENT.decode(log)
        for (tx_hash, payer, nonce), (recipient, units) in taken.items():
            sent = partial(SentTransaction, tx_hash, payer, recipient, TokenAmount(units, USDC))
            if nonce:
                # A seller can give one nonce to several payers. None of our authorizations is valid for a day.
                own, until = keccak(bytes.fromhex(payer[2:]) + nonce), int(clock.now().timestamp()) + 86_400
                terms = OpenAuthorization(payer, nonce.hex(), until, since).as_terms()
                yield sent(("0x" + own.hex(), "0x" + nonce.hex()), terms)
            else:
                found = require(endpoint.ask(calls.transaction(tx_hash)), EndpointError("unexpected_answer"))
                yield sent((tx_hash,), {}, found.nonce if found.sender == payer else None)

    def _signed_bytes(self, found: RpcTransaction, target: CallTarget) -> tuple[bytes | None, Terms]:
        """Reassemble the signed bytes, with their terms; None if they do not have the form that we sign."""
        fields = found.model_extra or {}
        try:
            price = GasPrice(fields["maxFeePerGas"], fields["maxPriorityFeePerGas"])
            fee = FeeTerms(fields["gas"], price, l1_fee_units=0)
            y_parity = fields["v"] if fields.get("yParity") is None else fields["yParity"]
            signature = y_parity, int.from_bytes(fields["r"]), int.from_bytes(fields["s"])
            unsigned = transactions.fields_of(self.deployment.chain_id, found.nonce, fee, target)
            raw = transactions.encode(unsigned, *signature)
        except Exception:  # of any class, by what the node has sent
            return None, {}
        # What replaces a call is the same call.
        terms = {**fee.as_terms(), **(target.as_terms() if found.data else {})}
        return (raw, terms) if transactions.hash_of(raw) == found.tx_hash else (None, {})


def _find_by_nonce(endpoint: RpcEndpoint, sender: str, sequence: int) -> RpcTransaction | None:
    lowest, highest = 0, endpoint.ask(calls.head())
    while lowest < highest:
        middle = (lowest + highest) // 2
        used = calls.nonce(sender, middle, tolerates=accept_any_error)
        endpoint.run([used])
        # A state that the node does not keep is older than those that it has.
        if used.error is None and used.result > sequence:
            highest = middle
        else:
            lowest = middle + 1
    block = endpoint.ask(calls.whole_block(highest))
    for each in () if block is None else block.transactions:
        if each.sender == sender and each.nonce == sequence:
            return each
    return None
