"""Who may make a gateway call, and in which order that is asked: unknown providers first, then who pays."""

from __future__ import annotations

from flask import request

from app.errors import Unauthorized
from app.gateway import providers
from app.gateway.providers import Provider
from app.identity import guards
from app.payments import presentation
from app.web.blueprint import Guard


def provider() -> Provider:
    """Return the provider that the present request names. Raises: NotFound."""
    return providers.table().find((request.view_args or {})["provider"])


def require_payer() -> None:
    """Let in whoever can pay: a key, by its credits; else a payment; else who has yet to be told the terms.

    A key that is none is refused, unless a payment comes with it. Raises: Unauthorized.
    """
    found = guards.find_key_of_client()
    if found is not None:
        guards.admit(found)
        return
    guards.admit_without_key()
    if guards.sends_key_of_client() and not presentation.is_present():
        raise Unauthorized(
            "A valid API key is needed in the X-API-Key header, or as Authorization: Bearer where a client sends it "
            "so; without any, a call can be paid for with USDC (x402)."
        )


def _check() -> None:
    provider()
    require_payer()


GATEWAY = Guard(schemes=(guards.API_KEY_SCHEME, guards.BEARER_SCHEME, guards.PAYMENT_SCHEME), check=_check)
"""A key that pays by its credits, or a payment for the one call."""
