"""Applications for tests, with a real vault and database; tests supply chains, queue and faucet."""

from __future__ import annotations

import base64
import hashlib
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import Any

from jinja2.bccache import Bucket, BytecodeCache
from pydantic import SecretStr
from sqlalchemy import Dialect, Engine, event
from sqlalchemy.engine import make_url

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.x402.payments import EvmPaymentSigner
from app.adapters.evm.x402.sponsor import EvmTransferSponsor
from app.adapters.openapi_reader.reader import OpenApiReader
from app.adapters.perpdex.exchange import DEPLOYMENTS as PERPDEX
from app.adapters.perpdex.exchange import HyperliquidExchange
from app.adapters.prices import MarketPriceFeed
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.x402.payments import SolanaPaymentSigner
from app.adapters.solana.x402.sponsor import SolanaTransferSponsor
from app.adapters.swaps.uniswap import UniswapExchange
from app.adapters.upstream_http.exchange import HttpUpstream, PublicUpstream
from app.adapters.vault import LocalVault
from app.config import Settings, UpstreamAccess
from app.core.chains import ETH, SOL, ChainName
from app.db import replica
from app.extensions import db
from app.factory import build_state, create_app
from app.gateway.providers.table import ProviderTable
from app.jobs import JobName, QueueName
from app.observability import telemetry
from app.ports.bridges import BridgeProvider, BridgeRoute
from app.ports.chain import Chain
from app.ports.facilitator import PaymentSigner, TransferSponsor
from app.ports.swaps import SwapExchange
from app.serving import add_parts
from app.state import Application, Ports
from app.web.error_responses import ServerHooks
from app.web.openapi import OpenApiDocument
from app.wiring import bridges_between
from tests.support.upstreams import close_idle

DEAD_PLACE = ("127.0.0.1", 1)
DEAD_EXCHANGE = "http://127.0.0.1:1"
DEAD_REDIS = "redis://127.0.0.1:1/0"


def key_of(name: str) -> str:
    """Return a key of 32 bytes as `id:base64`."""
    return f"{name}:{base64.b64encode(hashlib.sha256(name.encode()).digest()).decode()}"


_parsed: dict[str, Settings] = {}


def settings_for(database_url: str, **overrides: Any) -> Settings:
    """Return sandbox settings that do not depend on the environment."""
    # Parsing takes milliseconds, and most tests differ in the database only.
    key = repr(sorted(overrides.items()))
    if key not in _parsed:
        _parsed[key] = _parse(overrides)
    url = re.sub("^postgresql:", "postgresql+psycopg:", database_url)
    return _parsed[key].model_copy(update={"database_url": SecretStr(url)})


def _parse(overrides: Mapping[str, Any]) -> Settings:
    values: dict[str, Any] = {
        "network": "sandbox",
        "base_url": "http://purser.test",
        "sandbox_public": "1",
        "redis_url": DEAD_REDIS,
        "secret_key": "s" * 32,
        "code_peppers": key_of("p1"),
        "encryption_keys": key_of("k1"),
        "receipt_signing_keys": key_of("r1"),
        "price_overrides": "ETH:3000,SOL:150",
        # The maximum: a transaction that lands immediately is confirmed within it on a busy machine, too.
        "confirmation_wait_seconds": "25",
        "audit_witness_file": "off",
        "upstreams": {name: value for name, value in overrides.items() if name in UpstreamAccess.model_fields},
        **overrides,
    }
    return Settings(**values)


class RecordingQueue:
    """A queue that records its jobs and can be made unreachable."""

    def __init__(self) -> None:
        self.put_jobs: list[tuple[JobName, tuple[str, ...]]] = []
        self.away = False
        self.password = "needed"

    def enqueue(self, job: JobName, *arguments: str) -> bool:
        if not self.away:
            self.put_jobs.append((job, arguments))
        return not self.away

    def depths(self) -> dict[QueueName, int]:
        return {} if self.away else {job.queue: len(self.put_jobs) for job, _ in self.put_jobs}

    def ping(self) -> bool:
        return not self.away

    def problem(self) -> str | None:
        return "it is away" if self.away else None

    def needs_password(self) -> bool:
        return bool(self.password)


