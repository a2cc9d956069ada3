"""What arrives at an upstream: for each call exactly one request, whatever its caller sent."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.market import offer
from tests.support.upstreams import Asked, MisbehavingUpstream
from tests.support.wire import CHUNKED, Wire, get, post

SECOND = b"GET /v1/second HTTP/1.1\r\nHost: x\r\n\r\n"
DOORS = ["gateway", "proxy"]


@pytest.fixture(scope="module")
def paths(wire: Wire, upstream: MisbehavingUpstream) -> dict[str, bytes]:
    """Where calls are made: below a provider, and below a service of the catalog."""
    headers = {"X-API-Key": wire.key}
    status, _, body = wire.service.ask("POST", "/v1/services", offer(base_url=f"{upstream.url}/api"), headers)
    assert status == 201, body
    return {"gateway": b"/v1/gateway/brave", "proxy": b"/v1/proxy/" + json.loads(body)["id"].encode()}


@pytest.fixture
def arrived(upstream: MisbehavingUpstream) -> Callable[[], list[Asked]]:
    """What the upstream was asked since the test began."""
    before = len(upstream.asked)
    upstream.behave = lambda exchange: exchange.json({"ok": True})
    return lambda: upstream.asked[before:]


def framing(asked: Asked) -> list[tuple[str, str]]:
    names = {
        "content-length",
        "transfer-encoding",
        "host",
        "connection",
        "upgrade",
        "expect",
        "te",
        "trailer",
    }
    return sorted((name, value) for name, value in asked.headers if name in names)


@pytest.mark.parametrize("door", DOORS)
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
def test_an_ambiguous_request_arrives_nowhere(
    wire: Wire,
    paths: dict[str, bytes],
    arrived: Callable[[], list[Asked]],
    door: str,
    headers: tuple[bytes, ...],
    body: bytes,
) -> None:
    key = b"X-API-Key: " + wire.key.encode()
    (answer,) = wire.say(post(key, *headers, body=body, path=paths[door] + b"/x"))
    assert answer.status == 400
    assert arrived() == []


@pytest.mark.parametrize("door", DOORS)
def test_one_call_is_one_request_with_one_frame_of_ours(
    wire: Wire, paths: dict[str, bytes], arrived: Callable[[], list[Asked]], door: str
) -> None:
    key, inner = b"X-API-Key: " + wire.key.encode(), b"GET /inner HTTP/1.1\r\nHost: evil\r\n\r\n"
    extra = (
        b"Connection: close, host, content-length, x-named, transfer-encoding", b"X-Named: gone", b"TE: trailers",
        b"Upgrade: h2c", b"Expect: 100-continue", b"X-Odd: a\tb\x80\xff", b"Trailer: X-Late",
    )  # fmt: skip
    chunked = b"%x\r\n" % len(inner) + inner + b"\r\n0\r\nX-Late: GET /late HTTP/1.1\r\n\r\n"
    target = paths[door] + b"/x?q=%0d%0aHost:%20evil%0d%0a%0d%0aGET%20/third%20HTTP/1.1&r=%00%ff+%2B%26"
    requests = [
        post(key, *extra, CHUNKED, body=chunked, path=target),
        post(key, *extra, b"Content-Length: %d" % len(inner), body=inner, path=target),
        get(target, key, *extra),
    ]
    for request in requests:
        assert [answer.status for answer in wire.say(request)][-1] == 200
    found = arrived()
    assert [(asked.method, asked.body) for asked in found] == [("POST", inner), ("POST", inner), ("GET", b"")]
    for asked in found:
        assert asked.target.endswith("/x" + target.decode().partition("/x")[2])
        lengths = [("content-length", str(len(inner)))] if asked.body else []
        assert [entry for entry in framing(asked) if entry[0] != "host"] == lengths
        assert len([value for name, value in asked.headers if name == "host"]) == 1
        assert not {"x-named", "x-late"} & {name for name, _ in asked.headers}
        assert ("x-odd", "a\tb\x80\xff") in asked.headers


@pytest.mark.parametrize("door", DOORS)
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
def test_a_path_that_is_more_than_a_path_arrives_nowhere(
    wire: Wire, paths: dict[str, bytes], arrived: Callable[[], list[Asked]], door: str, rest: bytes
) -> None:
    (answer,) = wire.say(get(paths[door] + rest, b"X-API-Key: " + wire.key.encode()))
    assert answer.status in {400, 404}
    assert arrived() == []


@pytest.mark.parametrize("door", DOORS)
def test_an_upstream_s_answer_is_one_answer_to_its_own_caller(
    wire: Wire, paths: dict[str, bytes], upstream: MisbehavingUpstream, door: str
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
        first, second = wire.say(get(paths[door] + b"/x", key) + get(b"/v1/health"))
        assert first.status in {200, 502}
        assert b"forged" not in first.body
        assert "set-cookie" not in first.headers
        assert second.json()["status"] == "ok"
