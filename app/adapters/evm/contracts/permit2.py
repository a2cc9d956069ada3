"""Which nonces Permit2 has accepted. No network."""

from __future__ import annotations

from app.adapters.evm.contracts.abi import Function, MulticallItem
from app.adapters.evm.contracts.deployments import PERMIT2

_NONCE_BITMAP = Function("permit2", "nonceBitmap")
"""Returns the used nonces of a payer among the 256 of a word."""
_WORD_BITS = 8


def word_call(payer: str, nonce: int) -> MulticallItem:
    return _NONCE_BITMAP.at(PERMIT2, payer, nonce >> _WORD_BITS)


def is_used(word: int, nonce: int) -> bool:
    return bool(word >> (nonce & (1 << _WORD_BITS) - 1) & 1)