class InMemoryCounterStore:
    """Counters in memory that can be made unreachable."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.away = False

    def add(self, counts: Mapping[str, float]) -> bool:
        if not self.away:
            self.sums |= {series: self.sums.get(series, 0) + amount for series, amount in counts.items()}
        return not self.away

    def totals(self) -> Mapping[str, float] | None:
        return None if self.away else dict(self.sums)


def ports_for(settings: Settings, **parts: Any) -> Ports:
    """Return ports: a real vault, fixed prices, real upstreams, a recording queue; `parts` replace them."""
    usual: dict[str, Any] = {
        "vault": LocalVault(settings.encryption_key_list()),
        "prices": MarketPriceFeed([], [], overrides={ETH: 3000 * 10**9, SOL: 150 * 10**9}),
        "upstream": HttpUpstream(
            connect_seconds=settings.upstream_connect_timeout_seconds,
            read_seconds=settings.upstream_read_timeout_seconds,
        ),
        "public_upstream": PublicUpstream(connect_seconds=Decimal(1), read_seconds=Decimal(5)),
        "chains": MappingProxyType({}),
        "facilitators": MappingProxyType({}),
        "queue": RecordingQueue(),
        "counters": InMemoryCounterStore(),
        "specifications": OpenApiReader(),
        "faucet": None,
        "perpdex": HyperliquidExchange(PERPDEX["sandbox"], url=DEAD_EXCHANGE),
        "shopper": None,
        "swap_exchanges": exchanges_on(parts.get("chains", {})),
        "payment_signers": signers_on(parts.get("chains", {})),
        "sponsors": sponsors_on(parts.get("chains", {})) if "facilitators" in parts else {},
        "bridges": bridges_on(settings, parts.get("chains", {})),
        **parts,
    }
    return Ports(**usual)


def exchanges_on(chains: Mapping[ChainName, Chain]) -> dict[ChainName, SwapExchange]:
    """Return the real exchanges of chains, including chains with faults."""
    real = {name: getattr(chain, "real", chain) for name, chain in chains.items()}
    return {name: UniswapExchange(chain) for name, chain in real.items() if isinstance(chain, EvmChain)}


def signers_on(chains: Mapping[ChainName, Chain]) -> dict[ChainName, PaymentSigner]:
    """Return the real payment signers of chains, including chains with faults."""
    real = {name: getattr(chain, "real", chain) for name, chain in chains.items()}
    signers: dict[ChainName, PaymentSigner] = {}
    for name, chain in real.items():
        if isinstance(chain, EvmChain):
            signers[name] = EvmPaymentSigner(chain)
        elif isinstance(chain, SolanaChain):
            signers[name] = SolanaPaymentSigner(chain)
    return signers


def sponsors_on(chains: Mapping[ChainName, Chain]) -> dict[ChainName, TransferSponsor]:
    """Return the real sponsors of chains, including chains with faults."""
    real = {name: getattr(chain, "real", chain) for name, chain in chains.items()}
    sponsors: dict[ChainName, TransferSponsor] = {}
    for name, chain in real.items():
        if isinstance(chain, EvmChain):
            sponsors[name] = EvmTransferSponsor(chain)
        elif isinstance(chain, SolanaChain):
            sponsors[name] = SolanaTransferSponsor(chain)
    return sponsors


def bridges_on(settings: Settings, chains: Mapping[ChainName, Chain]) -> dict[BridgeRoute, tuple[BridgeProvider, ...]]:
    """Return the real bridges between chains, including chains with faults."""
    return bridges_between(settings, {name: getattr(chain, "real", chain) for name, chain in chains.items()})


class _Statements(dict[Any, Any]):
    """Cache of compiled statements, shared by the engines of all applications of the same SQL dialect.

    SQLAlchemy's own cache ends with its engine, and compiling again took a quarter of the suite's time.
    """

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        super().__setitem__((key[0].name, *key[1:]), compiled)


_statements = _Statements()


class _Templates(BytecodeCache):
    """Cache of compiled templates, shared by all applications: Jinja's own ends with its application."""

    def __init__(self) -> None:
        self._code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._code:
            bucket.bytecode_from_string(self._code[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key] = bucket.bytecode_to_string()


_templates = _Templates()


def change_settings(app: Application, **changed: object) -> None:
    """Change settings of an application that was made."""
    app.state = replace(app.state, settings=app.state.settings.model_copy(update=changed))


def change_ports(app: Application, **changed: Any) -> None:
    """Replace ports of an application that was made."""
    app.state = replace(app.state, ports=replace(app.state.ports, **changed))


def make_app(settings: Settings, **parts: Any) -> Application:
    """Create an application in testing mode."""
    app = create_app(settings, ports=ports_for(settings, **parts))
    app.testing = True
    app.jinja_env.bytecode_cache = _templates
    with app.app_context():
        db.engine.update_execution_options(compiled_cache=_statements)
        event.listen(db.engine, "do_connect", partial(_connect_to_present_url, db.engine))
        if db.engine.dialect.name == "sqlite":
            event.listen(db.engine, "connect", _do_not_flush)
    return app


def _do_not_flush(connection: sqlite3.Connection, _record: object) -> None:
    """Leave flushing to the system: what a killed process has written is kept, and the machine is not switched off."""
    connection.execute("PRAGMA synchronous=OFF")


def _connect_to_present_url(
    engine: Engine, dialect: Dialect, _record: object, arguments: list[Any], options: dict[str, Any]
) -> None:
    """Connect to `engine.url`, which changes when an application is used again."""
    arguments[:], present = dialect.create_connect_args(engine.url)
    options.update(present)


READ_ONCE = (
    "base_rpc_url", "base_url", "database_pool_size", "database_prepared_statements", "database_replica_url",
    "ethereum_rpc_url", "gateway_providers_file", "host_memory", "network", "otel_exporter_otlp_endpoint", "port",
    "secret_key", "solana_rpc_url", "support_url", "terms_url", "trusted_proxy_hops", "upstreams", "x402_price_usd",
)  # fmt: skip
"""The settings that an application is made of; all others are read from its state, which each test gets anew."""
READ_ANEW = {"database_url", "log_level", "sentry_dsn"}
"""Settings that are read once more when an application is used again."""
_Needs = tuple[Any, ...]


class ApplicationPool:
    """Applications that serve one test after another: creating one costs as much as several requests.

    Each test gets a database, ports and a state of its own. A test that changes an application's routes or
    configuration needs a new one.
    """

    _LARGEST = 8

    def __init__(self) -> None:
        self._free: list[tuple[_Needs, Application]] = []
        self._taken: dict[Application, _Needs] = {}

    def take(self, settings: Settings, **parts: Any) -> Application:
        """Return a free application that was made of such settings, or a new one."""
        needs = _needs(settings)
        for place, (former, app) in enumerate(self._free):
            if former == needs:
                del self._free[place]
                _reset(app, settings, ports_for(settings, **parts))
                break
        else:
            app = make_app(settings, **parts)
        self._taken[app] = needs
        return app

    def give_back(self, app: Application) -> None:
        """Close an application, and keep it for another test."""
        close(app)
        self._free.append((self._taken.pop(app), app))
        del self._free[: -self._LARGEST]


def _needs(settings: Settings) -> _Needs:
    """Return what an application is made of: the kind of its database, and these settings."""
    url = make_url(settings.database_url.get_secret_value())
    return (url.drivername, *(getattr(settings, name) for name in READ_ONCE))


def _reset(app: Application, settings: Settings, ports: Ports) -> None:
    """Do what `create_app` does for an application, except what depends on its code alone."""
    telemetry.configure_logs(settings.log_level)
    telemetry.init_error_reports(settings.sentry_dsn.get_secret_value(), network=settings.network.value)
    parts = app.state.part(OpenApiDocument), app.state.part(ProviderTable)
    app.state = build_state(settings, ports)
    add_parts(app, *parts)
    app.server_hooks = ServerHooks(app.state.threads)
    replica._checked.clear()
    with app.app_context():
        db.engine.url = make_url(settings.database_url.get_secret_value())


def close(app: Application) -> None:
    """Close the connections and end the threads of an application."""
    with app.app_context():
        db.engine.dispose()
    for reader in (*app.state.balance_readers.values(), *app.state.foreign_readers.values()):
        reader.shutdown(wait=False)
    for upstream in (app.state.ports.upstream, app.state.ports.public_upstream):
        if isinstance(upstream, HttpUpstream):
            close_idle(upstream)
