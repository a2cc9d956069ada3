"""Payments that their payer signs and anybody may submit: EIP-3009's `transferWithAuthorization`, read and checked.

Pure. Shapes: x402's `specs/schemes/exact/scheme_exact_evm.md`; the reasons of refusals are its words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coincurve import PublicKey
from eth_abi.abi import encode
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from app.adapters.evm.contracts import word_of_address
from app.ports.chain import Terms
from app.ports.errors import Rejected
from app.ports.till import Demand

AUTHORIZATION_USED = "0x98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5"
"""keccak of `AuthorizationUsed(address,bytes32)`, which every use of an authorization leaves in the logs."""

_TRANSFER = bytes.fromhex("e3ee160e")  # transferWithAuthorization(…, uint8 v, bytes32 r, bytes32 s)
_STATE = bytes.fromhex("e94a0102")  # authorizationState(address,bytes32)
_TYPE = keccak(
    b"TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,"
    b"bytes32 nonce)"
)
_DOMAIN_TYPE = keccak(b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_NONCE = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
_SIGNATURE = re.compile(r"0x[0-9a-fA-F]{130}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,78}", re.ASCII)
_HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0
# A block has to take it before it is void.
_LEAST_SECONDS_LEFT = 6


@dataclass(frozen=True, slots=True)
class Domain:
    """The EIP-712 domain of a token."""

    name: str
    version: str
    chain_id: int
    contract: str

    def separator(self) -> bytes:
        """Return the hash of the domain."""
        return keccak(
            encode(
                ["bytes32", "bytes32", "bytes32", "uint256", "address"],
                [
                    _DOMAIN_TYPE, keccak(self.name.encode()), keccak(self.version.encode()), self.chain_id,
                    self.contract,
                ],
            )
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signed:
    """A transfer that its payer has authorized."""

    payer: str
    recipient: str
    units: int
    valid_after: int
    valid_before: int
    nonce: str
    signature: str

    @classmethod
    def read(cls, payload: Mapping[str, Any]) -> Signed:
        """Read what a client sends. Raises: Rejected("invalid_payload")."""
        given = payload.get("authorization")
        given = given if isinstance(given, dict) else {}
        return cls(
            payer=_address(given.get("from")),
            recipient=_address(given.get("to")),
            units=_number(given.get("value")),
            valid_after=_number(given.get("validAfter")),
            valid_before=_number(given.get("validBefore")),
            nonce=_matching(_NONCE, given.get("nonce")).lower(),
            signature=_matching(_SIGNATURE, payload.get("signature")).lower(),
        )

    def check(self, demand: Demand, domain: Domain, *, now: int) -> None:
        """Refuse what is not exactly what is demanded, signed by its payer and valid now. Raises: Rejected."""
        if self.recipient != demand.recipient:
            raise Rejected("invalid_exact_evm_payload_recipient_mismatch")
        if self.units != demand.units:
            raise Rejected("invalid_exact_evm_payload_authorization_value_mismatch")
        if self.valid_before < now + _LEAST_SECONDS_LEFT:
            raise Rejected("invalid_exact_evm_payload_authorization_valid_before")
        if self.valid_after > now:
            raise Rejected("invalid_exact_evm_payload_authorization_valid_after")
        self.check_signature(domain)

    def check_signature(self, domain: Domain) -> None:
        """Refuse what its payer has not signed. Raises: Rejected."""
        v, r, s = self._vrs()
        if not 0 < s <= _HALF_ORDER or signer_of(self._digest(domain), v, r, s) != self.payer:
            raise Rejected("invalid_exact_evm_payload_signature")

    def call(self) -> bytes:
        """Return the calldata that submits it."""
        v, r, s = self._vrs()
        return _TRANSFER + encode(
            ["address", "address", "uint256", "uint256", "uint256", "bytes32", "uint8", "bytes32", "bytes32"],
            [
                self.payer, self.recipient, self.units, self.valid_after, self.valid_before,
                bytes.fromhex(self.nonce[2:]), v, r.to_bytes(32, "big"), s.to_bytes(32, "big"),
            ],
        )  # fmt: skip

    def as_terms(self) -> Terms:
        """Write what finds it in the logs again as JSON values."""
        return {
            "from": self.payer, "to": self.recipient, "value": str(self.units), "nonce": self.nonce,
            "call": self.call().hex(), "valid_before": str(self.valid_before),
        }  # fmt: skip

    def _digest(self, domain: Domain) -> bytes:
        said = encode(
            ["bytes32", "address", "address", "uint256", "uint256", "uint256", "bytes32"],
            [
                _TYPE, self.payer, self.recipient, self.units, self.valid_after, self.valid_before,
                bytes.fromhex(self.nonce[2:]),
            ],
        )  # fmt: skip
        return keccak(b"\x19\x01" + domain.separator() + keccak(said))

    def _vrs(self) -> tuple[int, int, int]:
        raw = bytes.fromhex(self.signature[2:])
        v = raw[64] + 27 if raw[64] < 27 else raw[64]  # noqa: PLR2004 - some wallets count from 0
        return v, int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:64], "big")


def claim_of(payer: str, nonce: str) -> str:
    """Return what names an authorization: its payer and its nonce, which the token takes once."""
    return f"{payer.lower()}:{nonce.lower()}"


def state_call(payer: str, nonce: str) -> bytes:
    """Return the calldata that asks whether a nonce was used or cancelled."""
    return _STATE + word_of_address(payer) + bytes.fromhex(nonce[2:])


def signer_of(digest: bytes, v: int, r: int, s: int) -> str | None:
    """Return the address that signed a digest, None where nobody can have."""
    if v not in (27, 28):
        return None
    raw = r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([v - 27])
    try:
        key = PublicKey.from_signature_and_message(raw, digest, hasher=None)
    except Exception:
        return None
    return str(to_checksum_address(keccak(key.format(compressed=False)[1:])[-20:]))


def text_signer(text: str, signature: str) -> str | None:
    """Return who signed a text as EIP-191 has it ("personal_sign"), None where nobody can have."""
    if not _SIGNATURE.fullmatch(signature):
        return None
    raw, said = bytes.fromhex(signature[2:]), text.encode()
    digest = keccak(b"\x19Ethereum Signed Message:\n" + str(len(said)).encode() + said)
    v = raw[64] + 27 if raw[64] < 27 else raw[64]  # noqa: PLR2004 - some wallets count from 0
    return signer_of(digest, v, int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:64], "big"))


def _matching(pattern: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise Rejected("invalid_payload")
    return value


def _address(value: object) -> str:
    return str(to_checksum_address(_matching(_ADDRESS, value)))


def _number(value: object) -> int:
    # Strings by the specification; some clients write the times as numbers.
    number = int(_matching(_NUMBER, str(value) if type(value) is int else value))
    if number >= 2**256:
        raise Rejected("invalid_payload")
    return number
