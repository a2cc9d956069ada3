"""ETH and SOL in dollars from Chainlink's feeds on a chain that we read anyway: no other service is asked.

A feed that nobody has updated for too long is left out, each by its own limit (three heartbeats).
"""

from __future__ import annotations

from collections.abc import Mapping

from app.adapters.evm import contracts
from app.adapters.evm.deployments import Deployment, PriceFeed
from app.adapters.evm.endpoint import Call
from app.adapters.evm.rpc import JsonRpc
from app.adapters.json_rpc import MalformedAnswerError
from app.core import clock
from app.core.chains import ETH, SOL, Token

_NANOS_PER_ANSWER = 10
"""Feeds of dollar prices answer in 10^-8 USD."""


class ChainlinkPrices:
    """The feeds of one chain, read in one call."""

    def __init__(self, rpc: JsonRpc, deployment: Deployment) -> None:
        """Take the chain's nodes and the feeds' addresses."""
        self._rpc = rpc
        self._multicall = deployment.multicall3
        feeds = {ETH: deployment.eth_usd_feed, SOL: deployment.sol_usd_feed}
        self._feeds: Mapping[Token, PriceFeed] = {
            token: feed for token, feed in feeds.items() if feed is not None
        }

    def read(self) -> Mapping[Token, int]:
        """Return nano-dollars per whole token, for the feeds that are fresh. Raises: Unreachable."""
        inner = [contracts.latest_round(feed.address) for feed in self._feeds.values()]
        call = Call(
            "eth_call",
            (contracts.aggregate(self._multicall, inner), "latest"),
            read=lambda answer: contracts.read_aggregate(answer, expected=len(inner)),
        )
        self._rpc.run(call)
        now = int(clock.now().timestamp())
        prices: dict[Token, int] = {}
        for (token, feed), returned in zip(self._feeds.items(), call.answer, strict=True):
            try:
                latest = contracts.round_data(returned)
            except MalformedAnswerError:
                continue  # no feed at this address of this chain
            if latest.answer > 0 and now - latest.updated_at <= feed.max_age_seconds:
                prices[token] = latest.answer * _NANOS_PER_ANSWER
        return prices
