"""The deposits of the portal, and the transactions on the other chain that result from them. No I/O.

Source: specs.optimism.io, "Deposits": source hash, opaque fields, and the transaction type 0x7e.
"""

from __future__ import annotations

import rlp  # type: ignore[import-untyped]  # ships no types
from eth_utils.crypto import keccak

from app.adapters.evm.client.wire import TransactionReceipt
from app.adapters.evm.contracts.abi import ContractEvent, Function
from app.adapters.evm.send.transactions import CallTarget
from app.core.foreign import MalformedResponseError

_DEPOSIT = Function("optimism_portal", "depositTransaction")
_DEPOSITED_EVENT = ContractEvent("optimism_portal", "TransactionDeposited")
"""Sender, recipient, version, opaque fields."""
_TYPE = b"\x7e"
_GAS = 21_000
"""The gas of a plain transfer to oneself; the portal burns about as much on Ethereum."""
_OPAQUE = 73
"""Mint, value, gas and a flag; the call's data follow."""


def deposit_call(portal: str, recipient: str, units: int) -> CallTarget:
    """Return the call that sends ether to an address of the other chain."""
    return CallTarget(portal, units, _DEPOSIT.encode(recipient, units, _GAS, False, b""))  # noqa: FBT003 - creates no contract


def derived_hashes(receipt: TransactionReceipt | None, *, portal: str, sender: str) -> tuple[str, ...]:
    """Return the hashes of the transactions that result from a receipt's deposits. Raises: MalformedResponseError."""
    found = []
    for log in receipt.logs if receipt is not None else ():
        fields = _DEPOSITED_EVENT.decode(log) if log.contract == portal else None
        if fields is not None and fields[0] == sender:
            _sender, recipient, _version, opaque = fields
            place = bytes.fromhex(log.block.hash[2:]) + log.index.to_bytes(32, "big")
            found.append(_hash(place, sender, recipient, opaque))
    return tuple(found)


def _hash(place: bytes, sender: str, recipient: str, opaque: bytes) -> str:
    if len(opaque) < _OPAQUE:
        raise MalformedResponseError("expected a deposit's fields")
    mint, value, gas = (int.from_bytes(opaque[start:end], "big") for start, end in ((0, 32), (32, 64), (64, 72)))
    source = keccak(bytes(32) + keccak(place))
    addresses = [bytes.fromhex(address[2:]) for address in (sender, recipient)]
    fields = [source, *addresses, mint, value, gas, 0, opaque[_OPAQUE:]]
    return "0x" + keccak(_TYPE + bytes(rlp.encode(fields))).hex()
