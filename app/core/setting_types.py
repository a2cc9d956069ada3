"""Types of settings, and the parsers of their texts."""

import base64
import binascii
import re
from typing import Annotated
from urllib.parse import urlsplit

import limits
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

KEY_BYTES = 32
MAX_SETTLEMENT_KEYS = 64
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)
_KEY_SERVICE = re.compile(
    r"(?a)local|([A-Za-z0-9_-]{1,32}):(?:(aws-kms)://(arn:[a-z-]+:kms:[a-z0-9-]+:\d+:(?:key|alias)/[\w/-]+)"
    r"|(gcp-kms)://(projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[\w-]+)"
    r"|(file)://(/[^,]+)"
    r"|(hcvault)://([\w.-]+(?::\d+)?)/([\w/-]+)/keys/([\w.-]+)"
    r"|(pkcs11):token=([^;?&]+);object=([^;?&]+)\?module-path=(/[^;?&]+))"
)
# As a browser writes it: in lower case, without a default port and without a path.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.ASCII)
_DEFAULT_PORT = re.compile(r"https://.*:443|http://.*:80")


def split(value: str | tuple[str, ...]) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(part.strip() for part in parts if part.strip())


def keys(text: str, name: str) -> tuple[tuple[str, bytes], ...]:
    """Return `(id, 32 bytes)` pairs of a setting `id:base64,…`. Raises: ValueError."""
    found: dict[str, bytes] = {}
    for part in split(text):
        key_id, _, encoded = part.partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            key = b""
        if not _KEY_ID.fullmatch(key_id) or len(key) != KEY_BYTES or key_id in found:
            msg = f"{name} must be a comma-separated list of id:base64 of {KEY_BYTES} bytes, without an id twice"
            raise ValueError(msg)
        found[key_id] = key
    return tuple(found.items())


def key_services(text: str, taken: tuple[tuple[str, bytes], ...] = ()) -> dict[str, list[str]]:
    """Return the kind and address parts of each key service by its id. The first one seals; `local` has no parts."""
    matches = [_KEY_SERVICE.fullmatch(entry) for entry in split(text)]
    found = {each[1] or "local": list(filter(None, each.groups()[1:])) for each in matches if each}
    if len(found) != len(matches) or not found.keys().isdisjoint(dict(taken)):
        raise ValueError("WALLET_ENCRYPTION_KEYS must be a list of local and id:address, each id not used elsewhere")
    return found


def _base_url(text: str) -> str:
    """Validate `http(s)://host[:port][/path]`, which may contain `{network}` and `{key}`."""
    try:
        parts = urlsplit(text.format(network="network", key="key"))
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        usable = usable and parts.username is None and not parts.fragment and text.isascii() and " " not in text
    except (ValueError, LookupError):
        usable = False
    if not usable:
        raise ValueError("it must look like https://host/path, without a user or a fragment")
    return text.rstrip("/")


def _rate_limit(text: str) -> str:
    try:
        limits.parse_many(text)
    except ValueError:
        raise ValueError('it must look like "5 per minute;60 per hour"; empty is off') from None
    return text


def _origins(value: str | tuple[str, ...]) -> tuple[str, ...]:
    found = split(value)
    for origin in found:
        if origin != "*" and (not _ORIGIN.fullmatch(origin) or _DEFAULT_PORT.fullmatch(origin)):
            msg = (
                "CORS_ALLOWED_ORIGINS must be * or origins as browsers write them, separated by commas: "
                "https://app.example.com, in lower case, without a path, a slash at the end or a default port"
            )
            raise ValueError(msg)
    return found


# URLs that an operator configures may contain a key.
Urls = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split), Field(repr=False)]
HttpUrl = Annotated[str, AfterValidator(_base_url)]
BaseUrl = Annotated[HttpUrl, Field(repr=False)]
PageUrl = Annotated[str, Field(pattern=r"^(https://[^\s/?#@]+([/?#]\S*)?)?$")]
SupportUrl = Annotated[str, Field(pattern=r"^(https://[^\s/?#@]+([/?#]\S*)?|mailto:[^\s@?]+@[^\s@?]+)?$")]
Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_origins)]
RateLimit = Annotated[str, AfterValidator(_rate_limit)]
