"""The `Bridge` port for USDC between any two of the chains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

import structlog

from app.adapters.cctp import messages
from app.adapters.cctp.attestations import Attestations, Attested, Fees
from app.adapters.cctp.deployments import DOMAINS
from app.adapters.cctp.messages import Burn, Message
from app.adapters.cctp.sides import BurnOrder, Side, Unseen
from app.core import clock
from app.core.chains import USDC, ChainName, Family
from app.core.money import TokenAmount, value_nanos
from app.ports.bridges import Ask, Crossing, Offer, Phase, Progress, Proof, Step
from app.ports.chain import Signed, Terms
from app.ports.errors import Rejected, Unreachable
from app.ports.vault import Signer

_WHOLE_BPS = 10_000
_HEADROOM = Decimal("1.1")
"""The fee follows the market until a burn is attested; only what is due then is taken."""
_FORWARDER_SECONDS = 300
"""So long after the attestation the forwarder has the first try."""
_FAST_SECONDS = {ChainName.ETHEREUM: 20, ChainName.BASE: 8, ChainName.SOLANA: 8}
_STANDARD_SECONDS = {ChainName.ETHEREUM: 1140, ChainName.BASE: 1140, ChainName.SOLANA: 25}
_USDC_NANOS = 10**9

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the operator lets a bridge keep: of small fees a share of the amount, of the mint's gas so many dollars."""

    fee_bps: int
    forward_nanos: int


