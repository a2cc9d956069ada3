"""The facilitator of a chain: reads USDC payments to a recipient, and submits payments that others have signed.

Claim keys identify a payment permanently, however it is presented: `auth:…` for a signed authorization or message,
`tx:…` for a transaction. All methods that use the network raise `Unreachable` when no node answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.core.chains import ChainName
from app.ports.chain import Terms, TransactionDraft


@dataclass(frozen=True, slots=True)
class PaymentAsset:
    """USDC as x402 names it: the CAIP-2 network, its name in version 1 if there is one, contract or mint."""

    network: str
    legacy_network: str | None
    address: str
    extra: Mapping[str, str] = field(default_factory=dict)


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


class Facilitator(Protocol):
    @property
    def name(self) -> ChainName:
        """The chain's name in the API."""

    @property
    def asset(self) -> PaymentAsset:
        """The asset that payments are made in."""

    def canonical_hash(self, text: str) -> str | None:
        """Return the canonical spelling of a transaction hash, or None for anything else. No I/O."""

    def incoming_payment(self, tx_hash: str, recipient: str) -> IncomingPayment | None:
        """Read what a transaction paid; None while the chain does not show it. Raises: Unreachable."""

    def claim_of(self, payload: Mapping[str, Any]) -> str:
        """Return the claim of a signed payment, whatever it pays and until when. No I/O.

        It depends on the signature, unless that was verified. Raises: Rejected with x402's error token.
        """

    def verify(self, payload: Mapping[str, Any], expected: ExpectedPayment, *, now: int) -> PaymentAuthorization:
        """Parse a signed payment and run all checks that need no chain, including a key's signature. No I/O.

        Raises: Rejected with x402's error token.
        """

    def assert_signed(self, authorization: PaymentAuthorization) -> None:
        """Check on the chain what `verify` cannot: a contract's signature. Raises: Rejected, Unreachable."""

    def draft_settlement(self, authorization: PaymentAuthorization, *, settler: str) -> TransactionDraft:
        """Draft and simulate the submission of a signed payment. Raises: Rejected, Unreachable."""

    def find_settlement(self, authorization: PaymentAuthorization) -> str | None:
        """Return the hash of the transaction in which a signed payment landed, by any submitter, or None.

        Raises: Unreachable.
        """

    def settlement_capacity(self, settler: str, recipient: str) -> SettlementCapacity:
        """Read the settlement address's balance and whether the recipient can receive. Raises: Unreachable."""

    def draft_recipient_account(self, settler: str, recipient: str) -> TransactionDraft | None:
        """Draft the creation of the recipient's token account, paid by the settlement address; None if none is needed.

        Raises: Rejected, Unreachable.
        """

    def is_signed_by(self, payer: str, text: str, signature: str) -> bool:
        """Return whether an address signed a text (EIP-191, or plain Ed25519 in base58). No I/O."""
