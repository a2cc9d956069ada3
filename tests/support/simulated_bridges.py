"""Bridges between simulated chains, with services that report what a test sets: also what is false.

Three kinds, like the real ones: an order that a service pays out or refunds, verified on the chains; a burn that a
service attests and anyone mints, once; a deposit that the other chain executes itself.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from app.core.chains import ETH, USDC, Token
from app.core.money import TokenAmount
from app.ports.bridges import (
    BridgeArrival,
    BridgeLegKind,
    BridgeOffer,
    BridgePhase,
    BridgeProgress,
    BridgeRequest,
    BridgeStep,
    BridgeTransfer,
)
from app.ports.chain import SignedTransaction, TransferIntent
from app.ports.errors import Rejected, Unreachable
from app.ports.vault import Signer
from tests.support.simulated_chain import FEE_UNITS, Landed, SimTx, SimulatedChain

BURNED = "0x" + "b" * 40
MINT = "0x" + "c" * 40
DEPOSITORY = "0x" + "d" * 40
PORTAL = "0x" + "e" * 40
TOKEN = "0x" + "f" * 40


class OrderStatus(StrEnum):
    """A service's status of an order."""

    OPEN = "open"
    PAID = "paid"
    REFUNDED = "refunded"


@dataclass(frozen=True, slots=True)
class OrderReport:
    """A service's report about an order, and its transaction."""

    status: OrderStatus
    tx_hash: str


class _SimulatedBridge(ABC):
    """The common part: two chains, and an event that may happen while a response is in transit."""

    def __init__(self, name: str, source: SimulatedChain, destination: SimulatedChain) -> None:
        self.name = name
        self.source = source
        self.destination = destination
        self.reset()

    def reset(self) -> None:
        """Reset to the initial state."""
        self.fee_units = 0
        self.closed = self.away = False
        self.meanwhile: Callable[[], None] | None = None

    def quote(self, request: BridgeRequest) -> BridgeOffer:
        """Return an offer with the configured fee."""
        if self.closed or self.away:
            raise Rejected("quote_unavailable")
        self.source.head()
        if self.fee_units >= request.amount.units:
            raise Rejected("amount_too_small")
        return self.offer(request)

    def offer(self, request: BridgeRequest) -> BridgeOffer:
        return BridgeOffer(request, self.name, self.fee_units, 60, {})

    def sign(self, step: BridgeStep, signer: Signer, *, sequence: int | None) -> SignedTransaction:
        """Sign a step of either chain."""
        chain = self.source if step.chain is self.source.name else self.destination
        return chain.sign(step.draft, signer, sequence=sequence)

    def progress(self, transfer: BridgeTransfer) -> BridgeProgress:
        """Return the progress, after the event that happens before the response arrives."""
        if self.away:
            raise Unreachable("bridge_service")
        progress = self.look(transfer)
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        return progress

    @abstractmethod
    def look(self, crossing: BridgeTransfer) -> BridgeProgress:
        """Return the progress by what the chains show and the service reports."""

    def prepare_delivery(self, transfer: BridgeTransfer) -> BridgeStep:
        """Refuse: nothing is left to do."""
        raise Rejected("nothing_to_deliver", details={"source_hash": transfer.source_hash})

    def _source_step(self, request: BridgeRequest, recipient: str) -> BridgeStep:
        return BridgeStep(
            BridgeLegKind.SOURCE,
            request.source,
            self.source.draft(TransferIntent(request.sender, recipient, request.amount)),
        )


class Orders(_SimulatedBridge):
    """A service that is paid on one chain and pays on the other. `reports` are its reports, by source hash."""

    def reset(self) -> None:
        """Reset to the initial state."""
        super().reset()
        self.reports: dict[str, OrderReport] = {}

    def offer(self, request: BridgeRequest) -> BridgeOffer:
        terms = {
            "minimum": request.amount.units - self.fee_units,
            "since": self.destination.head().number, "source_since": self.source.head().number,
        }  # fmt: skip
        return BridgeOffer(request, self.name, self.fee_units, 60, terms, is_refundable=True)

    def prepare(self, offer: BridgeOffer) -> tuple[BridgeStep, ...]:
        """Draft the payment to the service."""
        return (self._source_step(offer.request, DEPOSITORY),)

    def look(self, crossing: BridgeTransfer) -> BridgeProgress:
        """Return the progress that the chains show."""
        request, terms = crossing.request, crossing.terms
        report = self.reports.get(crossing.source_hash)
        if report is None or report.status is OrderStatus.OPEN:
            return BridgeProgress(BridgePhase.WAITING, note="service_pending")
        refunds = report.status is OrderStatus.REFUNDED
        chain, recipient = (self.source, request.sender) if refunds else (self.destination, request.recipient)
        since, least = (terms["source_since"], 1) if refunds else (terms["since"], terms["minimum"])
        chain.head()
        found = chain.landed(report.tx_hash)
        if found is None:
            return BridgeProgress(BridgePhase.WAITING, note="payment_not_seen")
        block, entry = found
        brought = brings(entry, recipient, request.amount.token)
        if brought < int(least or 0) or block.number < int(since or 0):
            is_lost = brought == 0 and block.number <= chain.safe
            return BridgeProgress(BridgePhase.WAITING, note="payment_not_seen", is_payout_missing=is_lost)
        arrival = BridgeArrival(brought, report.tx_hash, block.ref, is_single_payment=True)
        return BridgeProgress(BridgePhase.REFUNDED if refunds else BridgePhase.ARRIVED, arrival=arrival)