class CctpBridge:
    """CCTP V2 from one chain to another. Opens no connection before the first verb."""

    name = "cctp"

    def __init__(
        self, source: Side, destination: Side, attestations: Attestations, *, bounds: Bounds
    ) -> None:
        """Take both sides and the attestation service."""
        self._source = source
        self._destination = destination
        self._attestations = attestations
        self._bounds = bounds

    def quote(self, ask: Ask) -> Offer:
        """Choose finality and who mints: fast where its fee is small, Circle where the wallet need not or cannot.

        Raises: Rejected("quote_unavailable", "amount_too_small", "insufficient_gas"), Unreachable.
        """
        try:
            fees = self._attestations.fees(self._domain(self._source), self._domain(self._destination))
        except Unreachable:
            raise Rejected("quote_unavailable") from None
        fast_units = self._fast_units(fees, ask)
        forward_units = self._forward_units(fees, ask, fast_units or 0)
        fee_units = (fast_units or 0) + (forward_units or 0)
        finality = messages.STANDARD if fast_units is None else messages.FAST
        if fee_units >= ask.amount.units:
            raise Rejected("amount_too_small")
        seconds = (_STANDARD_SECONDS if fast_units is None else _FAST_SECONDS)[self._source.name]
        return Offer(
            ask=ask,
            route="CCTP V2, "
            + ("standard" if fast_units is None else "fast")
            + ("" if forward_units is None else ", forwarded"),
            fee_units=fee_units,
            seconds=seconds + _FAST_SECONDS[self._destination.name],
            terms={
                "most_fee": str(fee_units),
                "finality": finality,
                "forwarded": int(forward_units is not None),
                "attested": 1,
                "since": self._destination.position(),
            },
        )

    def prepare(self, offer: Offer) -> tuple[Step, ...]:
        """Draft the burn. Raises: Rejected, Unreachable."""
        ask, terms = offer.ask, offer.terms
        order = BurnOrder(
            domain=self._domain(self._destination),
            recipient=self._destination.recipient_of(ask.recipient),
            most_fee_units=_number(terms, "most_fee"),
            finality=_number(terms, "finality"),
            is_forwarded=_number(terms, "forwarded") == 1,
        )
        return self._source.burn(ask, order)

    def sign(self, step: Step, signer: Signer, *, sequence: int | None) -> Signed:
        """Sign a step of either side. Pure."""
        side = self._source if step.chain is self._source.name else self._destination
        return side.sign(step.draft, signer, sequence=sequence)

    def follow(self, crossing: Crossing) -> Progress:
        """Find out how far a burn is: attested, minted by whomever, or ours to mint. Raises: Unreachable."""
        proof = crossing.proof
        attested: Attested | None = None
        if not proof or self._is_forwarded(crossing):
            attested = self._ask(crossing, is_needed=not proof)
        if not proof:
            if attested is None or attested.message is None or attested.attestation is None:
                delay = attested.delay if attested is not None else None
                return Progress(Phase.WAITING, note=delay or "attestation_pending")
            proof = {
                "message": attested.message.hex(),
                "attestation": attested.attestation.hex(),
                "attested_at": str(int(clock.now().timestamp())),
            }
        try:
            message = messages.read(bytes.fromhex(proof["message"]))
            messages.assert_attests(message, self._burn(crossing))
        except ValueError:
            _log.error("attestation_of_something_else", source_hash=crossing.source_hash)
            return Progress(Phase.WAITING, note="attestation_mismatch")
        if self._destination.is_minted(message):
            return self._arrived(crossing, message, attested, proof)
        if message.expires_at_block and message.expires_at_block <= self._destination.position():
            return self._renewed(message, attested)
        if self._is_forwarded(crossing) and not _forwarder_gave_up(attested, proof):
            return Progress(Phase.WAITING, note="forwarding_pending", proof=proof)
        return Progress(Phase.OURS, proof=proof)

    def deliver(self, crossing: Crossing) -> Step:
        """Draft the mint, or first what it needs. Raises: Rejected, Unreachable."""
        message = messages.read(bytes.fromhex(crossing.proof["message"]))
        return self._destination.mint(
            crossing.ask.recipient, message, bytes.fromhex(crossing.proof["attestation"])
        )

    def _ask(self, crossing: Crossing, *, is_needed: bool) -> Attested | None:
        try:
            return self._attestations.of_burn(self._domain(self._source), crossing.source_hash)
        except Unreachable:
            if is_needed:
                raise
            return None  # what was proven stays proven

    def _arrived(
        self, crossing: Crossing, message: Message, attested: Attested | None, proof: Proof
    ) -> Progress:
        hint = crossing.delivery_hash or (attested.forward_hash if attested is not None else None)
        arrival = self._destination.arrival(message, hint=hint, since=_number(crossing.terms, "since"))
        if isinstance(arrival, Unseen):
            # Should the nonce be another message's, only the service has the right one: it is asked anew.
            return Progress(
                Phase.WAITING, note=arrival.value, proof={} if arrival is Unseen.NOT_SEEN else proof
            )
        # One transaction may receive many messages, and one message is one burn's: two may be alike but for it.
        return Progress(Phase.ARRIVED, proof=proof, arrival=replace(arrival, part=message.nonce.hex()))

    def _renewed(self, message: Message, attested: Attested | None) -> Progress:
        """Ask for a new attestation; the old message is forgotten, so that the next look takes the new one."""
        if attested is None or attested.message is None or attested.message == message.raw:
            self._attestations.renew(message.nonce)
        return Progress(Phase.WAITING, note="attestation_expired", proof={})

    def _burn(self, crossing: Crossing) -> Burn:
        """Return what the message of a crossing must say."""
        ask = crossing.ask
        return Burn(
            source_domain=self._domain(self._source),
            destination_domain=self._domain(self._destination),
            token=self._source.token(),
            sender=messages.as_word(ask.sender, ask.source),
            recipient=self._destination.recipient_of(ask.recipient),
            units=ask.amount.units,
            most_fee_units=_number(crossing.terms, "most_fee"),
        )

    def _fast_units(self, fees: Fees, ask: Ask) -> int | None:
        """Return the most that the fast way may take, None where that is too much."""
        due = fees.fast_units(ask.amount.units)
        if due is None:
            return None
        most = -int(-(due * _HEADROOM) // 1)
        return most if most < ask.amount.units and self._is_small(most, ask) else None

    def _forward_units(self, fees: Fees, ask: Ask, other_units: int) -> int | None:
        """Return the forwarder's fee, None where the wallet mints itself.

        Raises: Rejected("insufficient_gas") where neither can be, Unreachable.
        """
        units = fees.forward_units
        if self._destination.name.family is not Family.EVM or units is None:
            self._assert_can_mint(ask)
            return None
        value = value_nanos(TokenAmount(units, USDC), _USDC_NANOS)
        is_payable = units + other_units < ask.amount.units and value <= self._bounds.forward_nanos
        if is_payable and self._is_small(units, ask):
            return units
        try:
            self._assert_can_mint(ask)
        except Rejected:
            if is_payable:
                return units
            raise
        return None

    def _assert_can_mint(self, ask: Ask) -> None:
        try:
            self._destination.assert_can_mint(ask.recipient)
        except Rejected as refusal:
            details = {**refusal.details, "chain": self._destination.name.value}
            raise Rejected(refusal.reason, details=details) from None

    def _is_small(self, fee_units: int, ask: Ask) -> bool:
        return fee_units * _WHOLE_BPS <= ask.amount.units * self._bounds.fee_bps

    def _is_forwarded(self, crossing: Crossing) -> bool:
        return _number(crossing.terms, "forwarded") == 1

    @staticmethod
    def _domain(side: Side) -> int:
        return DOMAINS[side.name]


def _forwarder_gave_up(attested: Attested | None, proof: Proof) -> bool:
    """Tell whether the forwarder says so, or has had its time."""
    if attested is not None and attested.forward_state == "FAILED":
        return True
    return int(clock.now().timestamp()) - int(proof["attested_at"]) >= _FORWARDER_SECONDS


def _number(terms: Terms, name: str) -> int:
    value = terms[name]
    if value is None:
        raise ValueError("the terms lack a figure")
    return int(value)
