"""The calls that several features make."""

from __future__ import annotations

from collections.abc import Callable

from app.adapters.evm.client import wire
from app.adapters.jsonrpc.calls import RpcCall
from app.adapters.jsonrpc.replies import MalformedResponseError, RpcError, or_none
from app.ports.chain import BlockRef

Tolerance = Callable[[RpcError], bool]
_DELEGATION = bytes.fromhex("ef0100")


def receipt(tx_hash: str, *, tolerates: Tolerance | None = None) -> RpcCall[wire.TransactionReceipt | None]:
    """Return a call for the receipt of a transaction, or None while it is in no block."""

    def read(result: object) -> wire.TransactionReceipt | None:
        found = wire.receipt_or_none(result)
        if found is not None and found.tx_hash != tx_hash:
            raise MalformedResponseError("expected the requested receipt")
        return found

    return RpcCall("eth_getTransactionReceipt", (tx_hash,), read=read, tolerates=tolerates)


def nonce(address: str, block: str = "latest", *, tolerates: Tolerance | None = None) -> RpcCall[int]:
    """Return a call for how many transactions an address had sent."""
    return RpcCall("eth_getTransactionCount", (address, block), read=wire.count, tolerates=tolerates)


def balance(address: str, block: str = "latest") -> RpcCall[int]:
    return RpcCall("eth_getBalance", (address, block), read=wire.quantity)


def has_code(address: str) -> RpcCall[bool]:
    """Return a call for whether an address is a contract; an account that delegates to one (EIP-7702) is none."""
    return RpcCall("eth_getCode", (address, "latest"), read=_is_contract)


def _is_contract(result: object) -> bool:
    code = wire.hex_bytes(result)
    return bool(code) and not code.startswith(_DELEGATION)


def head() -> RpcCall[int]:
    """Return a call for the number of the newest block."""
    return RpcCall("eth_blockNumber", (), read=wire.count)


def block(tag: str) -> RpcCall[BlockRef]:
    return RpcCall("eth_getBlockByNumber", (tag, False), read=wire.block_ref)


def block_or_none(tag: str, *, tolerates: Tolerance | None = None) -> RpcCall[BlockRef | None]:
    """Return a call for a block that may not exist."""
    return RpcCall("eth_getBlockByNumber", (tag, False), read=or_none(wire.block_ref), tolerates=tolerates)


def whole_block(number: int, *, tolerates: Tolerance | None = None) -> RpcCall[wire.RpcBlock | None]:
    """Return a call for a block with its transactions; it may not exist."""
    return RpcCall("eth_getBlockByNumber", (hex(number), True), read=wire.block_or_none, tolerates=tolerates)


def transaction_input(tx_hash: str) -> RpcCall[bytes]:
    """Return a call for the input of a transaction; empty if the node does not show it."""

    def read(result: object) -> bytes:
        if result is None:
            return b""
        if not isinstance(result, dict):
            raise MalformedResponseError("expected a transaction")
        return wire.hex_bytes(result.get("input"))

    return RpcCall("eth_getTransactionByHash", (tx_hash,), read=read)
