"""Logs of a contract, read in ranges of blocks as long as an endpoint accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from app.adapters.evm.client.rpc import call
from app.adapters.evm.client.wire import EventLog
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.core.foreign import Items, reader

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
