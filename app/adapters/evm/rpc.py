"""The only way to a chain's nodes: several endpoints as one, asked in the operator's order.

Reads go on to the next endpoint when one is silent or talks nonsense; one that failed is spared for a while.
Transactions are never sent from here: `broadcasts` walks the endpoints itself, for it alone knows what a lost
answer means. web3 may use this as a provider for reading, e.g. `Web3(rpc).eth.contract(…)`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import structlog

from app.adapters.evm.endpoint import Call, Endpoint, EndpointFailed, Http
from app.adapters.evm.libraries import JSONBaseProvider, RPCEndpoint, RPCResponse
from app.core import tallies
from app.core.chains import ChainName
from app.ports.errors import Rejected, Unreachable

T = TypeVar("T")

_REST_SECONDS = 10.0
_log = structlog.get_logger(__name__)


class JsonRpc(JSONBaseProvider):
    """The endpoints of one chain. Makes no connection before its first call, so that it survives a fork."""

    global_ccip_read_enabled = False  # EIP-3668 would let a contract name URLs for us to fetch

    def __init__(
        self,
        name: ChainName,
        *,
        chain_id: int,
        urls: Sequence[str],
        connect_seconds: float = 3.0,
        read_seconds: float = 10.0,
    ) -> None:
        """Take the endpoints' URLs in the order of preference. Raises: ValueError when there is none."""
        super().__init__()
        if not urls:
            raise ValueError(f"no JSON-RPC endpoint for {name}")
        http = Http(connect_seconds=connect_seconds, read_seconds=read_seconds)
        self._name = name
        self._chain_id = chain_id
        self._endpoints = tuple(
            Endpoint(http, url, number=number, chain_id=chain_id, chain=name)
            for number, url in enumerate(urls, 1)
        )

    def __repr__(self) -> str:
        return f"JsonRpc({self._name.value!r}, endpoints={len(self._endpoints)})"

    __str__ = __repr__

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return all endpoints in the operator's order."""
        return self._endpoints

    def run(self, *calls: Call[Any]) -> None:
        """Run calls in order on the first endpoint that answers all of them. Raises: Unreachable."""
        if not calls:
            return
        self.first(lambda endpoint: endpoint.run(calls))

    def first(self, ask: Callable[[Endpoint], T]) -> T:
        """Return what `ask` makes of the first endpoint that does not fail.

        Raises: Unreachable("chain_unreachable") when all of them do.
        """
        for endpoint in self.candidates():
            try:
                return ask(endpoint)
            except EndpointFailed as failure:
                self.note_failure(endpoint, failure)
        raise Unreachable("chain_unreachable")

    def candidates(self) -> tuple[Endpoint, ...]:
        """Return all endpoints in the operator's order, those that failed a moment ago last."""
        now = time.monotonic()
        return tuple(sorted(self._endpoints, key=lambda endpoint: endpoint.resting_until > now))

    def note_failure(self, endpoint: Endpoint, failure: EndpointFailed) -> None:
        """Spare an endpoint for a while and leave a line in the log."""
        if failure.rests:
            endpoint.resting_until = time.monotonic() + _REST_SECONDS
        _log.warning(
            "rpc_endpoint_failed", chain=self._name.value, endpoint=endpoint.number, reason=failure.reason
        )
        tallies.count(
            "rpc_failures", chain=self._name.value, endpoint=str(endpoint.number), reason=failure.reason
        )

    def verify_identity(self) -> None:
        """Make sure that no endpoint that answers serves another chain.

        Raises: Rejected("wrong_chain"), Unreachable when none answers.
        """
        answered = False
        for endpoint in self._endpoints:
            try:
                served = endpoint.chain_id()
            except EndpointFailed as failure:
                self.note_failure(endpoint, failure)
                continue
            answered = True
            if served != self._chain_id:
                raise Rejected(
                    "wrong_chain",
                    details={
                        "endpoint": str(endpoint.number),
                        "expected": str(self._chain_id),
                        "served": str(served),
                    },
                )
        if not answered:
            raise Unreachable("chain_unreachable")

    # -- the face that web3 knows --

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        """Answer a call of web3. Error objects are answers here: web3 turns them into its own exceptions."""
        (response,) = self.make_batch_request([(method, params)])
        return response

    def make_batch_request(self, requests: list[tuple[RPCEndpoint, Any]]) -> list[RPCResponse]:
        """Answer several calls of web3. Raises: Unreachable, ValueError for a method that sends."""
        calls: list[Call[object]] = [
            Call(method, list(params), read=lambda result: result, tolerates=lambda _error: True)
            for method, params in requests
        ]
        if any("send" in call.method.lower() for call in calls):
            raise ValueError("transactions leave through `broadcast` only")
        self.run(*calls)
        return [_response(number, call) for number, call in enumerate(calls)]

    def is_connected(self, show_traceback: bool = False) -> bool:  # noqa: FBT001, FBT002, ARG002 - web3's signature
        """Tell whether an endpoint answers."""
        try:
            self.run(Call("web3_clientVersion", (), read=str))
        except Unreachable:
            return False
        return True


def _response(number: int, call: Call[object]) -> RPCResponse:
    if call.error is None:
        return {"jsonrpc": "2.0", "id": number, "result": call.answer}
    error = {"code": call.error.code, "message": call.error.message, "data": call.error.data}
    return {"jsonrpc": "2.0", "id": number, "error": error}  # type: ignore[typeddict-item]
