"""Reads what nodes answer, strictly, after the Ethereum JSON-RPC specification.

Whatever has another shape is a `MalformedAnswerError`, so that a lying or broken node is passed over and
never becomes a wrong figure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from eth_utils.address import to_checksum_address

from app.adapters.json_rpc import MalformedAnswerError
from app.ports.chain import BlockRef

_QUANTITY = re.compile(r"0x[0-9a-fA-F]{1,64}", re.ASCII)
_BYTES = re.compile(r"0x(?:[0-9a-fA-F]{2})*", re.ASCII)
_HASH = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_COUNT_LIMIT = 2**63
_FEE_LIMIT = 2**128


@dataclass(frozen=True, slots=True)
class Log:
    """What a contract said in a transaction."""

    contract: str
    topics: tuple[str, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Receipt:
    """A transaction in a block; `l1_fee_units` is the L1 data fee where the node tells it (op-geth does)."""

    tx_hash: str
    block: BlockRef
    succeeded: bool
    gas_used: int
    price_units: int
    l1_fee_units: int | None
    logs: tuple[Log, ...] = ()


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction as a block lists it; `fields` is the whole entry as it came."""

    tx_hash: str
    sender: str
    recipient: str | None
    value_units: int
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Block:
    """A block with all of its transactions."""

    ref: BlockRef
    transactions: tuple[Transaction, ...]


@dataclass(frozen=True, slots=True)
class FeeHistory:
    """What blocks cost: the next block's base fee, and the priority fees paid at the asked percentile."""

    next_base_fee: int
    tips: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransferLog:
    """An ERC-20 transfer; `index` is the log's place in its block."""

    contract: str
    payer: str
    recipient: str
    units: int
    tx_hash: str
    block: BlockRef
    index: int


def quantity(answer: object) -> int:
    """Read a hexadecimal number of at most 256 bits."""
    if not isinstance(answer, str) or not _QUANTITY.fullmatch(answer):
        raise MalformedAnswerError("expected a quantity")
    return int(answer, 16)


def count(answer: object) -> int:
    """Read a block's number, a nonce, an amount of gas or a place in a list: what fits a database's BIGINT."""
    return _below(_COUNT_LIMIT, quantity(answer))


def fee(answer: object) -> int:
    """Read a fee or a price of gas, in wei: less than can overflow in any product with gas."""
    return fee_units(quantity(answer))


def fee_units(units: int) -> int:
    """Return a fee that a contract told, in wei, when it is one. Raises: MalformedAnswerError."""
    return _below(_FEE_LIMIT, units)


def octets(answer: object) -> bytes:
    """Read hexadecimal bytes."""
    if not isinstance(answer, str) or not _BYTES.fullmatch(answer):
        raise MalformedAnswerError("expected bytes")
    return bytes.fromhex(answer[2:])


def hash32(answer: object) -> str:
    """Read a 32-byte hash, in lower case."""
    if not isinstance(answer, str) or not _HASH.fullmatch(answer):
        raise MalformedAnswerError("expected a hash")
    return answer.lower()


def address(answer: object) -> str:
    """Read an address, in EIP-55 form."""
    if not isinstance(answer, str) or not _ADDRESS.fullmatch(answer):
        raise MalformedAnswerError("expected an address")
    return str(to_checksum_address(answer))


def block_ref(answer: object) -> BlockRef:
    """Read number and hash of a block."""
    fields = _fields(answer)
    return BlockRef(count(fields.get("number")), hash32(fields.get("hash")))


def block_time(answer: object) -> int:
    """Read when a block was made, in seconds."""
    return count(_fields(answer).get("timestamp"))


def block_ref_or_none(answer: object) -> BlockRef | None:
    """Read number and hash of a block that may not exist."""
    return None if answer is None else block_ref(answer)


def block_or_none(answer: object) -> Block | None:
    """Read a block that was asked for with its transactions, and that may not exist."""
    if answer is None:
        return None
    listed = _fields(answer).get("transactions")
    if not isinstance(listed, list):
        raise MalformedAnswerError("expected a block with transactions")
    return Block(block_ref(answer), tuple(_transaction(entry) for entry in listed))


