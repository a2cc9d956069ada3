"""`/v1/events` and `/v1/webhooks` of agents, and the same below `/v1/platform` for operators."""

from typing import Any

from flask import Response, jsonify, request

from app import long_poll
from app.audit_log.actors import current_actor
from app.core.pagination import Page
from app.errors import InvalidInput, LimitReached
from app.events import delivery_log, feed, schemas, targets
from app.events.delivery_log import DeliveryRow
from app.events.models import EventTarget
from app.events.targets import Audience, Subscriber
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards, limits
from app.web.blueprint import Blueprint
from app.web.client_request import wait_seconds
from app.web.schemas import PageQuery, assert_any_field

events = Blueprint("events", guard=guards.AGENT_KEY, url_prefix="/v1")
platform_events = Blueprint("platform_events", guard=guards.MASTER_KEY, url_prefix="/v1/platform")
_NOTE = "Repeating a request with the same key returns the first response and creates nothing again."


def _subscriber() -> Subscriber:
    if request.blueprint == platform_events.name:
        return Subscriber(Audience.OPERATOR, None, current_actor())
    return Subscriber(Audience.AGENT, guards.require_agent(), current_actor())


def _owner() -> str:
    return _subscriber().agent_id or guards.acting_key_id()


def _register(blp: Blueprint, prefix: str) -> None:  # noqa: C901 - the views
    """Add the views to a blueprint; their names, which are the operations' ids, begin with a prefix."""

    def named(view: Any) -> Any:
        verb, _, rest = view.__name__.partition("_")
        view.__name__ = view.__qualname__ = f"{verb}_{prefix}{rest}"
        return view

    @blp.get("/events")
    @blp.arguments(schemas.EventsQuery, location="query")
    @blp.response(200, schemas.AccountEvents)
    @blp.header("Prefer", "`wait=N` waits up to N (at most 25) seconds for the first event after the cursor.")
    @named
    def list_events(query: dict[str, Any]) -> Response:
        """Read events in order, at most 30 days old. Continue with `after`: no event is left out."""
        seconds = wait_seconds()
        page = feed.wait(
            _subscriber(), after=query["after"], types=query["types"] or (), limit=min(query["limit"], feed.MAX_EVENTS),
            seconds=seconds or long_poll.NO_WAIT, account_id=_owner(),
        )  # fmt: skip
        response = jsonify(schemas.AccountEvents().dump(page))
        if seconds:
            response.headers[long_poll.PREFERENCE_APPLIED] = f"wait={seconds}"
        return response

    @blp.get("/webhooks")
    @blp.arguments(PageQuery, location="query")
    @blp.response(200, schemas.WebhookPage)
    @named
    def list_webhooks(query: dict[str, Any]) -> Page[EventTarget]:
        """List webhooks, oldest first."""
        return targets.list_of(_subscriber(), query["page"])

    @blp.post("/webhooks")
    @idempotent(owner=_owner, rebuild=targets.reveal, note=_NOTE)
    @blp.arguments(schemas.NewWebhookBody)
    @blp.response(201, schemas.WebhookWithSecret)
    @blp.raises(LimitReached)
    @named
    def create_webhook(body: dict[str, Any], claim: Claim) -> EventTarget:
        """Add a webhook. Each delivery is signed by Standard Webhooks 1.0 with the secret in this response."""
        return targets.create_webhook(_subscriber(), **body, claim=claim)

    @blp.get("/webhooks/<string:webhook_id>")
    @blp.response(200, schemas.WebhookShape)
    @named
    def get_webhook(webhook_id: str) -> EventTarget:
        """Read one webhook."""
        return targets.get(_subscriber(), webhook_id)

    @blp.patch("/webhooks/<string:webhook_id>")
    @blp.arguments(schemas.WebhookBody)
    @blp.response(200, schemas.WebhookShape)
    @named
    def change_webhook(body: dict[str, Any], webhook_id: str) -> EventTarget:
        """Change a webhook, or enable it again after it was disabled: what waited is then delivered."""
        assert_any_field(body, schemas.WebhookBody)
        return targets.change(_subscriber(), webhook_id, body)

    @blp.delete("/webhooks/<string:webhook_id>")
    @blp.response(200, schemas.RemovedWebhook)
    @named
    def delete_webhook(webhook_id: str) -> dict[str, Any]:
        """Remove a webhook with its deliveries."""
        targets.remove(_subscriber(), webhook_id)
        return {"id": webhook_id, "deleted": True}

    @blp.post("/webhooks/<string:webhook_id>/rotate-secret")
    @blp.response(200, schemas.WebhookWithSecret)
    @named
    def rotate_webhook_secret(webhook_id: str) -> EventTarget:
        """Replace the secret. For 24 hours, deliveries have two signatures: of the new and of the former secret."""
        return targets.rotate_secret(_subscriber(), webhook_id)

    @blp.post("/webhooks/<string:webhook_id>/test")
    @blp.response(202, schemas.TestEvent)
    @named
    def test_webhook(webhook_id: str) -> dict[str, Any]:
        """Send a `webhook.test` event to this webhook; see its deliveries for the result."""
        limits.count_requested_delivery(_owner())
        return {"event_id": delivery_log.send_test(_subscriber(), webhook_id)}

    @blp.get("/webhooks/<string:webhook_id>/deliveries")
    @blp.arguments(schemas.DeliveriesQuery, location="query")
    @blp.response(200, schemas.DeliveryPage)
    @named
    def list_webhook_deliveries(query: dict[str, Any], webhook_id: str) -> Page[DeliveryRow]:
        """List deliveries with their attempts, newest first."""
        return delivery_log.list_of(_subscriber(), webhook_id, query["page"], status=query["status"])

    @blp.post("/webhooks/<string:webhook_id>/replay")
    @blp.arguments(schemas.ReplayBody)
    @blp.response(202, schemas.ReplayedDeliveries)
    @named
    def replay_webhook(body: dict[str, Any], webhook_id: str) -> dict[str, Any]:
        """Deliver one event again, or all that failed since a time. The event's id stays the same."""
        if len(body) != 1:
            raise InvalidInput("Send either event_id or failed_since.")
        limits.count_requested_delivery(_owner())
        found = delivery_log.replay(
            _subscriber(), webhook_id, event_id=body.get("event_id"), failed_since=body.get("failed_since")
        )
        return {"delivery_ids": found, "count": len(found)}


_register(events, "")
_register(platform_events, "platform_")
