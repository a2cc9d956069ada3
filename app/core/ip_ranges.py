"""The addresses that requests for an agent may reach: those of the public internet (protection against SSRF).

IPv6 is an allowlist (2000::/3, RFC 4291) without the prefixes that embed an IPv4 address.
"""

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


_IPV6_PUBLIC = ipaddress.IPv6Network("2000::/3")
# Global by `is_global`, at least in some Python version (IANA special-purpose registries); and Azure's host agent, at
# the public address 168.63.129.16. 2001::/23 has Teredo and other protocol assignments, 2002::/16 is 6to4.
_NON_PUBLIC_NETWORKS = tuple(map(ipaddress.ip_network, (
    "0.0.0.0/8", "100.64.0.0/10", "168.63.129.16/32", "192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24",
    "192.88.99.0/24", "192.175.48.0/24", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
    "2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
)))  # fmt: skip


def is_public(text: str) -> bool:
    """Return whether a resolved address belongs to the public internet."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        # An IPv6 address with a zone is bound to a link.
        return False
    if isinstance(address, ipaddress.IPv6Address) and address not in _IPV6_PUBLIC:
        return False
    return address.is_global and not any(address in network for network in _NON_PUBLIC_NETWORKS)