def receipt_or_none(answer: object) -> Receipt | None:
    """Read a receipt, or None while the transaction is in no block."""
    if answer is None:
        return None
    fields = _fields(answer)
    if fields.get("blockHash") is None:
        return None
    l1_fee = fields.get("l1Fee")
    status = quantity(fields.get("status"))
    if status not in (0, 1):
        raise MalformedAnswerError("expected a receipt's status")
    return Receipt(
        tx_hash=hash32(fields.get("transactionHash")),
        block=BlockRef(count(fields.get("blockNumber")), hash32(fields.get("blockHash"))),
        succeeded=status == 1,
        gas_used=count(fields.get("gasUsed")),
        price_units=fee(fields.get("effectiveGasPrice")),
        l1_fee_units=None if l1_fee is None else fee(l1_fee),
        logs=_logs(fields.get("logs")),
    )


def _logs(answer: object) -> tuple[Log, ...]:
    if not isinstance(answer, list):
        raise MalformedAnswerError("expected a receipt's logs")
    found = []
    for entry in answer:
        fields = _fields(entry)
        topics = fields.get("topics")
        if not isinstance(topics, list):
            raise MalformedAnswerError("expected a log's topics")
        topics_read = tuple(hash32(topic) for topic in topics)
        found.append(Log(address(fields.get("address")), topics_read, octets(fields.get("data"))))
    return tuple(found)


def fee_history(answer: object) -> FeeHistory:
    """Read `eth_feeHistory` that was asked for one percentile."""
    fields = _fields(answer)
    base_fees, rewards = fields.get("baseFeePerGas"), fields.get("reward")
    if not isinstance(base_fees, list) or not base_fees:
        raise MalformedAnswerError("expected base fees")
    if not isinstance(rewards, list) or not all(isinstance(row, list) and row for row in rewards):
        raise MalformedAnswerError("expected priority fees")
    return FeeHistory(fee(base_fees[-1]), tuple(fee(row[0]) for row in rewards))


def transfer_logs(answer: object) -> tuple[TransferLog, ...]:
    """Read logs of ERC-20's `Transfer(address indexed from, address indexed to, uint256 value)`."""
    if not isinstance(answer, list):
        raise MalformedAnswerError("expected logs")
    return tuple(_transfer_log(_fields(entry)) for entry in answer)


def _transfer_log(fields: Mapping[str, object]) -> TransferLog:
    topics = fields.get("topics")
    data = octets(fields.get("data"))
    if fields.get("removed") or not isinstance(topics, list) or len(topics) != 3 or len(data) != 32:  # noqa: PLR2004
        raise MalformedAnswerError("expected transfer logs")
    return TransferLog(
        contract=address(fields.get("address")),
        payer=_address_in_topic(topics[1]),
        recipient=_address_in_topic(topics[2]),
        units=int.from_bytes(data, "big"),
        tx_hash=hash32(fields.get("transactionHash")),
        block=BlockRef(count(fields.get("blockNumber")), hash32(fields.get("blockHash"))),
        index=count(fields.get("logIndex")),
    )


def _address_in_topic(topic: object) -> str:
    word = hash32(topic)
    if word[2:26] != "0" * 24:
        raise MalformedAnswerError("expected an address in a topic")
    return address("0x" + word[26:])


def _transaction(answer: object) -> Transaction:
    fields = _fields(answer)
    recipient = fields.get("to")
    return Transaction(
        tx_hash=hash32(fields.get("hash")),
        sender=address(fields.get("from")),
        recipient=None if recipient is None else address(recipient),
        value_units=quantity(fields.get("value")),
        fields=fields,
    )


def _below(limit: int, number: int) -> int:
    if number >= limit:
        raise MalformedAnswerError("expected a number that the chain can reach")
    return number


def _fields(answer: object) -> Mapping[str, object]:
    if not isinstance(answer, dict):
        raise MalformedAnswerError("expected an object")
    return answer
