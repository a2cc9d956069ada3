"""EIP-1559 transactions: their bytes, their hash, and the check of who signed them.

No I/O, clock or randomness.
"""

from __future__ import annotations

from dataclasses import dataclass

from eth_utils.crypto import keccak

from app.adapters.evm.client.web3_imports import Account, TypedTransaction
from app.adapters.evm.contracts import calls as contracts
from app.core.chains import USDC
from app.ports.chain import Terms, TransferIntent
from app.ports.vault import Signer


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

    def typed(self, **signature: int) -> TypedTransaction:
        """Return it as eth-account hashes it for signing and, with v, r and s, encodes it."""
        target = self.target
        fields = {
            "type": 2, "chainId": self.chain_id, "nonce": self.nonce, "gas": self.gas,
            "maxPriorityFeePerGas": self.max_priority_fee_per_gas, "maxFeePerGas": self.max_fee_per_gas,
            "to": bytes.fromhex(target.to[2:]), "value": target.value_units, "data": target.data,
        }  # fmt: skip
        return TypedTransaction.from_dict({**fields, **signature})


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
    y_parity, r, s = signer.sign_digest(unsigned.typed().hash())
    raw = unsigned.typed(v=y_parity, r=r, s=s).encode()
    if Account.recover_transaction(raw) != sender:
        raise ValueError("the transaction is signed by another key than the sender's")
    return raw, hash_of(raw)


def hash_of(raw: bytes) -> str:
    return "0x" + keccak(raw).hex()
