"""The trading exchange's stand-in for tests, and the adapter that asks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from app.adapters.perpdex.exchange import DEPLOYMENTS, HyperliquidExchange
from sandbox.perpdex import ExchangeServer


@contextmanager
def running_exchange() -> Iterator[ExchangeServer]:
    """Run a stand-in for as long as the context lasts."""
    server = ExchangeServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()


def adapter_for(url: str, *, network: str = "sandbox") -> HyperliquidExchange:
    """Make the real adapter for an address."""
    return HyperliquidExchange(DEPLOYMENTS[network], url=url)


def kinds_asked(server: ExchangeServer) -> Counter[str]:
    """Return how often each type of question was asked."""
    return Counter(question["type"] for question in server.queries)
