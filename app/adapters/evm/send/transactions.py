"""EIP-1559 transactions: their bytes, their hash, and the check of who signed them.

No I/O, clock or randomness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from eth_utils.crypto import keccak

from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.send.fees import FeeTerms
from app.core.chains import USDC
from app.ports.chain import Terms, TransferIntent
from app.ports.vault import Signer


@dataclass(frozen=True, slots=True)
class CallTarget:
    to: str
    value_units: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ContractCall:
    """A call that is more than a plain transfer; after `valid_until` (seconds of block time) it can only revert."""

    target: CallTarget
    valid_until: int | None = None

    def as_terms(self) -> Terms:
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


def fields_of(chain_id: int, nonce: int, fee: FeeTerms, target: CallTarget) -> dict[str, Any]:
    """Return the fields that EIP-1559 signs, by the names of JSON-RPC."""
    return {
        "type": 2, "chainId": chain_id, "nonce": nonce, "gas": fee.gas,
        "maxFeePerGas": fee.price.max_fee, "maxPriorityFeePerGas": fee.price.tip,
        "to": bytes.fromhex(target.to[2:]), "value": target.value_units, "data": target.data,
    }  # fmt: skip


def encode_signed(fields: Mapping[str, Any], y_parity: int, r: int, s: int) -> bytes:
    return TypedTransaction.from_dict({**fields, "v": y_parity, "r": r, "s": s}).encode()


def target_of(intent: TransferIntent, terms: Terms, *, usdc: str) -> CallTarget:
    """Return the call that executes an intent: the one in the terms, a plain transfer, or a transfer of USDC."""
    call = ContractCall.from_terms(terms)
    if call is not None:
        return call.target
    if intent.amount.token == USDC:
        return CallTarget(usdc, 0, contracts.TRANSFER.encode(intent.recipient, intent.amount.units))
    return CallTarget(intent.recipient, intent.amount.units, b"")


def sign(fields: Mapping[str, Any], signer: Signer, *, sender: str) -> tuple[bytes, str]:
    """Return the signed bytes and their hash. Raises: ValueError for another key than the sender's."""
    raw = encode_signed(fields, *signer.sign_digest(TypedTransaction.from_dict(dict(fields)).hash()))
    if Account.recover_transaction(raw) != sender:
        raise ValueError("the transaction is signed by another key than the sender's")
    return raw, hash_of(raw)


def hash_of(raw: bytes) -> str:
    return "0x" + keccak(raw).hex()
