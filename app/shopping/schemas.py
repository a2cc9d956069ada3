"""What shopping reads and answers on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import marshmallow as ma
from marshmallow import fields, pre_load

from app.core import money
from app.errors import ErrorCode
from app.ports.shopper import Trouble
from app.shopping.lifecycle import Status
from app.web.fields import Email, Flag, Instant, Text, Usd, UsdText
from app.web.schemas import Schema

MAX_QUANTITY = 100
_TWINS: Mapping[str, str] = {
    "shipping_address": "shippingAddress",
    "maxTotalUsd": "max_total_usd",
    "dryRun": "dry_run",
}
_ADVICE: Mapping[str, str] = {
    Trouble.OUT_OF_STOCK: "Choose another product, or try again later.",
    Trouble.NOT_A_PRODUCT: "Send the address of one product's own page.",
    Trouble.PRODUCT_NOT_FOUND: "Check the address; the shop does not know this page.",
    Trouble.OPTIONS_REQUIRED: 'Send `options`, such as {"Color": "White"}, from `choices`, or ask for one piece.',
    Trouble.ADDRESS_INCOMPLETE: "Add what `missing` names to `shippingAddress`, or store the address in the shop.",
    Trouble.ADDRESS_MISMATCH: "Send the whole address, or store it in the shop under this name and postal code.",
    Trouble.LOGIN_FAILED: "Check the credentials; log in once by hand if the shop asks for more than a password.",
    Trouble.LIMIT_EXCEEDED: "Raise `max_total_usd`.",
    Trouble.PRICE_UNKNOWN: "This shop shows no price or total that can be read for certain; buy by hand.",
    Trouble.CURRENCY_UNSUPPORTED: "Choose the shop's page in US dollars, if it has one.",
    Trouble.CART_MISMATCH: "Empty the cart of the shop's account and try again.",
    Trouble.PAYMENT_DETAILS_REQUIRED: "Store a way to pay in the shop's account first.",
    Trouble.HUMAN_CHECK: "A person has to pass the shop's check.",
    Trouble.LEFT_DOMAIN: "Add that domain to the wallet's `allowed_domains` if it belongs to the shop.",
    Trouble.SHOP_UNREACHABLE: "Check the address, or try again later.",
    Trouble.STUCK: "Look at the screenshots; this shop may have to be used by hand.",
    Trouble.BROWSER_ERROR: "Nothing was ordered; send it again.",
    Trouble.TIMEOUT: "Nothing was ordered; send it again.",
    Trouble.OUTCOME_UNKNOWN: "Look at the orders of the shop's account before you buy again.",
}  # fmt: skip


_ADVICE_ON_LIMITS: Mapping[str, str] = {
    ErrorCode.PER_TX_LIMIT_EXCEEDED: "Choose something cheaper, or ask the owner for a higher limit.",
    ErrorCode.DAILY_LIMIT_EXCEEDED: "Wait until the day ends (UTC), or ask the owner for a higher limit.",
    ErrorCode.WEEKLY_LIMIT_EXCEEDED: "Wait until the week ends (Sunday, UTC), or ask the owner for a higher limit.",
    ErrorCode.MONTHLY_LIMIT_EXCEEDED: "Wait until the month ends (UTC), or ask the owner for a higher limit.",
    ErrorCode.WALLET_FROZEN: "Ask the owner; nothing can be bought while the wallet is frozen.",
    ErrorCode.DOMAIN_NOT_ALLOWED: "Ask the owner to add the shop to the wallet's `allowed_domains`.",
}  # fmt: skip


def advice_on(error: Mapping[str, Any]) -> str:
    """Return what a caller can do about a purchase's error."""
    return _ADVICE_ON_LIMITS.get(error.get("limit_code") or "", _ADVICE[error["code"]])


class UsdString(UsdText):
    """US dollars as a decimal string with at least two decimals."""

    def _serialize(self, value: int | None, attr: str | None, obj: Any, **_kwargs: Any) -> str | None:
        del attr, obj
        if value is None:
            return None
        whole, _, fraction = money.decimal_string(value, 9).partition(".")
        return f"{whole}.{fraction.ljust(2, '0')}"


class ShopCredentials(Schema):
    """An account of the shop, kept sealed until the purchase ends."""

    username = Text(required=True, validate=ma.validate.Length(1, 320))
    password = Text(required=True, validate=ma.validate.Length(1, 1000))


class ShippingAddressBody(Schema):
    """Where to. Name and postal code choose among the addresses stored in the shop; the rest fills its form."""

    name = Text(required=True, validate=ma.validate.Length(1, 100), metadata={"example": "Ada Buyer"})
    zip = Text(required=True, validate=ma.validate.Length(1, 20), metadata={"example": "94107"})
    line1 = Text(load_default=None, allow_none=True, validate=ma.validate.Length(1, 200))
    line2 = Text(load_default=None, allow_none=True, validate=ma.validate.Length(0, 200))
    city = Text(load_default=None, allow_none=True, validate=ma.validate.Length(1, 100))
    state = Text(load_default=None, allow_none=True, validate=ma.validate.Length(1, 100))
    country = Text(
        load_default=None, allow_none=True, validate=ma.validate.Length(2, 60),
        metadata={"description": "An ISO code or a name."},
    )  # fmt: skip
    phone = Text(load_default=None, allow_none=True, validate=ma.validate.Length(1, 40))
    email = Email(load_default=None, allow_none=True)


