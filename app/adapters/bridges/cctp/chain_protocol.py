"""CCTP operations on one chain, of either family."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from app.adapters.bridges.cctp.messages import CctpMessage
from app.core.chains import ChainName, Token
from app.ports.bridges import BridgeArrival, BridgeRequest, BridgeStep
from app.ports.chain import SignedTransaction, TransactionDraft
from app.ports.vault import Signer


@dataclass(frozen=True, slots=True)
class BurnParameters:
    """The parameters of a burn: recipient and domain, fee and finality, and who submits the mint."""

    domain: int
    recipient: bytes
    max_fee_units: int
    finality: int
    is_forwarded: bool


class MintNotFound(StrEnum):
    """Why a mint is not found although the message's nonce is used; the values are shown with the bridge."""

    NOT_FOUND = "mint_not_seen"
    """The node is behind, or another message used the nonce."""
    UNREADABLE = "mint_unreadable"
    """No node can show which transaction used it."""


class CctpChain(Protocol):
    """CCTP on one chain: burning and minting."""

    @property
    def name(self) -> ChainName:
        """The chain's name in the API."""

    def token(self) -> bytes:
        """Return USDC as messages encode it."""

    def mint_recipient(self, owner: str) -> bytes:
        """Return the recipient of a mint for an owner."""

    def expiry_position(self) -> int:
        """Return the block number that messages' expiry refers to. Raises: Unreachable."""

    def draft_burn(self, request: BridgeRequest, order: BurnParameters) -> tuple[BridgeStep, ...]:
        """Draft and simulate a burn. Raises: Rejected, Unreachable."""

    def sign(self, draft: TransactionDraft, signer: Signer, *, sequence: int | None) -> SignedTransaction:
        """Sign a draft of this side. No I/O."""

    def receiving_refusal(self, address: str, token: Token) -> str | None:
        """Return why the issuer would let no mint arrive at an address, or None. Raises: Unreachable."""

    def assert_can_mint(self, owner: str) -> None:
        """Check that the owner could pay for a mint now. Raises: Rejected("insufficient_gas"), Unreachable."""

    def draft_mint(
        self, owner: str, message: CctpMessage, attestation: bytes, *, failures: int
    ) -> BridgeStep:
        """Draft the mint, or first the token account that it needs, with more for fees after failures.

        Raises: Rejected, Unreachable.
        """

    def is_minted(self, message: CctpMessage) -> bool:
        """Return whether a message was received, by any submitter. Raises: Unreachable."""

    def find_mint(
        self, message: CctpMessage, *, hint: str | None, since: int
    ) -> BridgeArrival | MintNotFound:
        """Find the transaction that minted a message with a used nonce.

        A used nonce proves that some message was received: it must be this burn's. Raises: Unreachable.
        """


def first_arrival(answers: Iterable[BridgeArrival | MintNotFound]) -> BridgeArrival | MintNotFound:
    """Return the arrival that one of the endpoints shows, or why none does: most keep some days only."""
    reason = MintNotFound.UNREADABLE
    for found in answers:
        if isinstance(found, BridgeArrival):
            return found
        reason = found if found is MintNotFound.NOT_FOUND else reason
    return reason
