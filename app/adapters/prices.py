"""Token prices from several sources, so that limits in dollars keep working when one of them fails.

On-chain feeds first, other sources for what they lack, then the last known price for an hour. Prices are integers of
nano-dollars; a fraction is rounded up, so that it never causes a limit to be exceeded.

Chainlink's feeds are on a chain that we read anyway; a stale one is left out, each by its own limit (three heartbeats).

Sources: docs.coingecko.com, "Coin Price by IDs" and "Authentication"; Jupiter's documentation, "Price API V3".
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from http import HTTPStatus
from typing import Annotated, Any, Protocol

import structlog
from pydantic import Field

from app.adapters.evm.calls import EvmRpc
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.calls import Function
from app.adapters.evm.contracts.deployments import ChainlinkFeed, EvmDeployment
from app.adapters.http_client import HttpClient, HttpResponse
from app.adapters.jsonrpc.endpoint import OutageLog
from app.adapters.rate_limited_http import KEYLESS, RateLimitedClient, ServiceAccess
from app.adapters.swaps.jupiter.api import KEY_HEADER, SERVICE
from app.core import clock, foreign
from app.core.chains import ETH, SOL, TOKENS_BY_SYMBOL, USDC, Token
from app.core.foreign import ForeignModel
from app.core.money import NANOS_PER_USD, usd_string
from app.db.unit_of_work import assert_no_unit
from app.ports.errors import PortError, Unreachable
from app.ports.probes import UnexpectedAnswer
from app.ports.services import PriceRange

_CACHE_SECONDS = 5.0
_RETRY_SECONDS = 1.0
"""How long an unknown price is remembered as unknown."""
_MAX_STALE_SECONDS = 30.0
"""Up to this age a price is returned instead of waiting for the thread that reads a newer one."""
_FALLBACK_SECONDS = 60.0
"""Public price services count requests, so their responses and failures are cached longer."""
_MAX_PLAUSIBLE_USD = Decimal(10**9)
_WIDE = Context(prec=60)

_log = structlog.get_logger(__name__)
_read_entries = foreign.reader(dict[str, Any])


class PriceSource(Protocol):
    def read(self) -> Mapping[Token, int]:
        """Return nano-dollars per whole token, for the tokens with a current price. Raises: PortError."""


def nanos_from_json(value: object) -> int:
    """Return a price in nano-dollars, rounded up. Raises: ValueError for anything but a plausible number of dollars."""
    usd = Decimal(value) if type(value) is int else value
    if not isinstance(usd, Decimal) or not usd.is_finite() or not 0 < usd < _MAX_PLAUSIBLE_USD:
        raise ValueError("not a plausible price")
    return int(usd.quantize(Decimal("1E-9"), rounding=ROUND_CEILING, context=_WIDE).scaleb(9, context=_WIDE))


PriceNanos = Annotated[int, foreign.parsed(nanos_from_json)]


def prices_in(
    response: HttpResponse, names: Mapping[Token, str], read: Callable[[object], int], *, source: str
) -> Mapping[Token, int]:
    """Read the entries with these names; those for which `read` raises ValueError are left out. Raises: Unreachable."""
    if response.status != HTTPStatus.OK:
        raise Unreachable(f"http_{response.status}")
    entries = response.read(_read_entries)
    found: dict[Token, int] = {}
    for token, name in names.items():
        try:
            found[token] = read(entries.get(name))
        except ValueError:
            _log.warning("price_ignored", source=source, token=token.symbol)
    return found


def describe_prices(source: PriceSource) -> str:
    """Read a source and describe its prices. Raises: UnexpectedAnswer if one is missing, PortError."""
    prices = source.read()
    missing = [token.symbol for token in _COINS if token not in prices]
    if missing:
        raise UnexpectedAnswer(f"no usable price of {', '.join(missing)}")
    return ", ".join(f"{token.symbol} {usd_string(prices[token])} USD" for token in _COINS)


class MarketPriceFeed:
    """Prices for many threads: one of them reads, the others share the result."""

    def __init__(
        self,
        onchain: Sequence[PriceSource],
        fallback: Sequence[PriceSource],
        *,
        exchanges: Sequence[PriceSource] = (),
        overrides: Mapping[Token, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the sources in order, exchanges last, the prices that override them, and a monotonic clock."""
        self._fixed = {**overrides, USDC: NANOS_PER_USD}
        self._requested = {(token, True) for token in TOKENS_BY_SYMBOL.values() if token not in self._fixed}
        self._readers = [_SourceReader(source, is_fallback=False) for source in onchain]
        self._readers += [_SourceReader(source, is_fallback=True) for source in fallback]
        self._readers += [_SourceReader(source, is_fallback=True, is_exchange=True) for source in exchanges]
        self._clock = clock
        self._lock = threading.Lock()
        self._fresh_until = float("-inf")
        # By token and whether exchanges count, with the time of each; replaced as a whole, never changed.
        self._known: Mapping[tuple[Token, bool], tuple[PriceRange, float]] = {}

    def nanos_per_token(self, token: Token) -> int | None:
        found = self._range(token, with_exchanges=True)
        return None if found is None else found.max_nanos

    def independent_range(self, token: Token) -> PriceRange | None:
        return self._range(token, with_exchanges=False)

    def _range(self, token: Token, *, with_exchanges: bool) -> PriceRange | None:
        assert_no_unit()
        if token in self._fixed:
            return PriceRange(self._fixed[token], self._fixed[token])
        if self._clock() >= self._fresh_until:
            must_wait = self._newest((token, True), max_age=_MAX_STALE_SECONDS) is None
            if self._lock.acquire(blocking=must_wait):
                try:
                    if self._clock() >= self._fresh_until:
                        self._read()
                finally:
                    self._lock.release()
        return self._newest((token, with_exchanges), max_age=3600.0)

    def _newest(self, key: tuple[Token, bool], *, max_age: float) -> PriceRange | None:
        found, read_at = self._known.get(key, (None, 0.0))
        return found if self._clock() - read_at < max_age else None

    def _read(self) -> None:
        found: dict[tuple[Token, bool], PriceRange] = {}
        for reader in self._readers:
            if reader.is_fallback and self._requested <= found.keys():
                break
            for token, nanos in reader.read(now=self._clock()).items():
                other = found.get((token, True), PriceRange(nanos, nanos))
                found[token, True] = PriceRange(min(other.min_nanos, nanos), max(other.max_nanos, nanos))
                if not reader.is_exchange:
                    found[token, False] = found[token, True]
        now = self._clock()
        self._known = {**self._known, **{key: (price, now) for key, price in found.items()}}
        self._fresh_until = now + (_CACHE_SECONDS if self._requested <= found.keys() else _RETRY_SECONDS)


