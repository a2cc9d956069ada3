"""Bridges: moving a wallet's tokens to the same wallet on another chain.

The methods follow the legs. `quote` and `prepare` read from the network (no unit of work open), `sign` does no I/O
(inside the unit that records). `progress` finds the state of a bridge from its source transaction's hash alone;
`prepare_delivery` drafts what remains for us to send on the destination chain. Broadcasting, replacing and tracking
single transactions belong to the `Chain` port.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from app.core.chains import ChainName, Token
from app.core.money import TokenAmount
from app.ports.chain import BlockRef, SignedTransaction, Terms, TransactionDraft
from app.ports.vault import Signer

BridgeProof = Mapping[str, str]
"""Proof of a source transaction for the destination chain, in an adapter's own format; public, storable as JSON."""


class BridgeLegKind(StrEnum):
    """The legs of a bridge, in their order."""

    APPROVE = "approve"
    SOURCE = "source"
    ATTESTATION = "attestation"
    ACCOUNT = "account"
    """Creation of the recipient's token account, on chains that have such accounts."""
    DESTINATION = "destination"


@dataclass(frozen=True, slots=True)
class BridgeRequest:
    """A requested bridge: exactly this amount leaves the sender; both addresses belong to the same wallet."""

    source: ChainName
    destination: ChainName
    sender: str
    recipient: str
    amount: TokenAmount


@dataclass(frozen=True, slots=True)
class BridgeOffer:
    """The terms of a bridge now: at most `fee_units` of the token are deducted; `terms` belong to the adapter.

    `is_refundable`: a payment on the source chain can return what does not arrive. `shortage`: what the wallet lacks
    for its transaction on the destination chain, as the details of "insufficient_gas" with that `chain`.
    """

    request: BridgeRequest
    route: str
    fee_units: int
    seconds: int
    terms: Terms
    is_refundable: bool = False
    shortage: Mapping[str, str] | None = None

    @property
    def fee(self) -> TokenAmount:
        return TokenAmount(self.fee_units, self.request.amount.token)


@dataclass(frozen=True, slots=True)
class BridgeStep:
    """One drafted transaction of a bridge; its intent is the amount taken from the wallet on `chain`."""

    leg: BridgeLegKind
    chain: ChainName
    draft: TransactionDraft


@dataclass(frozen=True, slots=True)
class BridgeTransfer:
    """A bridge in progress, as stored; its source hash alone identifies it."""

    request: BridgeRequest
    terms: Terms
    source_hash: str
    proof: BridgeProof = field(default_factory=dict)
    delivery_hash: str | None = None
    """Our own transaction on the destination chain, once one was executed."""
    failed_deliveries: int = 0


class BridgePhase(StrEnum):
    """The progress of a bridge after its source transaction was executed."""

    WAITING = "waiting"
    """A third party has to act first; `note` describes what is awaited."""
    DELIVERABLE = "ours"
    """Everything is proven; we have to send the transaction on the destination chain."""
    ARRIVED = "arrived"
    REFUNDED = "refunded"
    """Certain: it will not arrive, and the tokens were returned on the source chain."""


class ArrivalNotFound(StrEnum):
    """Why no arrival is found on a chain; the note of a waiting bridge ends with it."""

    NOT_FOUND = "not_seen"
    """The node is behind, or the transaction is of another message, or pays less."""
    UNREADABLE = "unreadable"
    """No node can show it: it returned an error, or no longer keeps that block."""


@dataclass(frozen=True, slots=True)
class BridgeArrival:
    """An arrival on the destination chain.

    `consumes_nonce`: it used a nonce of the wallet. `is_single_payment`: its transaction is one payment, which
    completes one bridge only; if a transaction may contain several, `payment_part` names this one. Hash and block
    are None if the chain shows that it arrived but not by which transaction.
    """

    units: int
    tx_hash: str | None = None
    block: BlockRef | None = None
    consumes_nonce: bool = False
    is_single_payment: bool = False
    payment_part: str | None = None


@dataclass(frozen=True, slots=True)
class BridgeProgress:
    """The progress of a bridge; a `proof` replaces the stored one.

    `arrival` is set with ARRIVED, and with REFUNDED if a payment on the source chain returned the tokens.
    `is_payout_missing` with WAITING: the relayer names a payment that is final and delivered nothing.
    """

    phase: BridgePhase
    note: str | None = None
    proof: BridgeProof | None = None
    arrival: BridgeArrival | None = None
    is_payout_missing: bool = False


BridgeRoute = tuple[ChainName, ChainName, Token]
"""Source, destination and token."""


class BridgeProvider(Protocol):
    """One bridge protocol. Services it depends on are trusted with nothing that can be verified."""

    name: str
    """The stored name by which a bridge finds its adapter again."""

    def quote(self, request: BridgeRequest) -> BridgeOffer:
        """Return the terms of a bridge."""

    def prepare(self, offer: BridgeOffer) -> tuple[BridgeStep, ...]:
        """Draft the source chain's transactions in order; simulate them together. Raises: Rejected, Unreachable."""

    def sign(self, step: BridgeStep, signer: Signer, *, sequence: int | None) -> SignedTransaction:
        """Sign a step with a nonce. No I/O, so it may run inside a unit of work."""

    def progress(self, transfer: BridgeTransfer) -> BridgeProgress:
        """Return the progress of a bridge after its source transaction was executed. Raises: Unreachable."""

    def prepare_delivery(self, transfer: BridgeTransfer) -> BridgeStep:
        """Draft the next transaction to send on the destination chain. Raises: Rejected, Unreachable."""
