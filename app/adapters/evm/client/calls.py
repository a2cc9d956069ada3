"""The calls that several features make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from web3.types import StateOverride, TxParams

from app.adapters.evm.client import wire
from app.adapters.evm.client.rpc import call
from app.adapters.evm.client.wire import BlockHeader, FeeHistory, RpcBlock, RpcTransaction, TransactionReceipt
from app.adapters.jsonrpc.calls import RpcCall
from app.adapters.jsonrpc.replies import RpcError, or_none
from app.ports.chain import BlockRef

T = TypeVar("T")
Block = str | int
Tolerance = Callable[[RpcError], bool]
_DELEGATION = bytes.fromhex("ef0100")


def receipt(tx_hash: str, *, tolerates: Tolerance | None = None) -> RpcCall[TransactionReceipt | None]:
    """Return a call for the receipt of a transaction, or None while it is in no block."""

    def read(fields: Any) -> TransactionReceipt | None:
        if fields is None or fields.get("blockHash") is None:
            return None
        found = TransactionReceipt.read(fields)
        if found.tx_hash != tx_hash:
            raise ValueError("expected the requested receipt")
        return found

    return call(lambda eth: eth.get_transaction_receipt(tx_hash), read, tolerates=tolerates)


def nonce(address: str, block: Block = "latest", *, tolerates: Tolerance | None = None) -> RpcCall[int]:
    """Return a call for how many transactions an address had sent."""
    return call(lambda eth: eth.get_transaction_count(address, block), wire.count, tolerates=tolerates)


def balance(address: str, block: Block = "latest") -> RpcCall[int]:
    return call(lambda eth: eth.get_balance(address, block), wire.units)


def code(address: str) -> RpcCall[bytes]:
    return call(lambda eth: eth.get_code(address, "latest"), bytes)


def storage(address: str, slot: int) -> RpcCall[bytes]:
    return call(lambda eth: eth.get_storage_at(address, slot, "latest"), bytes)


def has_code(address: str) -> RpcCall[bool]:
    """Return a call for whether an address is a contract; an account that delegates to one (EIP-7702) is none."""
    return call(
        lambda eth: eth.get_code(address, "latest"), lambda found: bool(found) and not found.startswith(_DELEGATION)
    )


def head() -> RpcCall[int]:
    """Return a call for the number of the newest block."""
    return call(lambda eth: eth.block_number, wire.count)


def header(block: Block) -> RpcCall[BlockHeader]:
    return call(lambda eth: eth.get_block(block), BlockHeader.read)


def header_or_none(block: Block, *, tolerates: Tolerance | None = None) -> RpcCall[BlockHeader | None]:
    """Return a call for a block that may not exist, by its number: web3 shares the choice among threads."""
    return call(lambda eth: eth.get_block(block), or_none(BlockHeader.read), tolerates=tolerates)


def block(tag: Block) -> RpcCall[BlockRef]:
    return call(lambda eth: eth.get_block(tag), lambda fields: BlockHeader.read(fields).ref)


def whole_block(number: int, *, tolerates: Tolerance | None = None) -> RpcCall[RpcBlock | None]:
    """Return a call for a block with its transactions; it may not exist."""
    return call(lambda eth: eth.get_block(number, full_transactions=True), or_none(RpcBlock.read), tolerates=tolerates)


def fee_history(blocks: int, percentile: float) -> RpcCall[FeeHistory]:
    return call(lambda eth: eth.fee_history(blocks, "latest", [percentile]), FeeHistory.read)


def contract_call(
    transaction: TxParams,
    read: Callable[[bytes], T],
    block: Block = "latest",
    *,
    overrides: StateOverride | None = None,
    tolerates: Tolerance | None = None,
) -> RpcCall[T]:
    """Return a call that executes a transaction without sending it, and reads what the contract returns."""
    return call(lambda eth: eth.call(transaction, block, overrides), read, tolerates=tolerates)


def transaction(tx_hash: str, *, tolerates: Tolerance | None = None) -> RpcCall[RpcTransaction | None]:
    """Return a call for a transaction, or None if the node does not show it."""
    return call(lambda eth: eth.get_transaction(tx_hash), or_none(RpcTransaction.read), tolerates=tolerates)
