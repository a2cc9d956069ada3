"""`/v1/gateway/shopping`: buy in a web shop, see what became of it, take it back while it waits."""

from __future__ import annotations

from typing import Any

from flask import Response, jsonify, request

from app.errors import (
    DomainNotAllowed,
    IdempotencyConflict,
    InsufficientCredits,
    NotFound,
    PaymentAlreadyUsed,
    PaymentInvalid,
    PaymentRequired,
    ProviderNotConfigured,
    PurchaseInProgress,
    Unauthorized,
    WalletFrozen,
)
from app.identity import guards
from app.ports import provider
from app.ports.shopper import ShippingAddress
from app.shopping import orders, paying, schemas, service
from app.shopping.orders import Order
from app.shopping.service import PurchaseView
from app.web import idempotency, prefer
from app.web.blueprint import Blueprint, Guard
from app.web.idempotency import idempotent

_POLL_SECONDS = 3


def _is_purchase() -> bool:
    return request.path.endswith("/buy")


def _check() -> None:
    """Let in whoever can pay for a purchase, and whoever may read one."""
    if _is_purchase():
        paying.check_payer(_read_order)
    else:
        paying.check_reader()


_PAYABLE: list[dict[str, list[str]]] = [
    {scheme: []} for scheme in (guards.API_KEY_SCHEME, guards.BEARER_SCHEME, guards.PAYMENT_SCHEME)
]
_TOKEN = {
    "in": "query",
    "name": paying.PARAMETER,
    "required": False,
    "description": "Instead of a key, for a purchase that a payment has paid: it is part of `status_url`.",
    "schema": {"type": "string"},
}


shopping = Blueprint(
    "shopping",
    __name__,
    guard=Guard(schemes=(guards.API_KEY_SCHEME, guards.BEARER_SCHEME), check=_check),
    url_prefix="/v1/gateway/shopping",
    description="Purchases in web shops, made by a browser, each of them at most once.",
)


@shopping.before_request
def _assert_configured() -> None:
    """Refuse what nobody could carry out before the body is looked at; what was bought can be read all the same."""
    if _is_purchase():
        service.assert_configured()


@shopping.before_request
def _find_purchase() -> None:
    """Replace the id in the path by the caller's purchase: 404 wins over everything that follows."""
    arguments = request.view_args
    if arguments and "purchase_id" in arguments:
        arguments["purchase"] = service.owned(arguments.pop("purchase_id"), guards.caller())


def _shape(purchase: PurchaseView) -> dict[str, Any]:
    base = f"{provider.settings().public_url}/v1/gateway/shopping/purchases/{purchase.id}"
    token = paying.address_suffix(purchase.id)
    order = None
    if purchase.outcome is not None:
        order = {
            "number": purchase.outcome["number"],
            "total": purchase.total_nanos,
            "total_usd": purchase.total_nanos,
            "currency": "USD",
            "payment": {
                "method": purchase.outcome["payment_method"],
                "status": "pending" if purchase.outcome["payment_pending"] else "unknown",
            },
            "shipping_method": purchase.outcome["shipping_method"],
        }
    error = (
        None if purchase.error is None else {**purchase.error, "advice": schemas.advice_on(purchase.error)}
    )
    values = {
        "id": purchase.id,
        "status": purchase.status.value,
        "status_url": base + token,
        "url": purchase.url,
        "dry_run": purchase.dry_run,
        "quantity": purchase.quantity,
        "max_total_usd": purchase.max_total_nanos,
        "product": None if purchase.product is None else {**purchase.product, "currency": "USD"},
        "order": order,
        "error": error,
        "steps": len(purchase.steps),
        "trail": purchase.steps,
        "evidence": [
            {"name": shot.name, "url": f"{base}/evidence/{shot.id}.png{token}"} for shot in purchase.evidence
        ],
        "cost_usd": purchase.cost_nanos,
        "created_at": purchase.created_at,
        "finished_at": purchase.finished_at,
    }
    shaped: dict[str, Any] = schemas.PurchaseShape().dump(values)
    return shaped


def _rebuild(purchase_id: str) -> tuple[int, Any]:
    purchase = service.view(purchase_id)
    return 202 if purchase.is_open else 200, _shape(purchase)


def _owner() -> str:
    return guards.caller().account_id