class _SourceReader:
    """One source, read no more often than its kind allows; implausible prices are dropped."""

    def __init__(self, source: PriceSource, *, is_fallback: bool, is_exchange: bool = False) -> None:
        self.is_fallback = is_fallback
        self.is_exchange = is_exchange
        self._source = source
        self._name = type(source).__name__
        self._outage = OutageLog("price_source", name=self._name)
        self._cached: Mapping[Token, int] = {}
        self._cached_until = float("-inf")

    def read(self, *, now: float) -> Mapping[Token, int]:
        if now >= self._cached_until:
            self._cached = self._fetch()
            self._cached_until = now + (_FALLBACK_SECONDS if self.is_fallback else 0)
        return self._cached

    def _fetch(self) -> Mapping[Token, int]:
        try:
            result = self._source.read()
        except PortError as failure:
            self._outage.begin(failure.reason)
            return {}
        self._outage.end()
        plausible = {
            token: nanos
            for token, nanos in result.items()
            if type(nanos) is int and 0 < nanos < _MAX_PLAUSIBLE_USD * NANOS_PER_USD
        }
        for token in result.keys() - plausible.keys():
            _log.warning("price_ignored", source=self._name, token=token.symbol)
        return plausible


_MAX_AGE_SECONDS = 600
_CLOCK_SKEW_SECONDS = 60
_COINS = {ETH: "ethereum", SOL: "solana"}


