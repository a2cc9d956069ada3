"""Transfers of USDC whose network fee the service pays: the wallet authorizes, the service submits.

In the phases of a movement: `draft` reads and simulates, `authorize` signs inside the unit that records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.core.money import TokenAmount
from app.ports.chain import Terms, TransactionDraft
from app.ports.vault import Signer


@dataclass(frozen=True, slots=True)
class GasSponsor:
    """The service's wallet that submits on a chain, its address there, and the address that fees are paid to.

    `reserve_units` of the native token must stay in the wallet.
    """

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

    `cost` is what the submission is likely to cost the sponsor, in the native token. `token_units` is the sender's
    balance of USDC as of `sequence`; no block before `since_block` can hold the transfer. `submission` lacks its call.
    """

    transfer: SponsoredTransfer
    cost: TokenAmount
    token_units: int
    sequence: int | None
    since_block: int
    submission: TransactionDraft
    creates_account: bool = False
    """Whether the sponsor pays for an account of the recipient, which the recipient could close for its rent."""


@dataclass(frozen=True, slots=True)
class SignedPart:
    """An authorization: its identity on the chain, and what its outcome is found by.

    The recorded terms have the hash of its first `submission`, too.
    """

    reference: str
    terms: Terms


@dataclass(frozen=True, slots=True)
class AuthorizedTransfer:
    """The signed transfer, the signed fee if there is one, and the complete draft of their submission."""

    transfer: SignedPart
    fee: SignedPart | None
    submission: TransactionDraft


class TransferSponsor(Protocol):
    """Prepares sponsored transfers on one chain."""

    def draft(self, transfer: SponsoredTransfer) -> SponsoredDraft:
        """Read balances and fees, and simulate. Raises: Rejected("simulation_failed", …), Unreachable."""

    def authorize(self, draft: SponsoredDraft, *, fee_units: int, signer: Signer, now: int) -> AuthorizedTransfer:
        """Sign the transfer and a fee to the sponsor, at a time in seconds since 1970. No I/O.

        The submission executes both or nothing, except that a fee that was taken already does not prevent the transfer.
        """
