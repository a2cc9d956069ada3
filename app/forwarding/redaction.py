"""Secrets in forwarded calls: redacted in a response while it is relayed, refused in a request to another service."""

from collections.abc import Collection
from urllib.parse import unquote

from app.core.content_decoding import IdentityDecoder, UndecodableResponse, decoder_for
from app.errors import InvalidInput
from app.ports.errors import OutcomeUnknown
from app.ports.upstream import Headers

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
        if self._decoder is None:
            raise OutcomeUnknown(WITHHELD)
        self._pending += piece
        if len(self._pending) > _MAX_PENDING_BYTES:
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
    leaks = {
        "address": key in unquote(target),
        "headers": any(key in value for _, value in headers),
        "body": key.encode() in body,
    }
    for place, is_leaked in leaks.items():
        if is_leaked:
            raise InvalidInput(
                f"The {place} of this request would disclose your API key to another service. Leave it out.",
                details={"fields": {place: ["must not contain your key"]}},
            )
