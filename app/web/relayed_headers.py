"""Which headers cross a forwarded call.

What identifies the caller, to us or to anyone, stays on its side; so does what an upstream says to its operator.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import quote

from werkzeug.datastructures import Headers

# RFC 9110 §7.6.1, and the names that are used as if they were in it.
_HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
        "trailer", "transfer-encoding", "upgrade", "http2-settings",
    }
)  # fmt: skip
_NEVER_SENT = _HOP_BY_HOP | {
    # Of this request only.
    "host", "content-length", "accept-encoding", "expect", "idempotency-key",
    # Credentials, for us or for anybody else.
    "authorization", "cookie", "cookie2", "api-key", "x-api-key", "apikey", "x-auth-token", "x-access-token",
    "x-goog-api-key", "x-goog-user-project", "x-goog-iam-authorization-token", "x-subscription-token",
    "x-cg-pro-api-key", "x-cg-demo-api-key", "x-master-key", "x-owner-key", "x-wallet-id", "payment",
    "ocp-apim-subscription-key", "openai-organization", "openai-project", "anthropic-organization-id",
    "x-upstream-authorization", "x-max-price-usd",
    # What would take out of the answer what it cost.
    "x-goog-fieldmask",
    # Who and where the caller is.
    "forwarded", "via", "origin", "referer", "from", "x-real-ip", "x-client-ip", "x-cluster-client-ip",
    "client-ip", "true-client-ip", "x-remote-ip", "x-remote-addr", "x-host", "x-forwarded",
    "fastly-client-ip", "fly-client-ip", "upgrade-insecure-requests",
    # What makes some servers see another method or path than the request line has.
    "x-http-method-override", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url",
}  # fmt: skip
_NEVER_SENT_PREFIXES = (
    "x-forwarded-", "x-payment", "payment-", "proxy-", "sec-", "cf-", "x-amz-", "x-amzn-", "x-gateway-",
    "x-original-", "x-envoy-", "x-azure-", "x-appengine-", "x-vercel-", "x-stainless-helper-token",
)  # fmt: skip
_NEVER_RELAYED = _HOP_BY_HOP | {
    "set-cookie", "set-cookie2", "clear-site-data",
    # Of the upstream's connection and host, not of ours.
    "server", "date", "alt-svc", "strict-transport-security", "expect-ct", "public-key-pins", "report-to", "nel",
    "reporting-endpoints", "content-length", "via",
    # Whose account it is.
    "openai-organization", "openai-project", "anthropic-organization-id",
    # What we say ourselves.
    "x-cost-usd", "x-credits-remaining",
}  # fmt: skip
# What servers refuse to write (RFC 9110 §5.1, §5.5): a whole answer would be lost for one odd line of its head.
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_NO_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]+[ \t]*")
_ADDRESSES = ("location", "content-location")
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
# An upstream that wants to be paid itself wants that of its operator.
_NEVER_RELAYED_PREFIXES = (
    "access-control-", "proxy-", "cf-", "x-gateway-", "x-accel-", "x-payment", "payment-",
)  # fmt: skip


def for_upstream(
    caller_s: Iterable[tuple[str, str]], *, ours: Mapping[str, str], defaults: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Return the headers that go out: the caller's harmless ones and ours, which win; `defaults` where it has none."""
    given = list(caller_s)
    never = {name.lower() for name in ours} | _named_by_connection(given)
    kept = [
        (name, value)
        for name, value in given
        if (lower := name.lower()) not in _NEVER_SENT
        and lower not in never
        and not lower.startswith(_NEVER_SENT_PREFIXES)
    ]
    present = {name.lower() for name, _ in kept}
    missing = {"User-Agent": "purser", "Accept": "*/*", **(defaults or {})}
    kept += [(name, value) for name, value in missing.items() if name.lower() not in present | never]
    # Bytes are passed on as they come, and what is read on the way must not have to be unpacked.
    return [*kept, ("Accept-Encoding", "identity"), *ours.items()]


def for_caller(upstream_s: Iterable[tuple[str, str]], *, secrets: Collection[str] = ()) -> Headers:
    """Return the headers that go back; one that holds a secret (a redirect may repeat the address) is left out."""
    given = list(upstream_s)
    never = _NEVER_RELAYED | _named_by_connection(given)
    relayed = Headers()
    for name, value in given:
        lower = name.lower()
        if lower in never or lower.startswith(_NEVER_RELAYED_PREFIXES) or not _NAME.fullmatch(name):
            continue
        if any(secret in value for secret in secrets if secret):
            continue
        # A line that was folded over two (RFC 9112 §5.2) becomes one.
        written = _NO_VALUE.sub(" ", value)
        if lower in _ADDRESSES and not written.isascii():
            # Bytes that came as Latin-1; werkzeug would escape each as a letter of its own.
            written = quote(written.encode("latin-1"), safe=_VISIBLE)
        relayed.add(name, written)
    return relayed


def _named_by_connection(headers: Iterable[tuple[str, str]]) -> set[str]:
    return {
        token.strip().lower()
        for name, value in headers
        if name.lower() == "connection"
        for token in value.split(",")
    }
