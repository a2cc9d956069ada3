"""`/v1/catalog` and `/v1/subscriptions`: find services, subscribe to them, end that."""

from __future__ import annotations

from typing import Any

from flask import jsonify, request

from app.catalog import listing, schemas, services, subscriptions
from app.catalog.listing import Detail
from app.catalog.services import ServiceView
from app.catalog.subscriptions import SubscriptionView
from app.core.pagination import Page
from app.core.unit_of_work import reading
from app.errors import AlreadySubscribed, IdempotencyConflict, InvalidInput, NotFound, Unauthorized
from app.identity import guards
from app.wallets import service as wallets
from app.web import idempotency
from app.web.blueprint import Blueprint
from app.web.idempotency import idempotent

catalog = Blueprint(
    "catalog",
    __name__,
    guard=guards.ANY_KEY,
    url_prefix="/v1/catalog",
    description="Services that other agents offer. Call them through `/v1/proxy/{service_id}/…`.",
)
subscribed = Blueprint(
    "subscriptions",
    __name__,
    guard=guards.ANY_KEY,
    url_prefix="/v1/subscriptions",
    description="Services that the caller's wallets are subscribed to. Calling a service needs no subscription.",
)
_IDEMPOTENCY_NOTE = "Repeating a request with the same key answers with the first answer."


@catalog.before_request
def _find_service() -> None:
    """Replace the id in the path by the service where a body follows: 404 wins over 400."""
    arguments = request.view_args
    if arguments and request.method != "GET":
        # Nobody has to stay subscribed for as long as a seller pauses.
        find = services.not_retired if request.method == "DELETE" else services.active
        with reading():
            arguments["service"] = find(arguments.pop("service_id"))


def _account() -> str:
    return guards.caller().account_id


def _rebuild(subscription_id: str) -> tuple[int, Any]:
    return _shaped(subscriptions.one(subscription_id))


def _shaped(view: SubscriptionView) -> tuple[int, Any]:
    if view.reactivated:
        return 200, schemas.ReactivatedSubscription().dump(view)
    return 201, schemas.SubscriptionShape().dump(view)


@catalog.get("")
@catalog.arguments(schemas.CatalogQuery, location="query")
@catalog.response(200, schemas.CatalogPage)
@catalog.raises(Unauthorized)
def list_catalog(query: dict[str, Any]) -> Page[ServiceView]:
    """List active services, those with most calls first."""
    return listing.page_of(
        query["page"], text=(query["q"] or "").strip(), category=(query["category"] or "").strip()
    )


@catalog.get("/<string:service_id>")
@catalog.response(200, schemas.CatalogDetail)
@catalog.raises(Unauthorized, NotFound)
def get_catalog_service(service_id: str) -> Detail:
    """Read an active service: its endpoints, its price, and how to call it."""
    return listing.detail(service_id)


@catalog.post("/<string:service_id>/subscribe")
@idempotent(owner=_account, rebuild=_rebuild)
@catalog.arguments(schemas.SubscribeBody)
@catalog.response(201, schemas.SubscriptionShape)
@catalog.alt_response(
    200, schema=schemas.ReactivatedSubscription, description="It had been cancelled, and is in force again."
)
@catalog.raises(Unauthorized, NotFound, AlreadySubscribed, IdempotencyConflict)
@catalog.header(idempotency.HEADER, _IDEMPOTENCY_NOTE)
def subscribe(body: dict[str, Any], service: ServiceView) -> Any:
    """Subscribe a wallet to a service."""
    wallet = wallets.owned(body["wallet_id"], agent_id=guards.caller().agent_id)
    view = subscriptions.subscribe(service.id, service.name, wallet_id=wallet.id, agent_id=wallet.agent_id)
    status, shaped = _shaped(view)
    response = jsonify(shaped)
    response.status_code = status
    return response


@catalog.delete("/<string:service_id>/subscribe")
@catalog.arguments(schemas.UnsubscribeQuery, location="query")
@catalog.arguments(schemas.UnsubscribeBody)
@catalog.response(200, schemas.SubscriptionShape)
@catalog.raises(Unauthorized, NotFound)
def unsubscribe(query: dict[str, Any], body: dict[str, Any], service: ServiceView) -> SubscriptionView:
    """Cancel a wallet's subscription, to a paused service too; name the wallet in the body or in the query."""
    wallet_id = body["wallet_id"] or query["wallet_id"]
    if not wallet_id:
        raise InvalidInput.field("wallet_id", "is required, in the body or in the query")
    wallet = wallets.owned(wallet_id, agent_id=guards.caller().agent_id)
    return subscriptions.cancel(service.id, wallet_id=wallet.id, agent_id=wallet.agent_id)


@subscribed.get("")
@subscribed.arguments(schemas.SubscriptionQuery, location="query")
@subscribed.response(200, schemas.SubscriptionPage)
@subscribed.raises(Unauthorized)
def list_subscriptions(query: dict[str, Any]) -> Page[SubscriptionView]:
    """List the subscriptions of the caller's wallets, oldest first; cancelled ones too."""
    return subscriptions.list_of(guards.caller().agent_id, query["page"], status=query["status"])
