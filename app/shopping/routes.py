"""`/v1/gateway/shopping`: buy in a web shop, read a purchase, cancel it while it is queued."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

from flask import Response, g, jsonify, request

from app import errors, long_poll
from app.approvals import service as approvals
from app.core.identifiers import require
from app.core.movement_kinds import MovementKind
from app.core.order_amounts import AmountRole, OrderAmount, adds_up
from app.idempotency import service as idempotency
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards, principal
from app.identity.principal import KeyKind, Principal
from app.payments.x402 import gate, guard
from app.ports.shopper import ShippingAddress
from app.shopping import orders, schemas, service
from app.shopping.models import Purchase
from app.shopping.orders import PurchaseOrder
from app.state import app_state
from app.wallets.core.wallets import WalletView
from app.wallets.kinds.definition import MovementDefinition
from app.web.blueprint import Blueprint, Guard
from app.web.client_request import ClientRequest, current_request, wait_seconds
from app.web.request_bodies import decoded_body


def _parse(body: dict[str, Any]) -> PurchaseOrder:
    url, host = orders.parse_url(body["url"])
    credentials = body["credentials"] or {"username": None, "password": None}
    return PurchaseOrder(
        url=url, host=host, address=ShippingAddress(**body["shippingAddress"]), username=credentials["username"],
        password=credentials["password"], quantity=body["quantity"], options=body["options"],
        max_total_nanos=body["max_total_usd"], dry_run=body["dry_run"], coupon_code=body["coupon_code"],
        delivery_method=body["delivery_method"], session_id=body["session_id"],
    )  # fmt: skip


def _buy(wallet: WalletView, order: PurchaseOrder, *, wait_seconds: Decimal | None, claim: Claim) -> Purchase:  # noqa: ARG001 - a purchase is queued
    """Queue a purchase under a wallet's limits, paid for with the agent's credits."""
    caller = Principal(KeyKind.AGENT, wallet.agent_id, wallet.agent_id, wallet.agent_id)
    return service.buy(caller, replace(order, approved=wallet.approved), allow_duplicate=False, claim=claim)


PURCHASE = MovementDefinition(
    name=MovementKind.PURCHASE, title="Purchase", body=schemas.BuyBody(), parse=_parse, send=_buy, takes_hold=True,
)  # fmt: skip


_POLL_SECONDS = 3


def _is_purchase() -> bool:
    return request.path.endswith("/buy")


def _authorize(request: ClientRequest) -> None:
    """Authenticate a payer for a purchase, a reader for the rest: by a key, a payment, or the purchase's token.

    Raises: Unauthorized; what `_authorize_payer` raises.
    """
    if _is_purchase():
        _authorize_payer(request)
        return
    caller = guards.find_principal_by_sdk_key(request)
    g.reads_by_token = caller is None
    if caller is None:
        purchase_id = str((request.view_args or {}).get("purchase_id", ""))
        account_id = service.account_of_token(purchase_id, request.args.get(service.ACCESS_PARAMETER, ""))
        account_id = require(account_id, errors.Unauthorized())
        caller = Principal(KeyKind.GATEWAY, account_id, account_id, None)
    guards.authenticate_as(request, caller)


_PAYABLE_SECURITY: list[dict[str, list[str]]] = [
    {scheme: []} for scheme in (guards.API_KEY_SCHEME, guards.BEARER_SCHEME, guards.PAYMENT_SCHEME)
]
_TOKEN_PARAMETER = {
    "in": "query", "name": service.ACCESS_PARAMETER, "required": False,
    "description": "Instead of a key, for a purchase paid by a payment: it is part of `status_url`.",
    "schema": {"type": "string"},
}  # fmt: skip
_APPLIED_WAIT = {"description": "`wait=N`: the maximum wait that was applied.", "schema": {"type": "string"}}


_READERS = Guard((guards.API_KEY_SCHEME, guards.BEARER_SCHEME), check=_authorize)
shopping = Blueprint("shopping", guard=_READERS, url_prefix="/v1/gateway/shopping")


@shopping.before_request
def _assert_configured() -> None:
    """Refuse before the body is read if no shopper runs; purchases can still be read."""
    if _is_purchase() and not service.is_configured():
        problem = "Shopping is not available on this service: no shopping worker with a browser is running."
        raise errors.ProviderNotConfigured(problem)


@shopping.before_request
def _find_purchase() -> None:
    """Replace the id in the path by the client's purchase: a 404 precedes every other refusal."""
    arguments = request.view_args
    if arguments and "purchase_id" in arguments:
        arguments["purchase"] = service.get_owned(arguments.pop("purchase_id"), guards.current_principal())


