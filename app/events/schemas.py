"""Schemas of events and webhooks."""

from typing import Any

import marshmallow as ma
from marshmallow import fields, validate

from app.events.feed import MAX_EVENTS, DeliveryStatus
from app.events.outbox import PATTERNS, EventType, expand
from app.events.targets import TargetStatus
from app.web.fields import Instant, Moment, ParsedField, QueryCount, StrictBoolean, Text, one_of
from app.web.schemas import EXAMPLE_ID, PageQuery, Schema, page_schema

_PATTERNS = sorted(PATTERNS)


class TypesInQuery(ParsedField):
    """Types of events, separated by commas; a group as `payment.*`."""

    def _parse(self, value: Any) -> list[str]:
        wanted = [each.strip() for each in str(value).split(",") if each.strip()]
        if any(each not in PATTERNS for each in wanted):
            raise ma.ValidationError(f"must be some of {', '.join(_PATTERNS)}")
        return expand(wanted)


class EventsQuery(Schema):
    """Where to continue, and what to return."""

    after = QueryCount(
        load_default=None,
        validate=validate.Range(min=0, error="must not be negative"),
        metadata={"description": "`next_after` of the previous response. Without it: from the oldest event."},
    )
    types = TypesInQuery(
        load_default=None,
        metadata={"description": "Types, separated by commas: `transaction.confirmed,payment.*`.", "type": "string"},
    )
    limit = QueryCount(
        load_default=50,
        validate=validate.Range(min=1, error="must be at least 1"),
        metadata={"description": f"Events per response, at most {MAX_EVENTS}.", "default": 50},
    )


class AccountEvent(Schema):
    """An event; webhooks are sent the same."""

    id = fields.UUID(required=True)
    type = fields.String(required=True, metadata={"enum": [each.value for each in EventType]})
    timestamp = Instant(required=True, attribute="created_at")
    agent_id = fields.UUID(required=True, allow_none=True)
    object_id = fields.String(required=True)
    data = fields.Dict(required=True)


class AccountEvents(Schema):
    """Events in order, and the cursor of the next request."""

    events = fields.List(fields.Nested(AccountEvent), required=True)
    next_after = fields.Integer(required=True)
    has_more = fields.Boolean(required=True)


class _TypesOfTarget(ParsedField):
    def _parse(self, value: Any) -> list[str]:
        if not isinstance(value, list) or not value or any(each not in _PATTERNS for each in value):
            raise ma.ValidationError(f"must be a list of some of {', '.join(_PATTERNS)}")
        return list(dict.fromkeys(value))


_TYPES = {"type": "array", "items": {"type": "string", "enum": _PATTERNS}, "example": ["transaction.*"]}
_URL = {"format": "uri", "example": "https://api.example.com/hooks"}
_SHORT = validate.Length(max=100, error="must have at most 100 characters")


class NewWebhookBody(Schema):
    """Where to deliver which types."""

    url = Text(required=True, metadata=_URL)
    types = _TypesOfTarget(required=True, metadata=_TYPES)
    description = Text(load_default="", validate=_SHORT)


class WebhookBody(Schema):
    """What to change."""

    url = Text(metadata=_URL)
    types = _TypesOfTarget(metadata=_TYPES)
    description = Text(validate=_SHORT)
    enabled = StrictBoolean(metadata={"type": "boolean"})


class WebhookShape(Schema):
    """A webhook."""

    id = fields.UUID(required=True)
    url = fields.String(required=True)
    description = fields.String(required=True)
    types = fields.List(fields.String(), required=True)
    status = fields.String(required=True, metadata={"enum": [each.value for each in TargetStatus]})
    status_reason = fields.String(required=True, allow_none=True)
    failing_since = Instant(required=True, allow_none=True)
    former_secret_until = Instant(required=True, allow_none=True)
    created_at = Instant(required=True)
    created_by = fields.UUID(required=True, allow_none=True)


class WebhookWithSecret(WebhookShape):
    """A webhook with its signing secret, which is shown only here."""

    secret = fields.String(required=True, metadata={"example": "whsec_…"})


WebhookPage = page_schema("WebhookPage", "webhooks", WebhookShape, "A page of webhooks, oldest first.")


class RemovedWebhook(Schema):
    """A webhook that was removed."""

    id = fields.UUID(required=True)
    deleted = fields.Boolean(required=True)


class DeliveryAttemptShape(Schema):
    """An attempt: the status code that the target answered, or why there was none."""

    at = fields.String(required=True, metadata={"format": "date-time"})
    status_code = fields.Integer(required=True, allow_none=True)
    error = fields.String(required=True, allow_none=True)
    duration_ms = fields.Integer(required=True)
    answer = fields.String(required=True)


class DeliveryShape(Schema):
    """An event on its way to a webhook."""

    id = fields.UUID(required=True)
    event_id = fields.UUID(required=True)
    type = fields.String(required=True)
    object_id = fields.String(required=True)
    status = fields.String(required=True, metadata={"enum": [each.value for each in DeliveryStatus]})
    tries = fields.Integer(required=True)
    attempts = fields.List(fields.Nested(DeliveryAttemptShape), required=True)
    next_attempt_at = Instant(required=True, allow_none=True)
    created_at = Instant(required=True)
    delivered_at = Instant(required=True, allow_none=True)


DeliveryPage = page_schema("DeliveryPage", "deliveries", DeliveryShape, "A page of deliveries, newest first.")


_OF_STATE = {"description": "Only deliveries in this state."}
_STATUS = one_of((each.value for each in DeliveryStatus), load_default=None, metadata=_OF_STATE)
DeliveriesQuery = PageQuery.from_dict({"status": _STATUS})


class TestEvent(Schema):
    """The event that was recorded for a test."""

    event_id = fields.UUID(required=True)


class ReplayBody(Schema):
    """One event, or all that failed since a time."""

    event_id = fields.String(metadata={"example": EXAMPLE_ID})
    failed_since = Moment(metadata={"type": "string", "format": "date-time"})


class ReplayedDeliveries(Schema):
    """The deliveries that are due again."""

    delivery_ids = fields.List(fields.UUID(), required=True)
    count = fields.Integer(required=True)
