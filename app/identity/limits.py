"""Rate limits by key and by client address. Counted in Redis, in this process's memory while Redis is away.

A request with a wrong key costs no count: 256 random bits need no protection from guessing.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable
from http import HTTPStatus

from flask import g, request
from werkzeug.exceptions import TooManyRequests

from app.core import clock
from app.errors import RateLimited
from app.extensions import limiter
from app.ports import provider

_IPV6_SITE_BITS = 64
_UNKNOWN_WAIT_SECONDS = 60


def client_network() -> str:
    """Return the client's IPv4 address, or the /64 of its IPv6 address: one household has 2^64 of them."""
    try:
        address = ipaddress.ip_address((request.remote_addr or "").split("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _IPV6_SITE_BITS), strict=False))
    return str(address)


def count_call_of_key(key_id: str) -> None:
    """Count one request of a key. Raises: RateLimited beyond RATE_LIMIT_PER_KEY."""
    if provider.settings().rate_limit_per_key:
        g.rate_limited_key_id = key_id
        _count(_count_call)


def count_registration() -> None:
    """Count one hand-out of free credits. Raises: RateLimited beyond REGISTRATION_RATE_LIMIT."""
    if provider.settings().registration_rate_limit:
        _count(_count_registration)


def count_failing_payment() -> None:
    """Count a payment that is presented, should the answer be a 402. Raises: RateLimited beyond X402_MISS_LIMIT."""
    if provider.settings().x402_miss_limit:
        _count(_count_failing_payment)


def _count(limited: Callable[[], None]) -> None:
    try:
        limited()
    except TooManyRequests:
        raise RateLimited(retry_after_seconds=_seconds_to_wait()) from None


def _seconds_to_wait() -> int:
    hit = limiter.current_limit
    if hit is None:
        return _UNKNOWN_WAIT_SECONDS
    return min(max(1, math.ceil(hit.reset_at - clock.now().timestamp())), hit.limit.get_expiry())


@limiter.shared_limit(
    lambda: provider.settings().rate_limit_per_key or "", scope="key", key_func=lambda: g.rate_limited_key_id
)
def _count_call() -> None:
    """Carry the limit; calling this counts."""


@limiter.shared_limit(
    lambda: provider.settings().registration_rate_limit or "", scope="registration", key_func=client_network
)
def _count_registration() -> None:
    """Carry the limit; calling this counts."""


@limiter.shared_limit(
    lambda: provider.settings().x402_miss_limit or "",
    scope="payment",
    key_func=client_network,
    deduct_when=lambda response: response.status_code == HTTPStatus.PAYMENT_REQUIRED,
)
def _count_failing_payment() -> None:
    """Carry the limit; calling this counts, once the answer is known to be a failure."""
