"""EIP-1559 transactions: their bytes, their hash, and the check of who signed them.

No I/O, clock or randomness.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coincurve import PublicKey
from eth_utils.crypto import keccak

from app.adapters.evm.contracts import calls as contracts
from app.core.chains import USDC
from app.ports.chain import Terms, TransferIntent
from app.ports.vault import Signer

_TYPE = 2
_NO_ACCESS_LIST = b"\xc0"
_STRING, _LIST = 0x80, 0xC0
_MAX_SHORT = 55
"""Of the prefixes of RLP (Ethereum's Yellow Paper, appendix B)."""


@dataclass(frozen=True, slots=True)
class CallTarget:
    """The recipient, value and calldata of a transaction."""

    to: str
    value_units: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ContractCall:
    """A call that is more than a plain transfer; after `valid_until` (seconds of block time) it can only revert."""

    target: CallTarget
    valid_until: int | None = None

    def as_terms(self) -> Terms:
        """Return JSON values for an attempt's terms."""
        return {
            "call_to": self.target.to,
            "call_value": str(self.target.value_units),
            "call_data": self.target.data.hex(),
            "valid_until": self.valid_until,
        }

    @classmethod
    def from_terms(cls, terms: Terms) -> ContractCall | None:
        """Read the output of `as_terms`; None for the terms of a plain transfer."""
        if "call_to" not in terms:
            return None
        until = terms["valid_until"]
        target = CallTarget(
            str(terms["call_to"]), int(str(terms["call_value"])), bytes.fromhex(str(terms["call_data"]))
        )
        return cls(target, None if until is None else int(until))


@dataclass(frozen=True, slots=True)
class UnsignedTransaction:
    """The fields that EIP-1559 signs, without the access list, which is always empty."""

    chain_id: int
    nonce: int
    max_priority_fee_per_gas: int
    max_fee_per_gas: int
    gas: int
    target: CallTarget

    def encoded(self) -> bytes:
        """Return `0x02 || rlp([…])`, the input of the signed keccak hash (EIP-1559)."""
        return _encode(self.fields())

    def fields(self) -> list[bytes]:
        """Return the encoded fields in their order."""
        target = self.target
        numbers = (self.chain_id, self.nonce, self.max_priority_fee_per_gas, self.max_fee_per_gas, self.gas)
        strings = (*map(_big_endian, numbers), bytes.fromhex(target.to[2:]), _big_endian(target.value_units))
        return [*map(_rlp_string, strings), _rlp_string(target.data), _NO_ACCESS_LIST]


def encode_signed(unsigned: UnsignedTransaction, y_parity: int, r: int, s: int) -> bytes:
    return _encode([*unsigned.fields(), *(_rlp_string(_big_endian(number)) for number in (y_parity, r, s))])


def target_of(intent: TransferIntent, terms: Terms, *, usdc: str) -> CallTarget:
    """Return the call that executes an intent: the one in the terms, a plain transfer, or a transfer of USDC."""
    call = ContractCall.from_terms(terms)
    if call is not None:
        return call.target
    if intent.amount.token == USDC:
        return CallTarget(usdc, 0, contracts.TRANSFER.encode(intent.recipient, intent.amount.units))
    return CallTarget(intent.recipient, intent.amount.units, b"")


def sign(unsigned: UnsignedTransaction, signer: Signer, *, sender: str) -> tuple[bytes, str]:
    """Return the signed bytes and their hash. Raises: ValueError for another key than the sender's."""
    digest = keccak(unsigned.encoded())
    y_parity, r, s = signer.sign_digest(digest)
    raw = encode_signed(unsigned, y_parity, r, s)
    signature = r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([y_parity])
    key = PublicKey.from_signature_and_message(signature, digest, hasher=None)
    if keccak(key.format(compressed=False)[1:])[-20:] != bytes.fromhex(sender[2:]):
        raise ValueError("the transaction is signed by another key than the sender's")
    return raw, hash_of(raw)


def hash_of(raw: bytes) -> str:
    return "0x" + keccak(raw).hex()


def _encode(fields: Iterable[bytes]) -> bytes:
    content = b"".join(fields)
    return bytes([_TYPE]) + _rlp_prefix(len(content), _LIST) + content


def _rlp_string(content: bytes) -> bytes:
    """Return the RLP of a byte string; the general encoder of `rlp` takes ten times as long."""
    if len(content) == 1 and content[0] < _STRING:
        return content
    return _rlp_prefix(len(content), _STRING) + content


def _rlp_prefix(size: int, kind: int) -> bytes:
    if size <= _MAX_SHORT:
        return bytes([kind + size])
    digits = _big_endian(size)
    return bytes([kind + _MAX_SHORT + len(digits)]) + digits


def _big_endian(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")
