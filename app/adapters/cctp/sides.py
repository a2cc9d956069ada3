"""What CCTP can do on one chain, whichever it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from app.adapters.cctp.messages import Message
from app.core.chains import ChainName
from app.ports.bridges import Arrival, Ask, Step
from app.ports.chain import Draft, Signed
from app.ports.vault import Signer


@dataclass(frozen=True, slots=True)
class BurnOrder:
    """How a burn is to be made: for whom on which domain, at what fee and finality, and who submits the mint."""

    domain: int
    recipient: bytes
    most_fee_units: int
    finality: int
    is_forwarded: bool


class Unseen(StrEnum):
    """Why a mint is not found though the message's nonce is used; the words are shown with the bridge."""

    NOT_SEEN = "mint_not_seen"
    """The node is behind, or another message used the nonce."""
    UNREADABLE = "mint_unreadable"
    """No node can tell by which transaction it was used."""


class Side(Protocol):
    """CCTP on one chain: burning there, minting there."""

    @property
    def name(self) -> ChainName:
        """The chain's name on the wire."""
        ...

    def token(self) -> bytes:
        """Return USDC as messages name it."""
        ...

    def recipient_of(self, owner: str) -> bytes:
        """Return whom a mint for an owner pays."""
        ...

    def position(self) -> int:
        """Return the number by which messages expire here. Raises: Unreachable."""
        ...

    def burn(self, ask: Ask, order: BurnOrder) -> tuple[Step, ...]:
        """Draft a burn, and rehearse it. Raises: Rejected, Unreachable."""
        ...

    def sign(self, draft: Draft, signer: Signer, *, sequence: int | None) -> Signed:
        """Sign a draft of this side. Pure."""
        ...

    def assert_can_mint(self, owner: str) -> None:
        """Make sure that the owner could pay for a mint now. Raises: Rejected("insufficient_gas"), Unreachable."""
        ...

    def mint(self, owner: str, message: Message, attestation: bytes) -> Step:
        """Draft the mint, or first what it needs. Raises: Rejected, Unreachable."""
        ...

    def is_minted(self, message: Message) -> bool:
        """Tell whether a message was received, by whomever. Raises: Unreachable."""
        ...

    def arrival(self, message: Message, *, hint: str | None, since: int) -> Arrival | Unseen:
        """Find the transaction that minted a message whose nonce is used.

        That it is used tells of some message: what was received must be this burn's. Raises: Unreachable.
        """
        ...
