"""Each call reaches an upstream as exactly one request, whatever the client sent."""

from __future__ import annotations

import json
import select
from collections.abc import Callable

import pytest

from server.client_socket import READ_TIMEOUT_MS
from tests.support.market import offer
from tests.support.upstreams import Asked, MisbehavingUpstream
from tests.support.waiting import conclusive
from tests.support.wire import CHUNKED, Wire, get, post

SECOND = b"GET /v1/second HTTP/1.1\r\nHost: localhost\r\n\r\n"
ROUTES = ["gateway", "proxy"]


@pytest.fixture(scope="module")
def paths(wire: Wire, upstream: MisbehavingUpstream) -> dict[str, bytes]:
    """Paths that are forwarded: to a provider, and to a service of the catalog."""
    headers = {"X-API-Key": wire.key}
    status, _, body = wire.service.ask("POST", "/v1/services", offer(base_url=f"{upstream.url}/api"), headers)
    assert status == 201, body
    service = json.loads(body)["id"].encode()
    return {"gateway": b"/v1/gateway/brave/web/search", "proxy": b"/v1/proxy/" + service + b"/x"}


@pytest.fixture
def arrived(upstream: MisbehavingUpstream) -> Callable[[], list[Asked]]:
    """The requests that the upstream received since the test began."""
    before = len(upstream.asked)
    upstream.behave = lambda exchange: exchange.json({"ok": True})
    return lambda: upstream.asked[before:]


def framing(asked: Asked) -> list[tuple[str, str]]:
    names = {"content-length", "transfer-encoding", "host", "connection", "upgrade", "expect", "te", "trailer"}
    return sorted((name, value) for name, value in asked.headers if name in names)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ((b"Content-Length: 4", CHUNKED), b"0\r\n\r\n"),
        ((CHUNKED, CHUNKED), b"0\r\n\r\n"),
        ((b"Content-Length: 0", b"Content-Length: 60"), SECOND),
        ((b"Transfer-Encoding : chunked",), b"0\r\n\r\n" + SECOND),
        ((b"X: y\nTransfer-Encoding: chunked",), b"0\r\n\r\n" + SECOND),
        ((b"X: y", b" folded: z"), b""),
        ((CHUNKED,), b"2\r\n{}XX0\r\n\r\n" + SECOND),
    ],
    ids=["length and chunks", "chunks twice", "two lengths", "space", "lone LF", "folded", "bad chunks"],
)
def test_an_ambiguous_request_is_not_forwarded(
    wire: Wire,
    paths: dict[str, bytes],
    arrived: Callable[[], list[Asked]],
    route: str,
    headers: tuple[bytes, ...],
    body: bytes,
) -> None:
    key = b"X-API-Key: " + wire.key.encode()
    (answer,) = wire.exchange(post(key, *headers, body=body, path=paths[route]))
    assert answer.status == 400
    assert arrived() == []


@pytest.mark.parametrize("route", ROUTES)
def test_one_call_is_forwarded_as_one_request_with_own_framing(
    wire: Wire, paths: dict[str, bytes], arrived: Callable[[], list[Asked]], route: str
) -> None:
    key, inner = b"X-API-Key: " + wire.key.encode(), b'["x"]\r\n\r\n'
    if route == "proxy":  # the gateway forwards JSON only
        inner = b"GET /inner HTTP/1.1\r\nHost: evil\r\n\r\n"
    extra = (
        b"Connection: close, host, content-length, x-named, transfer-encoding", b"X-Named: gone", b"TE: trailers",
        b"Upgrade: h2c", b"Expect: 100-continue", b"X-Odd: a\tb\x80\xff", b"Trailer: X-Late",
    )  # fmt: skip
    chunked = b"%x\r\n" % len(inner) + inner + b"\r\n0\r\nX-Late: GET /late HTTP/1.1\r\n\r\n"
    target = paths[route] + b"?q=%0d%0aHost:%20evil%0d%0a%0d%0aGET%20/third%20HTTP/1.1&r=%00%ff+%2B%26"
    requests = [
        post(key, *extra, CHUNKED, body=chunked, path=target),
        post(key, *extra, b"Content-Length: %d" % len(inner), body=inner, path=target),
        get(target, key, *extra),
    ]
    for request in requests:
        assert [answer.status for answer in wire.exchange(request)][-1] == 200
    found = arrived()
    assert [(asked.method, asked.body) for asked in found] == [("POST", inner), ("POST", inner), ("GET", b"")]
    for asked in found:
        assert asked.target.endswith(paths[route].decode().rpartition("/")[2] + "?" + target.decode().partition("?")[2])
        lengths = [("content-length", str(len(inner)))] if asked.body else []
        assert [entry for entry in framing(asked) if entry[0] != "host"] == lengths
        assert len([value for name, value in asked.headers if name == "host"]) == 1
        assert not {"x-named", "x-late"} & {name for name, _ in asked.headers}
        assert ("x-odd", "a\tb\x80\xff") in asked.headers


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "rest",
    [
        b"/a%0d%0aHost:%20evil",
        b"/a%0d%0a%0d%0aGET%20/b",
        b"/a%00",
        b"/%2e%2e/b",
        b"/a%250d%250a",
        b"/a%u000d",
        b"/../b",
    ],
)
def test_a_path_with_injected_line_breaks_is_not_forwarded(
    wire: Wire, paths: dict[str, bytes], arrived: Callable[[], list[Asked]], route: str, rest: bytes
) -> None:
    (answer,) = wire.exchange(get(paths[route] + rest, b"X-API-Key: " + wire.key.encode()))
    assert answer.status == 400
    assert arrived() == []


@pytest.mark.parametrize("route", ROUTES)
def test_a_malformed_upstream_response_cannot_inject_another(
    wire: Wire, paths: dict[str, bytes], upstream: MisbehavingUpstream, route: str
) -> None:
    key, forged = b"X-API-Key: " + wire.key.encode(), b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
    heads = [
        b"Content-Length: 2\r\n\r\n{}" + forged,
        b"Content-Length: 2\r\nX-Split: a\rHTTP/1.1 200 OK\r\n\r\n{}" + forged,
        b"X-Split: a\n\tSet-Cookie: b=c\r\nContent-Length: 2\r\n\r\n{}",
        b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + forged,
    ]
    for head in heads:
        upstream.behave = lambda exchange, head=head: exchange.send(  # type: ignore[misc]
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + head
        )
        first, second = wire.exchange(get(paths[route], key) + get(b"/v1/health"))
        assert first.status == 200, head
        assert b"forged" not in first.body
        assert "set-cookie" not in first.headers
        assert second.json()["status"] == "ok"


@pytest.mark.parametrize("route", ROUTES)
def test_a_call_does_not_wait_for_the_body_of_another(
    wire: Wire, paths: dict[str, bytes], arrived: Callable[[], list[Asked]], route: str
) -> None:
    key = b"X-API-Key: " + wire.key.encode()

    def attempt() -> None:
        with wire.connection() as slow:
            slow.sendall(post(key, b"Content-Length: 100000", body=b"{", path=paths[route]))
            # The first of them may overtake it.
            for _ in range(3):
                (answer,) = wire.exchange(post(key, path=paths[route]))
                assert answer.status == 200
            readable, _, _ = select.select([slow], [], [], 0)
            assert not readable
        assert len(arrived()) >= 3

    # Later, the slow one times out.
    conclusive(attempt, READ_TIMEOUT_MS / 1000)
