"""The application factory, for all kinds of processes; `app.serving` adds what only a web process needs."""

import sqlite3
import sys
from pathlib import Path
from typing import Any

from flask import Flask
from psycopg import Connection
from sqlalchemy import event
from sqlalchemy.engine import make_url

from app.authenticated import VerifiedRows
from app.buying import records as service_purchases
from app.capacity.limiter import ConcurrencyLimiter, RateLimiter
from app.catalog import subscriptions
from app.catalog.payouts.destinations import open_payout_error
from app.config import Settings
from app.console import models as console
from app.db import pool_liveness, replica, unit_of_work
from app.db.libpq import LOSS_DETECTION
from app.device import guess_limits
from app.extensions import db
from app.gateway.pricing import models as pricing
from app.identity.service import KeyMemory
from app.movements import KINDS
from app.oauth import clients as oauth_clients
from app.oauth import tokens as oauth_tokens
from app.observability import telemetry
from app.owner import address_names
from app.owner.passkeys import models as passkeys
from app.owner.session import sessions
from app.payments import settlement_risks, topups
from app.payments.settlement_capacity import SettlementCapacityCache
from app.payments.treasury import ServiceWallets
from app.shopping import service as purchases
from app.state import Application, AppState, Ports
from app.trading.exchange_client import ExchangeFeed
from app.usage.grouped import StepGroups
from app.wallets.transactions.outcome_polling import OutcomePoller, OutcomePollers
from app.wallets.views import balances
from app.wallets.views.history import MovementDetails
from app.web import fields
from server.pool import ResourcePool

ROOT = Path(__file__).resolve().parent.parent
# The other modules with tables are imported for what they do. Each process audits and reseals all tables.
_MORE_TABLES = (console, guess_limits, oauth_clients, oauth_tokens, passkeys, pricing, sessions)


def create_app(settings: Settings | None = None, *, ports: Ports | None = None, serves: bool = True) -> Application:
    """Make the application. Opens no connection, so that a server may make it before it forks.

    One that does not serve answers no requests and has no commands: processes that run jobs start in half the time.
    """
    settings = settings or Settings.load()
    # A dependency of eth-account raises the limit to 100 000 on import, more than the C stack of a thread holds.
    sys.setrecursionlimit(1000)
    telemetry.configure_logs(settings.log_level)
    telemetry.init_traces(settings.otel_exporter_otlp_endpoint)
    telemetry.init_error_reports(settings.sentry_dsn.get_secret_value(), network=settings.network.value)
    app = Application("purser", root_path=str(ROOT), template_folder="templates", static_folder=None)
    _configure(app, settings)
    _bind_extensions(app, settings)
    if ports is None:
        from app import wiring  # noqa: PLC0415 - tests with their own ports need no heavy adapters

        ports = wiring.build(settings)
    app.state = build_state(settings, ports)
    if serves:
        from app import serving  # noqa: PLC0415 - half of the time of a start

        serving.install(app)
    return app


def build_state(settings: Settings, ports: Ports) -> AppState:
    threads = ResourcePool.for_threads(settings.web_threads)
    parts = (
        KeyMemory(),
        VerifiedRows(),
        StepGroups(is_postgresql=settings.database_url.get_secret_value().startswith("postgres")),
        OutcomePollers(
            (name, OutcomePoller(chain, confirmations=settings.confirmations(name)))
            for name, chain in ports.chains.items()
        ),
        ExchangeFeed(),
        SettlementCapacityCache(),
        ServiceWallets(),
        MovementDetails((kind.name, kind.details) for kind in KINDS.values() if kind.details),
    )
    return AppState(
        settings=settings, ports=ports, threads=threads, forwarding_limiter=ConcurrencyLimiter(threads),
        rate_limiter=RateLimiter(settings.redis_address), provider_listings=(purchases.provider_listing,),
        wallet_deletion_guards=(purchases.deletion_conflict, topups.open_topup_error, open_payout_error),
        wallet_deletion_listeners=(subscriptions.cancel_for_wallet, service_purchases.remove_rows_of),
        gas_sponsor=settlement_risks.gas_sponsor, is_address_named=address_names.is_named,
        balance_readers=balances.reader_threads(ports.chains), foreign_readers=balances.reader_threads(ports.chains),
        verified_networks=set(), parts={type(part): part for part in parts},
    )  # fmt: skip


def _configure(app: Flask, settings: Settings) -> None:
    replica_url = settings.database_replica_url.get_secret_value()
    app.config.from_mapping(
        SECRET_KEY=settings.secret_key.get_secret_value(),
        MAX_CONTENT_LENGTH=1024 * 1024,
        SQLALCHEMY_DATABASE_URI=_database_url(settings),
        SQLALCHEMY_ENGINE_OPTIONS=_engine_options(settings),
        SQLALCHEMY_BINDS={replica.NAME: {**_engine_options(settings), "url": replica_url}} if replica_url else {},
    )
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.json.default = fields.json_default  # type: ignore[attr-defined]


def _database_url(settings: Settings) -> str:
    url = make_url(settings.database_url.get_secret_value())
    if url.get_backend_name() == "sqlite" and url.database and url.database != ":memory:":
        path = ROOT / url.database
        # SQLite makes its files, and their journals, readable for all users.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        url = url.set(database=str(path))
    return url.render_as_string(hide_password=False)


def _engine_options(settings: Settings) -> dict[str, Any]:
    if settings.database_url.get_secret_value().startswith("sqlite"):
        # IMMEDIATE: of deferred transactions, most that read and then write fail with BUSY.
        connect_args = {"timeout": 15, "isolation_level": "IMMEDIATE"}
        return {"connect_args": connect_args, "pool_size": 8, "max_overflow": 24, "hide_parameters": True}
    # A process that disappears in the middle of a unit must not keep a wallet locked until TCP times out.
    limits = "-c lock_timeout=10s -c idle_in_transaction_session_timeout=30s -c statement_timeout=60s"
    return {
        # Constant statements are prepared by `app.db.libpq`.
        "connect_args": {"options": limits, "prepare_threshold": None, **LOSS_DETECTION},
        "pool_size": settings.database_pool_size,
        "max_overflow": 0,
        "pool_timeout": 15,
        # The connections used last have the statements prepared; the others idle until they are recycled.
        "pool_use_lifo": True,
        "pool_recycle": 300,
        "hide_parameters": True,
    }


def prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=15000"):
        connection.execute(f"PRAGMA {pragma}")


def _prepare_no_statements(connection: Connection[Any], _record: object) -> None:
    """Make `app.db.libpq` execute the statements of a new connection without preparing them."""
    connection.prepared_max = 0


def _bind_extensions(app: Flask, settings: Settings) -> None:
    db.init_app(app)
    with app.app_context():
        for engine in db.engines.values():
            unit_of_work.guard(engine, refuses_wrong_lock_order=settings.is_sandbox)
            if engine.dialect.name == "sqlite":
                event.listen(engine, "connect", prepare_sqlite)
            else:
                pool_liveness.install(engine)
                if not settings.database_prepared_statements:
                    event.listen(engine, "connect", _prepare_no_statements)
