"""`/v1/catalog` and `/v1/subscriptions`: find services, subscribe, and unsubscribe."""

from typing import Any

from flask import Response, jsonify, render_template, request

from app.catalog import schemas, subscriptions
from app.catalog.browse import listing
from app.catalog.models import IS_ACTIVE, Service, Subscription
from app.catalog.services import search_index
from app.catalog.services import service as services
from app.core.pagination import Page
from app.db.tables import page_of
from app.db.unit_of_work import read_only_unit
from app.errors import AlreadySubscribed, InvalidInput
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards
from app.wallets.core import wallets
from app.web.blueprint import Blueprint

catalog = Blueprint("catalog", guard=guards.ANY_KEY, url_prefix="/v1/catalog")
subscribed = Blueprint("subscriptions", guard=guards.ANY_KEY, url_prefix="/v1/subscriptions")


@catalog.before_request
def _find_service() -> None:
    """Replace the id in the path by the service before the body is parsed: 404 precedes 400."""
    arguments = request.view_args
    if arguments and request.method != "GET":
        # Unsubscribing from a paused service is possible.
        condition = services.IS_LISTED if request.method == "DELETE" else IS_ACTIVE
        with read_only_unit() as session:
            arguments["service"] = services.find(session, arguments.pop("service_id"), condition)


def _serialize(view: Subscription) -> Response:
    schema = schemas.ReactivatedSubscription if view.reactivated else schemas.SubscriptionShape
    response = jsonify(schema().dump(view))
    response.status_code = 200 if view.reactivated else 201
    return response


@catalog.get("")
@catalog.arguments(schemas.CatalogQuery, location="query")
@catalog.response(200, schemas.CatalogPage)
def list_catalog(query: dict[str, Any]) -> Page[Service]:
    """List active services, those with most calls first."""
    text, category = ((query[name] or "").strip() for name in ("q", "category"))
    return search_index.search(query["page"], text=text, category=category)


@catalog.get("/<string:service_id>")
@catalog.response(200, schemas.CatalogDetail)
def get_catalog_service(service_id: str) -> dict[str, Any]:
    """Read an active service: its endpoints, its price, and how to call it."""
    found = listing.service_detail(service_id)
    summary = render_template("agent_summary.txt", **found["summary"], last_24h=found["last_24h"])
    return {**found, "agent_summary": summary.rstrip("\n")}


@catalog.post("/<string:service_id>/subscribe")
@idempotent(
    owner=lambda: guards.current_principal().account_id, rebuild=lambda each: _serialize(subscriptions.find(each)),
    note="Repeating a request with the same key returns the first response.",
)  # fmt: skip
@catalog.arguments(schemas.SubscribeBody)
@catalog.response(201, schemas.SubscriptionShape)
@catalog.alt_response(
    200, schema=schemas.ReactivatedSubscription, description="A cancelled subscription was reactivated."
)
@catalog.raises(AlreadySubscribed)
def subscribe(body: dict[str, Any], service: Service, claim: Claim) -> Response:
    """Subscribe a wallet to a service."""
    wallet = wallets.get_owned(body["wallet_id"], agent_id=guards.current_principal().agent_id)
    view = subscriptions.subscribe(service.id, wallet_id=wallet.id, agent_id=wallet.agent_id, claim=claim)
    return _serialize(view)


@catalog.delete("/<string:service_id>/subscribe")
@catalog.arguments(schemas.UnsubscribeBody, location="query")
@catalog.arguments(schemas.UnsubscribeBody)
@catalog.response(200, schemas.SubscriptionShape)
def unsubscribe(query: dict[str, Any], body: dict[str, Any], service: Service) -> Subscription:
    """Cancel a wallet's subscription, even to a paused service; name the wallet in the body or in the query."""
    wallet_id = body["wallet_id"] or query["wallet_id"]
    if not wallet_id:
        raise InvalidInput.field("wallet_id", "is required, in the body or in the query")
    wallet = wallets.get_owned(wallet_id, agent_id=guards.current_principal().agent_id)
    return subscriptions.cancel(service.id, wallet_id=wallet.id, agent_id=wallet.agent_id)


@subscribed.get("")
@subscribed.arguments(schemas.SubscriptionQuery, location="query")
@subscribed.response(200, schemas.SubscriptionPage)
def list_subscriptions(query: dict[str, Any]) -> Page[Subscription]:
    """List the subscriptions of your wallets, oldest first, including cancelled ones."""
    is_own = Subscription.agent_id == guards.current_principal().agent_id
    with read_only_unit() as session:
        return page_of(session, Subscription, query["page"], is_own, status=query["status"])
