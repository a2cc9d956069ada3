"""Payments in USDC that one party signs and another submits: `Facilitator`, `PaymentSigner`, `PaymentSponsor`.

Claim keys identify a payment permanently, however it is presented: `auth:…` for a signed authorization or message,
`tx:…` for a transaction. All methods that use the network raise `Unreachable` when no node answers. Signing and
sponsoring have the phases of a movement: the first reads and simulates, `authorize` signs inside the unit that records.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.core.chains import ChainName
from app.core.money import TokenAmount
from app.ports.chain import AvailableFunds, Terms, TransactionDraft
from app.ports.vault import Signer


@dataclass(frozen=True, slots=True)
class PaymentIntent:
    """A payment to sign: exactly these units from the payer (one of our wallets) to the recipient.

    It can be used for `validity_seconds`, or as long as the chain prescribes. `extra` are the seller's additional
    terms, `extensions` the names of the protocol extensions that it has. No block before `since_block` can hold the
    payment. `nonce` is that of the authorization, random if it is None.
    """

    payer: str
    recipient: str
    units: int
    validity_seconds: int
    extra: Mapping[str, Any]
    extensions: Collection[str]
    since_block: int
    nonce: bytes | None = None


@dataclass(frozen=True, slots=True)
class AuthorizedPayment:
    """A signed payment: its identity, the seller's payload, terms of its outcome, and answers to extensions."""

    reference: str
    payload: Mapping[str, Any] = field(repr=False)
    terms: Terms
    extensions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class PaymentAsset:
    """USDC as x402 names it: the CAIP-2 network, its name in version 1 if there is one, contract or mint."""

    network: str
    legacy_network: str | None
    address: str
    extra: Mapping[str, str] = field(default_factory=dict)


class PaymentSigner(Protocol):
    """Signs the scheme `exact` of x402 on one chain."""

    asset: PaymentAsset
    """The only asset that is paid with."""

    def canonical_recipient(self, text: str) -> str | None:
        """Return the canonical spelling of an address that can be paid, or None for anything else. No I/O."""

    def accepts_extra(self, extra: Mapping[str, Any]) -> bool:
        """Return whether a seller's additional terms are those of the asset and of a supported transfer method."""

    def prepare(self, intent: PaymentIntent) -> Terms:
        """Read what signing needs, and check that the payment can be executed. Raises: Rejected, Unreachable."""

    def authorize(self, intent: PaymentIntent, prepared: Terms, signer: Signer, *, now: int) -> AuthorizedPayment:
        """Sign a payment at a time (seconds since 1970). No I/O, so it may run inside a unit of work."""


@dataclass(frozen=True, slots=True)
class ExpectedPayment:
    """The required content of a signed payment: exactly these units to this recipient; `settler` submits it."""

    units: int
    recipient: str
    settler: str


@dataclass(frozen=True, slots=True)
class IncomingPayment:
    """The net payment of a transaction to a recipient, and its payers; `claims` are the signed payments in it.

    `block_time` is in seconds since 1970 by the chain's clock; `is_final`: it is as deep as payments must be.
    """

    tx_hash: str
    succeeded: bool
    units: int
    payers: frozenset[str]
    claims: tuple[str, ...]
    block_time: int
    is_final: bool


@dataclass(frozen=True, slots=True)
class PaymentAuthorization:
    """A signed payment that passed all offline checks; `terms` belong to the adapter, storable as JSON.

    `claim` is what the chain accepts once; `further_claims` has what `claim_of` returned, if that differs.
    """

    claim: str
    payer: str
    recipient: str
    units: int
    terms: Terms
    further_claims: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SettlementCapacity:
    """Whether signed payments can be accepted: the settlement address's native balance, and the cost of a submission.

    `fee_units` is what the settlement address must hold for a submission; `max_fee_units` is the most that
    submitting a usual payment costs now.
    """

    native_units: int
    fee_units: int
    max_fee_units: int
    recipient_can_receive: bool


class MeteredScheme(Protocol):
    """The scheme `upto` of x402 on one chain: what is submitted takes at most what the payer signed."""

    def extra_terms(self, settler: str) -> Mapping[str, str]:
        """Return the additional terms of a payment that this address submits."""

    def claim_of(self, payload: Mapping[str, Any]) -> str:
        """Return the claim of a payment, whatever it pays and until when. No I/O. Raises: Rejected."""

    def verify(self, payload: Mapping[str, Any], expected: ExpectedPayment, *, now: int) -> PaymentAuthorization:
        """Check all but the chain; `units` are the most that it pays. No I/O. Raises: Rejected with x402's token."""

    def draft_settlement(self, authorization: PaymentAuthorization, units: int, *, settler: str) -> TransactionDraft:
        """Draft and simulate the submission that takes these units. Raises: Rejected, Unreachable."""


