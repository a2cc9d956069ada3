"""What a deposit in the portal says, and the transaction on the other chain that follows from it. Pure.

Source: specs.optimism.io, "Deposits": source hash, opaque fields, and the transaction type 0x7e.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import rlp  # type: ignore[import-untyped]  # ships no types
from eth_abi.abi import encode
from eth_utils.crypto import keccak

from app.adapters.evm.transactions import Target
from app.adapters.evm.wire import address, count, hash32, octets, quantity
from app.adapters.json_rpc import MalformedAnswerError
from app.ports.chain import BlockRef

_DEPOSIT = bytes.fromhex("e9e05c42")  # depositTransaction(address,uint256,uint64,bool,bytes)
_DEPOSITED_TOPIC = "0xb3813568d9991fc951961fcb4c784893574240a28925604d09fc577c55bb7c32"
"""keccak of `TransactionDeposited(address,address,uint256,bytes)`."""
_TYPE = b"\x7e"
_GAS = 21_000
"""What a plain transfer to oneself needs; the portal burns about as much on Ethereum."""
_TOPICS = 4
_OPAQUE = 73
"""Mint, value, gas and a flag; the call's data follow."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A transaction on the other chain, once it was executed."""

    tx_hash: str
    block: BlockRef


def call(portal: str, recipient: str, units: int) -> Target:
    """Return the call that sends ether to an address of the other chain."""
    said = encode(["address", "uint256", "uint64", "bool", "bytes"], [recipient, units, _GAS, False, b""])
    return Target(portal, units, _DEPOSIT + said)


def hashes_in(receipt: object, *, portal: str, sender: str) -> tuple[str, ...] | None:
    """Return the hashes of the transactions that the deposits in a receipt become, None without a receipt.

    Raises: MalformedAnswerError.
    """
    if receipt is None:
        return None
    logs = _members(receipt).get("logs")
    if not isinstance(logs, list):
        raise MalformedAnswerError("expected a receipt's logs")
    found = []
    for entry in logs:
        log = _members(entry)
        topics = log.get("topics")
        if not isinstance(topics, list) or len(topics) != _TOPICS:
            continue
        is_deposit = hash32(topics[0]) == _DEPOSITED_TOPIC and address(log.get("address")) == portal
        if is_deposit and address("0x" + hash32(topics[1])[26:]) == sender:
            found.append(_hash_of(log, topics))
    return tuple(found)


def derived(receipt: object) -> Derived | None:
    """Read the receipt of such a transaction; None while it was not executed. Raises: MalformedAnswerError.

    Whether it succeeded is of no interest: what was deposited is its sender's in any case.
    """
    if receipt is None:
        return None
    fields = _members(receipt)
    return Derived(
        tx_hash=hash32(fields.get("transactionHash")),
        block=BlockRef(count(fields.get("blockNumber")), hash32(fields.get("blockHash"))),
    )


def _hash_of(log: dict[str, Any], topics: list[Any]) -> str:
    content = octets(log.get("data"))
    length = int.from_bytes(content[32:64], "big")
    opaque = content[64 : 64 + length]
    if len(opaque) != length or length < _OPAQUE:
        raise MalformedAnswerError("expected a deposit's fields")
    sender, to = (bytes.fromhex(hash32(topic)[26:]) for topic in topics[1:3])
    mint, value, gas = (
        int.from_bytes(opaque[start:end], "big") for start, end in ((0, 32), (32, 64), (64, 72))
    )
    place = bytes.fromhex(hash32(log.get("blockHash"))[2:]) + quantity(log.get("logIndex")).to_bytes(
        32, "big"
    )
    source = keccak(bytes(32) + keccak(place))
    fields = [source, sender, to, mint, value, gas, 0, opaque[_OPAQUE:]]
    return "0x" + keccak(_TYPE + bytes(rlp.encode(fields))).hex()


def _members(answer: object) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise MalformedAnswerError("expected an object")
    return answer
