"""The endpoints of one chain as one, in the operator's order.

Reads fail over to the next endpoint; one that failed is used last for a while. Signed transactions are sent by
`Broadcaster` only, which decides what a refusal and a lost response mean.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from app.adapters.http_client import HttpClient
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, RpcErrorKind
from app.adapters.jsonrpc.endpoint import ChainIdentity, RpcEndpoint
from app.adapters.reachability import connection_problem, host_of
from app.core.chains import ChainName
from app.ports.chain import ChainDiagnosis, EndpointStatus
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable

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
        """Return the result of the first endpoint that does not fail. Raises: Unreachable("chain_unreachable")."""
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
                problem = connection_problem(endpoint.url) if failure.reason == "not_sent" else None
                states.append(EndpointStatus(endpoint.number, host_of(endpoint.url), problem or failure.reason))
            else:
                states.append(EndpointStatus(endpoint.number, host_of(endpoint.url), height=call.result))
        return ChainDiagnosis(tuple(states), tuple(missing or ()))


@dataclass(frozen=True, slots=True)
class Broadcaster:
    """Sends the signed transactions of one chain; sending the same bytes twice is harmless."""

    rpc: JsonRpc
    send_call: Callable[[bytes], RpcCall[Any]]
    refusals: Sequence[tuple[str, str]]
    """Words of error messages, and the reason that they prove."""
    is_accepted: Callable[[str, bytes], bool]
    """Whether the network has these very bytes in spite of a reason."""

    def broadcast(self, raw: bytes) -> None:
        """Send to the first endpoint that answers. What a node may have accepted is never reported as refused.

        Raises: Rejected, Unreachable (no endpoint can have received it), OutcomeUnknown; ValueError for other bytes.
        """
        may_be_accepted = False
        for endpoint in self.rpc.candidates():
            try:
                reason = self._send(endpoint, raw)
            except EndpointError as failure:
                endpoint.back_off(failure)
                may_be_accepted = may_be_accepted or failure.perhaps_executed
                continue
            endpoint.recover()
            if reason is None or self.is_accepted(reason, raw):
                return
            if may_be_accepted:
                break
            raise Rejected(reason)
        if may_be_accepted:
            raise OutcomeUnknown("answer_lost")
        raise Unreachable("chain_unreachable")

    def rebroadcast(self, raws: Sequence[bytes]) -> None:
        """Send many again in few requests, whatever the result of each. Raises: Unreachable."""
        sends = []
        for raw in raws:
            with suppress(ValueError):  # bytes that are no transaction must not stop the others
                sends.append(self.send_call(raw))
        self.rpc.run(*sends)

    def _send(self, endpoint: RpcEndpoint, raw: bytes) -> str | None:
        """Return why an endpoint refused; None if it did not. Raises: EndpointError if that is unknown."""
        send = self.send_call(raw)
        endpoint.run([send])
        if send.error is None:
            return None
        reason = send.error.look_up(self.refusals)
        # "Response too large" is about the response: the transaction may have been accepted.
        if reason is None or send.error.kind is RpcErrorKind.BATCH_LIMIT:
            raise EndpointError.of(send.error)
        return reason
