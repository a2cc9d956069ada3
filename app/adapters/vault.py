"""Custody in this process: secrets sealed with AES-256-GCM under keys from the settings.

Wallets' keys may be sealed under data keys instead, one for each wallet, which a KMS or an HSM encrypts.

No repr, log, exception or pickle of anything here contains a secret. A wallet's keys are derived from one BIP-39
entropy as MetaMask and Phantom do: BIP-32 over secp256k1 for EVM chains, SLIP-0010 over Ed25519 for Solana.
"""

import base64
import hmac
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import BoundedSemaphore
from typing import Any, NoReturn, SupportsIndex

import structlog
from coincurve import PrivateKey
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from mnemonic import Mnemonic
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.adapters.evm import signatures
from app.adapters.evm.send import transactions
from app.capacity.single_flight_cache import SingleFlightCache
from app.core import hpke
from app.db.unit_of_work import assert_no_unit
from app.errors import KeyServiceUnavailable
from app.observability import counters
from app.ports.errors import Rejected
from app.ports.vault import KeyService, NewWallet, SecretLocation, Signer

_log = structlog.get_logger(__name__)

ENTROPY_BYTES = 16
_PHRASE_BYTES = {12: ENTROPY_BYTES, 24: 32}
SOLANA_PATH = "m/44'/501'/0'/0'"
"""The first account of Phantom."""

_ENGLISH = Mnemonic("english")


def phrase(entropy: bytes) -> str:
    """Return the BIP-39 words of an entropy: twelve for 16 bytes, 24 for 32."""
    return _ENGLISH.to_mnemonic(entropy)


def wallet_keys(entropy: bytes) -> tuple[PrivateKey, Ed25519PrivateKey]:
    """Return the EVM and the Solana key of a wallet. One PBKDF2, about two milliseconds."""
    seed = Mnemonic.to_seed(phrase(entropy))
    solana = Keypair.from_seed_and_derivation_path(seed, SOLANA_PATH).secret()
    return PrivateKey(signatures.wallet_secret(seed)), Ed25519PrivateKey.from_private_bytes(solana)


def evm_address(key: PrivateKey) -> str:
    return str(to_checksum_address(keccak(key.public_key.format(compressed=False)[1:])[-20:]))


def solana_address(key: Ed25519PrivateKey) -> str:
    return str(Pubkey(key.public_key().public_bytes_raw()))


_KEY_BYTES = 32
_PAIR_BYTES = 2 * _KEY_BYTES
_WALLET_BYTES = [each + _PAIR_BYTES for each in _PHRASE_BYTES.values()]
_NONCE_BYTES = 12
_DIGEST_BYTES = 32
_MOST_THREADS = 8
_MAC_INFO = b"purser/authenticated-rows/v1"
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)
# Keys of wallets, and those that open an imported phrase. A wallet is retired without its key being opened, so under a
# key service the location has the first table for all of them.
WALLET_TABLES = ("wallet_keys", "retired_keys", "key_transfers")


class _NonCopyable:
    """Refuses to be pickled or copied, so that a secret stays in one object."""

    __slots__ = ()

    def __reduce_ex__(self, _protocol: SupportsIndex, /) -> NoReturn:
        raise TypeError(f"{type(self).__name__} contains secrets and cannot be pickled or copied")


class LocalSigner(_NonCopyable):
    """The two keys of one wallet, opened for signing; shows addresses only."""

    __slots__ = ("_evm", "_evm_address", "_solana")

    def __init__(self, evm: PrivateKey, solana: Ed25519PrivateKey) -> None:
        self._evm, self._evm_address = evm, ""
        self._solana = solana

    @property
    def evm_address(self) -> str:
        self._evm_address = self._evm_address or evm_address(self._evm)
        return self._evm_address

    @property
    def solana_address(self) -> str:
        return solana_address(self._solana)

    def __repr__(self) -> str:
        return f"LocalSigner(evm_address={self.evm_address!r}, solana_address={self.solana_address!r})"

    def sign_digest(self, digest: bytes, of: Mapping[str, Any]) -> tuple[int, int, int]:
        if len(digest) != _DIGEST_BYTES:
            raise ValueError("a digest has 32 bytes")
        signature = self._evm.sign_recoverable(digest, hasher=None)
        r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
        return signature[64] & 1, r, s

    def sign_transaction(self, fields: Mapping[str, Any]) -> tuple[int, int, int]:
        return self.sign_digest(transactions.digest_of(fields), fields)

    def sign_message(self, message: bytes) -> bytes:
        return self._solana.sign(message)


