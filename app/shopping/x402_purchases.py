"""Purchases paid for by an x402 payment; a token in the purchase's address lets the payer read it.

Without a key, the payment's id is the account that pays. After a refund, the payment is valid again for the same
request.
"""

import base64
import hmac
from collections.abc import Callable, Mapping
from http import HTTPStatus

from sqlalchemy.orm import Session

from app.core.identifiers import keyed_digests
from app.credits import accounts as credit_accounts
from app.errors import ServiceError
from app.idempotency.service import Claim
from app.identity.principal import KeyKind, Principal
from app.payments.presented import PayableRequest, PaymentPrice
from app.payments.x402 import gate, guard
from app.payments.x402.gate import PaymentGrant
from app.shopping import orders, service
from app.shopping.models import Purchase
from app.shopping.orders import PurchaseOrder
from app.state import app_state

PARAMETER = "token"


def buy(
    caller: Principal | None,
    order: PurchaseOrder,
    request: PayableRequest,
    body: bytes,
    *,
    allow_duplicate: bool,
    claim: Claim,
) -> tuple[Purchase, Mapping[str, str]]:
    """Accept a purchase, paid for by credits or by the request's payment; return it with the payment's headers.

    Raises: what `service.buy` raises; PaymentInvalid, PaymentAlreadyUsed, PaymentPending.
    """
    price = purchase_price(request, body)

    def prepaid(holder: Principal | None) -> tuple[Purchase, Mapping[str, str]]:
        if holder is None:
            return _buy_with_payment(order, price, claim)
        grant = gate.accept_payment(price, payer=holder)
        return _buy_after_payment(holder, order, grant, price, claim, allow_duplicate=allow_duplicate)

    return guard.choose_payer(
        caller, lambda: price, has_payment=request.headers.has_payment, prepaid=prepaid,
        on_credits=lambda holder: (service.buy(holder, order, allow_duplicate=allow_duplicate, claim=claim), {}),
    )  # fmt: skip


def purchase_price(request: PayableRequest, body: bytes, *, unavailable_reason: str | None = None) -> PaymentPrice:
    return request.price(
        service.PRICE_NANOS, body, provider_name=service.PROVIDER, description="One purchase in a web shop",
        unavailable_reason=unavailable_reason,
    )  # fmt: skip


def refusal_reason(parse_order: Callable[[], PurchaseOrder]) -> str | None:
    """Return why an order would be refused, paid for or not; None if it would be accepted."""
    if not service.is_configured():
        return "shopping is not available on this service."
    try:
        orders.assert_max_total(parse_order())
    except ServiceError as refusal:
        return f"this request would be refused. {refusal.message}"
    return None


def access_token(purchase_id: str) -> str:
    """Return the token that lets a client without a key read a purchase."""
    return _tokens(purchase_id)[0]


def account_of_token(purchase_id: str, token: str) -> str | None:
    if not any(hmac.compare_digest(token.encode(), each.encode()) for each in _tokens(purchase_id)):
        return None
    return service.paying_account_of(purchase_id)


def _buy_with_payment(order: PurchaseOrder, price: PaymentPrice, claim: Claim) -> tuple[Purchase, Mapping[str, str]]:
    orders.assert_max_total(order)
    previous_account_id = gate.find_served_payment(price)
    if previous_account_id is not None:
        # The response was lost: the same request with the same payment gets the same purchase.
        return service.latest_of(previous_account_id), {}
    grant = gate.accept_payment(price, payer=None)
    anonymous = Principal(KeyKind.GATEWAY, grant.payment_id, grant.payment_id, None)
    return _buy_after_payment(anonymous, order, grant, price, claim, allow_duplicate=True)


def _buy_after_payment(
    caller: Principal,
    order: PurchaseOrder,
    grant: PaymentGrant,
    price: PaymentPrice,
    claim: Claim,
    *,
    allow_duplicate: bool,
) -> tuple[Purchase, Mapping[str, str]]:
    def fund(session: Session) -> None:
        grant.consume(session)
        if not credit_accounts.balances(session, [caller.account_id]):
            credit_accounts.open_account(session, caller.account_id)
        # Once per payment: what a refunded purchase has left there pays for its repetition.
        credit_accounts.grant(session, caller.account_id, price.nanos, reference=f"payment:{grant.payment_id}")

    purchase = service.buy(caller, order, allow_duplicate=allow_duplicate, claim=claim, fund=fund)
    return purchase, grant.headers_for(HTTPStatus.OK)


def _tokens(purchase_id: str) -> list[str]:
    """Return the token under the current secret, then those under secrets that are still accepted."""
    digests = keyed_digests("purchases", purchase_id.encode(), app_state().settings.secret_key_list())
    return [base64.urlsafe_b64encode(digest).decode()[:32] for digest in digests]
