"""Schemas of the catalog API, and of payouts and refunds."""

import json
import unicodedata
from typing import Any

import marshmallow as ma
from marshmallow import fields

from app.approvals.schemas import APPROVAL_NOTE
from app.catalog.models import PayoutKind, PayoutStatus, SubscriptionStatus
from app.core import money
from app.core.identifiers import require
from app.state import app_state
from app.web.fields import Address, Identifier, Instant, Name, ParsedField, Symbol, Text, Usd, json_default, one_of
from app.web.schemas import EXAMPLE_ID, PageQuery, Pagination, Schema, page_schema

_MAX_DESCRIPTION = 4_000
_MAX_CATEGORY = 50
_MAX_QUERY = 200
_PRICE = {"description": "From 0 to 100 US dollars.", "example": 1}
_DOCUMENT = {
    "type": ["object", "string"],
    "additionalProperties": {},
    "description": "An OpenAPI 3.0 or 3.1 document, as an object or as JSON text; references within it only.",
}
_LINE_BREAKS = "\n\t"


class CallUrl(fields.String):
    """The URL below which a service is called, from its id."""

    def __init__(self, prefix: str, **options: Any) -> None:
        super().__init__(required=True, **options)
        self._prefix = prefix

    def get_value(self, obj: Any, *_arguments: Any, **_options: Any) -> str:
        """Return the URL of a service, which has no such attribute."""
        return f"{app_state().settings.public_url}{self._prefix}/{super().get_value(obj, 'id')}"


class Prose(ParsedField, fields.String):
    """A text that may have several lines but no other control characters or lone surrogates."""

    def _parse(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ma.ValidationError("must be a string")
        text = value.replace("\r\n", "\n").strip()
        if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text if letter not in _LINE_BREAKS):
            raise ma.ValidationError("must not contain control characters")
        return text


class RequiredName(Name):
    """A required name: 1 to 100 characters after trimming."""

    def _parse(self, value: Any) -> Any:
        return require(super()._parse(value), ma.ValidationError("must not be blank"))