def _price_breakdown(purchase: Purchase) -> dict[str, Any] | None:
    # Orders of earlier releases have none.
    stored = (purchase.outcome or {}).get("amounts")
    if not stored:
        return None
    amounts = [OrderAmount(AmountRole(amount["role"]), amount["label"], amount["nanos"]) for amount in stored]
    return {"amounts": amounts, "adds_up": adds_up(amounts, purchase.total_nanos or 0)}


def shown(purchase: Purchase, token: str = "") -> dict[str, Any]:
    """Return a purchase as responses have it, with `token` as the query of its URLs."""
    base = f"{app_state().settings.public_url}/v1/gateway/shopping/purchases/{purchase.id}"
    order = None
    if purchase.outcome is not None:
        status = "pending" if purchase.outcome["payment_pending"] else "unknown"
        order = {
            "number": purchase.outcome["number"], "total": purchase.total_nanos, "total_usd": purchase.total_nanos,
            "currency": "USD", "payment": {"method": purchase.outcome["payment_method"], "status": status},
            "shipping_method": purchase.outcome["shipping_method"], "price_breakdown": _price_breakdown(purchase),
        }  # fmt: skip
    error = None if purchase.error is None else {**purchase.error, "advice": schemas.advice_on(purchase.error)}
    shots = [{"name": each.name, "url": f"{base}/evidence/{each.id}.png{token}"} for each in purchase.evidence]
    return {
        "purchase": purchase, "status_url": base + token, "order": order, "error": error,
        "product": None if purchase.product is None else {**purchase.product, "currency": "USD"},
        "steps": len(purchase.steps), "evidence": shots,
    }  # fmt: skip


def _response(purchase: Purchase) -> Response:
    response = jsonify(schemas.PurchaseShape().dump(shown(purchase, _status_url_query(purchase.id))))
    if purchase.is_open:
        response.headers["Retry-After"] = str(_POLL_SECONDS)
    return response


def _accepted(purchase: Purchase) -> Response:
    """Return the response to an order: until the purchase ends, 202 with where to read it."""
    response = _response(purchase)
    if purchase.is_open:
        response.status_code = 202
        response.headers["Location"] = f"/v1/gateway/shopping/purchases/{purchase.id}{_status_url_query(purchase.id)}"
    return response


@shopping.post("/buy")
@shopping.doc(security=_PAYABLE_SECURITY)
@idempotent(
    owner=guards.idempotency_owner, applies=lambda: guards.find_principal() is not None,
    rebuild=lambda subject_id: approvals.rebuilt(subject_id, lambda found: _accepted(service.view(found))),
    note="Repeating a request with the same key returns the first response and buys nothing again.",
)  # fmt: skip
@shopping.arguments(PURCHASE.body)
@shopping.response(
    202, schemas.PurchaseShape,
    description="Accepted; poll `Location`. With `status` `awaiting_approval`, it waits for the owner: see `approval`.",
)  # fmt: skip
@shopping.alt_response(
    200, schema=schemas.PurchaseShape, description="It has ended within the time of `Prefer: wait`.",
    headers={long_poll.PREFERENCE_APPLIED: _APPLIED_WAIT},
)  # fmt: skip
@shopping.raises(
    errors.ProviderNotConfigured, errors.DomainNotAllowed, errors.WalletFrozen, errors.DailyLimitExceeded,
    errors.WeeklyLimitExceeded, errors.MonthlyLimitExceeded, errors.NotFound, errors.InsufficientCredits,
    errors.PaymentRequired, errors.PaymentInvalid, errors.PaymentAlreadyUsed, errors.PaymentPending,
    errors.PurchaseInProgress,
)  # fmt: skip
@shopping.header("Prefer", "`wait=N` waits up to N (at most 25) seconds for the purchase to end.")
def buy(body: dict[str, Any], claim: idempotency.Claim) -> Response:
    """Buy a product with a browser. The total is held against the first wallet's limits before the order."""
    if (caller := guards.find_principal()) is not None:
        body["session_id"] = principal.session_of(caller, body["session_id"])
    accepted = approvals.or_ask(
        PURCHASE,
        lambda: service.accept(
            guards.find_principal(), PURCHASE.parse(body), guard.payable(current_request()),
            decoded_body(current_request()), allow_duplicate=idempotency.HEADER in request.headers, claim=claim,
        ),
        body=body,
        claim=claim,
    )  # fmt: skip
    if isinstance(accepted, Response):
        return accepted
    purchase, settled = accepted
    seconds = wait_seconds() or long_poll.NO_WAIT
    purchase = long_poll.wait(
        purchase, lambda found: service.view(found.id), lambda found: not found.is_open, seconds=seconds,
        account_id=guards.account_id_or_anonymous(),
    )  # fmt: skip
    response = _accepted(purchase)
    response.headers.extend(settled)
    if seconds and not purchase.is_open:
        response.headers[long_poll.PREFERENCE_APPLIED] = f"wait={seconds}"
    return response


