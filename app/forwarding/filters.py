"""Filters of forwarded calls: headers that are not passed on, and secrets.

Headers that identify the client are not forwarded, and those meant for the upstream's customer are not relayed. Secrets
are redacted in a response while it is relayed, and refused in a request to another service.
"""

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, unquote

from app.core.client_headers import OF_CLIENT
from app.core.content_decoding import IdentityDecoder, UndecodableResponse, decoder_for
from app.errors import InvalidInput
from app.ports.errors import OutcomeUnknown
from app.ports.upstream import Headers

_NAMES: Mapping[str, list[str]] = tomllib.loads(Path(__file__).with_name("headers.toml").read_text("utf-8"))
_NOT_FORWARDED = OF_CLIENT.union(_NAMES["hop_by_hop"], _NAMES["not_forwarded"])
_NOT_RELAYED = frozenset(_NAMES["hop_by_hop"] + _NAMES["not_relayed"])
_NOT_FORWARDED_PREFIXES = tuple(_NAMES["not_forwarded_prefixes"])
_NOT_RELAYED_PREFIXES = tuple(_NAMES["not_relayed_prefixes"])
# Servers refuse to write other names (RFC 9110 §5.1, §5.5): one odd header would lose the whole response.
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]+[ \t]*")
_CHECKED_HEADERS = frozenset({"location", "content-location", "link"})
# Relations that make a browser load something; those of pages of results are relayed.
_LOADING_LINK = re.compile(r"pre(?:load|fetch|connect|render)|stylesheet|icon|manifest|import|worker", re.IGNORECASE)
# Ours identifies the request in our logs; the upstream's is relayed under another name.
_RENAMED = {"x-request-id": "X-Upstream-Request-Id"}
CONTENT_POLICY = ("Content-Security-Policy", "sandbox; default-src 'none'")
"""For every relayed response: a page of an upstream must be able to do nothing on this service's origin."""
_VISIBLE_ASCII = "".join(map(chr, range(0x21, 0x7F)))


def for_upstream(
    client_headers: Iterable[tuple[str, str]],
    *,
    own_headers: Mapping[str, str],
    defaults: Mapping[str, str] | None = None,
    secrets: Collection[str] = (),
) -> list[tuple[str, str]]:
    """Return the headers of an upstream request: the client's harmless ones, replaced by ours; then `defaults`.

    One that holds a secret is left out.
    """
    received = list(client_headers)
    excluded = {name.lower() for name in own_headers} | _connection_options(received)
    forwarded, present = [], excluded.copy()
    for name, value in received:
        lower = name.lower()
        if _is_forwarded(lower) and lower not in excluded and not any(secret in value for secret in secrets):
            forwarded.append((name, value))
            present.add(lower)
    missing = {"User-Agent": "purser", "Accept": "*/*", **(defaults or {})}
    forwarded += [(name, value) for name, value in missing.items() if name.lower() not in present]
    # Bytes are relayed as they come, and what is metered on the way must not be compressed.
    return [*forwarded, ("Accept-Encoding", "identity"), *own_headers.items()]


