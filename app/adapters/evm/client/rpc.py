"""The JSON-RPC endpoints of an EVM chain, by web3: it forms the requests and reads the results.

`jsonrpc` alone sends them: no middleware, retry, cache, ENS name or off-chain lookup (CCIP) that a caller does not see.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from web3 import JSONBaseProvider, Web3
from web3.types import RPCEndpoint, RPCResponse

from app.adapters.evm.client.wire import units
from app.adapters.http_client import HttpClient
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, WrongChainError
from app.adapters.jsonrpc.replies import RpcError
from app.adapters.jsonrpc.rpc import JsonRpc
from app.core.chains import ChainName
from app.core.foreign import MalformedResponseError

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
_MAX_RESPONSE_BYTES = 64 * 2**20


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
                raise WrongChainError

        http = HttpClient(connect_seconds=connect_seconds, total_seconds=read_seconds, max_bytes=_MAX_RESPONSE_BYTES)
        super().__init__(
            chain,
            urls,
            lambda: call(lambda eth: eth.chain_id, check),
            http=http,
            max_batch=MAX_BATCH,
            first_number=first_number,
        )
        self.w3 = Web3(FailoverProvider(self), middleware=[])
