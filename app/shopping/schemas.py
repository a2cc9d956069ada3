"""Requests and responses of shopping."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import marshmallow as ma
from marshmallow import fields

from app.approvals.schemas import APPROVAL_NOTE
from app.core import money
from app.core.order_amounts import AmountRole
from app.ports.shopper import FailureCode
from app.shopping.models import PurchaseStatus
from app.wallets.api.schemas import SESSION_ID
from app.web.fields import Email, Instant, StrictBoolean, Text, Usd, UsdText, one_of
from app.web.schemas import AcceptsCamelCase, FollowingQuery, Schema, page_schema

_ADVICE = tomllib.loads(Path(__file__).with_name("advice.toml").read_text("utf-8"))
ADVICE, ADVICE_ON_LIMITS = _ADVICE["failures"], _ADVICE["limits"]
_OTHER_LIMIT = "Ask the owner about the wallet's limits; `limit_code` names the one that refused the order."


def advice_on(error: Mapping[str, Any]) -> str:
    if error.get("is_permanent"):
        return "Nothing was ordered. Send it again only after the operator of this service has fixed it."
    if limit_code := error.get("limit_code"):
        return str(ADVICE_ON_LIMITS.get(limit_code, _OTHER_LIMIT))
    return str(ADVICE[error["code"]])


class UsdString(UsdText):
    """US dollars as a decimal string with at least two decimals."""

    def _serialize(self, value: int | None, attr: str | None, obj: Any, **_kwargs: Any) -> str | None:
        del attr, obj
        if value is None:
            return None
        whole, _, fraction = money.usd_string(value).partition(".")
        return f"{whole}.{fraction.ljust(2, '0')}"


def _optional(shortest: int, longest: int, **metadata: str) -> Text:
    return Text(load_default=None, allow_none=True, validate=ma.validate.Length(shortest, longest), metadata=metadata)


class ShopCredentials(Schema):
    """An account of the shop, stored sealed until the purchase ends."""

    username = Text(required=True, validate=ma.validate.Length(1, 320))
    password = Text(required=True, validate=ma.validate.Length(1, 1000))


class ShippingAddressBody(Schema):
    """The recipient. Name and postal code select a stored address of the shop; the rest fills its form."""

    name = Text(required=True, validate=ma.validate.Length(1, 100), metadata={"example": "Ada Buyer"})
    zip = Text(required=True, validate=ma.validate.Length(1, 20), metadata={"example": "94107"})
    line1 = _optional(1, 200)
    line2 = _optional(0, 200)
    city = _optional(1, 100)
    state = _optional(1, 100)
    country = _optional(2, 60)
    phone = _optional(1, 40)
    email = Email(load_default=None, allow_none=True)


class BuyBody(AcceptsCamelCase):
    """The product, the shop account and the recipient."""

    url = Text(required=True, metadata={"example": "https://shop.example/p/1"})
    credentials = fields.Nested(
        ShopCredentials,
        load_default=None,
        allow_none=True,
        metadata={"example": {"username": "ada@example.com", "password": "…"}},
    )
    shippingAddress = fields.Nested(  # noqa: N815 - the wire's spelling
        ShippingAddressBody, required=True, metadata={"example": {"name": "Ada Buyer", "zip": "94107"}}
    )
    quantity = fields.Integer(load_default=1, strict=True, validate=ma.validate.Range(1, 100))
    options = fields.Dict(
        keys=Text(validate=ma.validate.Length(1, 60)), values=Text(validate=ma.validate.Length(1, 100)),
        load_default=dict, validate=ma.validate.Length(max=20),
    )  # fmt: skip
    coupon_code = _optional(2, 100, example="SPRING20")
    delivery_method = _optional(2, 100, example="pickup")
    max_total_usd = Usd(load_default=None, allow_none=True, metadata={"example": 40})
    session_id = SESSION_ID
    approval_note = APPROVAL_NOTE
    dry_run = StrictBoolean(load_default=False)

    def _aliases(self) -> Mapping[str, str]:
        return {**super()._aliases(), "shipping_address": "shippingAddress"}


class PurchasedProduct(Schema):
    """The product, as its page shows it."""

    title = fields.String(required=True)
    price = UsdString(required=True, attribute="price_nanos")
    currency = fields.String(required=True, metadata={"enum": ["USD"]})
    availability = fields.String(required=True, metadata={"enum": ["in_stock", "unknown"]})
    price_source = fields.String(required=True, metadata={"enum": ["json-ld", "markup", "text"]})


class PurchasePayment(Schema):
    """The payment to the shop."""

    method = fields.String(required=True, allow_none=True)
    status = fields.String(required=True, metadata={"enum": ["pending", "unknown"]})


class PriceBreakdownAmount(Schema):
    """An amount that the shop's review shows."""

    role = fields.String(required=True, metadata={"enum": [role.value for role in AmountRole]})
    label = fields.String(required=True)
    amount_usd = UsdString(required=True, attribute="nanos")


