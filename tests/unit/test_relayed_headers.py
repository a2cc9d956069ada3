"""The headers that are forwarded to an upstream, and those that are relayed to the client."""

from __future__ import annotations

import pytest

from app.forwarding import filters

NOT_FORWARDED = [
    "Authorization", "Cookie", "X-Master-Key", "X-Owner-Key", "X-API-Key", "X-Payment", "X-Payment-Chain",
    "X-PAYMENT-SIGNATURE", "Payment-Signature", "X-Wallet-Id", "X-Session-Id", "X-Forwarded-For", "X-Forwarded-Host",
    "X-Forwarded-Proto", "Forwarded", "Via", "X-Real-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "Origin", "Referer",
    "Api-Key", "X-Auth-Token", "X-Access-Token", "X-Goog-Api-Key", "X-Goog-User-Project", "X-Goog-FieldMask",
    "X-Goog-Upload-Protocol", "X-Goog-Upload-Command", "X-Goog-Request-Params", "X-Subscription-Token",
    "X-Cg-Pro-Api-Key", "Openai-Organization", "Openai-Project", "Proxy-Authorization", "Te", "Upgrade",
    "Keep-Alive", "X-Amz-Security-Token", "Sec-Fetch-Site", "X-Http-Method-Override", "X-Original-Url",
    "X-Rewrite-Url", "X-Upstream-Authorization", "X-Max-Price-Usd", "X-Gateway-Timestamp", "X-Gateway-Anything",
    "Host", "Content-Length", "Accept-Encoding", "Expect", "Idempotency-Key", "Transfer-Encoding",
]  # fmt: skip
NOT_RELAYED = [
    "Set-Cookie", "Clear-Site-Data", "Server", "Date", "Alt-Svc", "Strict-Transport-Security", "Openai-Organization",
    "Access-Control-Allow-Origin", "Cf-Ray", "Keep-Alive", "Proxy-Authenticate", "X-Cost-Usd", "X-Credits-Remaining",
    "X-Max-Tokens-Applied", "X-Gateway-Request-Id", "X-Payment-Response", "Payment-Required", "Content-Length",
    "Transfer-Encoding",
    # Headers that a web server, load balancer or CDN in front of the service would act on.
    "X-Accel-Redirect", "X-Sendfile", "X-Sendfile2", "X-Sendfile-Temporary", "X-LIGHTTPD-send-file",
    "X-LIGHTTPD-KBytes-per-second", "X-Reproxy-URL", "X-Reproxy-File", "X-LiteSpeed-Location",
    "X-LiteSpeed-Cache-Control", "X-Hiawatha-Cache", "X-AppEngine-BlobKey", "Fly-Replay", "X-Middleware-Rewrite",
    "X-Envoy-Immediate-Health-Check-Fail", "Surrogate-Control", "CDN-Cache-Control",
    "Cloudflare-CDN-Cache-Control", "Vercel-CDN-Cache-Control", "Netlify-CDN-Cache-Control", "Edge-Control",
    "Cache-Tag", "xkey",
]  # fmt: skip


def test_headers_about_the_client_or_its_connection_are_not_forwarded() -> None:
    for spelled in (str.title, str.lower, str.upper):
        received = [(spelled(name), "canary") for name in NOT_FORWARDED]
        sent = filters.for_upstream([*received, ("X-Own", "1")], own_headers={})
        assert [name for name, value in sent if value == "canary"] == []
        assert ("X-Own", "1") in sent


def test_a_header_listed_in_connection_crosses_neither_way() -> None:
    listed = [("Connection", "X-Listed, close"), ("X-Listed", "canary"), ("X-Own", "1")]
    assert "canary" not in str(filters.for_upstream(listed, own_headers={}))
    assert list(filters.for_client(listed)) == [("X-Own", "1")]
    # It is of that message alone.
    assert ("X-Listed", "canary") in filters.for_upstream(listed[1:], own_headers={})
    assert list(filters.for_client(listed[1:])) == listed[1:]


def test_own_headers_replace_those_of_the_client_and_defaults_do_not() -> None:
    received = [("x-key", "the client's"), ("user-agent", "agent/1"), ("Link", "<1>"), ("Link", "<2>")]
    sent = filters.for_upstream(received, own_headers={"X-Key": "ours"}, defaults={"User-Agent": "d", "V": "1"})
    assert sent == [
        ("user-agent", "agent/1"), ("Link", "<1>"), ("Link", "<2>"), ("Accept", "*/*"), ("V", "1"),
        ("Accept-Encoding", "identity"), ("X-Key", "ours"),
    ]  # fmt: skip


def test_headers_meant_for_the_operator_are_not_relayed() -> None:
    for spelled in (str.title, str.lower, str.upper):
        received = [(spelled(name), "1") for name in NOT_RELAYED]
        assert list(filters.for_client([*received, ("X-Own", "1")])) == [("X-Own", "1")]


@pytest.mark.parametrize(
    ("received", "relayed"),
    [
        (("X-Odd", "a\r\n b"), ("X-Odd", "a b")),
        (("X-Odd", "a\x01\x7fb"), ("X-Odd", "a b")),
        (("X-Odd", "a\tb"), ("X-Odd", "a\tb")),
        (("X(Odd)", "a"), None),
        (("X Odd", "a"), None),
        (("X-\u00d6dd", "a"), None),
        (("Location", "/\u00c3\u00a9 x"), ("Location", "/%C3%A9%20x")),
        (("Location", "http://10.0.0.1/a b"), ("Location", "http://10.0.0.1/a%20b")),
        (("Location", "https://x.example/the-secret"), None),
        (("Location", "http://[x"), ("Location", "http://[x")),
        (("Content-Location", "http://a:99999/"), ("Content-Location", "http://a:99999/")),
        (("Etag", '"abc"'), ("Etag", '"abc"')),
        (("Link", '</2>; rel="next"'), ("Link", '</2>; rel="next"')),
        (("Link", "</x.js>; rel=preload; as=script"), None),
        (("Link", '<https://evil.example/>; rel="modulepreload"'), None),
        (("Service-Worker-Allowed", "/"), None),
        (("Refresh", "0; url=https://evil.example"), None),
        (("Content-Security-Policy", "default-src *"), None),
        (("X-Request-Id", "spoof"), ("X-Upstream-Request-Id", "spoof")),
        (("x-upstream-request-id", "spoof"), None),
    ],
)
def test_an_unusual_header_is_repaired_or_left_out(received: tuple[str, str], relayed: tuple[str, str] | None) -> None:
    found = list(filters.for_client([received], secrets=["", "the-secret"]))
    assert found == ([] if relayed is None else [relayed])
