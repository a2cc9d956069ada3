"""Authentication of a call that credits or a payment pay for."""

from __future__ import annotations

from app.errors import Unauthorized
from app.identity import guards
from app.identity.principal import Principal
from app.identity.sdk_keys import sdk_keys
from app.payments.x402.headers import PaymentHeaders
from app.payments.x402.terms import PayableRequest
from app.web.client_request import ClientRequest


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


def payable(request: ClientRequest) -> PayableRequest:
    headers = PaymentHeaders.read(request.headers.get)
    return PayableRequest(request.method, request.raw_target, headers, request.remote_addr)


def key_or_payment_required() -> Unauthorized:
    """Return the error for a call with an invalid key and without a payment."""
    return Unauthorized(
        "A valid API key is required in the X-API-Key header; the one sent is unknown, expired or revoked, or not where"
        " this route reads it. Without any key, a call can be paid for with USDC (x402)."
    )
