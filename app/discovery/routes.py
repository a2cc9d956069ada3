"""Documents for clients of x402: `/discovery/resources`, `/.well-known/x402`, and the keys of receipts."""

from typing import Any

import flask
from flask import Response, jsonify
from marshmallow import fields

from app import bot_auth, signing
from app.core.pagination import Page, PageRequest
from app.discovery import listing
from app.identity.limits import client_network
from app.state import app_state
from app.web.blueprint import Blueprint, Guard, share_with_all
from app.web.client_request import ClientRequest, current_request
from app.web.fields import Instant, Text
from app.web.request_bodies import limit_to_keyless
from app.web.schemas import Pagination, Schema, page_query


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
    found = listing.list_resources(page, is_described=bool(extension), **query) if is_known else Page((), 0, page)
    return {"version": 2, "page": found}


@well_known.get("/.well-known/x402")
def x402_manifest() -> Response:
    """Return the URLs of the first resources, and where the others and their prices are."""
    url = app_state().settings.public_url
    return jsonify(
        version=1, resources=listing.list_urls(PageRequest(500, 0)),
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
