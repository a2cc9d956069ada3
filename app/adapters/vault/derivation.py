"""Derivation of a wallet's keys from one BIP-39 entropy, as MetaMask and Phantom do from the same twelve words.

BIP-32 over secp256k1 for EVM chains, SLIP-0010 over Ed25519 for Solana. Nothing is stored, logged or sent.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from unicodedata import normalize

from coincurve import PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from mnemonic import Mnemonic
from solders.pubkey import Pubkey

ENTROPY_BYTES = 16
_SEED_BYTES, _SEED_ROUNDS = 64, 2048
HARDENED = 1 << 31
EVM_PATH = (44 | HARDENED, 60 | HARDENED, HARDENED, 0, 0)
"""m/44'/60'/0'/0/0, the first account of MetaMask."""
SOLANA_PATH = (44 | HARDENED, 501 | HARDENED, HARDENED, HARDENED)
"""m/44'/501'/0'/0', the first account of Phantom."""

_ENGLISH = Mnemonic("english")
_SECP256K1_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def phrase(entropy: bytes) -> str:
    """Return the BIP-39 words of an entropy: twelve for 16 bytes."""
    return _ENGLISH.to_mnemonic(entropy)


def seed(words: str, passphrase: str = "") -> bytes:
    """Return the 64-byte BIP-39 seed of a phrase."""
    text, salt = (normalize("NFKD", each).encode() for each in (words, f"mnemonic{passphrase}"))
    # `Mnemonic.to_seed` takes a third more processor time, with the OpenSSL of Python.
    return PBKDF2HMAC(SHA512(), _SEED_BYTES, salt, _SEED_ROUNDS).derive(text)


def secp256k1_secret(seed_bytes: bytes, path: Sequence[int]) -> bytes:
    """Return the 32-byte private key at a BIP-32 path, given as indices with `HARDENED` added if primed.

    Raises: ValueError for the one seed in 2^127 that has no key there (BIP-32, "Child key derivation").
    """
    key, chain_code = _split(b"Bitcoin seed", seed_bytes)
    for index in path:
        public = b"\0" + key if index & HARDENED else PrivateKey(key).public_key.format()
        tweak, chain_code = _split(chain_code, public + index.to_bytes(4, "big"))
        # Both checks are BIP-32's; an index without a key practically never occurs, and is never used here.
        number = (int.from_bytes(tweak, "big") + int.from_bytes(key, "big")) % _SECP256K1_ORDER
        if int.from_bytes(tweak, "big") >= _SECP256K1_ORDER or number == 0:
            raise ValueError("this seed has no key at this path")
        key = number.to_bytes(32, "big")
    return key


def ed25519_secret(seed_bytes: bytes, path: Sequence[int]) -> bytes:
    """Return the 32-byte private key at a SLIP-0010 path; Ed25519 has hardened indices only."""
    key, chain_code = _split(b"ed25519 seed", seed_bytes)
    for index in path:
        if not index & HARDENED:
            raise ValueError("SLIP-0010 has hardened indices only on Ed25519")
        key, chain_code = _split(chain_code, b"\0" + key + index.to_bytes(4, "big"))
    return key


def wallet_keys(entropy: bytes) -> tuple[PrivateKey, Ed25519PrivateKey]:
    """Return the EVM and the Solana key of a wallet. One PBKDF2, about a millisecond."""
    seed_bytes = seed(phrase(entropy))
    return (
        PrivateKey(secp256k1_secret(seed_bytes, EVM_PATH)),
        Ed25519PrivateKey.from_private_bytes(ed25519_secret(seed_bytes, SOLANA_PATH)),
    )


def evm_address(key: PrivateKey) -> str:
    return str(to_checksum_address(keccak(key.public_key.format(compressed=False)[1:])[-20:]))


def solana_address(key: Ed25519PrivateKey) -> str:
    return str(Pubkey(key.public_key().public_bytes_raw()))


def _split(key: bytes, message: bytes) -> tuple[bytes, bytes]:
    digest = hmac.digest(key, message, hashlib.sha512)
    return digest[:32], digest[32:]