class BuyBody(Schema):
    """What to buy, from whose account, and where to."""

    url = Text(
        required=True,
        metadata={"description": "The product's page.", "example": "https://shop.example/p/1"},
    )
    credentials = fields.Nested(
        ShopCredentials,
        load_default=None,
        allow_none=True,
        metadata={
            "description": "Without them the shop is used as a guest; with them never.",
            "example": {"username": "ada@example.com", "password": "…"},
        },
    )
    shippingAddress = fields.Nested(  # noqa: N815 - the wire's spelling
        ShippingAddressBody,
        required=True,
        metadata={"example": {"name": "Ada Buyer", "zip": "94107"}},
    )
    quantity = fields.Integer(
        load_default=1,
        strict=True,
        validate=ma.validate.Range(1, MAX_QUANTITY),
        metadata={"description": "Pieces."},
    )
    options = fields.Dict(
        keys=Text(validate=ma.validate.Length(1, 60)), values=Text(validate=ma.validate.Length(1, 100)),
        load_default=dict, validate=ma.validate.Length(max=20),
        metadata={"description": "Variants by name, such as a colour."},
    )  # fmt: skip
    max_total_usd = Usd(
        load_default=None,
        allow_none=True,
        metadata={
            "description": "The order's total, shipping and taxes included, may not pass this. Required where no "
            "limit per transaction is in force.",
            "example": 40,
        },
    )
    dry_run = Flag(load_default=False, metadata={"description": "Stop at the review; nothing is ordered."})

    @pre_load
    def _accept_twins(self, body: Any, **_kwargs: object) -> Any:
        if not isinstance(body, dict):
            return body
        return {_TWINS.get(name, name): value for name, value in body.items()}


class PurchasedProduct(Schema):
    """What the product's page said."""

    title = fields.String(required=True)
    price = UsdString(required=True, attribute="price_nanos", metadata={"description": "One piece."})
    currency = fields.String(required=True, metadata={"enum": ["USD"]})
    availability = fields.String(required=True, metadata={"enum": ["in_stock", "unknown"]})
    price_source = fields.String(required=True, metadata={"enum": ["json-ld", "markup", "text"]})


class PurchasePayment(Schema):
    """How the shop is paid."""

    method = fields.String(required=True, allow_none=True)
    status = fields.String(
        required=True,
        metadata={
            "enum": ["pending", "unknown"],
            "description": "`pending`: the shop still waits for its money.",
        },
    )


class PlacedOrder(Schema):
    """The shop's order; of a dry run and before the order, what its review says."""

    number = fields.String(required=True, allow_none=True)
    total = UsdString(required=True, allow_none=True)
    currency = fields.String(required=True, metadata={"enum": ["USD"]})
    total_usd = UsdString(required=True, allow_none=True)
    payment = fields.Nested(PurchasePayment, required=True)
    shipping_method = fields.String(required=True, allow_none=True)


class PurchaseError(Schema):
    """Why it came to no order, or why that is not known."""

    code = fields.String(required=True, metadata={"enum": [trouble.value for trouble in Trouble]})
    limit_code = fields.String(
        required=True,
        allow_none=True,
        dump_default=None,
        metadata={
            "enum": [*(str(code) for code in _ADVICE_ON_LIMITS), None],
            "description": "Of `limit_exceeded`: the wallet's limit that refused; null where it was `max_total_usd`.",
        },
    )
    message = fields.String(required=True)
    advice = fields.String(required=True, metadata={"description": "What the caller can do."})
    step = fields.String(
        required=True, allow_none=True, metadata={"description": "The last thing that was done."}
    )
    missing = fields.List(
        fields.String(), required=True, metadata={"description": "Address fields, as WHATWG autofill tokens."}
    )
    choices = fields.List(fields.String(), required=True, metadata={"description": "What the page offers."})


class PurchaseStepShape(Schema):
    """Something the browser did; nothing that it typed."""

    action = fields.String(required=True)
    text = fields.String(required=True)
    path = fields.String(required=True)
    at = Instant(required=True)


class PurchaseEvidenceShape(Schema):
    """A screenshot, for thirty days."""

    name = fields.String(required=True)
    url = fields.String(required=True)


class PurchaseShape(Schema):
    """A purchase."""

    id = fields.UUID(required=True)
    status = fields.String(required=True, metadata={"enum": [status.value for status in Status]})
    status_url = fields.String(required=True)
    url = fields.String(required=True)
    dry_run = fields.Boolean(required=True)
    quantity = fields.Integer(required=True)
    max_total_usd = Usd(required=True, allow_none=True)
    product = fields.Nested(PurchasedProduct, required=True, allow_none=True)
    order = fields.Nested(PlacedOrder, required=True, allow_none=True)
    error = fields.Nested(PurchaseError, required=True, allow_none=True)
    steps = fields.Integer(required=True, metadata={"description": "How many things were done."})
    trail = fields.List(fields.Nested(PurchaseStepShape), required=True)
    evidence = fields.List(fields.Nested(PurchaseEvidenceShape), required=True)
    cost_usd = UsdString(required=True, metadata={"description": "What the purchase costs in credits."})
    created_at = Instant(required=True)
    finished_at = Instant(required=True, allow_none=True)
