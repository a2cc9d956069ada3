"""A way by which a wallet's tokens go to the same wallet on another chain.

The verbs follow the legs. `quote` and `prepare` read (no unit open), `sign` is pure (inside the unit that records
it). `follow` finds out what became of a source transaction from its hash alone; `deliver` drafts what is left for us
to do on the destination. Sending, replacing and finding out about single transactions is the chain's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from app.core.chains import ChainName, Token
from app.core.money import TokenAmount
from app.ports.chain import BlockRef, Draft, Signed, Terms
from app.ports.vault import Signer

Proof = Mapping[str, str]
"""What proves a source transaction to the destination, as an adapter keeps it; public, storable as JSON."""


class Leg(StrEnum):
    """The parts of a bridge, in their order."""

    APPROVE = "approve"
    SOURCE = "source"
    ATTESTATION = "attestation"
    ACCOUNT = "account"
    """Making the token account that the destination needs, on chains that have such accounts."""
    DESTINATION = "destination"


@dataclass(frozen=True, slots=True)
class Ask:
    """What shall cross: exactly this amount leaves the sender; both addresses are the same wallet's."""

    source: ChainName
    destination: ChainName
    sender: str
    recipient: str
    amount: TokenAmount


@dataclass(frozen=True, slots=True)
class Offer:
    """How it would cross now: `fee_units` of the token at most are kept on the way; `terms` are the adapter's own.

    `may_return` tells that what does not arrive can come back by a payment on the source chain.
    """

    ask: Ask
    route: str
    fee_units: int
    seconds: int
    terms: Terms
    may_return: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One transaction of a bridge, drafted; its intent says what it takes from the wallet on `chain`."""

    leg: Leg
    chain: ChainName
    draft: Draft


@dataclass(frozen=True, slots=True)
class Crossing:
    """A bridge under way, as stored; it is found again by its source hash alone."""

    ask: Ask
    terms: Terms
    source_hash: str
    proof: Proof = field(default_factory=dict)
    delivery_hash: str | None = None
    """Our own transaction on the destination, once one was executed."""


class Phase(StrEnum):
    """How far a crossing is, its source transaction having been executed."""

    WAITING = "waiting"
    """Others have to do something first; `note` says what."""
    OURS = "ours"
    """Everything is proven, and bringing it to the destination is for us to do."""
    ARRIVED = "arrived"
    REFUNDED = "refunded"
    """Certain: it will not arrive, and what left came back on the source chain."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What has arrived, by the destination chain's word.

    `takes_slot` tells whether it used up a nonce of the wallet, `is_sole` that its transaction is one payment, which
    stands for one crossing only; where a transaction may be several, `part` names the one of them that this is. Hash
    and block are None where the chain tells that it arrived and not by which transaction.
    """

    units: int
    tx_hash: str | None = None
    block: BlockRef | None = None
    takes_slot: bool = False
    is_sole: bool = False
    part: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a crossing is; a `proof` replaces the one that was kept.

    `arrival` is set with ARRIVED, and with REFUNDED where a payment on the source chain brought it back. `is_lost`
    with WAITING: who was to pay names a payment that is beyond reorganisation and certainly brought nothing.
    """

    phase: Phase
    note: str | None = None
    proof: Proof | None = None
    arrival: Arrival | None = None
    is_lost: bool = False


Route = tuple[ChainName, ChainName, Token]
"""From where to where, and what."""


class Bridge(Protocol):
    """One way of crossing. Services in between are trusted with nothing that can be checked."""

    @property
    def name(self) -> str:
        """By this name a crossing finds its adapter again."""
        ...

    def quote(self, ask: Ask) -> Offer:
        """Ask how it would cross.

        Raises: Rejected("quote_unavailable", "amount_too_small", "insufficient_gas" on the destination, …),
        Unreachable for a chain.
        """
        ...

    def prepare(self, offer: Offer) -> tuple[Step, ...]:
        """Draft all transactions of the source chain in their order, and simulate them as one.

        Raises: Rejected("insufficient_funds", "insufficient_gas", "unsafe_instructions", "simulation_failed", …),
        Unreachable.
        """
        ...

    def sign(self, step: Step, signer: Signer, *, sequence: int | None) -> Signed:
        """Sign a step for a nonce slot. Pure: no network, so it may run inside a unit of work."""
        ...

    def follow(self, crossing: Crossing) -> Progress:
        """Find out how far a crossing is whose source transaction was executed. Raises: Unreachable."""
        ...

    def deliver(self, crossing: Crossing) -> Step:
        """Draft the next transaction of the destination chain that is ours to send.

        Raises: Rejected("insufficient_gas", "simulation_failed", …), Unreachable.
        """
        ...
