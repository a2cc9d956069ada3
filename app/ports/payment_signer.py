"""Signing of x402 payments that another party submits: what a wallet pays to a web service.

In the phases of a movement: `prepare` reads the chain, `authorize` signs inside the unit that records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.ports.chain import Terms
from app.ports.facilitator import PaymentAsset
from app.ports.vault import Signer


@dataclass(frozen=True, slots=True)
class PaymentIntent:
    """A payment to sign: exactly these units from the payer (one of our wallets) to the recipient.

    It can be used for `validity_seconds`, or as long as the chain prescribes. `extra` are the seller's additional
    terms, `extensions` the names of the protocol extensions that it has. No block before `since_block` can hold the
    payment.
    """

    payer: str
    recipient: str
    units: int
    validity_seconds: int
    extra: Mapping[str, Any]
    extensions: Collection[str]
    since_block: int


@dataclass(frozen=True, slots=True)
class AuthorizedPayment:
    """A signed payment: its identity on the chain, the payload for the seller, and what its outcome is found by.

    `extensions` are what it answers to extensions of the protocol, by their names.
    """

    reference: str
    payload: Mapping[str, Any] = field(repr=False)
    terms: Terms
    extensions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)


class PaymentSigner(Protocol):
    """Signs the scheme `exact` of x402 on one chain."""

    @property
    def asset(self) -> PaymentAsset:
        """The only asset that is paid with."""

    def canonical_recipient(self, text: str) -> str | None:
        """Return the canonical spelling of an address that can be paid, or None for anything else. No I/O."""

    def accepts_extra(self, extra: Mapping[str, Any]) -> bool:
        """Return whether a seller's additional terms are those of the asset and of a supported transfer method."""

    def prepare(self, intent: PaymentIntent) -> Terms:
        """Read what signing needs of the chain, and check that the payment can be executed.

        Raises: Rejected, Unreachable.
        """

    def authorize(self, intent: PaymentIntent, prepared: Terms, signer: Signer, *, now: int) -> AuthorizedPayment:
        """Sign a payment at a time (seconds since 1970). No I/O, so it may run inside a unit of work."""
