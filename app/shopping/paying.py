"""Purchases without credits: a payment pays for one, and a token in its address reads it afterwards.

Without a key, the payment's id stands for the account that pays. Where a purchase's price is given back, the
payment is good for the same request again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping

from flask import g, request

from app.credits import service as credits_service
from app.errors import InsufficientCredits, ServiceError, Unauthorized
from app.identity import guards
from app.identity.caller import Caller, KeyKind
from app.payments import desk, presentation, terms
from app.payments.terms import Price
from app.ports import provider
from app.shopping import orders, service
from app.shopping.orders import Order
from app.shopping.service import PurchaseView
from app.web.parsing import body_of
from app.web.targets import request_target

PARAMETER = "token"
_TOKEN_LETTERS = 32


def check_payer(read: Callable[[], Order]) -> None:
    """Let in whoever can pay for a purchase: a key, by its credits; else a payment.

    `read` reads the order. Who brings neither hears what would refuse it before they pay for that.

    Raises: PaymentRequired for who brings neither, Unauthorized for a key that is none.
    """
    found = guards.find_key_of_client()
    if found is not None:
        guards.admit(found)
        return
    guards.admit_without_key()
    if presentation.is_present():
        return
    if guards.sends_key_of_client():
        raise Unauthorized
    raise desk.required(_price(obstacle=_obstacle(read)))


def check_reader() -> None:
    """Let in whoever holds a key, or the token of the very purchase. Raises: Unauthorized."""
    found = guards.find_key_of_client() or _holder_of_token()
    if found is None:
        raise Unauthorized
    guards.admit(found)


def address_suffix(purchase_id: str) -> str:
    """Return what makes a purchase's address readable without a key, nothing for whoever has one."""
    return (
        f"?{PARAMETER}={_token(purchase_id, provider.settings().secret_key_list()[0])}"
        if g.get("shops_by_payment")
        else ""
    )


def buy(caller: Caller | None, order: Order, *, twice: bool) -> tuple[PurchaseView, Mapping[str, str]]:
    """Accept a purchase, paid for by credits or by the payment that came along; return it and how that was settled.

    Raises: what `service.buy` raises; PaymentInvalid, PaymentAlreadyUsed.
    """
    if caller is None:
        return _for_payment(order)
    try:
        return service.buy(caller, order, twice=twice), {}
    except InsufficientCredits as refusal:
        price = _price()
        if not presentation.is_present():
            raise desk.with_terms(refusal, price) from None
        ticket = desk.accept(price, agent_id=caller.agent_id)
        return _paid(caller, order, ticket, twice=twice), ticket.headers


def _for_payment(order: Order) -> tuple[PurchaseView, Mapping[str, str]]:
    g.shops_by_payment = True
    orders.assert_capped(order)
    price = _price()
    earlier = desk.served(price)
    if earlier is not None:
        # The answer was lost: the same request with the same payment gets the same purchase.
        return service.newest_of(earlier), {}
    ticket = desk.accept(price, agent_id=None)
    guest = Caller(KeyKind.GATEWAY, ticket.payment_id, ticket.payment_id, None)
    return _paid(guest, order, ticket, twice=True), ticket.headers


def _paid(caller: Caller, order: Order, ticket: desk.Ticket, *, twice: bool) -> PurchaseView:
    def fund() -> None:
        ticket.use_up()
        if not credits_service.balances([caller.account_id]):
            credits_service.open_account(caller.account_id)
        # Once for the payment: what a given back purchase has left there pays for its repetition.
        reference = f"payment:{ticket.payment_id}"
        credits_service.grant(caller.account_id, ticket.price.nanos, reference=reference)

    return service.buy(caller, order, twice=twice, fund=fund)


def _obstacle(read: Callable[[], Order]) -> str | None:
    """Return why paying for the present request would be of no use, None where it would be."""
    if not service.is_configured():
        return "shopping is not set up on this service."
    try:
        orders.assert_capped(read())
    except ServiceError as refusal:
        return f"this request would be refused. {refusal.message}"
    return None


def _price(*, obstacle: str | None = None) -> Price:
    target = request_target()
    return Price(
        nanos=service.price_nanos(),
        fingerprint=terms.fingerprint_of(request.method, target, body_of(request)),
        provider=service.PROVIDER,
        resource=provider.settings().public_url + target.partition("?")[0],
        description="One purchase in a web shop",
        obstacle=obstacle,
    )


def _holder_of_token() -> Caller | None:
    purchase_id = str((request.view_args or {}).get("purchase_id", ""))
    given = request.args.get(PARAMETER, "")
    secrets = provider.settings().secret_key_list()
    if not any(hmac.compare_digest(given.encode(), _token(purchase_id, each).encode()) for each in secrets):
        return None
    account_id = service.account_of(purchase_id)
    if account_id is None:
        return None
    g.shops_by_payment = True
    return Caller(KeyKind.GATEWAY, account_id, account_id, None)


def _token(purchase_id: str, secret: str) -> str:
    key = hashlib.sha256(b"purchases" + secret.encode()).digest()
    digest = hmac.new(key, purchase_id.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode()[:_TOKEN_LETTERS]
