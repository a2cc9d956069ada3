"""The application, put together from settings and ports."""

from __future__ import annotations

import sqlite3
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import structlog
from flask import Flask, Response, g, request
from sqlalchemy import event
from sqlalchemy.engine import Engine, make_url
from werkzeug.middleware.proxy_fix import ProxyFix
from whitenoise import WhiteNoise

from app import commands
from app.agents import routes as agents
from app.catalog import owner_routes as services
from app.catalog import proxy_routes as proxy
from app.catalog import routes as catalog
from app.catalog import subscriptions
from app.catalog.proxy import refuse_loops
from app.config import Settings
from app.core import alarms, connections, identifiers, leases, logs, tallies
from app.device import routes as device
from app.extensions import api, db, limiter, migrate
from app.gateway import configured, listing
from app.gateway import routes as gateway
from app.identity.guards import SECURITY_SCHEMES
from app.owner import agent_pages, claiming, door, limits_form, signing_in, wording
from app.payments import routes as payments
from app.payments import topups
from app.platform import key_routes as platform_keys
from app.platform import routes as platform
from app.ports.provider import PortSet
from app.shopping import routes as shopping
from app.shopping import service as purchases
from app.status import metrics, pages
from app.status import routes as status
from app.trading import routes as trading
from app.usage import routes as usage
from app.wallets import balances, bridge_routes, controls_routes, swap_routes, waiting
from app.wallets import routes as wallets
from app.wallets import service as wallet_service
from app.web import budgets, documentation, failures, fields, forwarding
from app.web.targets import RestConverter

ROOT = Path(__file__).resolve().parent.parent
MAX_JSON_BYTES = 1024 * 1024
_RECURSION_LIMIT = 1000
_STATUSES = frozenset(HTTPStatus)

_log = structlog.get_logger(__name__)


def create_app(settings: Settings | None = None, *, ports: PortSet | None = None) -> Flask:
    """Make the application. Opens no connection, so it may be made before a server forks."""
    settings = settings or Settings.load()
    # A library of eth-account's raises the limit to 100 000 when imported, beyond what the C stack of a thread holds.
    sys.setrecursionlimit(_RECURSION_LIMIT)
    logs.configure(settings.log_level)
    alarms.begin(settings.sentry_dsn.get_secret_value(), network=settings.network.value)
    app = Flask("purser", root_path=str(ROOT), template_folder="templates", static_folder=None)
    # A doubled slash is another path, and a redirect would repeat whatever Host the caller sent.
    app.url_map.merge_slashes = False
    app.url_map.converters["rest"] = RestConverter
    app.extensions["settings"] = settings
    app.extensions["ports"] = ports or _ports_of(settings)
    _configure(app, settings)
    _bind_extensions(app)
    _register_rooms(app)
    _observe_requests(app, settings)
    app.before_request(refuse_loops)
    failures.install(app)
    commands.register(app)
    with app.app_context():
        budgets.open_threads()
        waiting.open_rooms()
        balances.open_readers()
        forwarding.open_lanes()
        wallet_service.keep_while(purchases.open_purchase_of)
        wallet_service.keep_while(topups.open_topup_of)
        configured.install(settings)
        listing.add(purchases.listed)
        wallet_service.on_removal(subscriptions.end_of_wallet)
    _serve(app, settings)
    return app


def _ports_of(settings: Settings) -> PortSet:
    from app import wiring  # noqa: PLC0415 - tests that bring their own ports do without heavy adapters

    return wiring.build(settings)


def _configure(app: Flask, settings: Settings) -> None:
    app.config.from_mapping(
        SECRET_KEY=settings.secret_key.get_secret_value(),
        MAX_CONTENT_LENGTH=MAX_JSON_BYTES,
        SQLALCHEMY_DATABASE_URI=_database_url(settings),
        SQLALCHEMY_ENGINE_OPTIONS=_engine_options(settings),
        API_TITLE="Purser",
        API_VERSION="v1",
        OPENAPI_VERSION="3.1.0",
        API_SPEC_OPTIONS=documentation.spec_options(settings.public_url, SECURITY_SCHEMES),
        RATELIMIT_STORAGE_URI=settings.redis_url.get_secret_value(),
        RATELIMIT_STORAGE_OPTIONS={"socket_connect_timeout": 0.25, "socket_timeout": 0.25},
        RATELIMIT_STRATEGY="moving-window",
        RATELIMIT_IN_MEMORY_FALLBACK_ENABLED=True,
        RATELIMIT_SWALLOW_ERRORS=True,
    )
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.json.default = fields.json_default  # type: ignore[attr-defined]


