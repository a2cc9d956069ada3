"""The choice of the payer of a call: the credits of its caller, or the payment in its request."""

from collections.abc import Callable
from typing import TypeVar

from app.errors import InsufficientCredits, Unauthorized
from app.identity import guards
from app.identity.guards import sdk_keys
from app.identity.principal import Principal
from app.payments.presented import PayableRequest, PaymentHeaders, PaymentPrice
from app.payments.x402 import gate
from app.web.client_request import ClientRequest

Made = TypeVar("Made")


def authenticate(request: ClientRequest, found: Principal | None) -> Principal | None:
    """Authenticate a request as the holder of its key, or admit it without one; return the holder.

    An invalid key is refused unless the request has a payment. Raises: Unauthorized, RateLimited, PayloadTooLarge.
    """
    if found is not None:
        guards.authenticate_as(request, found)
        return found
    guards.allow_keyless(request)
    if sdk_keys(request) and not PaymentHeaders.read(request.headers.get).has_payment:
        raise key_or_payment_required()
    return None


def choose_payer(
    caller: Principal | None,
    load_price: Callable[[], PaymentPrice],
    *,
    has_payment: bool,
    on_credits: Callable[[Principal], Made],
    prepaid: Callable[[Principal | None], Made],
) -> Made:
    """Make a call on the caller's credits; without a caller, or if they do not suffice, by the request's payment.

    Raises: what the chosen one does; Unauthorized for a key that became invalid. A refusal with status 402 has terms.
    """
    with gate.attach_terms(load_price):
        if caller is None:
            return prepaid(None)
        try:
            return on_credits(caller)
        except InsufficientCredits:
            if not has_payment:
                raise
            return prepaid(caller)
        except Unauthorized:
            raise key_or_payment_required() from None


def payable(request: ClientRequest) -> PayableRequest:
    headers = PaymentHeaders.read(request.headers.get)
    return PayableRequest(request.method, request.raw_target, headers, request.remote_addr)


def key_or_payment_required() -> Unauthorized:
    return Unauthorized(
        "A valid API key is required in the X-API-Key header; the one sent is unknown, expired or revoked, or not where"
        " this route reads it. Without any key, a call can be paid for with USDC (x402 or MPP)."
    )
