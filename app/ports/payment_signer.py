"""Signing of x402 payments that another party submits: what a wallet pays to a web service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.ports.chain import Terms
from app.ports.facilitator import PaymentAsset
from app.ports.vault import Signer


@dataclass(frozen=True, slots=True)
class PaymentIntent:
    """A payment to sign: exactly these units to this recipient, valid until `valid_before` (seconds since 1970).

    No block before `since_block` can hold it.
    """

    recipient: str
    units: int
    valid_before: int
    since_block: int


@dataclass(frozen=True, slots=True)
class AuthorizedPayment:
    """A signed payment: its identity on the chain, the payload for the seller, and what its outcome is found by."""

    reference: str
    payload: Mapping[str, Any] = field(repr=False)
    terms: Terms


class PaymentSigner(Protocol):
    """Signs the scheme `exact` of x402 on one chain."""

    @property
    def asset(self) -> PaymentAsset:
        """The only asset that is paid with."""

    def canonical_recipient(self, text: str) -> str | None:
        """Return the canonical spelling of an address that can be paid, or None for anything else. No I/O."""

    def accepts_extra(self, extra: Mapping[str, Any]) -> bool:
        """Return whether a seller's additional terms are those of the asset and of a supported transfer method."""

    def authorize(self, intent: PaymentIntent, signer: Signer) -> AuthorizedPayment:
        """Sign a payment. No I/O, so it may run inside a unit of work."""
