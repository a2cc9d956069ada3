"""The till of a chain: reads what was paid to a recipient in USDC, and submits payments that others have signed.

Claim keys name a payment for ever, whichever way it is presented: `auth:…` for a signed authorization or message,
`tx:…` for a transaction. All network verbs raise `Unreachable` when no node answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.core.chains import ChainName
from app.ports.chain import Draft, Terms


@dataclass(frozen=True, slots=True)
class Asset:
    """USDC as x402 names it: the CAIP-2 network, version 1's word for it where there is one, contract or mint."""

    network: str
    legacy_network: str | None
    address: str
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a signed payment must say: exactly these units, to this recipient; `settler` submits it."""

    units: int
    recipient: str
    settler: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a transaction brought to a recipient, net, and by whom; `claims` are the signed payments in it.

    `landed_at` is in seconds since 1970, by the chain's clock; `is_final` tells whether it is as deep as payments
    have to be.
    """

    tx_hash: str
    succeeded: bool
    units: int
    payers: frozenset[str]
    claims: tuple[str, ...]
    landed_at: int
    is_final: bool


@dataclass(frozen=True, slots=True)
class Authorization:
    """A payment that its payer has signed, checked by itself; `terms` are the adapter's own, storable as JSON."""

    claim: str
    payer: str
    recipient: str
    units: int
    terms: Terms


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether signed payments can be taken: what the settler holds of the native token, and what one costs it."""

    native_units: int
    fee_units: int
    recipient_is_open: bool


class Till(Protocol):
    """The till of one chain."""

    @property
    def name(self) -> ChainName:
        """The chain's name on the wire."""
        ...

    @property
    def asset(self) -> Asset:
        """What is paid in."""
        ...

    def canonical_hash(self, text: str) -> str | None:
        """Return the one spelling of a transaction's hash, None for anything else. Pure."""
        ...

    def arrival(self, tx_hash: str, recipient: str) -> Arrival | None:
        """Read what a transaction brought; None while the chain does not show it. Raises: Unreachable."""
        ...

    def claim_of(self, payload: Mapping[str, Any]) -> str:
        """Return the claim of a signed payment whose signature is good, whatever it pays and until when. Pure.

        Raises: Rejected with the word that x402 has for it.
        """
        ...

    def read(self, payload: Mapping[str, Any], demand: Demand, *, now: int) -> Authorization:
        """Read a signed payment and check all that needs no chain, the signature included. Pure.

        Raises: Rejected with the word that x402 has for it.
        """
        ...

    def draft(self, authorization: Authorization, *, settler: str) -> Draft:
        """Simulate the submission of a signed payment and draft it. Raises: Rejected, Unreachable."""
        ...

    def carried_out(self, authorization: Authorization) -> str | None:
        """Return the hash by which a signed payment landed, whoever submitted it; None if none did.

        Raises: Unreachable.
        """
        ...

    def readiness(self, settler: str, recipient: str) -> Readiness:
        """Read what the settler holds and whether the recipient can receive. Raises: Unreachable."""
        ...

    def opening(self, settler: str, recipient: str) -> Draft | None:
        """Draft what makes a recipient able to receive, paid by the settler; None where nothing is needed.

        Raises: Rejected, Unreachable.
        """
        ...

    def is_signed_by(self, payer: str, text: str, signature: str) -> bool:
        """Tell whether an address signed a text (EIP-191, or plain Ed25519 in base58). Pure."""
        ...
