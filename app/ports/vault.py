"""Custody: where secrets are sealed and wallets' signatures are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sealed secret is stored; it is the associated data, so a ciphertext moved elsewhere does not open."""

    table: str
    column: str
    row_id: str


@dataclass(frozen=True, slots=True)
class NewWallet:
    """A freshly made wallet: the sealed BIP-39 entropy and the addresses it opens."""

    sealed: str
    evm_address: str
    solana_address: str


class Signer(Protocol):
    """The keys of one wallet, opened for one signing. Its repr shows addresses only."""

    evm_address: str
    solana_address: str

    def sign_digest(self, digest: bytes) -> tuple[int, int, int]:
        """Return `(y_parity, r, s)` of a secp256k1 signature (RFC 6979, low s) over a 32-byte digest."""
        ...

    def sign_message(self, message: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature over a Solana message."""
        ...


class Vault(Protocol):
    """Seals secrets under the operator's encryption keys; `sealed` texts name the key that made them."""

    @property
    def current_key_id(self) -> str:
        """The key that seals new data; a sealed text that starts with another id awaits rotation."""
        ...

    def seal(self, secret: bytes, place: Place) -> str:
        """Return `<key id>.<base64url>`: AES-256-GCM with the place as associated data."""
        ...

    def open(self, sealed: str, place: Place) -> bytes:
        """Return the secret. Raises: Rejected when key, place or ciphertext do not fit."""
        ...

    def new_wallet(self, place: Place) -> NewWallet:
        """Make 128 bits of BIP-39 entropy and derive its addresses (BIP-44 for EVM, SLIP-0010 for Solana)."""
        ...

    def adopted_wallet(self, place: Place, *, evm: bytes | None, solana: bytes | None) -> NewWallet:
        """Seal keys that the operator brings, 32 bytes each; one that is missing is made. Raises: ValueError."""
        ...

    def signer(self, sealed: str, place: Place) -> Signer:
        """Open a wallet for signing. Raises: Rejected when key, place or ciphertext do not fit."""
        ...

    def recovery_phrase(self, sealed: str, place: Place) -> str:
        """Return the BIP-39 words of a wallet, for a person who rescues it. Raises: Rejected."""
        ...
