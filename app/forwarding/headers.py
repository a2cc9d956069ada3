"""The headers that are forwarded to an upstream and relayed to a client.

Headers that identify the client are not forwarded, and those meant for the upstream's customer are not relayed.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from urllib.parse import quote

from app.core.client_headers import OF_CLIENT

# RFC 9110 §7.6.1, and the names that are used as if they were in it.
_HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
        "trailer", "transfer-encoding", "upgrade", "http2-settings",
    }
)  # fmt: skip
_NOT_FORWARDED = _HOP_BY_HOP | OF_CLIENT | {
    # For this request only.
    "host", "content-length", "accept-encoding", "expect", "idempotency-key",
    # Credentials.
    "authorization", "cookie", "cookie2", "api-key", "x-api-key", "apikey", "x-auth-token", "x-access-token",
    "x-subscription-token",
    "x-cg-pro-api-key", "x-cg-demo-api-key", "x-master-key", "x-owner-key", "x-wallet-id", "x-session-id", "payment",
    "ocp-apim-subscription-key", "openai-organization", "openai-project", "anthropic-organization-id",
    "x-upstream-authorization", "x-max-price-usd",
    "upgrade-insecure-requests",
    # Some servers take these for the method or path, instead of the request line.
    "x-http-method-override", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url",
}  # fmt: skip
_NOT_FORWARDED_PREFIXES = (
    "x-forwarded-", "x-payment", "payment-", "proxy-", "sec-", "cf-", "x-amz-", "x-amzn-",
    # Google's credentials, masks that remove the usage from a response, and uploads.
    "x-goog-",
    "x-gateway-", "x-original-", "x-envoy-", "x-azure-", "x-appengine-", "x-vercel-", "x-stainless-helper-token",
)  # fmt: skip
_NOT_RELAYED = _HOP_BY_HOP | {
    "set-cookie", "set-cookie2", "clear-site-data",
    # About the upstream's connection and host.
    "server", "date", "alt-svc", "strict-transport-security", "expect-ct", "public-key-pins", "report-to", "nel",
    "reporting-endpoints", "content-length", "via",
    # The account at the provider.
    "openai-organization", "openai-project", "anthropic-organization-id",
    # Commands to a browser about this service's origin, on which the owner's pages are.
    "service-worker-allowed", "refresh", "content-security-policy", "content-security-policy-report-only",
    "speculation-rules", "origin-trial", "accept-ch", "critical-ch", "permissions-policy", "feature-policy",
    "document-policy", "sourcemap", "x-sourcemap", "use-as-dictionary", "set-login", "x-frame-options",
    # Set by this service.
    "x-upstream-request-id", "x-content-type-options", "x-cost-usd", "x-credits-remaining", "x-budget-remaining-usd",
    "x-max-tokens-applied",
}  # fmt: skip
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
_NOT_RELAYED_PREFIXES = (
    "access-control-", "proxy-", "cf-", "x-gateway-",
    # An upstream's own x402 terms are for its customer, which is this service.
    "x-payment", "payment-",
    # Commands to the server in front of this one: send a file or another address instead (nginx, Apache, lighttpd,
    # Perlbal, h2o, LiteSpeed, Hiawatha, App Engine), send the request to another application (Fly.io, Vercel), treat
    # this service as failed (Envoy), store the response in a shared cache or tag it there.
    "x-accel-", "x-sendfile", "x-lighttpd-", "x-reproxy-", "x-litespeed-", "x-hiawatha-", "x-appengine-", "fly-",
    "x-middleware-", "x-envoy-", "surrogate-", "cdn-", "cloudflare-", "netlify-", "vercel-", "edge-", "cache-tag",
    "xkey",
)  # fmt: skip


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
    return {
        token.strip().lower() for name, value in headers if name.lower() == "connection" for token in value.split(",")
    }
