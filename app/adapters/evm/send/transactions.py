"""EIP-1559 transactions: their bytes, their hash, who signed them, and their fees.

No I/O, clock or randomness.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import rlp  # type: ignore[import-untyped]  # ships no types
from eth_utils.crypto import keccak

from app.adapters.evm.calls import FeeHistory
from app.adapters.evm.contracts import calls as contracts
from app.core.chains import USDC
from app.ports.chain import Terms, TransferIntent
from app.ports.vault import Signer

_EIP_1559 = b"\x02"
_ENCODED = ("chainId", "nonce", "maxPriorityFeePerGas", "maxFeePerGas", "gas", "to", "value", "data")
"""The fields in their order; an access list follows, which is empty."""
TRANSFER_GAS = 21_000
"""A transfer to an account without code costs exactly this."""
TOKEN_TRANSFER_GAS = 80_000
"""About the gas limit of a USDC transfer to a new holder, for the figures of a refusal without an estimate."""
_GWEI = 10**9
_MAX_TIP = 10 * _GWEI
"""The tip is at most this, on a rollup 1 gwei, or `_MAX_TIP_PER_BASE_FEE` times the base fee if that is more."""
_MAX_TIP_PER_BASE_FEE = 10


@dataclass(frozen=True, slots=True)
class GasPrice:
    """The fee fields of EIP-1559, in wei per gas."""

    max_fee: int
    tip: int


@dataclass(frozen=True, slots=True)
class FeeTerms:
    """All fee figures that a draft fixes; stored as JSON among an attempt's terms."""

    gas: int
    price: GasPrice
    l1_fee_units: int

    @property
    def max_units(self) -> int:
        # A fifth more than the L1 data fee now: it follows L1's base fee until the block is made.
        return self.gas * self.price.max_fee + -(-self.l1_fee_units * 6 // 5)

    def as_terms(self) -> Terms:
        return {
            "gas": self.gas,
            "max_fee_per_gas": self.price.max_fee,
            "max_priority_fee_per_gas": self.price.tip,
            "l1_fee": str(self.l1_fee_units),
        }

    @classmethod
    def from_terms(cls, terms: Terms) -> Self:
        names = ("gas", "max_fee_per_gas", "max_priority_fee_per_gas", "l1_fee")
        gas, max_fee, tip, l1_fee = (int(str(terms[name])) for name in names)
        return cls(gas, GasPrice(max_fee, tip), l1_fee)


def market_price(history: FeeHistory, *, suggested_tip: int | None, is_rollup: bool = False) -> GasPrice:
    """Return a price that survives six full blocks: twice the base fee, and the median of the tips that others paid.

    Whoever chooses the tips of fewer than half of the blocks moves the median neither above nor below those of the
    others. Where most blocks took no tip, as empty ones, the node's suggestion counts, which one transaction can
    raise too: up to 1 gwei, and on a rollup up to the base fee. A majority is bounded as well (`_MAX_TIP`): what lands
    too late is replaced at a higher price.
    """
    base_fee = history.base_fees[-1]  # the next block's
    ordered = sorted(history.tips)
    median = ordered[(len(ordered) - 1) // 2] if ordered else 0
    suggestion = min(suggested_tip or 0, _GWEI, base_fee if is_rollup else _GWEI)
    ceiling = max(_MAX_TIP_PER_BASE_FEE * base_fee, _GWEI if is_rollup else _MAX_TIP)
    tip = min(median or suggestion or 1, ceiling)
    return GasPrice(2 * base_fee + tip, tip)


def gas_limit(estimate: int) -> int:
    """Return a quarter more than the estimate, except for plain transfers, which have fixed gas."""
    return TRANSFER_GAS if estimate == TRANSFER_GAS else -(-estimate * 5 // 4)


def replacement_price(previous: GasPrice, current_price: GasPrice) -> GasPrice:
    """Return the market's price, or 12.5 % above the previous if higher: geth requires 10 % (`txpool.pricebump`)."""
    tip = max(_with_replacement_bump(previous.tip), current_price.tip)
    return GasPrice(max(_with_replacement_bump(previous.max_fee), current_price.max_fee, tip), tip)


def _with_replacement_bump(units: int) -> int:
    return -(-units * 9 // 8) + 1


@dataclass(frozen=True, slots=True)
class CallTarget:
    """What a transaction calls; after `valid_until` (seconds of block time) it can only revert."""

    to: str
    value_units: int
    data: bytes
    valid_until: int | None = field(default=None, compare=False)

    def as_terms(self) -> Terms:
        return {
            "call_to": self.to,
            "call_value": str(self.value_units),
            "call_data": self.data.hex(),
            "valid_until": self.valid_until,
        }

    @classmethod
    def from_terms(cls, terms: Terms) -> Self | None:
        """Read the output of `as_terms`; None for the terms of a plain transfer."""
        if "call_to" not in terms:
            return None
        until, data = terms["valid_until"], bytes.fromhex(str(terms["call_data"]))
        return cls(str(terms["call_to"]), int(str(terms["call_value"])), data, None if until is None else int(until))


def fields_of(chain_id: int, nonce: int, fee: FeeTerms, target: CallTarget) -> dict[str, Any]:
    """Return the fields that EIP-1559 signs, by the names of JSON-RPC."""
    return {
        "type": 2, "chainId": chain_id, "nonce": nonce, "gas": fee.gas,
        "maxFeePerGas": fee.price.max_fee, "maxPriorityFeePerGas": fee.price.tip,
        "to": bytes.fromhex(target.to[2:]), "value": target.value_units, "data": target.data,
    }  # fmt: skip


def digest_of(fields: Mapping[str, Any]) -> bytes:
    """Return what is signed of the fields of a transaction (EIP-1559)."""
    return keccak(encode(fields))


def encode(fields: Mapping[str, Any], *signature: int) -> bytes:
    """Return the bytes of a transaction, with the signature's parity, r and s if it is signed."""
    return _EIP_1559 + bytes(rlp.encode([*(fields[name] for name in _ENCODED), [], *signature]))


def target_of(intent: TransferIntent, terms: Terms, *, usdc: str) -> CallTarget:
    """Return the call that executes an intent: the one in the terms, a plain transfer, or one of a token."""
    call = CallTarget.from_terms(terms)
    if call is not None:
        return call
    contract = usdc if intent.amount.token == USDC else intent.amount.token.contract
    if contract is not None:
        return CallTarget(contract, 0, contracts.TRANSFER.encode(intent.recipient, intent.amount.units))
    return CallTarget(intent.recipient, intent.amount.units, b"")


def sign(fields: Mapping[str, Any], signer: Signer, *, sender: str) -> tuple[bytes, str]:
    """Return the signed bytes and their hash. Raises: ValueError for another key than the sender's."""
    if signer.evm_address != sender:
        raise ValueError("another key than the sender's would sign the transaction")
    raw = encode(fields, *signer.sign_transaction(fields))
    return raw, hash_of(raw)


def hash_of(raw: bytes) -> str:
    return "0x" + keccak(raw).hex()