def _database_url(settings: Settings) -> str:
    url = make_url(settings.database_url.get_secret_value())
    if url.get_backend_name() == "sqlite" and url.database and url.database != ":memory:":
        path = ROOT / url.database
        path.parent.mkdir(parents=True, exist_ok=True)
        url = url.set(database=str(path))
    return url.render_as_string(hide_password=False)


def _engine_options(settings: Settings) -> dict[str, Any]:
    if settings.database_url.get_secret_value().startswith("sqlite"):
        # The driver opens its transactions IMMEDIATE: deferred ones lose most read-then-write units to BUSY.
        connect_args = {"timeout": 15, "isolation_level": "IMMEDIATE"}
        return {"connect_args": connect_args, "pool_size": 8, "max_overflow": 24, "hide_parameters": True}
    # A process that vanishes in the middle of a unit must not keep a wallet locked until TCP gives up on it.
    limits = "-c lock_timeout=10s -c idle_in_transaction_session_timeout=30s -c statement_timeout=60s"
    return {
        "connect_args": {"options": limits, "connect_timeout": 5, "keepalives_idle": 15},
        "pool_size": settings.database_pool_size,
        "max_overflow": settings.database_pool_overflow,
        "pool_timeout": 15,
        # The connections used last know the statements best; the others rest until they are recycled.
        "pool_use_lifo": True,
        "pool_recycle": 300,
        "hide_parameters": True,
    }


@event.listens_for(Engine, "connect")
def _prepare_sqlite(connection: Any, _record: object) -> None:
    if not isinstance(connection, sqlite3.Connection):
        return
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=15000"):
        connection.execute(f"PRAGMA {pragma}")


def _bind_extensions(app: Flask) -> None:
    db.init_app(app)
    migrate.init_app(app, db, directory=str(ROOT / "migrations"), render_as_batch=True, compare_type=True)
    limiter.init_app(app)
    documentation.bind(app, api)


def _register_rooms(app: Flask) -> None:
    for blueprint in (
        agents.registration,
        agents.agents,
        agents.keys,
        device.device,
        wallets.blp,
        usage.balance,
        usage.usage,
        payments.blp,
        platform.blp,
        trading.blp,
        gateway.gateway,
        gateway.providers,
        catalog.catalog,
        catalog.subscribed,
        services.blp,
        proxy.proxy,
        shopping.shopping,
        status.blp,
    ):
        api.register_blueprint(blueprint)
    app.register_blueprint(door.entrance)
    app.register_blueprint(door.inside)
    app.register_blueprint(pages.pages)
    app.register_blueprint(metrics.metrics)


def _observe_requests(app: Flask, settings: Settings) -> None:
    believes_proxies = settings.trusted_proxy_hops > 0

    @app.before_request
    def _begin() -> None:
        g.request_id = identifiers.new_id()
        g.started = time.perf_counter_ns()
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=g.request_id)

    @app.after_request
    def _end(response: Response) -> Response:
        # A forwarded answer keeps its upstream's.
        response.headers.setdefault("X-Request-Id", g.request_id)
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        # The route's pattern, not the path: queries and path segments may hold codes and keys.
        route = str(request.url_rule) if request.url_rule else None
        microseconds = (time.perf_counter_ns() - g.started) // 1000
        _log.info(
            "request",
            method=request.method,
            route=route,
            status=response.status_code,
            microseconds=microseconds,
        )
        # A caller may make methods up.
        labels = {"method": request.method if route else "", "route": route or ""}
        tallies.count("requests", **labels, status=_named(response.status_code))
        tallies.observe("request_seconds", microseconds, **labels)
        if not believes_proxies and "X-Forwarded-For" in request.headers:
            tallies.count("forwarded_unbelieved")
        return response


def _named(status: int) -> str:
    """Return a status as a label: of those that only a stranger's service makes up, the class."""
    return str(status) if status in _STATUSES else f"{status // 100}xx"


def _serve(app: Flask, settings: Settings) -> None:
    app.wsgi_app = WhiteNoise(app.wsgi_app, root=str(ROOT / "static"), prefix="static/")  # type: ignore[method-assign]
    hops = settings.trusted_proxy_hops
    if hops:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=hops, x_proto=hops, x_host=0)  # type: ignore[method-assign]


# Imported for what they register: further routes of a room, and a table that no room owns.
_REGISTERED = (
    bridge_routes, connections, controls_routes, leases, platform_keys, swap_routes,
    agent_pages, claiming, limits_form, signing_in, wording,
)  # fmt: skip
