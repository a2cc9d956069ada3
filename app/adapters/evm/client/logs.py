"""Logs of a contract, read in ranges of blocks as long as an endpoint accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.adapters.evm.client.wire import EventLog, logs
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint


def read_logs(
    endpoint: RpcEndpoint, contract: str, topics: Sequence[object], *, first: int, last: int
) -> Iterator[tuple[int, Sequence[EventLog]]]:
    """Yield, for each range, its last block and its logs; the accepted range is remembered. Raises: EndpointError."""
    while first <= last:
        until = min(last, first + endpoint.log_range.value - 1)
        query = {"address": contract, "topics": topics, "fromBlock": hex(first), "toBlock": hex(until)}
        call = RpcCall("eth_getLogs", (query,), read=logs, tolerates=accept_any_error)
        endpoint.run([call])
        block_count = until - first + 1
        if call.error is not None:
            if block_count == 1:
                raise EndpointError("logs_refused", perhaps_executed=True, backs_off=False)
            endpoint.log_range.refuse(block_count)
            continue
        endpoint.log_range.accept(block_count)
        if any(log.contract != contract or not first <= log.block.number <= until for log in call.result):
            raise EndpointError("unexpected_answer", perhaps_executed=True)
        yield until, call.result
        first = until + 1
