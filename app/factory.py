"""The application factory."""

import sqlite3
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from flask import Blueprint, Flask, Request, Response, request
from flask.sessions import SessionInterface
from psycopg import Connection
from sqlalchemy import event
from sqlalchemy.engine import make_url
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.routing import Rule
from whitenoise import WhiteNoise

from app import cli
from app.agents import routes as agents
from app.approvals import routes as approvals
from app.authenticated import VerifiedRows
from app.buying import records as service_purchases
from app.buying import routes as buying
from app.capacity.limiter import ConcurrencyLimiter, RateLimiter
from app.catalog import subscriptions
from app.catalog.browse import routes as catalog
from app.catalog.payouts import routes as payouts
from app.catalog.payouts.destinations import open_payout_error
from app.catalog.proxy import routes as proxy
from app.catalog.services import routes as services
from app.config import Settings
from app.console import pages as console
from app.core import host
from app.db import pool_liveness, replica, unit_of_work
from app.db.libpq import LOSS_DETECTION
from app.device import routes as device
from app.discovery import routes as discovery
from app.events import routes as events
from app.extensions import api, db
from app.forwarding.call import ForwardingEntry, RestConverter
from app.gateway import routes as gateway
from app.gateway.fallback import Outages
from app.gateway.pricing import price_table
from app.gateway.providers import configured
from app.gateway.providers.operations import add_operations
from app.gateway.providers.table import ProviderTable
from app.identity.service import KeyMemory
from app.mcp import methods
from app.mcp import routes as mcp
from app.mcp.tool_schemas import ToolDescriptions
from app.movements import KINDS
from app.oauth import pages as oauth_pages
from app.oauth import routes as oauth
from app.oauth.clients import ClientDocuments
from app.observability import telemetry
from app.owner import address_book, notices, wallet_keys
from app.owner.pages import activity, agent, charts, claim, limits, template_filters
from app.owner.pages import approvals as owner_approvals
from app.owner.passkeys import pages as passkeys
from app.owner.session import auth, sign_in
from app.payments import routes as payments
from app.payments import settlement_risks, topups
from app.payments.settlement_capacity import SettlementCapacityCache
from app.payments.treasury import ServiceWallets
from app.platform import routes as platform
from app.platform.lookups import routes as lookups
from app.platform.shared_budgets import routes as shared_budgets
from app.receipts import routes as receipts
from app.shopping import routes as shopping
from app.shopping import service as purchases
from app.state import Application, AppState, Ports
from app.status import metrics, pages
from app.status import routes as status
from app.trading import routes as trading
from app.trading.exchange_client import ExchangeFeed
from app.usage import routes as usage
from app.usage.grouped import StepGroups
from app.version import VERSION
from app.wallets.api import routes as wallets
from app.wallets.transactions.outcome_polling import OutcomePoller, OutcomePollers
from app.wallets.views import balances
from app.wallets.views.history import MovementDetails
from app.web import client_request, error_responses, fields, openapi
from app.web.blueprint import Blueprint as ApiBlueprint
from app.web.client_request import ClientRequest, current_request
from app.web.error_responses import ServerHooks
from app.web.openapi import OpenApiDocument
from app.web.reference import Reference
from server.pool import ResourcePool

ROOT = Path(__file__).resolve().parent.parent
# Some add views to another module's blueprint.
_MODULES_WITH_ROUTES = (
    agents, device, wallets, buying, approvals, events, usage, payments, platform, lookups, shared_budgets, trading,
    gateway, catalog, services, payouts, proxy, discovery, receipts, shopping, status, auth, sign_in, activity,
    address_book, agent, owner_approvals, claim, limits, notices, passkeys, wallet_keys, pages, metrics, mcp, oauth,
    oauth_pages, console,
)  # fmt: skip


class _NoSessions(SessionInterface):
    """Reads and writes no session cookie: the owner's pages have sessions of their own."""

    def open_session(self, app: Flask, request: Request) -> None:
        """Open none, so that a view which uses one fails."""


class _Rule(Rule):
    """Compiles the function that builds its URLs when that is used, which is rare."""

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:  # noqa: FBT001, FBT002
        compiled = cache(partial(super()._compile_builder, append_unknown))

        def build(rule: Rule, /, **values: str) -> tuple[str, str]:
            return compiled()(rule, **values)

        return build


