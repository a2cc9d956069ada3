"""Validation of URLs that others supply: a host of the public internet, in canonical form, and not this service.

This is a first check, for a helpful error. The resolved IP address is checked whenever a connection is opened.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from app.config import Settings
from app.core import ip_ranges

MAX_LENGTH = 500
_MAX_URL_LENGTH = 2048
_PORTS = {"http": 80, "https": 443}
_VISIBLE = re.compile(r"[\x21-\x7e]+", re.ASCII)
_LABEL = r"(?!-)[a-z0-9-]{1,63}(?<!-)"
HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*", re.ASCII)
"""A host name in lower case."""
# URL parsers read such a last label as a number in any base (WHATWG URL, "ends in a number").
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_PATH = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,=:@-]+)*", re.ASCII)
# Names that are never public (RFC 6761, 6762, 8375, 9476, 7686, and ICANN's reservation for private use).
_PRIVATE_SUFFIXES = (
    "localhost", "local", "internal", "intranet", "home.arpa", "alt", "onion", "test", "example", "invalid",
    "localdomain", "lan", "corp", "home",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """A parsed base URL; `path` begins with a slash or is empty, and never ends with one."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")

    def __str__(self) -> str:
        return self.origin + self.path


def parse(text: str) -> BaseUrl:
    """Parse a URL in its canonical form. Raises: ValueError with a message for the client."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"must have at most {MAX_LENGTH} characters")
    if not _VISIBLE.fullmatch(text) or set(text) & set("\\?#@"):
        raise ValueError("must be scheme://host[:port]/path in ASCII, without a user, a query or a fragment")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("is not a valid URL") from None
    if parts.scheme not in _PORTS or port == 0 or parts.netloc.endswith(":"):
        raise ValueError("must look like https://api.example.com/v1")
    path = parts.path.rstrip("/")
    if not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        raise ValueError("must have a plain path: no empty or dot segments, no escapes")
    return BaseUrl(parts.scheme, _host(parts.hostname or ""), port or _PORTS[parts.scheme], path)


def parse_public(text: str, settings: Settings, *, own_paths: tuple[str, ...] = ()) -> tuple[BaseUrl, str]:
    """Parse a whole URL; return its base without a path, and the raw path and query.

    Of this service's own URLs, only those with a path that begins with one of `own_paths` are accepted.

    Raises: ValueError with a message for the client, as `assert_public` does.
    """
    if len(text) > _MAX_URL_LENGTH or not _VISIBLE.fullmatch(text) or "\\" in text:
        raise ValueError(f"must be a URL in ASCII with at most {_MAX_URL_LENGTH} characters, escaped where needed")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError("is not a valid URL") from None
    if "#" in text or "@" in parts.netloc:
        raise ValueError("must not have a fragment or a username")
    base = parse(f"{parts.scheme}://{parts.netloc}")
    is_accepted = parts.path.startswith(own_paths) and base.origin == parse(settings.public_url).origin
    if not is_accepted:
        assert_public(base, settings)
    return base, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def assert_public(url: BaseUrl, settings: Settings) -> None:
    """Check that a URL is public and not this service. Raises: ValueError."""
    if is_own(url, settings):
        raise ValueError("must not point to this service itself")
    if settings.allow_private_upstreams:
        return
    if url.scheme != "https" or url.port != _PORTS["https"]:
        raise ValueError("must be https on port 443")
    address = _address(url.host)
    if address is None:
        if "." not in url.host or url.host.endswith(tuple(f".{name}" for name in _PRIVATE_SUFFIXES)):
            raise ValueError("must be a host of the public internet")
    elif not ip_ranges.is_public(str(address)):
        raise ValueError("must be an address of the public internet")


def is_own(url: BaseUrl, settings: Settings) -> bool:
    """Return whether a URL is this service's own, without resolving names."""
    own = urlsplit(settings.public_url)
    own_host = (own.hostname or "").rstrip(".")
    if not settings.allow_private_upstreams:
        return url.host == own_host or (url.port == settings.port and _is_loopback(url.host))
    ports = {settings.port, own.port or _PORTS.get(own.scheme, 0)}
    same_host = url.host == own_host or (_is_loopback(url.host) and _is_loopback(own_host))
    return url.port in ports and (same_host or (url.port == settings.port and _is_loopback(url.host)))


def _host(text: str) -> str:
    host = text.lower().removesuffix(".")
    if _address(host) is not None:
        return str(_address(host))
    if not HOST.fullmatch(host):
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
