"""Where a service may be: an address that names one host of the public internet in the plain way, and not this service.

This is the first look, for a helpful refusal. What a name leads to is checked whenever a connection is opened.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from app.config import Settings
from app.core import public_addresses
from app.ports import provider

MAX_LETTERS = 500
_PORTS = {"http": 80, "https": 443}
_VISIBLE = re.compile(r"[\x21-\x7e]+", re.ASCII)
_LABEL = r"(?!-)[a-z0-9-]{1,63}(?<!-)"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_MAX_HOST_LETTERS = 253
# Parsers of addresses read such a last label as a number, in whatever base (WHATWG URL, "ends in a number").
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_PATH = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,=:@-]+)*", re.ASCII)
# Names that never are public (RFC 6761, 6762, 8375, 9476, 7686, and ICANN's reservation for private use).
_NEVER_PUBLIC = (
    "localhost", "local", "internal", "intranet", "home.arpa", "alt", "onion", "test", "example", "invalid",
    "localdomain", "lan", "corp", "home",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """A base address in parts; `path` begins with a slash or is empty, and never ends with one."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> str:
        """Return `scheme://host[:port]`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")

    def __str__(self) -> str:
        """Write the address."""
        return self.origin + self.path


def parse(text: str) -> BaseUrl:
    """Read an address in its one plain form. Raises: ValueError with a sentence for the caller."""
    if len(text) > MAX_LETTERS:
        raise ValueError(f"must have at most {MAX_LETTERS} characters")
    if not _VISIBLE.fullmatch(text) or set(text) & set("\\?#@"):
        raise ValueError("must be scheme://host[:port]/path in ASCII, without a user, a query or a fragment")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("is not an address") from None
    if parts.scheme not in _PORTS or port == 0 or parts.netloc.endswith(":"):
        raise ValueError("must look like https://api.example.com/v1")
    path = parts.path.rstrip("/")
    if not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        raise ValueError("must have a plain path: no empty or dot segments, no escapes")
    return BaseUrl(parts.scheme, _host(parts.hostname or ""), port or _PORTS[parts.scheme], path)


def check(url: BaseUrl, settings: Settings) -> None:
    """Refuse what can never be a service for others, and this service. Raises: ValueError."""
    if is_own(url, settings):
        raise ValueError("must not lead to this service itself")
    if settings.allow_private_upstreams:
        return
    if url.scheme != "https" or url.port != _PORTS["https"]:
        raise ValueError("must be https on port 443")
    address = _address(url.host)
    if address is None:
        if "." not in url.host or url.host.endswith(tuple(f".{name}" for name in _NEVER_PUBLIC)):
            raise ValueError("must be a host of the public internet")
    elif not public_addresses.is_public(str(address)):
        raise ValueError("must be an address of the public internet")


def is_own(url: BaseUrl, settings: Settings) -> bool:
    """Tell whether an address is this service's own, by any name that can be told without asking."""
    own = urlsplit(settings.public_url)
    own_host = (own.hostname or "").rstrip(".")
    if not settings.allow_private_upstreams:
        return url.host == own_host or (url.port == settings.port and _is_loopback(url.host))
    ports = {settings.port, own.port or _PORTS.get(own.scheme, 0)}
    same_host = url.host == own_host or (_is_loopback(url.host) and _is_loopback(own_host))
    return url.port in ports and (same_host or (url.port == settings.port and _is_loopback(url.host)))


def checked(text: str) -> str:
    """Return an address that may be registered. Raises: ValueError with a sentence for the caller."""
    url = parse(text)
    check(url, provider.settings())
    return str(url)


def _host(text: str) -> str:
    host = text.lower().removesuffix(".")
    if _address(host) is not None:
        return str(_address(host))
    if not _HOST.fullmatch(host) or len(host) > _MAX_HOST_LETTERS:
        raise ValueError("must name a host such as api.example.com")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        raise ValueError("must write an IP address in its usual form")
    return host


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return None
    return address


def _is_loopback(host: str) -> bool:
    address = _address(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)
