"""Checks of what web3 reads from nodes' responses: it passes on what is missing, of another type or out of range.

An error makes the response a malformed one, so that a lying or broken node is skipped and never produces a wrong
figure.
"""

from collections.abc import Callable
from typing import Annotated, Literal

from eth_utils.address import to_checksum_address
from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field

from app.core.foreign import ForeignModel, Items, reader
from app.ports.chain import BlockRef

_HASH_BYTES = 32


def _hash_text(value: object) -> str:
    if not isinstance(value, bytes) or len(value) != _HASH_BYTES:
        raise ValueError("expected a hash")
    return "0x" + value.hex()


def _from_hex(value: object) -> object:
    return int(value, 16) if isinstance(value, str) else value


_Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
_Fee = Annotated[int, Field(strict=True, ge=0, lt=2**128)]
_Units = Annotated[int, Field(strict=True, ge=0, lt=2**256)]
_Hash = Annotated[str, BeforeValidator(_hash_text)]
_Address = Annotated[str, BeforeValidator(to_checksum_address)]

count: Callable[[object], int] = reader(_Count)
"""A block's number, a nonce, an amount of gas or a position in a list: what fits a database's BIGINT."""
fee: Callable[[object], int] = reader(_Fee)
"""A fee or a price of gas, in wei: less than can overflow in any product with gas."""
units: Callable[[object], int] = reader(_Units)


class _Fields(ForeignModel):
    model_config = ConfigDict(strict=False)  # web3's dictionaries are of its own class, its lists may be tuples


class _InBlock(_Fields):
    block_number: _Count
    block_hash: _Hash
    tx_hash: _Hash = Field(alias="transactionHash")

    @property
    def block(self) -> BlockRef:
        return BlockRef(self.block_number, self.block_hash)


class EventLog(_InBlock):
    """A log entry of a contract in a transaction; `index` is its position in the block."""

    contract: str = Field(alias="address")
    topics: tuple[_Hash, ...]
    data: bytes = Field(strict=True)
    index: _Count = Field(alias="logIndex")
    removed: Literal[False] | None = None


class TransactionReceipt(_InBlock):
    """A transaction in a block; `l1_fee_units` is the L1 data fee if the node reports it (op-geth does)."""

    status: Literal[0, 1]
    gas_used: _Count
    gas_price_units: _Fee = Field(alias="effectiveGasPrice")
    # A field of op-geth's, which web3 leaves in hexadecimal.
    l1_fee_units: Annotated[_Fee | None, BeforeValidator(_from_hex)] = Field(None, alias="l1Fee")
    logs: Items[EventLog]

    @property
    def succeeded(self) -> bool:
        return self.status == 1


class RpcTransaction(_Fields):
    """A transaction as a block lists it, with all of its other fields in `model_extra`."""

    model_config = ConfigDict(extra="allow")

    tx_hash: _Hash = Field(alias="hash")
    sender: str = Field(alias="from")
    recipient: _Address | None = Field(alias="to")
    value_units: _Units = Field(alias="value")
    nonce: _Count
    data: bytes = Field(strict=True, validation_alias=AliasChoices("input", "data"))


class BlockHeader(_Fields):
    number: _Count
    hash: _Hash
    time: _Count = Field(alias="timestamp")

    @property
    def ref(self) -> BlockRef:
        return BlockRef(self.number, self.hash)


class RpcBlock(BlockHeader):
    transactions: Items[RpcTransaction]


class FeeHistory(_Fields):
    base_fees: tuple[_Fee, ...] = Field(alias="baseFeePerGas", min_length=1)
    rewards: tuple[tuple[_Fee], ...] = Field(alias="reward")

    @property
    def next_base_fee(self) -> int:
        return self.base_fees[-1]

    @property
    def tips(self) -> list[int]:
        return [tip for (tip,) in self.rewards]