class LocalVault(_NonCopyable):
    """Seals with the first of the operator's keys, and wallets' keys with the service `sealing`; opens with all."""

    __slots__ = ("_data_keys", "_keys", "_mac_keys", "_services", "_threads", "_wallet_key_id", "current_key_id")

    def __init__(
        self, keys: Sequence[tuple[str, bytes]], services: Mapping[str, KeyService] | None = None, sealing: str = ""
    ) -> None:
        """Store `(id, 32 bytes)` pairs, the one for new data first. Raises: ValueError that shows no key."""
        ids = [key_id for key_id, _ in keys]
        well_formed = all(_KEY_ID.fullmatch(key_id) and len(key) == _KEY_BYTES for key_id, key in keys)
        if not ids or not well_formed or len(set(ids)) != len(ids):
            raise ValueError("a vault needs at least one key; each has its own id and 32 bytes")
        self.current_key_id, self._services, self._data_keys = ids[0], services or {}, SingleFlightCache()
        self._wallet_key_id = sealing if sealing in self._services else ids[0]
        self._threads = BoundedSemaphore(_MOST_THREADS)
        self._keys = {key_id: AESGCM(key) for key_id, key in keys}
        self._mac_keys = {
            key_id: HKDF(SHA256(), _KEY_BYTES, salt=None, info=_MAC_INFO).derive(key) for key_id, key in keys
        }

    def __repr__(self) -> str:
        return f"LocalVault(key_ids={list(self._keys)!r})"

    def sealing_key_id(self, table: str) -> str:
        return self._wallet_key_id if table in WALLET_TABLES else self.current_key_id

    def seal(self, secret: bytes, location: SecretLocation) -> str:
        key_id = self.sealing_key_id(location.table)
        if key_id in self._keys:
            return f"{key_id}.{_encrypt(self._keys[key_id], secret, location)}"
        data_key, place = secrets.token_bytes(_KEY_BYTES), replace(location, table=WALLET_TABLES[0])
        with self._service(key_id, "encrypt", location) as use:
            encrypted = use("encrypt", base64.b64encode(data_key).decode(), location.row_id)
        sealed = f"{key_id}.{encrypted}.{_encrypt(AESGCM(data_key), secret, place)}"
        self.open(sealed, location)  # what could not be opened again would be lost
        return sealed

    def open(self, sealed: str, location: SecretLocation) -> bytes:
        key_id, _, text = sealed.partition(".")
        if key_id in self._keys:
            return _decrypt(self._keys[key_id], text, location)
        encrypted, _, text = text.partition(".")
        place = replace(location, table=WALLET_TABLES[0])
        if key_id not in self._services:
            raise _unreadable()

        def decrypt() -> AESGCM:
            with self._service(key_id, "decrypt", location) as use:
                data_key = AESGCM(base64.b64decode(use("decrypt", encrypted, location.row_id)))
                _decrypt(data_key, text, place)  # another key is not remembered
            return data_key

        return _decrypt(self._data_keys.get((sealed, place), decrypt, ttl_seconds=300), text, place)

    def check(self, sealed: str, location: SecretLocation) -> None:
        self.open(sealed, location)

    def move(self, sealed: str, location: SecretLocation, to: SecretLocation) -> str:
        if sealed.partition(".")[0] in self._services:
            return sealed
        key_id = self.current_key_id
        return f"{key_id}.{_encrypt(self._keys[key_id], self.open(sealed, location), to)}"

    @contextmanager
    def _service(self, key_id: str, operation: str, location: SecretLocation) -> Iterator[KeyService]:
        """Log and time one use of a key service. Raises: KeyServiceUnavailable for any failure: it may be temporary."""
        assert_no_unit()
        if not self._threads.acquire(timeout=1):  # those that wait for a service that hangs
            raise KeyServiceUnavailable(retry_after_seconds=10)
        began, outcome = time.monotonic(), "ok"
        try:
            yield self._services[key_id]
        except Exception as error:
            reply = getattr(error, "response", None)
            code = reply.get("Error", {}).get("Code") if isinstance(reply, dict) else getattr(reply, "status_code", "")
            outcome = f"{type(error).__name__} {code}".strip()  # its text may quote a token
            raise KeyServiceUnavailable(retry_after_seconds=10) from None
        finally:
            self._threads.release()
            counters.KEY_SECONDS.labels(key_id, operation, outcome).observe(time.monotonic() - began)
            _log.info("wallet_key_used", key=key_id, use=operation, wallet_id=location.row_id, outcome=outcome)

    def authenticate(self, message: bytes) -> str:
        return self._mac(self.current_key_id, message)

    def is_authentic(self, mac: str, message: bytes) -> bool:
        key_id = mac.partition(".")[0]
        return key_id in self._mac_keys and hmac.compare_digest(self._mac(key_id, message).encode(), mac.encode())

    def _mac(self, key_id: str, message: bytes) -> str:
        return f"{key_id}.{hpke.base64url(hmac.digest(self._mac_keys[key_id], message, 'sha256'))}"

    def create_wallet(self, location: SecretLocation) -> NewWallet:
        """Seal new entropy of 128 bits with its keys: to derive them for each signature would take two milliseconds."""
        return self._seal_wallet(secrets.token_bytes(ENTROPY_BYTES), location)

    def import_key(self, location: SecretLocation) -> tuple[str, str]:
        private, public = hpke.new_key()
        return self.seal(private, location), public

    def import_phrase(self, to: SecretLocation, phrase: str, info: str, key: str, at: SecretLocation) -> NewWallet:
        words = " ".join(hpke.unseal(phrase, self.open(key, at), info).decode().split())
        # Other errors of the library quote words.
        if len(words.split()) not in _PHRASE_BYTES or not _ENGLISH.check(words):
            raise ValueError("not 12 or 24 words of BIP-39 with the right checksum")
        return self._seal_wallet(bytes(_ENGLISH.to_entropy(Mnemonic.normalize_string(words))), to)

    def _seal_wallet(self, entropy: bytes, location: SecretLocation) -> NewWallet:
        evm, solana = wallet_keys(entropy)
        sealed = self.seal(entropy + evm.secret + solana.private_bytes_raw(), location)
        return NewWallet(location.row_id, sealed, evm_address(evm), solana_address(solana))

    def import_wallet(self, location: SecretLocation, *, evm: bytes | None, solana: bytes | None) -> NewWallet:
        secret = (evm or secrets.token_bytes(_KEY_BYTES)) + (solana or secrets.token_bytes(_KEY_BYTES))
        if len(secret) != _PAIR_BYTES:
            raise ValueError("a private key has 32 bytes")
        pair = _signer(secret)
        return NewWallet(location.row_id, self.seal(secret, location), pair.evm_address, pair.solana_address)

    def signer(self, sealed: str, location: SecretLocation, *, addresses: tuple[str, str] = ("", "")) -> Signer:
        secret = self.open(sealed, location)
        if len(secret) == ENTROPY_BYTES:  # sealed before keys were stored with their entropy
            return LocalSigner(*wallet_keys(secret))
        if len(secret) not in (_PAIR_BYTES, *_WALLET_BYTES):
            raise _unreadable()
        return _signer(secret[-_PAIR_BYTES:])

    def recovery_phrase(self, sealed: str, location: SecretLocation) -> str:
        secret = self.open(sealed, location)
        if len(secret) not in (ENTROPY_BYTES, *_WALLET_BYTES):
            raise _unreadable()
        return phrase(secret if len(secret) == ENTROPY_BYTES else secret[:-_PAIR_BYTES])

    def seal_phrase(self, sealed: str, location: SecretLocation, *, recipient: str, info: str) -> str:
        return hpke.seal(self.recovery_phrase(sealed, location).encode(), hpke.point(recipient), info)


def _signer(pair: bytes) -> LocalSigner:
    return LocalSigner(PrivateKey(pair[:_KEY_BYTES]), Ed25519PrivateKey.from_private_bytes(pair[_KEY_BYTES:]))


def _unreadable() -> Rejected:
    return Rejected("sealed_unreadable")


def _encrypt(key: AESGCM, secret: bytes, location: SecretLocation) -> str:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return hpke.base64url(nonce + key.encrypt(nonce, secret, _associated_data(location)))


def _decrypt(key: AESGCM, text: str, location: SecretLocation) -> bytes:
    body = _decode(text)
    try:
        return key.decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], _associated_data(location))
    except (InvalidTag, ValueError):  # of a nonce that is too short
        raise _unreadable() from None


def _associated_data(location: SecretLocation) -> bytes:
    # Length prefixes: without them ("ab", "c") and ("a", "bc") would be the same location.
    parts = [part.encode() for part in (location.table, location.column, location.row_id)]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _decode(text: str) -> bytes:
    try:
        body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""
    # The last letter has spare bits; only one spelling of a ciphertext is accepted.
    return body if hpke.base64url(body) == text else b""
