"""The JSON-RPC calls of an EVM chain, by web3: it forms the requests and reads the results, which are checked here.

`jsonrpc` alone sends them: no middleware, retry, cache, ENS name or off-chain lookup (CCIP) that a caller does not see.
web3 passes on what is missing, of another type or out of range: an error makes the response a malformed one, so that a
lying or broken node is skipped and never produces a wrong figure. Logs are read in ranges of blocks as long as an
endpoint accepts.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar, cast

from eth_utils.address import to_checksum_address
from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field
from web3 import JSONBaseProvider, Web3
from web3.types import RPCEndpoint, RPCResponse, StateOverride, TxParams

from app.adapters.http_client import HttpClient
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, RpcError, accept_any_error, or_none
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.adapters.jsonrpc.rpc import JsonRpc
from app.core.chains import ChainName
from app.core.foreign import ForeignModel, Items, MalformedResponseError, reader
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
    def tips(self) -> list[int]:
        return [tip for (tip,) in self.rewards]


R = TypeVar("R")
_QUANTITIES = frozenset(
    {
        "baseFeePerGas", "blockNumber", "chainId", "effectiveGasPrice", "gas", "gasPrice", "gasUsed", "l1Fee",
        "logIndex", "maxFeePerGas", "maxPriorityFeePerGas", "nonce", "number", "oldestBlock", "reward",
        "status", "timestamp", "transactionIndex", "type", "value",
    }
)  # fmt: skip


class FailoverProvider(JSONBaseProvider):
    """The endpoints of one chain as web3's provider, for reading: only the broadcaster sends transactions."""

    global_ccip_read_enabled = False

    def __init__(self, rpc: JsonRpc) -> None:
        super().__init__()
        self._rpc = rpc

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        return self.make_batch_request([(method, params)])[0]

    def make_batch_request(self, requests: list[tuple[RPCEndpoint, Any]]) -> list[RPCResponse]:
        """Run requests on the first endpoint that answers all of them. Raises: Unreachable, ValueError to send."""
        calls = [RpcCall(method, params, read=lambda result: result) for method, params in requests]
        if any(call.sends for call in calls):
            raise ValueError("transactions are sent by the broadcaster")
        self._rpc.run(*calls)
        return [RPCResponse(jsonrpc="2.0", id=number, result=call.result) for number, call in enumerate(calls)]


WEB3 = Web3(JSONBaseProvider(), middleware=[])
"""Forms requests and encodes calls of contracts, and has no connection."""


def call(
    request: Callable[[Any], object], read: Callable[[Any], R], *, tolerates: Callable[[RpcError], bool] | None = None
) -> RpcCall[R]:
    """Return what web3 would request, to be run with others; `read` checks what web3 reads, and makes a value of it.

    web3's own batches fail by the first error in them, and after the endpoint was chosen. Here each call decides on
    its errors, and another endpoint is used after a malformed result.
    """
    with WEB3.batch_requests():
        # Inside, a method of web3 returns its request, and what formats its result.
        (method, params), (as_web3_formats, *_) = cast("Any", request(WEB3.eth))

    def read_result(result: object) -> R:
        is_text = isinstance(result, str)
        if isinstance(result, int) or _has_decimal_number(result) or (is_text and not str(result).startswith("0x")):
            raise MalformedResponseError("expected hexadecimal numbers")
        try:
            found = as_web3_formats(result)
            # web3 would add a digit.
            is_cut = isinstance(found, bytes) and is_text and len(str(result)) % 2
            return read(None if is_cut else found)
        except (EndpointError, MalformedResponseError):
            raise
        except Exception as error:
            # Their class depends on what the node sent.
            raise MalformedResponseError(f"web3 cannot read it ({type(error).__name__})") from None

    return RpcCall(method, params, read=read_result, tolerates=tolerates)


def _has_decimal_number(result: object, name: str | None = None) -> bool:
    """Return whether a quantity in a result is a decimal text, which web3 would read as a hexadecimal one."""
    if isinstance(result, dict):
        return any(_has_decimal_number(value, key) for key, value in result.items())
    if isinstance(result, list):
        return any(_has_decimal_number(value, name) for value in result)
    return isinstance(result, str) and result.isdecimal() and (name is None or name in _QUANTITIES)


MAX_BATCH = 100


class EvmRpc(JsonRpc):
    def __init__(
        self,
        chain: ChainName,
        *,
        chain_id: int,
        urls: Sequence[str],
        first_number: int = 1,
        connect_seconds: float = 3.0,
        read_seconds: float = 10.0,
    ) -> None:
        """Store the endpoints in the order of preference; logs number them from `first_number`. Raises: ValueError."""

        def check(found: int) -> None:
            if units(found) != chain_id:
                raise EndpointError("wrong_chain", perhaps_executed=False)

        http = HttpClient(connect_seconds=connect_seconds, total_seconds=read_seconds, max_bytes=64 * 2**20)
        super().__init__(
            chain, urls, lambda: call(lambda eth: eth.chain_id, check), http=http, max_batch=MAX_BATCH,
            first_number=first_number,
        )  # fmt: skip
        self.w3 = Web3(FailoverProvider(self), middleware=[])


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
    return call(lambda eth: eth.get_transaction_count(address, block), count, tolerates=tolerates)


def balance(address: str, block: Block = "latest") -> RpcCall[int]:
    return call(lambda eth: eth.get_balance(address, block), units)


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
    return call(lambda eth: eth.block_number, count)


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
