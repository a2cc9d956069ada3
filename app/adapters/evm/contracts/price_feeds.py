"""ETH and SOL in dollars from Chainlink's feeds on a chain that we read anyway: no other service is used.

A stale feed is left out, each by its own limit (three heartbeats).
"""

from collections.abc import Mapping

from app.adapters.evm.client.rpc import EvmRpc
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.abi import Function
from app.adapters.evm.contracts.deployments import ChainlinkFeed, EvmDeployment
from app.core import clock
from app.core.chains import ETH, SOL, Token

_LATEST_ROUND = Function("chainlink_aggregator", "latestRoundData")
"""Chainlink's: round, answer, start, time of the answer, round of the answer."""
_NANOS_PER_ANSWER = 10
"""Feeds of dollar prices return 10^-8 USD."""


class ChainlinkPrices:
    def __init__(self, rpc: EvmRpc, deployment: EvmDeployment) -> None:
        self._rpc = rpc
        self._multicall = deployment.multicall3
        feeds = {ETH: deployment.eth_usd_feed, SOL: deployment.sol_usd_feed}
        self._feeds: Mapping[Token, ChainlinkFeed] = {token: feed for token, feed in feeds.items() if feed is not None}

    def read(self) -> Mapping[Token, int]:
        """Return nano-dollars per whole token, for the feeds that are not stale. Raises: Unreachable."""
        items = [_LATEST_ROUND.at(feed.address, may_fail=True) for feed in self._feeds.values()]
        rounds = self._rpc.ask(contracts.multicall(self._multicall, items))
        now = int(clock.now().timestamp())
        prices: dict[Token, int] = {}
        for (token, feed), latest in zip(self._feeds.items(), rounds, strict=True):
            if latest is None:
                continue  # no feed at this address of this chain
            _round, answer, _started_at, updated_at, _answered_in = latest
            if answer > 0 and now - updated_at <= feed.max_age_seconds:
                prices[token] = answer * _NANOS_PER_ANSWER
        return prices