@shopping.get("/purchases")
@shopping.arguments(schemas.PurchaseQuery, location="query")
@shopping.response(200, schemas.PurchasePage)
def list_purchases(query: dict[str, Any]) -> dict[str, Any]:
    """List purchases, newest first."""
    caller = guards.current_principal()
    page = service.list_of(account_id=caller.account_id, wallet_id=caller.only_wallet_id, **query)
    return {"items": [shown(each, _status_url_query(each.id)) for each in page.items], "pagination": page}


@shopping.get("/purchases/<string:purchase_id>")
@shopping.doc(parameters=[_TOKEN_PARAMETER])
@shopping.response(200, schemas.PurchaseShape)
def get_purchase(purchase: Purchase) -> Response:
    """Read a purchase."""
    return _response(purchase)


@shopping.post("/purchases/<string:purchase_id>/cancel")
@shopping.doc(parameters=[_TOKEN_PARAMETER])
@shopping.response(200, schemas.PurchaseShape)
@shopping.raises(errors.PurchaseInProgress)
def cancel_purchase(purchase: Purchase) -> Response:
    """Cancel a queued purchase and refund its price. One that has begun cannot be cancelled."""
    return _response(service.cancel(purchase))


@shopping.get("/purchases/<string:purchase_id>/evidence/<string:evidence_id>.png")
@shopping.doc(parameters=[_TOKEN_PARAMETER])
@shopping.response(200, {"type": "string", "format": "binary"}, content_type="image/png")
def get_purchase_evidence(evidence_id: str, purchase: Purchase) -> Response:
    """Fetch a screenshot of a purchase. Screenshots are kept for 30 days."""
    response = Response(service.evidence(purchase, evidence_id), mimetype="image/png")
    # A shop's page must not render in a browser under our origin.
    response.headers["Cache-Control"] = "private, no-store"
    response.headers["Content-Disposition"] = "attachment"
    return response


def _authorize_payer(request: ClientRequest) -> None:
    """Authorize a request that can pay for a purchase: with a key, by its credits; else with a payment.

    Without either, the terms state whether the order would be refused, so that nothing is paid for nothing.

    Raises: PaymentRequired; Unauthorized for an invalid key.
    """
    g.reads_by_token = False
    payable = guard.payable(request)
    caller = guard.authenticate(request, guards.find_principal_by_sdk_key(request))
    if caller is not None or payable.headers.has_payment:
        return
    reason = service.refusal_reason(
        lambda: PURCHASE.parse(shopping.ARGUMENTS_PARSER.parse(PURCHASE.body, request, location="json"))
    )
    price = service.purchase_price(payable, decoded_body(request), unavailable_reason=reason)
    raise gate.attach(price, errors.PaymentRequired())


def _status_url_query(purchase_id: str) -> str:
    """Return the query that lets a client without a key read the purchase; empty for a client with one."""
    if guards.find_principal() is not None and not g.reads_by_token:
        return ""
    return f"?{service.ACCESS_PARAMETER}={service.access_token(purchase_id)}"