def for_client(upstream_headers: Iterable[tuple[str, str]], *, secrets: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return the headers to relay; one that holds a secret (a redirect may repeat the address) is left out."""
    received = list(upstream_headers)
    excluded = _connection_options(received)
    relayed = []
    for name, value in received:
        relayed_name = _relayed_name(name)
        if relayed_name is None or (lower := name.lower()) in excluded:
            continue
        if any(secret in value for secret in secrets if secret):
            continue
        # Unfolds a folded line (RFC 9112 §5.2).
        cleaned = value if value.isprintable() else _CONTROL_CHARACTERS.sub(" ", value)
        if lower in _CHECKED_HEADERS:
            if lower != "link":
                # The bytes were decoded as Latin-1.
                cleaned = quote(cleaned.encode("latin-1"), safe=_VISIBLE_ASCII)
            elif _LOADING_LINK.search(cleaned):
                continue
        relayed.append((relayed_name, cleaned))
    return relayed


@lru_cache(maxsize=1024)
def _is_forwarded(lower: str) -> bool:
    return lower not in _NOT_FORWARDED and not lower.startswith(_NOT_FORWARDED_PREFIXES)


@lru_cache(maxsize=1024)
def _relayed_name(name: str) -> str | None:
    lower = name.lower()
    if lower in _NOT_RELAYED or lower.startswith(_NOT_RELAYED_PREFIXES) or _NAME.fullmatch(name) is None:
        return None
    return _RENAMED.get(lower, name)


def _connection_options(headers: Iterable[tuple[str, str]]) -> set[str]:
    listed = [value for name, value in headers if name.lower() == "connection"]
    return {token.strip().lower() for value in listed for token in value.split(",")}


_REPLACEMENT = "…".encode()
WITHHELD = "withheld"
"""The reason of the error for a compressed response that must not be relayed."""
# A compressed stream can grow without end while its decoded content stays the same.
_MAX_PENDING_BYTES = 2**20


class Redactor:
    """Replaces secrets in an uncompressed response; a compressed one is relayed byte for byte or not at all.

    Only trailing bytes that may begin a secret are withheld (of a compressed response the pieces that hold them), so
    each event of a stream is relayed immediately.
    """

    def __init__(self, secrets: Collection[str], content_encoding: str | None) -> None:
        self._secrets = [secret.encode() for secret in secrets if secret]
        self._decoder = decoder_for(content_encoding)
        self._pending = b""
        self._decoded_tail = b""

    def feed(self, piece: bytes) -> bytes:
        """Return the bytes to relay.

        Raises: OutcomeUnknown(WITHHELD) for a compressed response that holds a secret or cannot be searched.
        """
        if not self._secrets or not piece:
            return piece
        if not isinstance(self._decoder, IdentityDecoder):
            return self._scan_compressed(piece)
        text = self._pending + piece
        for secret in self._secrets:
            text = text.replace(secret, _REPLACEMENT)
        self._pending = self._partial_secret_suffix(text)
        return text[: len(text) - len(self._pending)]

    def finish(self) -> bytes:
        """Return the withheld bytes, after the last piece."""
        pending, self._pending = self._pending, b""
        return pending

    def _scan_compressed(self, piece: bytes) -> bytes:
        self._pending += piece
        if self._decoder is None or len(self._pending) > _MAX_PENDING_BYTES:
            raise OutcomeUnknown(WITHHELD)
        try:
            for decoded in self._decoder.feed(piece):
                text = self._decoded_tail + decoded
                if any(secret in text for secret in self._secrets):
                    raise OutcomeUnknown(WITHHELD)
                self._decoded_tail = self._partial_secret_suffix(text)
        except UndecodableResponse:
            raise OutcomeUnknown(WITHHELD) from None
        return b"" if self._decoded_tail else self.finish()

    def _partial_secret_suffix(self, text: bytes) -> bytes:
        """Return the longest suffix of a text that is a prefix of a secret."""
        longest = b""
        for secret in self._secrets:
            start = text.find(secret[:1], max(0, len(text) - len(secret) + 1))
            while start >= 0 and not secret.startswith(text[start:]):
                start = text.find(secret[:1], start + 1)
            if start >= 0:
                longest = max(longest, text[start:], key=len)
        return longest


def reject_key(key: str, *, target: str, headers: Headers, body: bytes) -> None:
    """Refuse a request with the client's key in its address, headers or body.

    A precaution, not a protection: a key in Base64, escaped twice or compressed is not found.

    Raises: InvalidInput.
    """
    in_headers = any(key in value for _, value in headers)
    leaks = {"address": key in unquote(target), "headers": in_headers, "body": key.encode() in body}
    for place, is_leaked in leaks.items():
        if is_leaked:
            raise InvalidInput(
                f"The {place} of this request would disclose your API key to another service. Leave it out.",
                details={"fields": {place: ["must not contain your key"]}},
            )
