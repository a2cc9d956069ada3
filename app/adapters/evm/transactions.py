"""EIP-1559 transactions: their bytes, their hash, and the proof that they say what was meant.

Pure: no network, no clock, no randomness.
"""

from __future__ import annotations

from dataclasses import dataclass

import rlp  # type: ignore[import-untyped]  # ships no types
from coincurve import PublicKey
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from rlp.exceptions import RLPException  # type: ignore[import-untyped]

from app.adapters.evm import contracts
from app.adapters.evm.libraries import TypedTransaction
from app.core.chains import USDC
from app.ports.chain import Intent, Terms
from app.ports.vault import Signer

_TYPE = 2
_FIELDS = 12


@dataclass(frozen=True, slots=True)
class Target:
    """Where a transaction goes, with what value and calldata."""

    to: str
    value_units: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Unsigned:
    """The fields that EIP-1559 signs, without the access list, which is always empty."""

    chain_id: int
    nonce: int
    max_priority_fee_per_gas: int
    max_fee_per_gas: int
    gas: int
    target: Target

    def encoded(self) -> bytes:
        """Return `0x02 || rlp([…])`, the bytes whose keccak is signed (EIP-1559)."""
        numbers = (self.chain_id, self.nonce, self.max_priority_fee_per_gas, self.max_fee_per_gas, self.gas)
        fields: list[object] = [_big_endian(number) for number in numbers]
        fields += [
            bytes.fromhex(self.target.to[2:]),
            _big_endian(self.target.value_units),
            self.target.data,
            [],
        ]
        return bytes([_TYPE]) + bytes(rlp.encode(fields))


CALL = "call"
"""Where an attempt's terms keep the calldata of a submission, which its intent does not tell."""


def target_of(intent: Intent, *, usdc: str, terms: Terms | None = None) -> Target:
    """Return what carries an intent out: a plain transfer, a call of the USDC contract, or the call in its terms."""
    call = (terms or {}).get(CALL)
    if call is not None:
        return Target(intent.recipient, intent.amount.units, bytes.fromhex(str(call)))
    if intent.amount.token == USDC:
        return Target(usdc, 0, contracts.transfer(intent.recipient, intent.amount.units))
    return Target(intent.recipient, intent.amount.units, b"")


def sign(unsigned: Unsigned, signer: Signer, *, sender: str) -> tuple[bytes, str]:
    """Return the signed bytes and their hash.

    Raises: ValueError when what was signed is not what was meant, by whatever fault.
    """
    fields = {
        "type": _TYPE,
        "chainId": unsigned.chain_id,
        "nonce": unsigned.nonce,
        "maxPriorityFeePerGas": unsigned.max_priority_fee_per_gas,
        "maxFeePerGas": unsigned.max_fee_per_gas,
        "gas": unsigned.gas,
        "to": bytes.fromhex(unsigned.target.to[2:]),
        "value": unsigned.target.value_units,
        "data": unsigned.target.data,
    }
    digest = TypedTransaction.from_dict(dict(fields)).hash()
    y_parity, r, s = signer.sign_digest(digest)
    raw = TypedTransaction.from_dict({**fields, "v": y_parity, "r": r, "s": s}).encode()
    _assert_says(raw, unsigned, sender=sender)
    return raw, hash_of(raw)


def hash_of(raw: bytes) -> str:
    """Return the hash by which the chain knows signed bytes."""
    return "0x" + keccak(raw).hex()


def unsigned_part(raw: bytes) -> tuple[bytes, tuple[bytes, bytes, bytes]]:
    """Split signed EIP-1559 bytes into what was signed and `(y_parity, r, s)`. Raises: ValueError."""
    try:
        fields = rlp.decode(raw[1:], strict=True) if raw[:1] == bytes([_TYPE]) else None
    except RLPException:
        fields = None
    if not isinstance(fields, list) or len(fields) != _FIELDS:
        raise ValueError("not a signed EIP-1559 transaction")
    return bytes([_TYPE]) + bytes(rlp.encode(fields[:-3])), (fields[-3], fields[-2], fields[-1])


def _assert_says(raw: bytes, unsigned: Unsigned, *, sender: str) -> None:
    """Decode by other code than that which encoded, and recover who signed."""
    signed_over, (y_parity, r, s) = unsigned_part(raw)
    if signed_over != unsigned.encoded():
        raise ValueError("the signed transaction does not say what was meant")
    signature = r.rjust(32, b"\0") + s.rjust(32, b"\0") + (y_parity or b"\0")
    key = PublicKey.from_signature_and_message(signature, keccak(signed_over), hasher=None)
    if to_checksum_address(keccak(key.format(compressed=False)[1:])[-20:]) != to_checksum_address(sender):
        raise ValueError("the transaction is signed by another key than the sender's")


def _big_endian(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")
