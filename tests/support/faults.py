"""A chain that fails when told to, around a real one: the crash harness of every movement.

A fault hits before a verb reaches the real chain or after it was executed there, and either raises a port error or
kills the process the hard way, as a machine would.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.core.chains import ChainName, Token
from app.ports import bridges
from app.ports.bridges import Bridge, Crossing, Progress, Step
from app.ports.chain import (
    Attempt,
    Balances,
    BlockRef,
    Chain,
    Diagnosis,
    Draft,
    Intent,
    Outcome,
    Scan,
    Sent,
    Signed,
    Terms,
    Watch,
    WatchedAddress,
)
from app.ports.swaps import Ask, Beside, Exchange, Offer
from app.ports.vault import Signer

When = Literal["before", "after"]


def kill() -> None:
    """End this process at once: no handlers, no clean-up, as if the power went."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(slots=True)
class Fault:
    """What happens at a verb: `action` is called (it raises, kills, or waits) for the next `times` calls."""

    verb: str
    when: When
    action: Callable[[], object]
    times: int = 1


class _Faulty:
    """Something real with faults in front of and behind its verbs."""

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

    def verify_identity(self) -> None:
        self._through("verify_identity", self.real.verify_identity)

    def diagnose(self) -> Diagnosis:
        answer: Diagnosis = self._through("diagnose", self.real.diagnose)
        return answer

    def explorer_url(self, tx_hash: str) -> str | None:
        return self.real.explorer_url(tx_hash)

    def refusal_of(self, recipient: str, token: Token) -> str | None:
        return self.real.refusal_of(recipient, token)

    def balances(self, address: str) -> Balances:
        answer: Balances = self._through("balances", lambda: self.real.balances(address))
        return answer

    def draft(self, intent: Intent) -> Draft:
        answer: Draft = self._through("draft", lambda: self.real.draft(intent))
        return answer

    def sign(self, draft: Draft, signer: Signer, *, sequence: int | None) -> Signed:
        answer: Signed = self._through("sign", lambda: self.real.sign(draft, signer, sequence=sequence))
        return answer

    def replacement(self, attempt: Attempt) -> Draft | None:
        answer: Draft | None = self._through("replacement", lambda: self.real.replacement(attempt))
        return answer

    def cancellation(self, attempt: Attempt) -> Draft | None:
        answer: Draft | None = self._through("cancellation", lambda: self.real.cancellation(attempt))
        return answer

    def broadcast(self, raw: bytes) -> None:
        self._through("broadcast", lambda: self.real.broadcast(raw))

    def rebroadcast(self, raws: Sequence[bytes]) -> None:
        self._through("rebroadcast", lambda: self.real.rebroadcast(raws))

    def outcomes(self, watches: Sequence[Watch]) -> Mapping[str, Outcome]:
        answer: Mapping[str, Outcome] = self._through("outcomes", lambda: self.real.outcomes(watches))
        return answer

    def orphaned(self, blocks: Sequence[BlockRef]) -> tuple[frozenset[BlockRef], int]:
        answer: tuple[frozenset[BlockRef], int] = self._through(
            "orphaned", lambda: self.real.orphaned(blocks)
        )
        return answer

    def sent_counts(self, addresses: Sequence[str]) -> Mapping[str, int]:
        return self.real.sent_counts(addresses)

    def sent_in_slot(self, sender: str, sequence: int, *, instead_of: Attempt | None = None) -> Sent | None:
        return self.real.sent_in_slot(sender, sequence, instead_of=instead_of)

    def head(self) -> BlockRef:
        answer: BlockRef = self._through("head", self.real.head)
        return answer

    def mark(self, address: str) -> Terms:
        answer: Terms = self._through("mark", lambda: self.real.mark(address))
        return answer

    def deposits(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> Scan:
        answer: Scan = self._through("deposits", lambda: self.real.deposits(watched, cursor=cursor))
        return answer


class FaultyBridge(_Faulty):
    """A real way between chains with faults."""

    def __init__(self, bridge: Bridge) -> None:
        super().__init__()
        self.real = bridge

    @property
    def name(self) -> str:
        return self.real.name

    def quote(self, ask: bridges.Ask) -> bridges.Offer:
        answer: bridges.Offer = self._through("quote", lambda: self.real.quote(ask))
        return answer

    def prepare(self, offer: bridges.Offer) -> tuple[Step, ...]:
        answer: tuple[Step, ...] = self._through("prepare", lambda: self.real.prepare(offer))
        return answer

    def sign(self, step: Step, signer: Signer, *, sequence: int | None) -> Signed:
        answer: Signed = self._through("sign", lambda: self.real.sign(step, signer, sequence=sequence))
        return answer

    def follow(self, crossing: Crossing) -> Progress:
        answer: Progress = self._through("follow", lambda: self.real.follow(crossing))
        return answer

    def deliver(self, crossing: Crossing) -> Step:
        answer: Step = self._through("deliver", lambda: self.real.deliver(crossing))
        return answer


class FaultyExchange(_Faulty):
    """A real exchange with faults."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self.real = exchange

    def quote(self, ask: Ask) -> Offer:
        answer: Offer = self._through("quote", lambda: self.real.quote(ask))
        return answer

    def draft(self, offer: Offer, *, minimum_units: int, signer: Signer | None) -> Draft:
        answer: Draft = self._through(
            "draft", lambda: self.real.draft(offer, minimum_units=minimum_units, signer=signer)
        )
        return answer

    def sign(self, draft: Draft, signer: Signer, *, sequence: int | None, beside: Beside) -> Signed:
        answer: Signed = self._through(
            "sign", lambda: self.real.sign(draft, signer, sequence=sequence, beside=beside)
        )
        return answer