def create_app(settings: Settings | None = None, *, ports: Ports | None = None) -> Application:
    """Make the application. Opens no connection, so that a server may make it before it forks."""
    settings = settings or Settings.load()
    # A dependency of eth-account raises the limit to 100 000 on import, more than the C stack of a thread holds.
    sys.setrecursionlimit(1000)
    telemetry.configure_logs(settings.log_level)
    telemetry.init_traces(settings.otel_exporter_otlp_endpoint)
    telemetry.init_error_reports(settings.sentry_dsn.get_secret_value(), network=settings.network.value)
    app = Application("purser", root_path=str(ROOT), template_folder="templates", static_folder=None)
    app.request_class = ClientRequest
    app.session_interface = _NoSessions()
    # A doubled slash is another path, and a redirect would repeat any Host that the client sent.
    app.url_map.merge_slashes = False
    app.url_rule_class = _Rule
    app.url_map.converters["rest"] = RestConverter
    _configure(app, settings)
    _bind_extensions(app, settings)
    document = openapi.bind(app, api)
    providers = configured.load_table(settings)
    document.additions.append(partial(add_operations, providers=providers))
    if ports is None:
        from app import wiring  # noqa: PLC0415 - tests with their own ports need no heavy adapters

        ports = wiring.build(settings)
    app.state = build_state(settings, ports, document, providers)
    bodies = ResourcePool.for_bodies(host.defaults(settings.host_memory)["web_body_memory_mb"])
    app.server_hooks = ServerHooks(app.state.threads, bodies)
    _register_blueprints(app)
    _install_request_hooks(app)
    error_responses.install(app)
    cli.register(app)
    routes = (gateway.forwarded_route(providers), *proxy.FORWARDED_ROUTES)
    app.wsgi_app = ForwardingEntry(app, routes)  # type: ignore[method-assign]
    app.wsgi_app = WhiteNoise(app.wsgi_app, root=str(ROOT / "static"), prefix="static/")  # type: ignore[method-assign]
    if hops := settings.trusted_proxy_hops:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=hops, x_proto=hops, x_host=0)  # type: ignore[method-assign]
    return app


def build_state(settings: Settings, ports: Ports, document: OpenApiDocument, providers: ProviderTable) -> AppState:
    threads = ResourcePool.for_threads(settings.web_threads)
    # Half a second of work, done before workers fork instead of in the first call.
    price_table.table_names()
    parts = (
        document,
        Reference(document),
        providers,
        KeyMemory(),
        ClientDocuments(),
        VerifiedRows(),
        Outages(),
        StepGroups(is_postgresql=settings.database_url.get_secret_value().startswith("postgres")),
        OutcomePollers(
            (name, OutcomePoller(chain, confirmations=settings.confirmations(name)))
            for name, chain in ports.chains.items()
        ),
        ExchangeFeed(),
        SettlementCapacityCache(),
        ServiceWallets(),
        ToolDescriptions(document),
        methods.OFFER,
        MovementDetails((kind.name, kind.details) for kind in KINDS.values() if kind.details),
    )
    return AppState(
        settings=settings, ports=ports, threads=threads, forwarding_limiter=ConcurrencyLimiter(threads),
        rate_limiter=RateLimiter(settings.redis_address), provider_listings=(purchases.provider_listing,),
        wallet_deletion_guards=(purchases.deletion_conflict, topups.open_topup_error, open_payout_error),
        wallet_deletion_listeners=(subscriptions.cancel_for_wallet, service_purchases.remove_rows_of),
        gas_sponsor=settlement_risks.gas_sponsor, is_address_named=address_book.is_named,
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
        API_TITLE="Purser",
        API_VERSION=VERSION,
        OPENAPI_VERSION="3.1.0",
        API_SPEC_OPTIONS=openapi.spec_options(settings),
    )
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.json.default = fields.json_default  # type: ignore[attr-defined]
    filters = (*template_filters.FILTERS, address_book.address_name, address_book.payee, charts.qr_code)
    app.jinja_env.filters.update({each.__name__: each for each in filters})


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


def _register_blueprints(app: Flask) -> None:
    found = dict.fromkeys(
        each for module in _MODULES_WITH_ROUTES for each in vars(module).values() if isinstance(each, Blueprint)
    )
    for blueprint in found:
        (api if isinstance(blueprint, ApiBlueprint) else app).register_blueprint(blueprint)


def _install_request_hooks(app: Application) -> None:
    @app.before_request
    def _begin() -> None:
        client_request.begin(current_request())
        client_request.check(current_request())

    @app.after_request
    def _end(response: Response) -> Response:
        client_request.end(current_request(), response, str(request.url_rule) if request.url_rule else None)
        return response

    client_request.install_cors(app)
