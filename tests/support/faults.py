"""Fault injection around a real chain: the crash harness of every movement.

A fault occurs before a method reaches the real chain or after it was executed there, and either raises a port error
or kills the process, as a machine failure would.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from app.core.chains import ChainName, Token
from app.ports import bridges
from app.ports.bridges import BridgeProgress, BridgeProvider, BridgeStep, BridgeTransfer
from app.ports.chain import (
    Balances,
    BlockRef,
    Chain,
    ChainDiagnosis,
    DepositScan,
    ForeignToken,
    SentTransaction,
    SignedTransaction,
    StoredTransaction,
    Terms,
    TransactionDraft,
    TransactionOutcome,
    TransactionQuery,
    TransferIntent,
    WatchedAddress,
)
from app.ports.swaps import ConcurrentOutflows, SwapExchange, SwapOffer, SwapRequest
from app.ports.vault import Signer

When = Literal["before", "after"]


def kill() -> None:
    """End this process immediately: no handlers, no clean-up, like a power failure."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(slots=True)
class Fault:
    """A fault at a method: `action` is called (it raises, kills, or waits) for the next `times` calls."""

    verb: str
    when: When
    action: Callable[[], object]
    times: int = 1


class _Faulty:
    """A real object with faults before and after its methods."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.calls: list[str] = []

    def fail(self, verb: str, when: When, action: Callable[[], object], *, times: int = 1) -> None:
        """Arm a fault."""
        self.faults.append(Fault(verb, when, action, times))

    def raising(self, verb: str, when: When, error: Exception, *, times: int = 1) -> None:
        """Arm a fault that raises."""

        def action() -> None:
            raise error

        self.fail(verb, when, action, times=times)

    def _hit(self, verb: str, when: When) -> None:
        for fault in self.faults:
            if fault.verb == verb and fault.when == when and fault.times > 0:
                fault.times -= 1
                fault.action()

    def _through(self, verb: str, call: Callable[[], Any]) -> Any:
        self.calls.append(verb)
        self._hit(verb, "before")
        answer = call()
        self._hit(verb, "after")
        return answer


class FaultyChain(_Faulty):
    """A real chain with faults."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.real = chain

    @property
    def name(self) -> ChainName:
        return self.real.name

    @property
    def block_time(self) -> timedelta:
        return self.real.block_time

    def diagnose(self) -> ChainDiagnosis:
        answer: ChainDiagnosis = self._through("diagnose", self.real.diagnose)
        return answer

    def explorer_url(self, tx_hash: str) -> str | None:
        return self.real.explorer_url(tx_hash)

    def recipient_rejection(self, recipient: str, token: Token) -> str | None:
        return self.real.recipient_rejection(recipient, token)

    def receiving_refusal(self, address: str, token: Token) -> str | None:
        answer: str | None = self._through("receiving_refusal", lambda: self.real.receiving_refusal(address, token))
        return answer

    def balances(self, address: str) -> Balances:
        answer: Balances = self._through("balances", lambda: self.real.balances(address))
        return answer

    def foreign_tokens(self, address: str, scan_state: Terms) -> Sequence[ForeignToken]:
        answer: Sequence[ForeignToken] = self._through(
            "foreign_tokens", lambda: self.real.foreign_tokens(address, scan_state)
        )
        return answer

    def draft(self, intent: TransferIntent) -> TransactionDraft:
        answer: TransactionDraft = self._through("draft", lambda: self.real.draft(intent))
        return answer

    def sign(self, draft: TransactionDraft, signer: Signer, *, sequence: int | None) -> SignedTransaction:
        answer: SignedTransaction = self._through("sign", lambda: self.real.sign(draft, signer, sequence=sequence))
        return answer

    def draft_replacement(self, attempt: StoredTransaction) -> TransactionDraft | None:
        answer: TransactionDraft | None = self._through(
            "draft_replacement", lambda: self.real.draft_replacement(attempt)
        )
        return answer

    def draft_cancellation(self, attempt: StoredTransaction) -> TransactionDraft | None:
        answer: TransactionDraft | None = self._through(
            "draft_cancellation", lambda: self.real.draft_cancellation(attempt)
        )
        return answer

    def broadcast(self, raw: bytes) -> None:
        self._through("broadcast", lambda: self.real.broadcast(raw))

    def rebroadcast(self, raws: Sequence[bytes], *, publicly: bool = True) -> None:
        self._through("rebroadcast", lambda: self.real.rebroadcast(raws, publicly=publicly))

    def outcomes(
        self, queries: Sequence[TransactionQuery], *, landed_only: bool = False
    ) -> Mapping[str, TransactionOutcome]:
        answer: Mapping[str, TransactionOutcome] = self._through(
            "outcomes", lambda: self.real.outcomes(queries, landed_only=landed_only)
        )
        return answer

    def orphaned_blocks(self, blocks: Sequence[BlockRef]) -> tuple[frozenset[BlockRef], int]:
        answer: tuple[frozenset[BlockRef], int] = self._through(
            "orphaned_blocks", lambda: self.real.orphaned_blocks(blocks)
        )
        return answer

    def transaction_counts(self, addresses: Sequence[str]) -> Mapping[str, int]:
        return self.real.transaction_counts(addresses)

    def transaction_at_nonce(
        self, sender: str, sequence: int, *, expected: StoredTransaction | None = None
    ) -> SentTransaction | None:
        return self.real.transaction_at_nonce(sender, sequence, expected=expected)

    def outflows(self, senders: Collection[str], *, since: int) -> Sequence[SentTransaction]:
        return self.real.outflows(senders, since=since)

    def head(self) -> BlockRef:
        answer: BlockRef = self._through("head", self.real.head)
        return answer

    def scan_state(self, address: str, *, before: Terms | None = None) -> Terms:
        answer: Terms = self._through("scan_state", lambda: self.real.scan_state(address, before=before))
        return answer

    def unused_scan_state(self, since: int) -> Terms:
        return self.real.unused_scan_state(since)

    def deposits(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> DepositScan:
        answer: DepositScan = self._through("deposits", lambda: self.real.deposits(watched, cursor=cursor))
        return answer


class FaultyBridge(_Faulty):
    """A real bridge with faults."""

    def __init__(self, bridge: BridgeProvider) -> None:
        super().__init__()
        self.real = bridge

    @property
    def name(self) -> str:
        return self.real.name

    def quote(self, request: bridges.BridgeRequest) -> bridges.BridgeOffer:
        answer: bridges.BridgeOffer = self._through("quote", lambda: self.real.quote(request))
        return answer

    def prepare(self, offer: bridges.BridgeOffer) -> tuple[BridgeStep, ...]:
        answer: tuple[BridgeStep, ...] = self._through("prepare", lambda: self.real.prepare(offer))
        return answer

    def sign(self, step: BridgeStep, signer: Signer, *, sequence: int | None) -> SignedTransaction:
        answer: SignedTransaction = self._through("sign", lambda: self.real.sign(step, signer, sequence=sequence))
        return answer

    def progress(self, transfer: BridgeTransfer) -> BridgeProgress:
        answer: BridgeProgress = self._through("progress", lambda: self.real.progress(transfer))
        return answer

    def prepare_delivery(self, transfer: BridgeTransfer) -> BridgeStep:
        answer: BridgeStep = self._through("prepare_delivery", lambda: self.real.prepare_delivery(transfer))
        return answer


class FaultyExchange(_Faulty):
    """A real exchange with faults."""

    def __init__(self, exchange: SwapExchange) -> None:
        super().__init__()
        self.real = exchange

    def quote(self, request: SwapRequest) -> SwapOffer:
        answer: SwapOffer = self._through("quote", lambda: self.real.quote(request))
        return answer

    def draft(self, offer: SwapOffer, *, minimum_units: int, signer: Signer | None) -> TransactionDraft:
        answer: TransactionDraft = self._through(
            "draft", lambda: self.real.draft(offer, minimum_units=minimum_units, signer=signer)
        )
        return answer

    def sign(
        self, draft: TransactionDraft, signer: Signer, *, sequence: int | None, concurrent: ConcurrentOutflows
    ) -> SignedTransaction:
        answer: SignedTransaction = self._through(
            "sign", lambda: self.real.sign(draft, signer, sequence=sequence, concurrent=concurrent)
        )
        return answer