class Document(ParsedField):
    """An OpenAPI document, accepted as an object or as JSON text, and converted to text.

    Anything else is converted as well, and refused by the specification reader with INVALID_SPEC.
    """

    def _parse(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        return json.dumps(value, default=json_default)


_PRICE_RANGE = ma.validate.Range(max=100 * money.NANOS_PER_USD, error="must be at most 100")
_DESCRIPTION_LENGTH = ma.validate.Length(max=_MAX_DESCRIPTION, error=f"must have at most {_MAX_DESCRIPTION} characters")
_CATEGORY_LENGTH = ma.validate.Length(max=_MAX_CATEGORY, error=f"must have at most {_MAX_CATEGORY} characters")


class NewServiceBody(Schema):
    """A service to be registered."""

    name = RequiredName(required=True, metadata={"example": "City weather"})
    description = Prose(
        load_default="", validate=_DESCRIPTION_LENGTH, metadata={"example": "Current weather of any city."}
    )
    base_url = Text(required=True, metadata={"example": "https://api.example.com/v1"})
    price_per_call_usd = Usd(required=True, attribute="price_nanos", validate=_PRICE_RANGE, metadata=_PRICE)
    category = RequiredName(load_default="other", validate=_CATEGORY_LENGTH, metadata={"example": "weather"})
    pricing_model = one_of(["per_call"], load_default="per_call")
    openapi_spec = Document(load_default=None, allow_none=True, metadata=_DOCUMENT)


class ServiceChanges(Schema):
    """Changes of a service; omitted fields keep their values."""

    name = RequiredName()
    description = Prose(validate=_DESCRIPTION_LENGTH)
    base_url = Text()
    price_per_call_usd = Usd(attribute="price_nanos", validate=_PRICE_RANGE, metadata=_PRICE)
    category = RequiredName(validate=_CATEGORY_LENGTH)
    pricing_model = one_of(["per_call"])
    openapi_spec = Document(allow_none=True, metadata=_DOCUMENT)
    status = one_of(["active", "paused"], metadata={"example": "paused"})


class ServiceEndpointShape(Schema):
    """An endpoint of a service."""

    method = fields.String(required=True)
    path = fields.String(required=True)
    summary = fields.String(required=True)


class EndpointParameterShape(Schema):
    """A parameter of an endpoint."""

    name = fields.String(required=True)
    in_ = fields.String(
        required=True, data_key="in", attribute="in", metadata={"enum": ["path", "query", "header", "cookie"]}
    )
    required = fields.Boolean(required=True)


class EndpointDetail(ServiceEndpointShape):
    """An endpoint of a service, with its parameters."""

    parameters = fields.List(fields.Nested(EndpointParameterShape), required=True)


class ServiceQualityShape(Schema):
    """How reliable and fast a service was in the last 24 hours."""

    success_rate = fields.Float(required=True, allow_none=True)
    median_latency_ms = fields.Integer(required=True, allow_none=True)


class ServiceDayShape(ServiceQualityShape):
    """The last 24 hours, to the minute."""

    calls = fields.Integer(required=True)
    revenue_usd = Usd(required=True, attribute="revenue_nanos")


class _Described(Schema):
    id = fields.UUID(required=True)
    name = fields.String(required=True)
    description = fields.String(required=True)
    base_url = fields.String(required=True)
    pricing_model = fields.String(required=True, metadata={"enum": ["per_call"]})
    price_per_call_usd = Usd(required=True, attribute="price_nanos")
    category = fields.String(required=True)


class _Callable(_Described):
    proxy_url = CallUrl("/v1/proxy")
    x402_url = CallUrl("/v1/x402/services")


class CatalogEntryShape(_Callable):
    """A service in the catalog."""

    total_calls = fields.Integer(required=True)
    total_revenue_usd = Usd(required=True, attribute="total_revenue_nanos")
    created_at = Instant(required=True)


CatalogPage = page_schema(
    "CatalogPage", "services", CatalogEntryShape, "A page of the catalog: most calls first, then by name and id."
)


class CatalogDetail(_Callable):
    """A service of the catalog, with everything needed to call it."""

    total_calls = fields.Integer(required=True, attribute="totals.calls")
    openapi_spec = fields.Dict(required=True)
    agent_summary = fields.String(required=True)
    endpoints = fields.List(fields.Nested(EndpointDetail), required=True)
    last_24h = fields.Nested(ServiceQualityShape, required=True)
    created_at = Instant(required=True)


class OwnedService(_Described):
    """A service as its owner sees it."""

    status = fields.String(required=True, metadata={"enum": ["active", "paused"]})
    total_calls = fields.Integer(required=True, attribute="totals.calls")
    total_revenue_usd = Usd(required=True, attribute="totals.revenue_nanos")
    subscribers = fields.Integer(required=True)
    endpoints_count = fields.Integer(required=True)
    endpoints = fields.List(fields.Nested(ServiceEndpointShape), required=True)
    created_at = Instant(required=True)
    updated_at = Instant(required=True)


class OwnedEntry(CatalogEntryShape):
    """A service that you own."""

    status = fields.String(required=True, metadata={"enum": ["active", "paused"]})
    suspended = fields.Boolean(required=True, attribute="is_suspended")
    updated_at = Instant(required=True)


OwnedPage = page_schema("OwnedPage", "services", OwnedEntry, "A page of your services, oldest first.")


_WATCHED: Any = OwnedEntry.from_dict({"last_24h": fields.Nested(ServiceDayShape, required=True)}, name="WatchedEntry")
WatchedPage = page_schema("WatchedPage", "services", _WATCHED, "A page of services, oldest first.")


class RegisteredService(_Callable):
    """A service that was registered, and the secret with which its calls are signed."""

    status = fields.String(required=True, metadata={"enum": ["active", "paused"]})
    signing_secret = fields.String(required=True, attribute="secret")
    created_at = Instant(required=True)
    updated_at = Instant(required=True)


class UpdatedService(Schema):
    """A service that was changed."""

    id = fields.UUID(required=True)
    updated = fields.Boolean(required=True)


class RetiredService(Schema):
    """A retired service."""

    id = fields.UUID(required=True)
    retired = fields.Boolean(required=True)


class TopAgentShape(Schema):
    """Calls and spending of a wallet."""

    wallet_id = fields.UUID(required=True)
    total_calls = fields.Integer(required=True, attribute="calls")
    total_spent_usd = Usd(required=True, attribute="spent_nanos")


class ServiceStatisticsShape(Schema):
    """Statistics of a service."""

    service_id = fields.UUID(required=True, attribute="id")
    name = fields.String(required=True)
    total_calls = fields.Integer(required=True, attribute="totals.calls")
    total_revenue_usd = Usd(required=True, attribute="totals.revenue_nanos")
    active_subscribers = fields.Integer(required=True)
    last_24h = fields.Nested(ServiceDayShape, required=True)
    top_agents = fields.List(fields.Nested(TopAgentShape), required=True)


class CatalogQuery(PageQuery):  # type: ignore[misc, valid-type]
    """Filters of the catalog."""

    category = Text(load_default=None, metadata={"description": "Exactly this category, in any case."})
    q = Text(
        load_default=None,
        validate=ma.validate.Length(max=_MAX_QUERY, error=f"must have at most {_MAX_QUERY} characters"),
        metadata={"description": "A piece of the name or the description, in any case."},
    )


class SubscriptionQuery(PageQuery):  # type: ignore[misc, valid-type]
    """Filters of subscriptions."""

    status = one_of((each.value for each in SubscriptionStatus), load_default=None)


class SubscribeBody(Schema):
    """The wallet that subscribes."""

    wallet_id = Text(required=True, metadata={"example": EXAMPLE_ID})


class UnsubscribeBody(Schema):
    """The wallet to unsubscribe; alternatively in the query."""

    wallet_id = Text(load_default=None, metadata={"example": EXAMPLE_ID})


class SubscriptionShape(Schema):
    """A wallet's subscription to a service."""

    subscription_id = fields.UUID(required=True, attribute="id")
    service_id = fields.UUID(required=True)
    service_name = fields.String(required=True)
    wallet_id = fields.UUID(required=True)
    status = fields.String(required=True, metadata={"enum": list(SubscriptionStatus)})


class ReactivatedSubscription(SubscriptionShape):
    """A cancelled subscription that was reactivated."""

    reactivated = fields.Boolean(required=True)


SubscriptionPage = page_schema(
    "SubscriptionPage", "subscriptions", SubscriptionShape, "A page of your subscriptions, oldest first."
)


class ProxiedAnswer(Schema):
    """The response of the service, with its status and headers; not necessarily JSON."""

    class Meta(Schema.Meta):
        """Any members."""

        unknown = ma.INCLUDE


class PayoutBody(Schema):
    """Where a payout goes; by default, to the seller's first wallet on Base."""

    chain = Symbol(load_default=None, metadata={"enum": ["ethereum", "base", "solana"], "example": "base"})
    address = Address(load_default=None, metadata={"example": "0x52908400098527886E0F7030069857D2E4169EE7"})
    wallet_id = Text(load_default=None, metadata={"example": EXAMPLE_ID})
    approval_note = APPROVAL_NOTE


class ApprovablePayout(PayoutBody):
    """A payout as an approval stores it."""

    service_id = fields.String(required=True)


class RefundAmount(Schema):
    """What to refund; without an amount, all that was paid."""

    amount_usd = Usd(load_default=None, allow_none=True, metadata={"example": 1})


class RefundBody(RefundAmount):
    """The call to refund; without an amount, all that was paid for it."""

    call_id = Text(required=True, metadata={"example": EXAMPLE_ID})


class PayoutShape(Schema):
    """A payout or a refund. Without a chain, it is a refund in credits, or was made by the operator elsewhere."""

    id = fields.UUID(required=True)
    service_id = fields.UUID(required=True, allow_none=True)
    kind = fields.String(required=True, metadata={"enum": list(PayoutKind)})
    status = fields.String(required=True, metadata={"enum": list(PayoutStatus)})
    amount_usd = Usd(required=True, attribute="amount_nanos")
    commission_usd = Usd(required=True, attribute="commission_nanos")
    chain = fields.String(required=True, allow_none=True)
    to = fields.String(required=True, allow_none=True, attribute="transaction.to_address", dump_default=None)
    tx_hash = fields.String(required=True, allow_none=True, attribute="transaction.tx_hash", dump_default=None)
    call_id = fields.UUID(required=True, allow_none=True)
    created_at = Instant(required=True)
    closed_at = Instant(required=True, allow_none=True)


class EarningsShape(Schema):
    """The earnings of a service: revenue = paid + commission + refunded + unpaid."""

    revenue_usd = Usd(required=True, attribute="revenue_nanos")
    paid_usd = Usd(required=True, attribute="paid_nanos")
    commission_usd = Usd(required=True, attribute="commission_nanos")
    refunded_usd = Usd(required=True, attribute="refunded_nanos")
    unpaid_usd = Usd(required=True, attribute="unpaid_nanos")
    held_usd = Usd(required=True, attribute="held_nanos")
    payable_usd = Usd(required=True, attribute="payable_nanos")


AllPayouts = page_schema("AllPayouts", "payouts", PayoutShape, "Payouts and refunds of all services, newest first.")


class PayoutPage(Schema):
    """The payouts and refunds of a service, newest first, and its earnings."""

    payouts = fields.List(fields.Nested(PayoutShape), required=True)
    earnings = fields.Nested(EarningsShape, required=True)
    pagination = fields.Nested(Pagination, required=True)


class PayoutQuery(PageQuery):  # type: ignore[misc, valid-type]
    """A page of payouts, of one service or of all."""

    service_id = Identifier(load_default=None)
