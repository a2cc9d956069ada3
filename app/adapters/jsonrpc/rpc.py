"""The endpoints of one chain as one, in the operator's order.

Reads fail over to the next endpoint; one that failed is used last for a while. Transactions are sent by `Broadcaster`
only, which decides what a lost response means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from app.adapters.http_client import HttpClient
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, WrongChainError
from app.adapters.jsonrpc.endpoint import ChainIdentity, RpcEndpoint
from app.core.chains import ChainName
from app.ports.chain import ChainDiagnosis, EndpointStatus
from app.ports.errors import Rejected, Unreachable

T = TypeVar("T")


class JsonRpc:
    """The endpoints of one chain. Opens no connection before its first call, so that it survives a fork."""

    def __init__(
        self,
        chain: ChainName,
        urls: Sequence[str],
        identity: ChainIdentity,
        *,
        http: HttpClient,
        max_batch: int,
        first_number: int = 1,
    ) -> None:
        """Store at least one endpoint. Raises: ValueError."""
        if not urls:
            raise ValueError(f"{chain.value} needs at least one RPC endpoint")
        self._chain = chain
        self.endpoints = tuple(
            RpcEndpoint(http, url, identity, chain=chain, number=number, max_batch=max_batch)
            for number, url in enumerate(urls, first_number)
        )
        """All endpoints in the operator's order."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._chain.value!r}, endpoints={len(self.endpoints)})"

    def run(self, *calls: RpcCall[Any]) -> None:
        """Run calls in order on the first endpoint that answers all of them. Raises: Unreachable."""
        if calls:
            self.run_on_first(lambda endpoint: endpoint.run(calls))

    def ask(self, call: RpcCall[T]) -> T:
        """Run one call that tolerates no error, and return its result. Raises: Unreachable."""
        self.run(call)
        return call.result

    def run_on_first(self, operation: Callable[[RpcEndpoint], T]) -> T:
        """Return the result of `operation` for the first endpoint that does not fail.

        Raises: Unreachable("chain_unreachable") when all of them do.
        """
        failures: list[EndpointError] = []
        for result in self.run_on_each(operation, failures=failures):
            return result
        raise Unreachable("chain_unreachable") from failures[-1]

    def run_on_each(
        self, operation: Callable[[RpcEndpoint], T], *, failures: list[EndpointError] | None = None
    ) -> Iterator[T]:
        """Yield the result of `operation` for every endpoint that does not fail, possibly none; add the failures."""
        for endpoint in self.candidates():
            try:
                result = operation(endpoint)
            except EndpointError as failure:
                endpoint.back_off(failure)
                if failures is not None:
                    failures.append(failure)
            else:
                endpoint.recover()
                yield result

    def candidates(self) -> Sequence[RpcEndpoint]:
        """Return all endpoints in the operator's order, recently failed ones last."""
        return sorted(self.endpoints, key=lambda endpoint: endpoint.is_backing_off)

    def verify_identity(self) -> None:
        """Check that no endpoint that answers serves another chain.

        Raises: Rejected("wrong_chain"), Unreachable when none answers.
        """
        answered = False
        for endpoint in self.endpoints:
            try:
                endpoint.identify()
                answered = True
            except WrongChainError:
                raise Rejected("wrong_chain", details={"endpoint": str(endpoint.number)}) from None
            except EndpointError as failure:
                endpoint.back_off(failure)
        if not answered:
            raise Unreachable("chain_unreachable")

    def diagnose(
        self, height: Callable[[], RpcCall[int]], missing_contracts: Callable[[RpcEndpoint], Sequence[str]]
    ) -> ChainDiagnosis:
        """Query every endpoint for its chain and height, and the first usable one for the contracts."""
        states, missing = [], None
        for endpoint in self.endpoints:
            call = height()
            try:
                # Queried again: an earlier response proves nothing about the node that answers there today.
                endpoint.identify()
                endpoint.run([call])
                missing = missing_contracts(endpoint) if missing is None else missing
            except EndpointError as failure:
                states.append(EndpointStatus(endpoint.number, failure.reason))
            else:
                states.append(EndpointStatus(endpoint.number, height=call.result))
        return ChainDiagnosis(tuple(states), tuple(missing or ()))
