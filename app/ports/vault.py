"""Custody: sealing of secrets and signatures of wallets."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

INTENTS: ContextVar[Sequence[str]] = ContextVar("intents", default=())
"""The ids of the recorded movements that this thread signs for: what a signer process checks a signature against."""


@dataclass(frozen=True, slots=True)
class SecretLocation:
    """The location of a sealed secret; it is the associated data, so a ciphertext moved elsewhere does not open."""

    table: str
    column: str
    row_id: str


@dataclass(frozen=True, slots=True)
class NewWallet:
    """A new wallet: its id, its sealed BIP-39 entropy and keys, and its addresses."""

    wallet_id: str
    sealed: str
    evm_address: str
    solana_address: str


class Signer(Protocol):
    """What signs with the keys of one wallet. Its repr shows addresses only."""

    @property
    def evm_address(self) -> str:
        """The wallet's address on EVM chains."""

    @property
    def solana_address(self) -> str:
        """The wallet's address on Solana."""

    def sign_digest(self, digest: bytes, of: Mapping[str, Any]) -> tuple[int, int, int]:
        """Return `(y_parity, r, s)` of a secp256k1 signature (RFC 6979, low s) over a 32-byte digest.

        `of` is what has this digest: the struct, values and domain of EIP-712.
        """

    def sign_transaction(self, fields: Mapping[str, Any]) -> tuple[int, int, int]:
        """Return the same over the digest of an EVM transaction; the fields have the names of JSON-RPC."""

    def sign_message(self, message: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature over a Solana message."""


KeyService = Callable[[str, str, str], str]
"""Lets a KMS or HSM `encrypt` or `decrypt` a data key in base64, bound to the id of its wallet. Raises: anything."""


class Vault(Protocol):
    """Seals secrets under the operator's encryption keys; `sealed` texts start with the id of their key."""

    current_key_id: str
    """The key of new MACs, and of new data except wallets' keys."""

    def sealing_key_id(self, table: str) -> str:
        """Return the key that seals new data of a table; a sealed text that starts with another id awaits rotation."""

    def seal(self, secret: bytes, location: SecretLocation) -> str:
        """Return `<key id>.[<encrypted data key>.]<base64url>`: AES-256-GCM with the location as associated data."""

    def open(self, sealed: str, location: SecretLocation) -> bytes:
        """Return the secret. Raises: Rejected if it does not match or only a signer opens it; KeyServiceUnavailable."""

    def check(self, sealed: str, location: SecretLocation) -> None:
        """Check that this process or the signer process can open a secret. Raises: Rejected, KeyServiceUnavailable."""

    def move(self, sealed: str, location: SecretLocation, to: SecretLocation) -> str:
        """Seal a secret for another table's row with the same id, without the network. Raises: Rejected."""

    def authenticate(self, message: bytes) -> str:
        """Return `<key id>.<base64url>`: the HMAC-SHA-256 of a message under a key derived from the current one."""

    def is_authentic(self, mac: str, message: bytes) -> bool:
        """Return whether `authenticate` made a MAC of this message, under any of the operator's keys."""

    def create_wallet(self, location: SecretLocation) -> NewWallet:
        """Generate 128 bits of BIP-39 entropy for the wallet of a row (BIP-44 for EVM, SLIP-0010 for Solana)."""

    def import_key(self, location: SecretLocation) -> tuple[str, str]:
        """Return a new private key, sealed, and the public key for which a phrase can be sealed, by `app.core.hpke`."""

    def import_phrase(self, to: SecretLocation, phrase: str, info: str, key: str, at: SecretLocation) -> NewWallet:
        """Seal the wallet of 12 or 24 BIP-39 words that were sealed for a key of `import_key`. Raises: ValueError."""

    def import_wallet(self, location: SecretLocation, *, evm: bytes | None, solana: bytes | None) -> NewWallet:
        """Seal keys that the operator supplies, 32 bytes each; a missing one is generated. Raises: ValueError."""

    def signer(self, sealed: str, location: SecretLocation, *, addresses: tuple[str, str]) -> Signer:
        """Open a wallet, with its stored addresses, for signing. Raises: Rejected when key or location do not match."""

    def recovery_phrase(self, sealed: str, location: SecretLocation) -> str:
        """Return the BIP-39 words of a wallet. Raises: Rejected, also if it was not derived from any."""

    def seal_phrase(self, sealed: str, location: SecretLocation, *, recipient: str, info: str) -> str:
        """Return the words sealed for a public key; see `app.core.hpke`. Raises: Rejected, ValueError for the key."""


class SignerProcess(Protocol):
    """The only process that opens wallets' keys; it signs only what was recorded. All raise: KeyServiceUnavailable."""

    def assert_reachable(self) -> None:
        """Check that it responds, before anything is held for what it is asked to sign."""

    def withdraw(self, intents: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """Sign nothing more for intents; return `nonce` and `valid_until` of what was signed for them."""

    def announce_export(self, wallet_id: str, request_id: str) -> None:
        """Begin the time that an owner waits for the keys of a wallet."""

    def refusals(self) -> int | None:
        """Return how many requests it has refused; None if it does not respond within four seconds."""

    def signed_since(self, since: datetime) -> Mapping[str, str]:
        """Return the intents that were signed, with the ids of their wallets."""
