"""JSON-RPC to several endpoints of one cluster: the next one answers when one does not.

Reads may be sent twice. Transactions are not sent from here: `broadcasts` walks the endpoints itself, for it alone
knows what a lost answer means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from app.adapters.http_client import HttpClient
from app.adapters.solana.endpoint import Call, Endpoint, EndpointFailedError
from app.ports.errors import Rejected, Unreachable

_CONNECT_SECONDS = 2.0
_TOTAL_SECONDS = 5.0

T = TypeVar("T")


class SolanaRpc:
    """The endpoints in the operator's order; one that failed is asked last for a while."""

    def __init__(
        self, urls: Sequence[str], *, accepts: Callable[[str], bool], total_seconds: float = _TOTAL_SECONDS
    ) -> None:
        """Take at least one endpoint, and the rule that tells the right genesis hash."""
        if not urls:
            msg = "Solana needs at least one RPC endpoint"
            raise ValueError(msg)
        http = HttpClient(
            connect_seconds=min(_CONNECT_SECONDS, total_seconds), total_seconds=total_seconds, max_bytes=2**23
        )
        self._endpoints = [
            Endpoint(http, url, place=place, accepts=accepts) for place, url in enumerate(urls, start=1)
        ]

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """Return all endpoints in the operator's order."""
        return self._endpoints

    def run(self, *calls: Call[Any]) -> None:
        """Run calls on the first endpoint that answers all of them. Raises: Unreachable."""
        self.first(lambda endpoint: endpoint.run(*calls))

    def first(self, ask: Callable[[Endpoint], T]) -> T:
        """Return what `ask` makes of the first endpoint that does not fail.

        Raises: Unreachable("chain_unreachable") when all of them do.
        """
        for endpoint in self.candidates():
            try:
                answer = ask(endpoint)
            except EndpointFailedError as failure:
                endpoint.rest(failure)
            else:
                endpoint.recover()
                return answer
        raise Unreachable("chain_unreachable")

    def each(self, ask: Callable[[Endpoint], T]) -> list[T]:
        """Return what `ask` makes of every endpoint that does not fail, possibly nothing."""
        answers = []
        for endpoint in self.candidates():
            try:
                answers.append(ask(endpoint))
            except EndpointFailedError as failure:
                endpoint.rest(failure)
        return answers

    def candidates(self) -> Sequence[Endpoint]:
        """Return all endpoints in the operator's order, those that failed a moment ago last."""
        return sorted(self._endpoints, key=lambda endpoint: endpoint.is_resting)

    def verify(self) -> None:
        """Check every endpoint that answers. Raises: Rejected("wrong_chain"), Unreachable if none does."""
        answers = self.each(lambda endpoint: endpoint.serves_our_cluster())
        if not all(answers):
            raise Rejected("wrong_chain")
        if not answers:
            raise Unreachable("chain_unreachable")
