"""JSON-RPC to several endpoints of one cluster: the next one answers when one does not.

An endpoint is used only after it has shown the genesis hash of the cluster that we mean. Requests may be sent
twice; logs and errors name an endpoint by its place in the list, for its address may hold a key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Protocol, TypeVar

from solders.errors import SerdeJSONError
from solders.rpc.requests import GetGenesisHash
from solders.rpc.responses import GetGenesisHashResp, GetLatestBlockhashResp, GetMultipleAccountsResp

from app.adapters.http_client import HttpClient
from app.adapters.outage import Outage
from app.ports.errors import Rejected, Unreachable

_CONNECT_SECONDS = 2.0
_TOTAL_SECONDS = 5.0
_REST_SECONDS = 15.0

R = TypeVar("R", GetGenesisHashResp, GetMultipleAccountsResp, GetLatestBlockhashResp)


class Request(Protocol):
    """A typed request of solders."""

    def to_json(self) -> str:
        """Return the JSON-RPC request."""
        ...


class SolanaRpc:
    """The endpoints in the operator's order; one that failed is asked last for a while."""

    def __init__(self, urls: Sequence[str], *, accepts: Callable[[str], bool]) -> None:
        """Take at least one endpoint, and the rule that tells the right genesis hash."""
        if not urls:
            msg = "Solana needs at least one RPC endpoint"
            raise ValueError(msg)
        self._endpoints = [_Endpoint(url, place) for place, url in enumerate(urls, start=1)]
        self._accepts = accepts
        self._http = HttpClient(connect_seconds=_CONNECT_SECONDS, total_seconds=_TOTAL_SECONDS)

    def ask(
        self, request: Request, expected: type[R], *, fits: Callable[[R], bool] = lambda _answer: True
    ) -> R:
        """Return the first answer that fits the request. Raises: Unreachable("chain_unreachable")."""
        now = time.monotonic()
        for endpoint in sorted(self._endpoints, key=lambda endpoint: endpoint.rest_until > now):
            try:
                answer = self._ask_one(endpoint, request, expected, fits)
            except Unreachable as failure:
                endpoint.rest(failure)
            else:
                endpoint.recover()
                return answer
        raise Unreachable("chain_unreachable")

    def verify(self) -> None:
        """Check every endpoint that answers. Raises: Rejected("wrong_chain"), Unreachable if none does."""
        answered = False
        for endpoint in self._endpoints:
            try:
                right = self._serves_our_cluster(endpoint)
            except Unreachable as failure:
                endpoint.rest(failure)
                continue
            if not right:
                raise Rejected("wrong_chain")
            answered = True
        if not answered:
            raise Unreachable("chain_unreachable")

    def _ask_one(
        self, endpoint: _Endpoint, request: Request, expected: type[R], fits: Callable[[R], bool]
    ) -> R:
        if not endpoint.is_verified and not self._serves_our_cluster(endpoint):
            raise Unreachable("wrong_chain")
        answer = self._exchange(endpoint, request, expected)
        if not fits(answer):
            raise Unreachable("unexpected_answer")
        return answer

    def _serves_our_cluster(self, endpoint: _Endpoint) -> bool:
        genesis = self._exchange(endpoint, GetGenesisHash(), GetGenesisHashResp)
        endpoint.is_verified = self._accepts(str(genesis.value))
        return endpoint.is_verified

    def _exchange(self, endpoint: _Endpoint, request: Request, expected: type[R]) -> R:
        answer = self._http.post(endpoint.url, request.to_json().encode())
        if answer.status != HTTPStatus.OK:
            # 429 and 5xx are the usual ones; public endpoints answer 403 to those whom they blocked.
            raise Unreachable(f"http_{answer.status}")
        try:
            parsed = expected.from_json(answer.body.decode())
        except (SerdeJSONError, ValueError):
            raise Unreachable("unexpected_answer") from None
        if not isinstance(parsed, expected):
            # A JSON-RPC error: the node is behind, over its limit, or lacks the method. Another may serve.
            raise Unreachable("rpc_error")
        return parsed


class _Endpoint:
    """One address and what we know of it."""

    def __init__(self, url: str, place: int) -> None:
        self.url = url
        self.is_verified = False
        self.rest_until = 0.0
        self._outage = Outage("rpc_endpoint", name=f"solana {place}")

    def rest(self, failure: Unreachable) -> None:
        self.rest_until = time.monotonic() + _REST_SECONDS
        self._outage.begin(failure.reason)

    def recover(self) -> None:
        self.rest_until = 0.0
        self._outage.end()
