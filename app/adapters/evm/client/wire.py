"""Strict parsing of nodes' responses, after the Ethereum JSON-RPC specification.

Any other shape is a `MalformedResponseError`, so that a lying or broken node is skipped and never produces a wrong
figure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from eth_utils.address import to_checksum_address

from app.adapters.jsonrpc.replies import MalformedResponseError
from app.ports.chain import BlockRef

_QUANTITY = re.compile(r"0x[0-9a-fA-F]{1,64}", re.ASCII)
_BYTES = re.compile(r"0x(?:[0-9a-fA-F]{2})*", re.ASCII)
_HASH = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_COUNT_LIMIT = 2**63
_FEE_LIMIT = 2**128


@dataclass(frozen=True, slots=True)
class EventLog:
    """A log entry of a contract in a transaction; `index` is its position in the block."""

    contract: str
    topics: tuple[str, ...]
    data: bytes
    index: int
    tx_hash: str
    block: BlockRef


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """A transaction in a block; `l1_fee_units` is the L1 data fee if the node reports it (op-geth does)."""

    tx_hash: str
    block: BlockRef
    succeeded: bool
    gas_used: int
    gas_price_units: int
    l1_fee_units: int | None
    logs: tuple[EventLog, ...] = ()


@dataclass(frozen=True, slots=True)
class RpcTransaction:
    """A transaction as a block lists it; `fields` is the complete entry."""

    tx_hash: str
    sender: str
    recipient: str | None
    value_units: int
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RpcBlock:
    ref: BlockRef
    transactions: tuple[RpcTransaction, ...]


@dataclass(frozen=True, slots=True)
class FeeHistory:
    """Fees of recent blocks: the next block's base fee, and the priority fees paid at the requested percentile."""

    next_base_fee: int
    tips: tuple[int, ...]


def quantity(result: object) -> int:
    """Read a hexadecimal number of at most 256 bits."""
    if not isinstance(result, str) or not _QUANTITY.fullmatch(result):
        raise MalformedResponseError("expected a quantity")
    return int(result, 16)


def count(result: object) -> int:
    """Read a block's number, a nonce, an amount of gas or a position in a list: what fits a database's BIGINT."""
    return _require_below(_COUNT_LIMIT, quantity(result))


def fee(result: object) -> int:
    """Read a fee or a price of gas, in wei: less than can overflow in any product with gas."""
    return fee_units(quantity(result))


def fee_units(units: int) -> int:
    """Return a fee in wei that a contract returned, after a range check. Raises: MalformedResponseError."""
    return _require_below(_FEE_LIMIT, units)


def hex_bytes(result: object) -> bytes:
    if not isinstance(result, str) or not _BYTES.fullmatch(result):
        raise MalformedResponseError("expected bytes")
    return bytes.fromhex(result[2:])


def hash32(result: object) -> str:
    """Read a 32-byte hash, in lower case."""
    if not isinstance(result, str) or not _HASH.fullmatch(result):
        raise MalformedResponseError("expected a hash")
    return result.lower()


def address(result: object) -> str:
    """Read an address, in EIP-55 form."""
    if not isinstance(result, str) or not _ADDRESS.fullmatch(result):
        raise MalformedResponseError("expected an address")
    return str(to_checksum_address(result))


def block_ref(result: object) -> BlockRef:
    """Read number and hash of a block."""
    fields = _fields(result)
    return BlockRef(count(fields.get("number")), hash32(fields.get("hash")))


def block_time(result: object) -> int:
    """Read a block's timestamp, in seconds."""
    return count(_fields(result).get("timestamp"))


def block_or_none(result: object) -> RpcBlock | None:
    """Read a block that was requested with its transactions, and that may not exist."""
    if result is None:
        return None
    listed = _fields(result).get("transactions")
    if not isinstance(listed, list):
        raise MalformedResponseError("expected a block with transactions")
    return RpcBlock(block_ref(result), tuple(_transaction(entry) for entry in listed))


def receipt_or_none(result: object) -> TransactionReceipt | None:
    """Read a receipt, or None while the transaction is in no block."""
    if result is None:
        return None
    fields = _fields(result)
    if fields.get("blockHash") is None:
        return None
    l1_fee = fields.get("l1Fee")
    status = quantity(fields.get("status"))
    if status not in (0, 1):
        raise MalformedResponseError("expected a receipt's status")
    return TransactionReceipt(
        tx_hash=hash32(fields.get("transactionHash")),
        block=BlockRef(count(fields.get("blockNumber")), hash32(fields.get("blockHash"))),
        succeeded=status == 1,
        gas_used=count(fields.get("gasUsed")),
        gas_price_units=fee(fields.get("effectiveGasPrice")),
        l1_fee_units=None if l1_fee is None else fee(l1_fee),
        logs=logs(fields.get("logs")),
    )


def logs(result: object) -> tuple[EventLog, ...]:
    """Read logs, in the order of the node."""
    if not isinstance(result, list):
        raise MalformedResponseError("expected logs")
    return tuple(_log(_fields(entry)) for entry in result)


def _log(fields: Mapping[str, object]) -> EventLog:
    topics = fields.get("topics")
    if fields.get("removed") or not isinstance(topics, list):
        raise MalformedResponseError("expected a log's topics")
    return EventLog(
        contract=address(fields.get("address")),
        topics=tuple(hash32(topic) for topic in topics),
        data=hex_bytes(fields.get("data")),
        index=count(fields.get("logIndex")),
        tx_hash=hash32(fields.get("transactionHash")),
        block=BlockRef(count(fields.get("blockNumber")), hash32(fields.get("blockHash"))),
    )


def fee_history(result: object) -> FeeHistory:
    """Read `eth_feeHistory` that was requested for one percentile."""
    fields = _fields(result)
    base_fees, rewards = fields.get("baseFeePerGas"), fields.get("reward")
    if not isinstance(base_fees, list) or not base_fees:
        raise MalformedResponseError("expected base fees")
    if not isinstance(rewards, list) or not all(isinstance(row, list) and row for row in rewards):
        raise MalformedResponseError("expected priority fees")
    return FeeHistory(fee(base_fees[-1]), tuple(fee(row[0]) for row in rewards))


def _transaction(result: object) -> RpcTransaction:
    fields = _fields(result)
    recipient = fields.get("to")
    return RpcTransaction(
        tx_hash=hash32(fields.get("hash")),
        sender=address(fields.get("from")),
        recipient=None if recipient is None else address(recipient),
        value_units=quantity(fields.get("value")),
        fields=fields,
    )


def _require_below(limit: int, number: int) -> int:
    if number >= limit:
        raise MalformedResponseError("expected a number within the chain's range")
    return number


def _fields(result: object) -> Mapping[str, object]:
    if not isinstance(result, dict):
        raise MalformedResponseError("expected an object")
    return result