class PriceBreakdown(Schema):
    """What the total consists of, as the shop's review shows it before the order."""

    amounts = fields.List(fields.Nested(PriceBreakdownAmount), required=True)
    adds_up = fields.Boolean(required=True)


class PlacedOrder(Schema):
    """The shop's order; for a dry run and before the order, what its review shows."""

    number = fields.String(required=True, allow_none=True)
    total = UsdString(required=True, allow_none=True)
    currency = fields.String(required=True, metadata={"enum": ["USD"]})
    total_usd = UsdString(required=True, allow_none=True)
    payment = fields.Nested(PurchasePayment, required=True)
    shipping_method = fields.String(required=True, allow_none=True)
    price_breakdown = fields.Nested(PriceBreakdown, required=True, allow_none=True)


class PurchaseError(Schema):
    """Why nothing was ordered, or why the outcome is unknown."""

    code = fields.String(required=True, metadata={"enum": [code.value for code in FailureCode]})
    limit_code = fields.String(
        required=True, allow_none=True, dump_default=None, metadata={"enum": [*ADVICE_ON_LIMITS, None]}
    )
    message = fields.String(required=True)
    advice = fields.String(required=True)
    step = fields.String(required=True, allow_none=True)
    missing = fields.List(fields.String(), required=True)
    choices = fields.List(fields.String(), required=True)


class PurchaseStepShape(Schema):
    """A step of the browser, without what it typed."""

    action = fields.String(required=True)
    text = fields.String(required=True)
    path = fields.String(required=True)
    at = Instant(required=True)


class PurchaseEvidenceShape(Schema):
    """A screenshot, kept for 30 days."""

    name = fields.String(required=True)
    url = fields.String(required=True)


class PurchaseSummaryShape(Schema):
    """A purchase in the list, without its steps and screenshots."""

    id = fields.UUID(required=True, attribute="purchase.id")
    status = fields.String(
        required=True, attribute="purchase.status", metadata={"enum": [status.value for status in PurchaseStatus]}
    )
    status_url = fields.String(required=True)
    url = fields.String(required=True, attribute="purchase.url")
    dry_run = fields.Boolean(required=True, attribute="purchase.dry_run")
    quantity = fields.Integer(required=True, attribute="purchase.quantity")
    max_total_usd = Usd(required=True, allow_none=True, attribute="purchase.max_total_nanos")
    product = fields.Nested(PurchasedProduct, required=True, allow_none=True)
    order = fields.Nested(PlacedOrder, required=True, allow_none=True)
    error = fields.Nested(PurchaseError, required=True, allow_none=True)
    cost_usd = UsdString(required=True, attribute="purchase.cost_nanos")
    created_at = Instant(required=True, attribute="purchase.created_at")
    finished_at = Instant(required=True, allow_none=True, attribute="purchase.finished_at")


class PurchaseShape(PurchaseSummaryShape):
    """A purchase."""

    steps = fields.Integer(required=True)
    trail = fields.List(fields.Nested(PurchaseStepShape), required=True, attribute="purchase.steps")
    evidence = fields.List(fields.Nested(PurchaseEvidenceShape), required=True)


PurchasePage = page_schema(
    "PurchasePage", "purchases", PurchaseSummaryShape, "A page of purchases in web shops, newest first."
)


class PurchaseQuery(FollowingQuery):  # type: ignore[misc, valid-type]
    """A filter and pagination of purchases."""

    status = one_of((each.value for each in PurchaseStatus), load_default=None)
