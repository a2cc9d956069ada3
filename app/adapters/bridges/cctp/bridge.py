"""The `BridgeProvider` port for USDC between any two of the chains."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

import structlog

from app.adapters.bridges.cctp import messages
from app.adapters.bridges.cctp.attestations import AttestationClient, BurnAttestation, BurnFees
from app.adapters.bridges.cctp.evm_chain import EvmCctpChain
from app.adapters.bridges.cctp.messages import CctpBurn, CctpMessage
from app.adapters.bridges.cctp.solana_chain import SolanaCctpChain
from app.adapters.bridges.deployments import DOMAINS
from app.adapters.rate_limited_http import no_quote
from app.core import clock
from app.core.chains import USDC, ChainName, Family
from app.core.money import NANOS_PER_USD, TokenAmount, value_nanos
from app.ports.bridges import (
    ArrivalNotFound,
    BridgeOffer,
    BridgePhase,
    BridgeProgress,
    BridgeProof,
    BridgeRequest,
    BridgeStep,
    BridgeTransfer,
)
from app.ports.chain import SignedTransaction, Terms
from app.ports.errors import Rejected, Unreachable
from app.ports.vault import Signer

CctpChain = EvmCctpChain | SolanaCctpChain
_BPS_PER_UNIT = 10_000
_HEADROOM = Decimal("1.1")
"""The fee follows the market until a burn is attested; only what is due then is charged."""
_FORWARDER_SECONDS = 300
"""How long after the attestation only the forwarder tries."""
_FAST_SECONDS = {ChainName.ETHEREUM: 20, ChainName.BASE: 8, ChainName.SOLANA: 8}
_STANDARD_SECONDS = {ChainName.ETHEREUM: 1140, ChainName.BASE: 1140, ChainName.SOLANA: 25}

_log = structlog.get_logger(__name__)


class CctpBridge:
    name = "cctp"

    def __init__(
        self,
        source: CctpChain,
        destination: CctpChain,
        attestations: AttestationClient,
        *,
        max_fee_bps: int,
        max_forward_nanos: int,
    ) -> None:
        """Store also the operator's limits: of small fees, as a share of the amount, and of the mint's gas."""
        self._source = source
        self._destination = destination
        self._attestations = attestations
        self._max_fee_bps = max_fee_bps
        self._max_forward_nanos = max_forward_nanos

    def quote(self, request: BridgeRequest) -> BridgeOffer:
        """Choose finality and who mints: fast if its fee is small, Circle if the wallet should not or cannot.

        Raises: Rejected("quote_unavailable", "quote_rate_limited", "amount_too_small", "recipient_blocked"), which
        nobody could mint to; Unreachable.
        """
        refusal = self._destination.receiving_refusal(request.recipient, USDC)
        if refusal is not None:
            raise Rejected("recipient_blocked", details={"chain": self._destination.name.value, "usdc_is": refusal})
        try:
            fees = self._attestations.fees(
                DOMAINS[self._source.name],
                DOMAINS[self._destination.name],
                # Circle's documents disagree on whether it forwards to Solana.
                forwarded=self._destination.name.family is Family.EVM,
            )
        except Unreachable as failure:
            raise no_quote(failure) from None
        fast_units = self._fast_fee_units(fees, request)
        forward_units, shortage = self._forwarding(fees, request, fast_units or 0)
        fee_units = (fast_units or 0) + (forward_units or 0)
        finality = messages.STANDARD if fast_units is None else messages.FAST
        if fee_units >= request.amount.units:
            raise Rejected("amount_too_small")
        speed, seconds = ("standard", _STANDARD_SECONDS) if fast_units is None else ("fast", _FAST_SECONDS)
        return BridgeOffer(
            request=request,
            route=f"CCTP V2, {speed}" + ("" if forward_units is None else ", forwarded"),
            fee_units=fee_units,
            seconds=seconds[self._source.name] + _FAST_SECONDS[self._destination.name],
            shortage=shortage,
            terms={
                "most_fee": str(fee_units),
                "finality": finality,
                "forwarded": int(forward_units is not None),
                "attested": 1,
                "since": self._destination.head().number,
            },
        )

    def prepare(self, offer: BridgeOffer) -> tuple[BridgeStep, ...]:
        finality, is_forwarded = int(str(offer.terms["finality"])), _is_forwarded(offer.terms)
        burn = self._burn(offer.request, offer.terms)
        return self._source.draft_burn(offer.request, burn, finality=finality, is_forwarded=is_forwarded)

    def sign(self, step: BridgeStep, signer: Signer, *, sequence: int | None) -> SignedTransaction:
        side = self._source if step.chain is self._source.name else self._destination
        return side.sign(step.draft, signer, sequence=sequence)

    def progress(self, transfer: BridgeTransfer) -> BridgeProgress:
        """Return the progress of a burn: attested, minted by anyone, or ours to mint. Raises: Unreachable."""
        proof = transfer.proof
        attested: BurnAttestation | None = None
        if not proof or _is_forwarded(transfer.terms):
            tolerated = (Unreachable,) if proof else ()  # a proof remains valid
            with suppress(*tolerated):
                attested = self._attestations.burn_attestation(DOMAINS[self._source.name], transfer.source_hash)
        if not proof:
            if attested is None or attested.message is None or attested.attestation is None:
                delay = attested.delay if attested is not None else None
                return BridgeProgress(BridgePhase.WAITING, note=delay or "attestation_pending")
            proof = {
                "message": attested.message.hex(),
                "attestation": attested.attestation.hex(),
                "attested_at": str(int(clock.now().timestamp())),
            }
        try:
            message = messages.read(bytes.fromhex(proof["message"]))
            messages.assert_attests(message, self._burn(transfer.request, transfer.terms))
        except ValueError:
            _log.error("attestation_mismatch", source_hash=transfer.source_hash)
            return BridgeProgress(BridgePhase.WAITING, note="attestation_mismatch")
        if self._destination.is_minted(message):
            return self._completed_progress(transfer, message, attested, proof)
        if message.expires_at_block and message.expires_at_block <= self._destination.head().number:
            # A new attestation is requested, and the old message dropped, so that the next poll stores the new one.
            if attested is None or attested.message is None or attested.message == message.raw:
                self._attestations.request_reattestation(message.nonce)
            return BridgeProgress(BridgePhase.WAITING, note="attestation_expired", proof={})
        if _is_forwarded(transfer.terms) and not _has_forwarding_failed(attested, proof):
            return BridgeProgress(BridgePhase.WAITING, note="forwarding_pending", proof=proof)
        return BridgeProgress(BridgePhase.DELIVERABLE, proof=proof)

    def prepare_delivery(self, transfer: BridgeTransfer) -> BridgeStep:
        message = messages.read(bytes.fromhex(transfer.proof["message"]))
        return self._destination.draft_mint(
            transfer.request.recipient,
            message,
            bytes.fromhex(transfer.proof["attestation"]),
            failures=transfer.failed_deliveries,
        )

    def _completed_progress(
        self, transfer: BridgeTransfer, message: CctpMessage, attested: BurnAttestation | None, proof: BridgeProof
    ) -> BridgeProgress:
        hint = transfer.delivery_hash or (attested.forwarding_hash if attested is not None else None)
        arrival = self._destination.find_mint(message, hint=hint, since=int(str(transfer.terms["since"])))
        if isinstance(arrival, ArrivalNotFound):
            # If another message used the nonce, only the service has the right one: it is queried again.
            return BridgeProgress(
                BridgePhase.WAITING, note=f"mint_{arrival}", proof={} if arrival is ArrivalNotFound.NOT_FOUND else proof
            )
        # One transaction may receive many messages, and one message belongs to one burn: two may differ in the nonce
        # only.
        return BridgeProgress(
            BridgePhase.ARRIVED, proof=proof, arrival=replace(arrival, payment_part=message.nonce.hex())
        )

    def _burn(self, request: BridgeRequest, terms: Terms) -> CctpBurn:
        return CctpBurn(
            source_domain=DOMAINS[self._source.name], destination_domain=DOMAINS[self._destination.name],
            token=self._source.token, sender=messages.address_word(request.sender, request.source),
            recipient=self._destination.mint_recipient(request.recipient), units=request.amount.units,
            max_fee_units=int(str(terms["most_fee"])),
        )  # fmt: skip

    def _fast_fee_units(self, fees: BurnFees, request: BridgeRequest) -> int | None:
        """Return the most that a fast transfer may cost, or None if that exceeds the limit."""
        fee_units = fees.fast_units(request.amount.units)
        if fee_units is None:
            return None
        limit = -int(-(fee_units * _HEADROOM) // 1)
        return limit if limit < request.amount.units and self._is_fee_small(limit, request) else None

    def _forwarding(
        self, fees: BurnFees, request: BridgeRequest, other_units: int
    ) -> tuple[int | None, Mapping[str, str] | None]:
        """Return the forwarder's fee, or None and what the wallet lacks to mint itself. Raises: Unreachable."""
        units = fees.forward_units
        if self._destination.name.family is not Family.EVM or units is None:
            return None, self._mint_shortage(request)
        value = value_nanos(TokenAmount(units, USDC), NANOS_PER_USD)
        is_payable = units + other_units < request.amount.units and value <= self._max_forward_nanos
        if is_payable and self._is_fee_small(units, request):
            return units, None
        shortage = self._mint_shortage(request)
        return (units, None) if shortage is not None and is_payable else (None, shortage)

    def _mint_shortage(self, request: BridgeRequest) -> Mapping[str, str] | None:
        """Return what the wallet lacks to mint, or None. Raises: Rejected for any other obstacle, Unreachable."""
        try:
            self._destination.assert_can_mint(request.recipient)
        except Rejected as refusal:
            if refusal.reason != "insufficient_gas":
                raise
            return {**refusal.details, "chain": self._destination.name.value}
        return None

    def _is_fee_small(self, fee_units: int, request: BridgeRequest) -> bool:
        return fee_units * _BPS_PER_UNIT <= request.amount.units * self._max_fee_bps


def _is_forwarded(terms: Terms) -> bool:
    return int(str(terms["forwarded"])) == 1


def _has_forwarding_failed(attested: BurnAttestation | None, proof: BridgeProof) -> bool:
    """Return whether the forwarder reports a failure, or has exceeded its time."""
    if attested is not None and attested.forwarding_state == "FAILED":
        return True
    return int(clock.now().timestamp()) - int(proof["attested_at"]) >= _FORWARDER_SECONDS
