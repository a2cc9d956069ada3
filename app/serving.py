"""Routes, pages, documents, hooks and commands: what an application has that answers requests."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from flask import Blueprint, Flask, Request, Response, request
from flask.sessions import SessionInterface
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.routing import Rule
from whitenoise import WhiteNoise

from app import cli
from app.agents import routes as agents
from app.approvals import routes as approvals
from app.buying import routes as buying
from app.catalog.browse import routes as catalog
from app.catalog.payouts import routes as payouts
from app.catalog.proxy import routes as proxy
from app.catalog.services import routes as services
from app.console import pages as console
from app.core import host
from app.device import routes as device
from app.discovery import routes as discovery
from app.events import routes as events
from app.extensions import api
from app.forwarding.call import ForwardingEntry, RestConverter
from app.gateway import routes as gateway
from app.gateway.fallback import Outages
from app.gateway.pricing import price_table
from app.gateway.providers import configured
from app.gateway.providers.operations import add_operations
from app.gateway.providers.table import ProviderTable
from app.mcp import methods
from app.mcp import routes as mcp
from app.mcp.tool_schemas import ToolDescriptions
from app.oauth import pages as oauth_pages
from app.oauth import routes as oauth
from app.oauth.clients import ClientDocuments
from app.owner import address_book, notices, wallet_keys
from app.owner.pages import activity, agent, charts, claim, limits, template_filters
from app.owner.pages import approvals as owner_approvals
from app.owner.passkeys import pages as passkeys
from app.owner.session import auth, sign_in
from app.payments import routes as payments
from app.platform import routes as platform
from app.platform.lookups import routes as lookups
from app.platform.shared_budgets import routes as shared_budgets
from app.receipts import routes as receipts
from app.shopping import routes as shopping
from app.state import Application
from app.status import metrics, pages
from app.status import routes as status
from app.trading import routes as trading
from app.usage import routes as usage
from app.version import VERSION
from app.wallets.api import routes as wallets
from app.web import client_request, error_responses, openapi
from app.web.blueprint import Blueprint as ApiBlueprint
from app.web.client_request import ClientRequest, current_request
from app.web.error_responses import ServerHooks
from app.web.openapi import OpenApiDocument
from app.web.reference import Reference
from server.pool import ResourcePool

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


def install(app: Application) -> None:
    """Make an application of `app.factory` answer requests, and give it the commands."""
    settings = app.state.settings
    providers = configured.load_table(settings)
    app.request_class = ClientRequest
    app.session_interface = _NoSessions()
    # A doubled slash is another path, and a redirect would repeat any Host that the client sent.
    app.url_map.merge_slashes = False
    app.url_rule_class = _Rule
    app.url_map.converters["rest"] = RestConverter
    app.config.from_mapping(
        API_TITLE="Purser",
        API_VERSION=VERSION,
        OPENAPI_VERSION="3.1.0",
        API_SPEC_OPTIONS=openapi.spec_options(settings),
    )
    filters = (*template_filters.FILTERS, address_book.address_name, address_book.payee, charts.qr_code)
    app.jinja_env.filters.update({each.__name__: each for each in filters})
    # Half a second of work, done before workers fork instead of in the first call.
    price_table.table_names()
    document = openapi.bind(app, api)
    document.additions.append(partial(add_operations, providers=providers))
    add_parts(app, document, providers)
    bodies = ResourcePool.for_bodies(host.defaults(settings.host_memory)["web_body_memory_mb"])
    app.server_hooks = ServerHooks(app.state.threads, bodies)
    _register_blueprints(app)
    _install_request_hooks(app)
    error_responses.install(app)
    cli.register(app)
    routes = (gateway.forwarded_route(providers), *proxy.FORWARDED_ROUTES)
    app.wsgi_app = ForwardingEntry(app, routes)  # type: ignore[method-assign]
    app.wsgi_app = WhiteNoise(app.wsgi_app, root=f"{app.root_path}/static", prefix="static/")  # type: ignore[method-assign]
    if hops := settings.trusted_proxy_hops:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=hops, x_proto=hops, x_host=0)  # type: ignore[method-assign]


def add_parts(app: Application, document: OpenApiDocument, providers: ProviderTable) -> None:
    """Add the parts of the state that only requests use."""
    parts = (
        document,
        Reference(document),
        ToolDescriptions(document),
        providers,
        ClientDocuments(),
        Outages(),
        methods.OFFER,
    )
    app.state = replace(app.state, parts={**app.state.parts, **{type(part): part for part in parts}})


def _register_blueprints(app: Application) -> None:
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
