"""Host names and addresses of this machine."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=64)
def is_loopback(host: str | None) -> bool:
    """Return whether a host name or address, without port or brackets, always means this machine."""
    if not host:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
