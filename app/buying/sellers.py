"""Requests to web services, with and without a payment: one exchange, of bounded size and time, without redirects.

What a seller answers is text of others: it is stored sealed, returned, and in no log.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from app import base_urls, bot_auth
from app.core.client_headers import names_client
from app.errors import InvalidInput, ServiceError, UpstreamError, UpstreamTimeout
from app.ports.errors import OutcomeUnknown, PortError, Rejected
from app.ports.upstream import UpstreamRequest, read_beginning
from app.state import app_state
from app.version import VERSION

MAX_ANSWER_BYTES = 2**20
# What this service itself sells for a payment.
_OWN_PATHS = ("/v1/gateway/", "/v1/x402/services/")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_MAX_HEADERS = 30
_MAX_HEADER_LENGTH = 4096
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", re.ASCII)
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*", re.ASCII)
# Headers of the exchange and the payment, which this service sets.
_RESERVED_HEADERS = frozenset(
    {
        "host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade",
        "expect", "accept-encoding", "proxy-authorization", "x-payment", "payment-signature",
        "x-api-key", "x-master-key", "x-owner-key",
    }
)  # fmt: skip
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"})


@dataclass(frozen=True, slots=True)
class SellerRequest:
    method: str
    url: str
    host: str
    origin: str = field(repr=False)
    target: str = field(repr=False)
    headers: Sequence[tuple[str, str]] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SellerAnswer:
    """The answer of a web service; `is_complete` unless it broke off, `is_truncated` if it is longer."""

    status: int
    headers: Sequence[tuple[str, str]] = field(repr=False)
    body: bytes = field(repr=False)
    is_truncated: bool = False
    is_complete: bool = True

    def header(self, name: str) -> str | None:
        """Return the value of a header, or None unless it is there exactly once."""
        values = [value for other, value in self.headers if other.lower() == name.lower()]
        return values[0] if len(values) == 1 else None

    def to_json(self) -> str:
        headers, body = [list(each) for each in self.headers], base64.b64encode(self.body).decode()
        return json.dumps({"status": self.status, "headers": headers, "body": body, "is_truncated": self.is_truncated})

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        document = json.loads(text)
        headers = [(name, value) for name, value in document["headers"]]
        return cls(document["status"], headers, base64.b64decode(document["body"]), document["is_truncated"])


def parse_request(*, url: str, method: str, headers: Mapping[str, str], body: str | None) -> SellerRequest:
    """Parse a request. Raises: InvalidInput."""
    try:
        base, target = base_urls.parse_public(url, app_state().settings, own_paths=_OWN_PATHS)
    except ValueError as error:
        raise InvalidInput.field("url", str(error)) from None
    return SellerRequest(
        method=method, url=base.origin + target, host=base.host, origin=base.origin, target=target,
        headers=_parse_headers(base.origin, headers), body=(body or "").encode(),
    )  # fmt: skip


def ask(request: SellerRequest, *, seconds: int, payment: tuple[str, str] | None = None) -> SellerAnswer:
    """Send a request once; return the answer. Raises: Rejected or Unreachable if nothing was sent; OutcomeUnknown."""
    given = {name.lower() for name, _ in request.headers}
    headers = [
        *(each for each in request.headers if payment is None or each[0].lower() != payment[0].lower()),
        *([] if "accept" in given else [("Accept", "*/*")]),
        # Sellers can tell who sends this, and whom to ask to stop it.
        ("User-Agent", f"purser/{VERSION} (+{app_state().settings.public_url})"),
        ("Accept-Encoding", "identity"),
        *bot_auth.request_headers(request.url).items(),
        *([payment] if payment is not None else []),
    ]
    outgoing = UpstreamRequest(
        request.method, request.origin, request.target, headers, request.body, timeout_seconds=seconds
    )
    incoming = app_state().ports.public_upstream.send(outgoing)
    body, failure = read_beginning(incoming, MAX_ANSWER_BYTES)
    kept = [(name, value) for name, value in incoming.headers if name.lower() not in _HOP_BY_HOP]
    return SellerAnswer(
        incoming.status, kept, body[:MAX_ANSWER_BYTES], is_truncated=len(body) > MAX_ANSWER_BYTES,
        is_complete=failure is None,
    )  # fmt: skip


def no_answer(error: PortError) -> ServiceError:
    """Return the error for a service that did not answer a request without a payment."""
    if isinstance(error, Rejected):
        return InvalidInput.field("url", "must lead to an address of the public internet")
    if error.reason == "timeout":
        return UpstreamTimeout("The web service did not answer in time. Nothing was paid.")
    if isinstance(error, OutcomeUnknown):
        return UpstreamError("The web service's response was incomplete. Nothing was paid.")
    return UpstreamError("The web service cannot be reached. Nothing was paid.")


def _parse_headers(origin: str, headers: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    reserved = _RESERVED_HEADERS | {name.lower() for name in bot_auth.request_headers(origin)}
    if len(headers) > _MAX_HEADERS:
        raise InvalidInput.field("headers", f"must have at most {_MAX_HEADERS} entries")
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or name.lower() in reserved:
            raise InvalidInput.field("headers", f"must not set {name[:100]}")
        if len(value) > _MAX_HEADER_LENGTH or not _HEADER_VALUE.fullmatch(value):
            problem = f"must have values of at most {_MAX_HEADER_LENGTH} printable ASCII characters"
            raise InvalidInput.field("headers", problem)
    return tuple(
        (name, value) for name, value in headers.items() if name.lower() != "user-agent" and not names_client(name)
    )