class Burns(_SimulatedBridge):
    """Tokens that are burned on one chain and minted on the other, once for each attested burn."""

    def reset(self) -> None:
        """Reset to the initial state."""
        super().reset()
        self.attested: set[str] = set()
        # The forwarder has announced to mint these.
        self.forwarded: set[str] = set()
        self.approves = True
        self.destination.give(MINT, USDC, 10**15)

    def prepare(self, offer: BridgeOffer) -> tuple[BridgeStep, ...]:
        """Draft the approval, if configured, and the burn."""
        request = offer.request
        approval = TransferIntent(request.sender, TOKEN, TokenAmount(0, request.amount.token))
        first = (
            (BridgeStep(BridgeLegKind.APPROVE, request.source, self.source.draft(approval)),) if self.approves else ()
        )
        return (*first, self._source_step(request, BURNED))

    def offer(self, request: BridgeRequest) -> BridgeOffer:
        return BridgeOffer(request, self.name, self.fee_units, 60, {"fee": self.fee_units, "attested": 1})

    def look(self, crossing: BridgeTransfer) -> BridgeProgress:
        """Return the progress by the mint on the other chain."""
        burn = auth_of(crossing.source_hash)
        if crossing.source_hash not in self.attested and not crossing.proof:
            return BridgeProgress(BridgePhase.WAITING, note="attestation_pending")
        proof = {"burn": burn}
        self.destination.head()
        minted = self.destination.was_used(burn)
        if minted is not None:
            block, entry = self.destination.landed(minted) or (None, None)
            assert block is not None
            assert entry is not None
            return BridgeProgress(
                BridgePhase.ARRIVED, proof=proof, arrival=BridgeArrival(entry.tx.units, minted, block.ref)
            )
        if crossing.source_hash in self.forwarded:
            return BridgeProgress(BridgePhase.WAITING, note="forwarding_pending", proof=proof)
        return BridgeProgress(BridgePhase.DELIVERABLE, proof=proof)

    def prepare_delivery(self, transfer: BridgeTransfer) -> BridgeStep:
        """Draft the mint."""
        request, burn = transfer.request, transfer.proof["burn"]
        nothing = TransferIntent(request.recipient, request.recipient, TokenAmount(0, USDC))
        self.destination.head()
        if self.destination.was_used(burn) is not None:
            raise Rejected("simulation_failed", details={"revert": "used"})
        units = request.amount.units - int(transfer.terms["fee"] or 0)
        draft = self.destination.draft_of(nothing, FEE_UNITS, {"auth": burn, "payer": MINT, "units": units})
        if draft.native_units < draft.fee_units:
            missing = {"currency": ETH.symbol, "missing": str(draft.fee_units - draft.native_units)}
            raise Rejected("insufficient_gas", details=missing)
        return BridgeStep(BridgeLegKind.DESTINATION, request.destination, draft)

    def mint_externally(self, source_hash: str, recipient: str, units: int) -> None:
        """Mint from another account, in a separate block."""
        burn = auth_of(source_hash)
        sender = "0x" + hashlib.sha256(f"forwarder {burn}".encode()).hexdigest()[:40]
        chain = self.destination
        tx = SimTx(sender, chain.count(sender), recipient, USDC.symbol, units, 0, next(chain._salts), MINT, burn)
        chain._add((Landed(tx, succeeded=chain.was_used(burn) is None),))


class Portal(_SimulatedBridge):
    """Deposits that the other chain executes itself, as a transaction of the wallet."""

    def prepare(self, offer: BridgeOffer) -> tuple[BridgeStep, ...]:
        """Draft the deposit."""
        return (self._source_step(offer.request, PORTAL),)

    def look(self, crossing: BridgeTransfer) -> BridgeProgress:
        """Return the progress by the deposit's transaction on the other chain."""
        self.destination.head()
        brought = self.destination.was_used(auth_of(crossing.source_hash))
        if brought is None:
            return BridgeProgress(BridgePhase.WAITING)
        block, entry = self.destination.landed(brought) or (None, None)
        assert block is not None
        assert entry is not None
        arrival = BridgeArrival(entry.tx.units, brought, block.ref, consumes_nonce=True)
        return BridgeProgress(BridgePhase.ARRIVED, arrival=arrival)

    def execute_deposits(self) -> int:
        """Execute the deposits that are safe on the other chain; return their number."""
        found = [
            entry.tx
            for block in self.source.blocks
            for entry in block.landed
            if block.number <= self.source.safe and entry.succeeded and entry.tx.recipient == PORTAL
        ]
        open_ = [tx for tx in found if self.destination.was_used(auth_of(tx.tx_hash)) is None]
        for tx in open_:
            self.destination.bring(tx.sender, tx.units, auth_of(tx.tx_hash))
        return len(open_)


def brings(entry: Landed, recipient: str, token: Token) -> int:
    """Return what a transaction paid a recipient."""
    tx = entry.tx
    counts = entry.succeeded and tx.recipient == recipient and tx.symbol == token.symbol
    return tx.units if counts and tx.sender != recipient else 0


def auth_of(source_hash: str) -> str:
    """Return the one-time token of a source transaction."""
    return f"from {source_hash}"