class _CoinGeckoPrice(ForeignModel):
    usd_nanos: PriceNanos = Field(alias="usd")
    made_at: int = Field(alias="last_updated_at")


class CoinGeckoPrices:
    def __init__(self, base_url: str, *, api_key: str) -> None:
        """Store the API's base address and a key; paid keys have a separate host and header."""
        self._url = f"{base_url.rstrip('/')}/simple/price"
        self._headers = {"x-cg-pro-api-key" if "//pro-api." in base_url else "x-cg-demo-api-key": api_key}
        self._http = HttpClient(connect_seconds=2.0, total_seconds=5.0, headers=self._headers)

    def __repr__(self) -> str:
        return "CoinGeckoPrices()"

    def read(self) -> Mapping[Token, int]:
        ids = ",".join(_COINS.values())
        query = {"ids": ids, "vs_currencies": "usd", "include_last_updated_at": "true", "precision": "full"}
        response = self._http.get(self._url, query=query)
        return prices_in(response, _COINS, _recent_nanos, source=type(self).__name__)


def _recent_nanos(entry: object) -> int:
    """Return a price. Raises: ValueError for one that is old, or made in the future."""
    price = _CoinGeckoPrice.read(entry)
    if not -_CLOCK_SKEW_SECONDS <= int(clock.now().timestamp()) - price.made_at <= _MAX_AGE_SECONDS:
        raise ValueError("not a current price")
    return price.usd_nanos


_MINTS = {
    SOL: "So11111111111111111111111111111111111111112",
    # Ether on Solana, bridged by Wormhole.
    ETH: "7vfCXTUXx5WJV5JADk17DUJ4ksgau7utNKj4b963voxs",
}


class _JupiterPrice(ForeignModel):
    usd_price: PriceNanos


class JupiterPrices:
    def __init__(self, base_url: str, access: ServiceAccess = KEYLESS) -> None:
        self._url = f"{base_url.rstrip('/')}/price/v3"
        # All readers of prices wait for the one that reads them.
        self._http = RateLimitedClient(SERVICE, access, KEY_HEADER, total_seconds=5.0, wait_seconds=2.0)

    def read(self) -> Mapping[Token, int]:
        response = self._http.get(self._url, query={"ids": ",".join(_MINTS.values())})
        return prices_in(
            response, _MINTS, lambda entry: _JupiterPrice.read(entry).usd_price, source=type(self).__name__
        )


_LATEST_ROUND = Function("chainlink_aggregator", "latestRoundData")
"""Chainlink's: round, answer, start, time of the answer, round of the answer."""


class ChainlinkPrices:
    def __init__(self, rpc: EvmRpc, deployment: EvmDeployment) -> None:
        self._rpc = rpc
        feeds = {ETH: deployment.eth_usd_feed, SOL: deployment.sol_usd_feed}
        self._feeds: Mapping[Token, ChainlinkFeed] = {token: feed for token, feed in feeds.items() if feed is not None}

    def read(self) -> Mapping[Token, int]:
        """Return nano-dollars per whole token, for the feeds that are not stale. Raises: Unreachable."""
        items = [_LATEST_ROUND.at(feed.address, may_fail=True) for feed in self._feeds.values()]
        rounds = self._rpc.ask(contracts.multicall(items))
        now = int(clock.now().timestamp())
        prices: dict[Token, int] = {}
        for (token, feed), latest in zip(self._feeds.items(), rounds, strict=True):
            if latest is None:
                continue  # no feed at this address of this chain
            _round, answer, _started_at, updated_at, _answered_in = latest
            if answer > 0 and now - updated_at <= feed.max_age_seconds:
                # Feeds of dollar prices return 10^-8 USD.
                prices[token] = answer * 10
        return prices
