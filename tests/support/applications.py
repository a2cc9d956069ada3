"""Applications for tests: real vault, real database; chains, queue and faucet as a test puts them in."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from flask import Flask
from werkzeug.routing import Rule

from app.adapters.evm.chain import EvmChain
from app.adapters.openapi_reader.reader import OpenApiReader
from app.adapters.perpdex.deployments import DEPLOYMENTS as PERPDEX
from app.adapters.perpdex.exchange import HyperliquidExchange
from app.adapters.prices import MarketPrices
from app.adapters.uniswap.exchange import UniswapExchange
from app.adapters.upstream_http.exchange import HttpUpstream, PublicUpstream
from app.adapters.vault_local import LocalVault
from app.config import Settings
from app.core.chains import ETH, SOL, ChainName
from app.extensions import db
from app.factory import create_app
from app.jobs import JobName, QueueName
from app.ports.bridges import Bridge, Route
from app.ports.chain import Chain
from app.ports.faucet import Faucet
from app.ports.perpdex import Perpdex
from app.ports.prices import Prices
from app.ports.queue import JobQueue
from app.ports.shopper import Shopper
from app.ports.specifications import Specifications
from app.ports.swaps import Exchange
from app.ports.tallies import Tallies
from app.ports.till import Till
from app.ports.upstream import Upstream
from app.ports.vault import Vault
from app.wiring import bridges_between

DEAD_PLACE = ("127.0.0.1", 1)
DEAD_EXCHANGE = "http://127.0.0.1:1"
DEAD_REDIS = "redis://127.0.0.1:1/0"


def key_of(name: str) -> str:
    """Return a made-up `id:base64` of 32 bytes."""
    return f"{name}:{base64.b64encode(hashlib.sha256(name.encode()).digest()).decode()}"


def settings_for(database_url: str, **overrides: Any) -> Settings:
    """Make sandbox settings that depend on nothing around them."""
    values: dict[str, Any] = {
        "network": "sandbox",
        "base_url": "http://purser.test",
        "database_url": database_url,
        "redis_url": DEAD_REDIS,
        "secret_key": "s" * 32,
        "code_peppers": key_of("p1"),
        "encryption_keys": key_of("k1"),
        "price_overrides": "ETH:3000,SOL:150",
        **overrides,
    }
    return Settings(**values)


class RecordingQueue:
    """A queue that remembers what was put, and that can be told to be away."""

    def __init__(self) -> None:
        self.put_jobs: list[tuple[JobName, tuple[str, ...]]] = []
        self.away = False

    def put(self, job: JobName, *arguments: str) -> bool:
        if not self.away:
            self.put_jobs.append((job, arguments))
        return not self.away

    def depths(self) -> dict[QueueName, int]:
        return {} if self.away else {job.queue: len(self.put_jobs) for job, _ in self.put_jobs}

    def ping(self) -> bool:
        return not self.away


class KeptTallies:
    """Sums kept in memory, which can be told to be away."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.away = False

    def add(self, counts: Mapping[str, int]) -> bool:
        if not self.away:
            self.sums.update(counts)
        return not self.away

    def totals(self) -> Mapping[str, int] | None:
        return None if self.away else dict(self.sums)


@dataclass(frozen=True, slots=True)
class TestPorts:
    """A set of ports; what a test does not name is a real vault, fixed prices, real upstreams and a recording queue."""

    __test__ = False

    vault: Vault
    prices: Prices
    upstream: Upstream
    public_upstream: Upstream
    chains: Mapping[ChainName, Chain] = field(default_factory=lambda: MappingProxyType({}))
    exchanges: Mapping[ChainName, Exchange] = field(default_factory=lambda: MappingProxyType({}))
    tills: Mapping[ChainName, Till] = field(default_factory=lambda: MappingProxyType({}))
    bridges: Mapping[Route, tuple[Bridge, ...]] = field(default_factory=lambda: MappingProxyType({}))
    queue: JobQueue = field(default_factory=RecordingQueue)
    tallies: Tallies = field(default_factory=KeptTallies)
    specifications: Specifications = field(default_factory=OpenApiReader)
    faucet: Faucet | None = None
    perpdex: Perpdex = field(
        default_factory=lambda: HyperliquidExchange(PERPDEX["sandbox"], url=DEAD_EXCHANGE)
    )
    shopper: Shopper | None = None


def ports_for(settings: Settings, **parts: Any) -> TestPorts:
    """Make ports for settings; `parts` replace the usual ones."""
    usual: dict[str, Any] = {
        "vault": LocalVault(settings.encryption_key_list()),
        "prices": MarketPrices([], [], overrides={ETH: 3000 * 10**9, SOL: 150 * 10**9}),
        "upstream": HttpUpstream(
            connect_seconds=settings.upstream_connect_timeout_seconds,
            read_seconds=settings.upstream_read_timeout_seconds,
        ),
        "public_upstream": PublicUpstream(connect_seconds=Decimal(1), read_seconds=Decimal(5)),
        "exchanges": exchanges_on(parts.get("chains", {})),
        "bridges": bridges_on(settings, parts.get("chains", {})),
        **parts,
    }
    return TestPorts(**usual)


def exchanges_on(chains: Mapping[ChainName, Chain]) -> dict[ChainName, Exchange]:
    """Return the real exchanges of chains, also of those that can be told to fail."""
    real = {name: getattr(chain, "real", chain) for name, chain in chains.items()}
    return {name: UniswapExchange(chain) for name, chain in real.items() if isinstance(chain, EvmChain)}


def bridges_on(settings: Settings, chains: Mapping[ChainName, Chain]) -> dict[Route, tuple[Bridge, ...]]:
    """Return the real bridges between chains, also those that can be told to fail."""
    return bridges_between(settings, {name: getattr(chain, "real", chain) for name, chain in chains.items()})


class _Statements(dict[Any, Any]):
    """Statements that one application's engine has compiled, for the engines of all others of the same dialect.

    SQLAlchemy's own cache ends with its engine, and compiling everything anew was a quarter of the suite's time.
    """

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        super().__setitem__((key[0].name, *key[1:]), compiled)


class _Rule(Rule):
    """Compiles what builds addresses once for all applications: it depends on the rule's text alone."""

    def _compile_builder(self, append_unknown: bool = True) -> Any:  # noqa: FBT001, FBT002 - as it is called
        key = (self.rule, tuple(self.defaults or ()), append_unknown)
        if key not in _builders:
            _builders[key] = super()._compile_builder(append_unknown)
        return _builders[key]


_statements = _Statements()
_builders: dict[tuple[Any, ...], Any] = {}
Flask.url_rule_class = _Rule


def make_app(settings: Settings, **parts: Any) -> Flask:
    """Make an application in testing mode."""
    app = create_app(settings, ports=ports_for(settings, **parts))
    app.testing = True
    with app.app_context():
        db.engine.update_execution_options(compiled_cache=_statements)
    return app