class Facilitator(Protocol):
    name: ChainName
    """The chain's name in the API."""
    asset: PaymentAsset
    """The asset that payments are made in."""

    @property
    def metered(self) -> MeteredScheme | None:
        """The scheme for prices that are known after the call, if the chain has one."""

    def canonical_hash(self, text: str) -> str | None:
        """Return the canonical spelling of a transaction hash, or None for anything else. No I/O."""

    def incoming_payment(self, tx_hash: str, recipient: str) -> IncomingPayment | None:
        """Read what a transaction paid; None while the chain does not show it. Raises: Unreachable."""

    def claim_of(self, payload: Mapping[str, Any]) -> str:
        """Return the claim of a signed payment, whatever it pays and until when. No I/O.

        It depends on the signature, unless that was verified. Raises: Rejected with x402's error token.
        """

    def verify(self, payload: Mapping[str, Any], expected: ExpectedPayment, *, now: int) -> PaymentAuthorization:
        """Run all checks that need no chain, including a key's signature. No I/O. Raises: Rejected, x402's token."""

    def assert_signed(self, authorization: PaymentAuthorization) -> None:
        """Check on the chain what `verify` cannot: a contract's signature. Raises: Rejected, Unreachable."""

    def draft_settlement(self, authorization: PaymentAuthorization, *, settler: str) -> TransactionDraft:
        """Draft and simulate the submission of a signed payment. Raises: Rejected, Unreachable."""

    def find_settlement(self, authorization: PaymentAuthorization) -> str | None:
        """Return the transaction in which a signed payment landed, by any submitter, or None. Raises: Unreachable."""

    def settlement_capacity(self, settler: str, recipient: str) -> SettlementCapacity:
        """Read the settlement address's balance and whether the recipient can receive. Raises: Unreachable."""

    def draft_recipient_account(self, settler: str, recipient: str) -> TransactionDraft | None:
        """Draft the recipient's token account, paid by the settler, unless it exists. Raises: Rejected, Unreachable."""

    def is_signed_by(self, payer: str, text: str, signature: str) -> bool:
        """Return whether an address signed a text (EIP-191, or plain Ed25519 in base58). No I/O."""


@dataclass(frozen=True, slots=True)
class GasSponsor:
    """The service's wallet that submits, its address and that of fees; `reserve_units` must stay in the wallet."""

    wallet_id: str
    submitter: str
    fee_recipient: str
    reserve_units: int


@dataclass(frozen=True, slots=True)
class SponsoredTransfer:
    """A transfer of exactly these units of USDC from one of our wallets, to be submitted by a sponsor."""

    sender: str
    recipient: str
    units: int
    sponsor: GasSponsor


@dataclass(frozen=True, slots=True)
class SponsoredDraft:
    """What signing needs of the chain.

    `cost` is what the submission is likely to cost the sponsor, in the native token. `funds` is the sender's balance of
    USDC; no block before its block can hold the transfer. `submission` lacks its call.
    """

    transfer: SponsoredTransfer
    cost: TokenAmount
    funds: AvailableFunds
    submission: TransactionDraft
    creates_account: bool = False
    """Whether the sponsor pays for an account of the recipient, which the recipient could close for its rent."""


@dataclass(frozen=True, slots=True)
class SignedPart:
    """An authorization: its identity, the terms of its outcome, and the bytes for its recipient if any are kept."""

    reference: str
    terms: Terms
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class AuthorizedTransfer:
    """The signed transfer, the signed fee if there is one, and the complete draft of their submission."""

    transfer: SignedPart
    fee: SignedPart | None
    submission: TransactionDraft


class TransferSponsor(Protocol):
    def draft(self, transfer: SponsoredTransfer) -> SponsoredDraft:
        """Read balances and fees, and simulate. Raises: Rejected("simulation_failed", …), Unreachable."""

    def authorize(self, draft: SponsoredDraft, *, fee_units: int, signer: Signer, now: int) -> AuthorizedTransfer:
        """Sign the transfer and a fee to the sponsor, at a time in seconds since 1970. No I/O.

        The submission executes both or nothing, except that a fee that was taken already does not prevent the transfer.
        """
