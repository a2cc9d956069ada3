"""Documents for clients of x402: `/discovery/resources`, `/.well-known/x402`, and the keys of receipts.

The paid resources are the routes of configured providers, then the active services of the catalog. What a seller wrote
is shortened, on one line and quoted, and named in `metadata.untrusted`.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any

import flask
from flask import Response, jsonify
from marshmallow import fields

from app import bot_auth, signing
from app.catalog.browse.listing import words_of_seller
from app.catalog.models import Service
from app.catalog.services import search_index
from app.catalog.services import service as services
from app.core import clock
from app.core.pagination import Page, PageRequest
from app.gateway.providers import operations
from app.identity.limits import client_network
from app.payments.x402 import terms
from app.state import app_state
from app.web.blueprint import Blueprint, Guard, share_with_all
from app.web.client_request import ClientRequest, current_request
from app.web.fields import Instant, Text
from app.web.request_bodies import limit_to_keyless
from app.web.schemas import Pagination, Schema, page_query

_Route = tuple[str, str, str, int]
_Accepts = Callable[[int], list[dict[str, Any]]]


def _check(request: ClientRequest) -> None:
    """Count a request. Raises: RateLimited when its address has sent too many."""
    limit_to_keyless(request)
    app_state().rate_limiter.count("120 per minute", "discovery", client_network(request.remote_addr))


blp = Blueprint("discovery", guard=Guard(schemes=(), check=_check), url_prefix="/discovery", cacheable=True)
well_known = flask.Blueprint("well_known", __name__)
well_known.before_request(lambda: _check(current_request()))
for each in (blp, well_known):
    each.after_request(share_with_all)


class DiscoveryQuery(page_query(default=20, maximum=100)):  # type: ignore[misc]
    """Filters of the resources."""

    type = Text(load_default=None)
    network = Text(load_default=None)
    scheme = Text(load_default=None)
    payTo = Text(load_default=None)  # noqa: N815 - a member of terms
    extensions = Text(load_default=None)


class PaidResource(Schema):
    """A resource that answers 402, and the payments that it accepts."""

    resource = fields.String(required=True)
    type = fields.String(required=True, metadata={"enum": ["http"]})
    x402_version = fields.Integer(required=True, data_key="x402Version", attribute="x402Version")
    accepts = fields.List(fields.Dict(), required=True)
    last_updated = Instant(required=True, data_key="lastUpdated", attribute="lastUpdated")
    description = fields.String(required=True)
    metadata = fields.Dict(required=True)
    extensions = fields.Dict(required=True)


class PaidResourceList(Schema):
    """A page of what can be bought."""

    x402_version = fields.Integer(required=True, data_key="x402Version", attribute="version")
    items = fields.List(fields.Nested(PaidResource), required=True, attribute="page.items")
    pagination = fields.Nested(Pagination, required=True, attribute="page")


@blp.get("/resources")
@blp.arguments(DiscoveryQuery, location="query")
@blp.response(200, PaidResourceList)
def list_paid_resources(query: dict[str, Any]) -> dict[str, Any]:
    """List what can be bought without an account: the providers' routes, then the services of the catalog."""
    page, extension = query.pop("page"), query.pop("extensions")
    is_known = query.pop("type") in {None, "http"} and extension in {None, "bazaar"}
    found: Page[Any] = Page((), 0, page)
    if is_known:
        found = _find(page, query, is_described=bool(extension))
    accepts = cache(terms.accepted_payments)
    items = [
        _service_item(each, accepts) if isinstance(each, Service) else _route_item(each, accepts)
        for each in found.items
    ]
    return {"version": 2, "page": Page(items, found.total, page)}


@well_known.get("/.well-known/x402")
def x402_manifest() -> Response:
    """Return the URLs of the first resources, and where the others and their prices are."""
    url, found = app_state().settings.public_url, _find(PageRequest(500, 0), {})
    paths = [_service_path(each) if isinstance(each, Service) else each[2] for each in found.items]
    return jsonify(
        version=1, resources=[_url(each) for each in paths],
        instructions=f"{url}/discovery/resources has all resources, with prices; {url}/llms.txt says how to pay.",
    )  # fmt: skip


@well_known.get("/.well-known/jwks.json")
@well_known.get("/.well-known/did.json")
def signing_keys() -> Response:
    """Return the keys that verify receipts, as a JWK set (RFC 7517) that is a DID document (`did:web`), too."""
    keys, own = signing.public_keys(), {"type": "JsonWebKey2020", "controller": signing.did()}
    methods = [{**own, "id": key["kid"], "publicKeyJwk": key} for key in keys]
    described = {"@context": "https://www.w3.org/ns/did/v1", "id": signing.did(), "verificationMethod": methods}
    return jsonify(keys=keys, assertionMethod=[each["id"] for each in methods], **described)


@well_known.get(bot_auth.DIRECTORY_PATH)
def signature_directory() -> Response:
    """Return the keys that sign this service's requests to web sites (Web Bot Auth)."""
    keys, proof = bot_auth.directory()
    response = jsonify(keys)
    response.headers.update({"Content-Type": bot_auth.DIRECTORY_TYPE, **proof})
    return response


def _find(page: PageRequest, wanted: Mapping[str, str | None], *, is_described: bool = False) -> Page[_Route | Service]:
    least_nanos = terms.least_price_nanos(wanted)
    if least_nanos is None:
        return Page((), 0, page)
    routes = [each for each in operations.list_paid_routes() if each[3] >= least_nanos]
    own = routes[page.offset : page.offset + page.limit]
    if is_described:
        # Services have no such extension: it names one method.
        return Page(own, len(routes), page)
    rest = PageRequest(max(1, page.limit - len(own)), max(0, page.offset - len(routes)))
    # All services have the minimum price of a payment at least.
    found = search_index.search(rest, min_nanos=0 if services.single_payment_nanos(0) >= least_nanos else least_nanos)
    others = found.items if len(own) < page.limit else ()
    return Page([*own, *others], len(routes) + found.total, page)


def _route_item(route: _Route, accepts: _Accepts) -> dict[str, Any]:
    provider, method, path, nanos = route
    text = f"{method} {path.partition(f'/{provider}')[2].lstrip('/')}".strip()
    return {
        **_item(path, accepts(nanos), clock.now()),
        "description": f"One call of {provider}: {text}. The 402 response to the request has its price.",
        "metadata": {"provider": provider, "untrusted": []},
        "extensions": terms.discovery_extension(method),
    }


def _service_item(service: Service, accepts: _Accepts) -> dict[str, Any]:
    nanos = services.single_payment_nanos(service.price_nanos)
    words = words_of_seller(f"{service.name}: {service.description}", 400)
    return {
        **_item(_service_path(service), accepts(nanos), service.updated_at),
        "description": f"A service of another agent, in the seller's words: {words}",
        "metadata": {
            "category": words_of_seller(service.category, 50),
            "untrusted": ["description", "metadata.category"],
        },
        "extensions": {},
    }


def _item(path: str, accepted: list[dict[str, Any]], at: datetime) -> dict[str, Any]:
    return {"resource": _url(path), "type": "http", "x402Version": 2, "accepts": accepted, "lastUpdated": at}


def _service_path(service: Service) -> str:
    return f"/v1/x402/services/{service.id}"


def _url(path: str) -> str:
    return app_state().settings.public_url + path
