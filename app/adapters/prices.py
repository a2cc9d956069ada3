"""What tokens are worth, from several sources, so that limits in dollars keep working when one of them fails.

On-chain feeds first, other sources for what they lack, then the last price known for an hour. Prices are
integers of nano-dollars; a fraction is rounded up, so that a limit is never passed by it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context, Decimal
from typing import Protocol

import structlog

from app.adapters.outage import Outage
from app.core.chains import TOKENS_BY_SYMBOL, USDC, Token
from app.core.money import NANOS_PER_USD
from app.core.unit_of_work import assert_no_unit
from app.ports.errors import PortError
from app.ports.prices import Market

_FRESH_SECONDS = 5.0
_RETRY_SECONDS = 1.0
"""After this long a price that nobody knew is asked for again."""
_TOLERATED_SECONDS = 30.0
"""Up to this age a price is used rather than waiting for the thread that reads a newer one."""
_LAST_KNOWN_SECONDS = 3600.0
_FALLBACK_SECONDS = 60.0
"""Public price services count requests, so their answers and failures are kept longer."""
_ABSURD_USD = Decimal(10**9)
_NANO = Decimal(1).scaleb(-9)
_WIDE = Context(prec=60)

_log = structlog.get_logger(__name__)


class PriceSource(Protocol):
    """Something that knows prices now."""

    def read(self) -> Mapping[Token, int]:
        """Return nano-dollars per whole token, of the tokens it has a fresh price for. Raises: PortError."""
        ...


def nanos_from_json(value: object) -> int | None:
    """Return a price in nano-dollars, rounded up; None for anything but a plausible number of dollars."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    usd = Decimal(value)
    if not usd.is_finite() or not 0 < usd < _ABSURD_USD:
        return None
    return int(usd.quantize(_NANO, rounding=ROUND_CEILING, context=_WIDE).scaleb(9, context=_WIDE))


class MarketPrices:
    """Prices for many threads: one of them reads, the others share what it found."""

    def __init__(
        self,
        onchain: Sequence[PriceSource],
        fallback: Sequence[PriceSource],
        *,
        exchanges: Sequence[PriceSource] = (),
        overrides: Mapping[Token, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take sources in order, prices that win over all of them, and a clock that never goes back.

        `exchanges` are fallbacks, too, after the others: sources that trade at the prices that they tell.
        """
        self._overrides = dict(overrides)
        self._wanted = frozenset(TOKENS_BY_SYMBOL.values()) - {USDC} - set(overrides)
        self._readers = [_Reader(source, is_fallback=False) for source in onchain]
        self._readers += [_Reader(source, is_fallback=True) for source in fallback]
        self._readers += [_Reader(source, is_fallback=True, trades=True) for source in exchanges]
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = _Seen()

    def nanos_per_token(self, token: Token) -> int | None:
        """Return the price, the higher of two fresh ones, or None when none is known; USDC is 1 USD."""
        found = self._fixed(token) or self._fresh(token).price(token, now=self._clock())
        return None if found is None else found.most_nanos

    def market(self, token: Token) -> Market | None:
        """Return the lowest and the highest price by sources that are no exchanges, or None; USDC is 1 USD."""
        return self._fixed(token) or self._fresh(token).market_price(token, now=self._clock())

    def _fixed(self, token: Token) -> Market | None:
        assert_no_unit()
        nanos = NANOS_PER_USD if token == USDC else self._overrides.get(token)
        return None if nanos is None else Market(nanos, nanos)

    def _fresh(self, token: Token) -> _Seen:
        if self._clock() >= self._seen.fresh_until:
            self._refresh(token)
        return self._seen

    def _refresh(self, token: Token) -> None:
        is_tolerable = self._seen.age(token, now=self._clock()) <= _TOLERATED_SECONDS
        if not self._lock.acquire(blocking=not is_tolerable):
            return
        try:
            if self._clock() >= self._seen.fresh_until:
                self._seen = self._read()
        finally:
            self._lock.release()

    def _read(self) -> _Seen:
        found: dict[Token, Market] = {}
        apart: dict[Token, Market] = {}
        for reader in self._readers:
            if reader.is_fallback and self._wanted <= found.keys():
                break
            for token, nanos in reader.read(now=self._clock()).items():
                found[token] = _with_price(found.get(token), nanos)
                if not reader.trades:
                    apart[token] = found[token]
        now = self._clock()
        is_complete = self._wanted <= found.keys()
        return _Seen(
            prices={**self._seen.prices, **{token: (price, now) for token, price in found.items()}},
            apart={**self._seen.apart, **{token: (price, now) for token, price in apart.items()}},
            fresh_until=now + (_FRESH_SECONDS if is_complete else _RETRY_SECONDS),
        )


@dataclass(frozen=True, slots=True)
class _Seen:
    """The newest prices of each token with the time of its reading; replaced as a whole, never changed.

    In `apart` are those that no exchange had a part in.
    """

    prices: Mapping[Token, tuple[Market, float]] = field(default_factory=dict)
    apart: Mapping[Token, tuple[Market, float]] = field(default_factory=dict)
    fresh_until: float = float("-inf")

    def age(self, token: Token, *, now: float) -> float:
        return now - self.prices[token][1] if token in self.prices else float("inf")

    def price(self, token: Token, *, now: float) -> Market | None:
        return _known(self.prices.get(token), now)

    def market_price(self, token: Token, *, now: float) -> Market | None:
        return _known(self.apart.get(token), now)


def _with_price(known: Market | None, nanos: int) -> Market:
    if known is None:
        return Market(nanos, nanos)
    return Market(min(known.least_nanos, nanos), max(known.most_nanos, nanos))


def _known(reading: tuple[Market, float] | None, now: float) -> Market | None:
    return reading[0] if reading is not None and now - reading[1] < _LAST_KNOWN_SECONDS else None


class _Reader:
    """One source, asked no more often than its kind allows; what is implausible in its answer is dropped."""

    def __init__(self, source: PriceSource, *, is_fallback: bool, trades: bool = False) -> None:
        self.is_fallback = is_fallback
        self.trades = trades
        self._source = source
        self._name = type(source).__name__
        self._outage = Outage("price_source", name=self._name)
        self._kept: Mapping[Token, int] = {}
        self._keep_until = float("-inf")

    def read(self, *, now: float) -> Mapping[Token, int]:
        if now >= self._keep_until:
            self._kept = self._ask()
            self._keep_until = now + (_FALLBACK_SECONDS if self.is_fallback else 0)
        return self._kept

    def _ask(self) -> Mapping[Token, int]:
        try:
            answer = self._source.read()
        except PortError as failure:
            self._outage.begin(failure.reason)
            return {}
        self._outage.end()
        plausible = {token: nanos for token, nanos in answer.items() if _is_plausible(nanos)}
        for token in answer.keys() - plausible.keys():
            _log.warning("price_ignored", source=self._name, token=token.symbol)
        return plausible


def _is_plausible(nanos: object) -> bool:
    return type(nanos) is int and 0 < nanos < _ABSURD_USD * NANOS_PER_USD