@shopping.post("/buy")
@shopping.doc(security=_PAYABLE)
@idempotent(owner=_owner, rebuild=_rebuild, applies=lambda: guards.find_caller() is not None)
@shopping.arguments(schemas.BuyBody)
@shopping.response(202, schemas.PurchaseShape, description="Accepted; ask for it at `Location`.")
@shopping.alt_response(
    200,
    schema=schemas.PurchaseShape,
    description="It has ended within the time of `Prefer: wait`.",
    headers={
        prefer.APPLIED: {
            "description": "`wait=N`: how long was waited at most.",
            "schema": {"type": "string"},
        }
    },
)
@shopping.raises(
    Unauthorized, ProviderNotConfigured, DomainNotAllowed, WalletFrozen, NotFound, InsufficientCredits,
    PaymentRequired, PaymentInvalid, PaymentAlreadyUsed, PurchaseInProgress, IdempotencyConflict,
)  # fmt: skip
@shopping.header(
    idempotency.HEADER,
    "Repeating a request with the same key answers with the first answer and buys nothing again.",
)
@shopping.header("Prefer", "`wait=N` waits up to N (at most 25) seconds for the purchase to end.")
def buy(body: dict[str, Any]) -> Response:
    """Buy a product with a browser. The total is held against the first wallet's limits before the order."""
    purchase, settled = paying.buy(
        guards.find_caller(), _order(body), twice=idempotency.HEADER in request.headers
    )
    seconds = prefer.wait_seconds(service.NO_WAIT)
    purchase = service.wait(purchase, seconds=seconds)
    response = jsonify(_shape(purchase))
    response.status_code = 202 if purchase.is_open else 200
    response.headers.extend(settled)
    if purchase.is_open:
        response.headers["Location"] = (
            f"/v1/gateway/shopping/purchases/{purchase.id}{paying.address_suffix(purchase.id)}"
        )
        response.headers["Retry-After"] = str(_POLL_SECONDS)
    elif seconds:
        response.headers[prefer.APPLIED] = f"wait={seconds}"
    return response


@shopping.get("/purchases/<string:purchase_id>")
@shopping.doc(parameters=[_TOKEN])
@shopping.response(200, schemas.PurchaseShape)
@shopping.raises(Unauthorized, NotFound)
def get_purchase(purchase: PurchaseView) -> Response:
    """Read a purchase, whatever became of it."""
    response = jsonify(_shape(purchase))
    if purchase.is_open:
        response.headers["Retry-After"] = str(_POLL_SECONDS)
    return response


@shopping.post("/purchases/<string:purchase_id>/cancel")
@shopping.doc(parameters=[_TOKEN])
@shopping.response(200, schemas.PurchaseShape)
@shopping.raises(Unauthorized, NotFound, PurchaseInProgress)
def cancel_purchase(purchase: PurchaseView) -> Response:
    """Take a queued purchase back, and its price. One that has begun goes on to its end."""
    return jsonify(_shape(service.cancel(purchase)))


@shopping.get("/purchases/<string:purchase_id>/evidence/<string:evidence_id>.png")
@shopping.doc(parameters=[_TOKEN])
@shopping.response(200, {"type": "string", "format": "binary"}, content_type="image/png")
@shopping.raises(Unauthorized, NotFound)
def get_purchase_evidence(evidence_id: str, purchase: PurchaseView) -> Response:
    """Fetch a screenshot of a purchase. They are kept for thirty days."""
    response = Response(service.evidence(purchase, evidence_id), mimetype="image/png")
    # A shop's page is not ours to be shown in a browser with our origin.
    response.headers["Cache-Control"] = "private, no-store"
    response.headers["Content-Disposition"] = "attachment"
    return response


def _read_order() -> Order:
    """Read the order of the present request as its view does. Raises: InvalidInput, DomainNotAllowed."""
    return _order(shopping.ARGUMENTS_PARSER.parse(schemas.BuyBody(), request, location="json"))


def _order(body: dict[str, Any]) -> Order:
    url, host = orders.parse_url(body["url"])
    credentials = body["credentials"] or {"username": None, "password": None}
    return Order(
        url=url,
        host=host,
        address=ShippingAddress(**body["shippingAddress"]),
        username=credentials["username"],
        password=credentials["password"],
        quantity=body["quantity"],
        options=body["options"],
        max_total_nanos=body["max_total_usd"],
        dry_run=body["dry_run"],
    )
