"""The calls that several features make; logs are read in ranges of blocks as long as an endpoint accepts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from web3.types import StateOverride, TxParams

from app.adapters.evm.client import rpc
from app.adapters.evm.client.rpc import (
    BlockHeader,
    EventLog,
    FeeHistory,
    RpcBlock,
    RpcTransaction,
    TransactionReceipt,
    call,
)
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, RpcError, accept_any_error, or_none
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.core.foreign import Items, reader
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
    return call(lambda eth: eth.get_transaction_count(address, block), rpc.count, tolerates=tolerates)


def balance(address: str, block: Block = "latest") -> RpcCall[int]:
    return call(lambda eth: eth.get_balance(address, block), rpc.units)


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
    return call(lambda eth: eth.block_number, rpc.count)


def header(block: Block) -> RpcCall[BlockHeader]:
    return call(lambda eth: eth.get_block(block), BlockHeader.read)


def header_or_none(block: Block, *, tolerates: Tolerance | None = None) -> RpcCall[BlockHeader | None]:
    """Return a call for a block that may not exist, by its number: web3 shares the choice among threads."""
    return call(lambda eth: eth.get_block(block), or_none(BlockHeader.read), tolerates=tolerates)


def block(tag: Block) -> RpcCall[BlockRef]:
    return call(lambda eth: eth.get_block(tag), lambda fields: BlockHeader.read(fields).ref)


def whole_block(number: int, *, tolerates: Tolerance | None = None) -> RpcCall[RpcBlock | None]:
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
    return call(lambda eth: eth.get_transaction(tx_hash), or_none(RpcTransaction.read), tolerates=tolerates)


_read: Callable[[object], tuple[EventLog, ...]] = reader(Items[EventLog])


def logs_call(contract: str, topics: Sequence[Any], *, first: int, last: int) -> RpcCall[tuple[EventLog, ...]]:
    """Return a call for the logs in a range of blocks, which the node may refuse."""
    query: Any = {"address": contract, "topics": topics, "fromBlock": first, "toBlock": last}
    return call(lambda eth: eth.get_logs(query), _read, tolerates=accept_any_error)


def read_logs(
    endpoint: RpcEndpoint, contract: str, topics: Sequence[object], *, first: int, last: int
) -> Iterator[tuple[int, Sequence[EventLog]]]:
    """Yield, for each range, its last block and its logs; the accepted range is remembered. Raises: EndpointError."""
    while first <= last:
        until = min(last, first + endpoint.log_range.value - 1)
        logs = logs_call(contract, topics, first=first, last=until)
        endpoint.run([logs])
        block_count = until - first + 1
        if logs.error is not None:
            if block_count == 1:
                raise EndpointError("logs_refused", perhaps_executed=True, backs_off=False)
            endpoint.log_range.refuse(block_count)
            continue
        endpoint.log_range.accept(block_count)
        if any(log.contract != contract or not first <= log.block_number <= until for log in logs.result):
            raise EndpointError("unexpected_answer", perhaps_executed=True)
        yield until, logs.result
        first = until + 1
