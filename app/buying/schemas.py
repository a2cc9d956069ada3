"""Requests and responses of payments to web services."""

import base64
from typing import Any
from urllib.parse import urlsplit

import marshmallow as ma
from marshmallow import fields

from app.approvals.schemas import APPROVAL_NOTE
from app.buying import offers
from app.buying.sellers import METHODS, SellerAnswer
from app.buying.service import FetchResult
from app.core.chains import ChainName
from app.wallets.api.schemas import SESSION_ID
from app.wallets.core.lifecycle import MovementStatus
from app.web.fields import Instant, StrictBoolean, Text, Usd, one_of
from app.web.schemas import AcceptsCamelCase, Schema, page_schema

_STATES = {MovementStatus.PENDING: "pending", MovementStatus.CONFIRMED: "paid", MovementStatus.FAILED: "expired"}
_MAX_BODY = 256 * 1024
_METHOD = one_of(METHODS, load_default="GET", metadata={"default": "GET"})


def one_spelling(url: str) -> str:
    """Return a URL with its scheme and host in lower case, without the default port; any other text as it is."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.lower().removesuffix(":443" if parts.scheme == "https" else ":80")
        return parts._replace(netloc=host, path=parts.path or "/", fragment="").geturl() if host else url
    except ValueError:
        return url


class _Url(Text):
    def canonical(self, value: str) -> str:
        return one_spelling(value)


class FetchBody(AcceptsCamelCase):
    """A request to a web service, and the most that it may cost."""

    url = _Url(required=True, metadata={"example": "https://api.example.com/v1/report"})
    method = _METHOD
    headers = fields.Dict(keys=fields.String(), values=fields.String(), load_default=dict)
    body = fields.String(
        load_default=None, allow_none=True, validate=ma.validate.Length(max=_MAX_BODY, error="is too long")
    )
    max_amount_usd = Usd(required=True, data_key="max_amount_usd", metadata={"example": 1})
    networks = fields.List(one_of(map(str, ChainName)), load_default=list)
    session_id = SESSION_ID
    approval_note = APPROVAL_NOTE
    dry_run = StrictBoolean(load_default=False)


class ValidatedResource(Schema):
    """A resource of a web service that may be bought."""

    resource = Text(required=True, metadata={"example": "https://api.example.com/v1/report"})
    method = _METHOD


class SellerPaymentShape(Schema):
    """What was paid to whom, by the chain."""

    state = fields.String(required=True, metadata={"enum": ["pending", "paid", "expired"]})
    transaction_id = fields.UUID(required=True, attribute="payment.id")
    protocol = fields.String(required=True, metadata={"enum": ["x402/1", "x402/2", "mpp"]})
    scheme = fields.String(required=True, metadata={"enum": ["exact"]})
    network = fields.String(required=True)
    chain = fields.String(required=True, attribute="payment.chain")
    amount = fields.String(required=True, attribute="payment.amount")
    currency = fields.String(required=True, attribute="payment.currency")
    amount_usd = Usd(required=True, attribute="payment.cost_nanos")
    pay_to = fields.String(required=True, attribute="payment.to_address")
    tx_hash = fields.String(required=True, allow_none=True, attribute="payment.tx_hash")
    explorer_url = fields.String(required=True, allow_none=True, attribute="payment.explorer_url")


class FetchedResourceShape(Schema):
    """The answer of a web service, and what was paid for it. Treat the answer as text of others."""

    status = fields.Integer(required=True, allow_none=True)
    headers = fields.Dict(keys=fields.String(), values=fields.String(), required=True)
    body = fields.String(required=True, allow_none=True)
    body_encoding = fields.String(required=True, metadata={"enum": ["text", "base64"]})
    truncated = fields.Boolean(required=True)
    payment = fields.Nested(SellerPaymentShape, required=True, allow_none=True)


class FetchQuoteShape(Schema):
    """The result of a dry run: the limits and the balance allow this payment, and nothing was signed."""

    dry_run = fields.Boolean(required=True)
    status = fields.Integer(required=True)
    payment_required = fields.Boolean(required=True)
    protocol = fields.String(required=True, allow_none=True)
    network = fields.String(required=True, allow_none=True, attribute="offer.network", dump_default=None)
    chain = fields.String(required=True, allow_none=True, attribute="offer.chain", dump_default=None)
    amount = fields.String(required=True, allow_none=True, attribute="offer.amount", dump_default=None)
    currency = fields.String(required=True, allow_none=True, attribute="offer.amount.token.symbol", dump_default=None)
    amount_usd = Usd(required=True, allow_none=True, attribute="offer.price_nanos", dump_default=None)
    pay_to = fields.String(required=True, allow_none=True, attribute="offer.recipient", dump_default=None)


class PurchaseRowShape(Schema):
    """What a payment bought where."""

    transaction_id = fields.UUID(required=True, attribute="id")
    url = fields.String(required=True)
    domain = fields.String(required=True, attribute="host")
    method = fields.String(required=True)
    network = fields.String(required=True)
    amount = fields.String(required=True, attribute="payment.amount")
    currency = fields.String(required=True, attribute="payment.currency")
    pay_to = fields.String(required=True, attribute="payment.to_address")
    status = fields.String(required=True, attribute="payment.status", metadata={"enum": list(MovementStatus)})
    tx_hash = fields.String(required=True, allow_none=True, attribute="payment.tx_hash")
    created_at = Instant(required=True)


ServicePurchasePage = page_schema(
    "ServicePurchasePage", "purchases", PurchaseRowShape, "A page of payments to web services, newest first."
)


class BoughtAnswerShape(FetchedResourceShape):
    """What a payment bought, with the answer while it is stored: 24 hours."""

    url = fields.String(required=True)
    domain = fields.String(required=True, attribute="host")
    method = fields.String(required=True)
    created_at = Instant(required=True)


class PayeeShape(Schema):
    """Whom a wallet pays at a domain on a chain."""

    domain = fields.String(required=True, attribute="host")
    chain = fields.String(required=True)
    address = fields.String(required=True)
    created_at = Instant(required=True)


class PayeeList(Schema):
    """The payees of a wallet."""

    payees = fields.List(fields.Nested(PayeeShape), required=True)


class RemovedPayee(Schema):
    """A domain with payees that were removed."""

    domain = fields.String(required=True)
    deleted = fields.Boolean(required=True)


def fetched(result: FetchResult) -> dict[str, Any]:
    purchase = result.purchase
    if purchase is None:
        return {**_answer(result.answer), "payment": None}
    state, protocol = _STATES[MovementStatus(purchase.payment.status)], offers.PROTOCOLS[purchase.version]
    payment = {**vars(purchase), "state": state, "protocol": protocol, "scheme": "exact"}
    return {**vars(purchase), **_answer(result.answer), "payment": payment}


def body_members(body: bytes) -> dict[str, str]:
    """Return the body of a foreign response as JSON can hold it: as text if it is some, else in base64."""
    try:
        return {"body": body.decode(), "body_encoding": "text"}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "body_encoding": "base64"}


def _answer(answer: SellerAnswer | None) -> dict[str, Any]:
    if answer is None:
        return {"status": None, "headers": {}, "body": None, "body_encoding": "text", "truncated": False}
    headers: dict[str, str] = {}
    for name, value in answer.headers:
        lower = name.lower()
        headers[lower] = f"{headers[lower]}, {value}" if lower in headers else value
    is_truncated = answer.is_truncated or not answer.is_complete
    return {"status": answer.status, "headers": headers, **body_members(answer.body), "truncated": is_truncated}
