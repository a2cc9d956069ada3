"""Bridges between simulated chains, with services that do and say what they are told: also what is not so.

Three ways, as the real ones: an order that a service pays out or refunds, whose word is looked up on the chains; a burn
that a service attests and somebody mints, once; a deposit that the other chain carries out itself.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from app.core.chains import ETH, USDC, Token
from app.core.money import TokenAmount
from app.ports.bridges import Arrival, Ask, Crossing, Leg, Offer, Phase, Progress, Step
from app.ports.chain import Intent, Signed
from app.ports.errors import Rejected, Unreachable
from app.ports.vault import Signer
from tests.support.simulated_chain import FEE_UNITS, Landed, SimTx, SimulatedChain

BURNT = "0x" + "b" * 40
MINT = "0x" + "c" * 40
DEPOSITORY = "0x" + "d" * 40
PORTAL = "0x" + "e" * 40
TOKEN = "0x" + "f" * 40


class Fate(StrEnum):
    """What a service says of an order."""

    OPEN = "open"
    PAID = "paid"
    REFUNDED = "refunded"


@dataclass(frozen=True, slots=True)
class Said:
    """What a service says of an order, and by which transaction."""

    fate: Fate
    tx_hash: str


class _Way(ABC):
    """What all ways have: two chains, and something that may happen while an answer is on its way."""

    def __init__(self, name: str, source: SimulatedChain, destination: SimulatedChain) -> None:
        self.name = name
        self.source = source
        self.destination = destination
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.fee_units = 0
        self.closed = self.away = False
        self.meanwhile: Callable[[], None] | None = None

    def quote(self, ask: Ask) -> Offer:
        """Offer what it was told to keep."""
        if self.closed or self.away:
            raise Rejected("quote_unavailable")
        self.source.head()
        if self.fee_units >= ask.amount.units:
            raise Rejected("amount_too_small")
        return self.offer(ask)

    def offer(self, ask: Ask) -> Offer:
        return Offer(ask, self.name, self.fee_units, 60, {})

    def sign(self, step: Step, signer: Signer, *, sequence: int | None) -> Signed:
        """Sign a step of either chain."""
        chain = self.source if step.chain is self.source.name else self.destination
        return chain.sign(step.draft, signer, sequence=sequence)

    def follow(self, crossing: Crossing) -> Progress:
        """Look, and let happen what happens before the answer has come."""
        if self.away:
            raise Unreachable("bridge_service")
        progress = self.look(crossing)
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        return progress

    @abstractmethod
    def look(self, crossing: Crossing) -> Progress:
        """Say how far a crossing is, by what the chains show and the service says."""

    def deliver(self, crossing: Crossing) -> Step:
        """Refuse: nothing is left to do."""
        raise Rejected("nothing_to_deliver", details={"source_hash": crossing.source_hash})

    def _leaves(self, ask: Ask, recipient: str) -> Step:
        return Step(Leg.SOURCE, ask.source, self.source.draft(Intent(ask.sender, recipient, ask.amount)))


class Orders(_Way):
    """A service that is paid on one chain and pays on the other. `said` is its word, by source hash."""

    def reset(self) -> None:
        """Begin anew."""
        super().reset()
        self.said: dict[str, Said] = {}

    def offer(self, ask: Ask) -> Offer:
        terms = {
            "minimum": ask.amount.units - self.fee_units,
            "since": self.destination.head().number, "source_since": self.source.head().number,
        }  # fmt: skip
        return Offer(ask, self.name, self.fee_units, 60, terms, may_return=True)

    def prepare(self, offer: Offer) -> tuple[Step, ...]:
        """Draft the payment to the service."""
        return (self._leaves(offer.ask, DEPOSITORY),)

    def look(self, crossing: Crossing) -> Progress:
        """Believe what the chains show."""
        ask, terms = crossing.ask, crossing.terms
        said = self.said.get(crossing.source_hash)
        if said is None or said.fate is Fate.OPEN:
            return Progress(Phase.WAITING, note="service_pending")
        refunds = said.fate is Fate.REFUNDED
        chain, recipient = (self.source, ask.sender) if refunds else (self.destination, ask.recipient)
        since, least = (terms["source_since"], 1) if refunds else (terms["since"], terms["minimum"])
        chain.head()
        found = chain.landed(said.tx_hash)
        if found is None:
            return Progress(Phase.WAITING, note="payment_not_seen")
        block, entry = found
        brought = brings(entry, recipient, ask.amount.token)
        if brought < int(least or 0) or block.number < int(since or 0):
            is_lost = brought == 0 and block.number <= chain.safe
            return Progress(Phase.WAITING, note="payment_not_seen", is_lost=is_lost)
        arrival = Arrival(brought, said.tx_hash, block.ref, is_sole=True)
        return Progress(Phase.REFUNDED if refunds else Phase.ARRIVED, arrival=arrival)


class Burns(_Way):
    """Tokens that are burnt on one chain and minted on the other, once for each burn that is attested."""

    def reset(self) -> None:
        """Begin anew."""
        super().reset()
        self.attested: set[str] = set()
        # Of these somebody else said that they would mint them.
        self.forwarded: set[str] = set()
        self.approves = True
        self.destination.give(MINT, USDC, 10**15)

    def prepare(self, offer: Offer) -> tuple[Step, ...]:
        """Draft the approval, where there is none, and the burn."""
        ask = offer.ask
        approval = Intent(ask.sender, TOKEN, TokenAmount(0, ask.amount.token))
        first = (Step(Leg.APPROVE, ask.source, self.source.draft(approval)),) if self.approves else ()
        return (*first, self._leaves(ask, BURNT))

    def offer(self, ask: Ask) -> Offer:
        return Offer(ask, self.name, self.fee_units, 60, {"fee": self.fee_units, "attested": 1})

    def look(self, crossing: Crossing) -> Progress:
        """Look for the mint on the other chain, which alone tells."""
        burn = auth_of(crossing.source_hash)
        if crossing.source_hash not in self.attested and not crossing.proof:
            return Progress(Phase.WAITING, note="attestation_pending")
        proof = {"burn": burn}
        self.destination.head()
        minted = self.destination.was_used(burn)
        if minted is not None:
            block, entry = self.destination.landed(minted) or (None, None)
            assert block is not None
            assert entry is not None
            return Progress(Phase.ARRIVED, proof=proof, arrival=Arrival(entry.tx.units, minted, block.ref))
        if crossing.source_hash in self.forwarded:
            return Progress(Phase.WAITING, note="forwarding_pending", proof=proof)
        return Progress(Phase.OURS, proof=proof)

    def deliver(self, crossing: Crossing) -> Step:
        """Draft the mint."""
        ask, burn = crossing.ask, crossing.proof["burn"]
        nothing = Intent(ask.recipient, ask.recipient, TokenAmount(0, USDC))
        self.destination.head()
        if self.destination.was_used(burn) is not None:
            raise Rejected("simulation_failed", details={"revert": "used"})
        units = ask.amount.units - int(crossing.terms["fee"] or 0)
        draft = self.destination.draft_of(nothing, FEE_UNITS, {"auth": burn, "payer": MINT, "units": units})
        if draft.native_units < draft.fee_units:
            missing = {"currency": ETH.symbol, "missing": str(draft.fee_units - draft.native_units)}
            raise Rejected("insufficient_gas", details=missing)
        return Step(Leg.DESTINATION, ask.destination, draft)

    def mint_as_stranger(self, source_hash: str, recipient: str, units: int) -> None:
        """Let somebody else mint, in a block of its own."""
        burn = auth_of(source_hash)
        sender = "0x" + hashlib.sha256(f"forwarder {burn}".encode()).hexdigest()[:40]
        chain = self.destination
        tx = SimTx(
            sender, chain.count(sender), recipient, USDC.symbol, units, 0, next(chain._salts), MINT, burn
        )
        chain._add((Landed(tx, succeeded=chain.was_used(burn) is None),))


class Portal(_Way):
    """What the other chain itself carries out, as a transaction of the wallet's own."""

    def prepare(self, offer: Offer) -> tuple[Step, ...]:
        """Draft the deposit."""
        return (self._leaves(offer.ask, PORTAL),)

    def look(self, crossing: Crossing) -> Progress:
        """Look for what the deposit becomes."""
        self.destination.head()
        brought = self.destination.was_used(auth_of(crossing.source_hash))
        if brought is None:
            return Progress(Phase.WAITING)
        block, entry = self.destination.landed(brought) or (None, None)
        assert block is not None
        assert entry is not None
        arrival = Arrival(entry.tx.units, brought, block.ref, takes_slot=True)
        return Progress(Phase.ARRIVED, arrival=arrival)

    def carry_out(self) -> int:
        """Let the other chain carry out the deposits that are safe; return how many that were."""
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
    """Return what a transaction brought a recipient."""
    tx = entry.tx
    counts = entry.succeeded and tx.recipient == recipient and tx.symbol == token.symbol
    return tx.units if counts and tx.sender != recipient else 0


def auth_of(source_hash: str) -> str:
    """Return what can be used once for a source transaction."""
    return f"from {source_hash}"
