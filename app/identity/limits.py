"""Rate limits by key and by client address. Counted in Redis, in this process's memory while Redis is away.

A hit limit raises werkzeug's 429, which `web.failures` turns into RATE_LIMITED with Retry-After.
"""

from __future__ import annotations

import ipaddress

from flask import g, request

from app.extensions import limiter
from app.ports import provider

_IPV6_SITE_BITS = 64


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
    """Count one request of a key. Raises: werkzeug's TooManyRequests beyond RATE_LIMIT_PER_KEY."""
    if provider.settings().rate_limit_per_key:
        g.rate_limited_key_id = key_id
        _count_call()


def count_registration() -> None:
    """Count one hand-out of free credits.

    Raises: werkzeug's TooManyRequests beyond REGISTRATION_RATE_LIMIT.
    """
    if provider.settings().registration_rate_limit:
        _count_registration()


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
