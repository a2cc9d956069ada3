"""The HTTP client of forwarding: what it sends, what is certain when it fails, and which addresses it never reaches."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from decimal import Decimal
from functools import partial

import pytest

from app.adapters.upstream_http.exchange import HttpUpstream, PublicUpstream
from app.core.ip_ranges import is_public
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from app.ports.upstream import UpstreamRequest, UpstreamResponse
from tests.support.loopback_http import unused_url
from tests.support.upstreams import Exchange, close_idle, misbehaving_upstream

PRIVATE = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.169.254",  # noqa: S104 - compared, not bound
    "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1",
    "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1",
    "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1",
    "fe80::1%eth0", "fec0::1", "ff02::1", "not an address", "",
]  # fmt: skip
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"]
TRICKS = [
    "https://127.0.0.1", "https://localhost", "https://2130706433", "https://0x7f000001", "https://0177.0.0.1",
    "https://127.1", "https://0", "https://[::1]", "https://[::ffff:127.0.0.1]", "https://[::ffff:7f00:1]",
    "https://169.254.169.254", "https://[64:ff9b::a9fe:a9fe]", "https://user@127.0.0.1", "https://127.0.0.1#@1.1.1.1",
    "http://1.1.1.1", "https://1.1.1.1:8443", "https://1.1.1.1:22", "ftp://1.1.1.1", "file:///etc/passwd",
    "https://1.1.1.1/path", "https://1.1.1.1?x", "https://1.1.1.1\\@127.0.0.1", "https://", "gopher://127.0.0.1",
    "https://1.1.1.1 .example", "https://\u2460\u2461\u2466.0.0.1", "https://127.0.0.1.:443",
]  # fmt: skip


@pytest.fixture
def upstream() -> Iterator[HttpUpstream]:
    made = HttpUpstream(connect_seconds=Decimal(2), read_seconds=Decimal("0.3"))
    yield made
    close_idle(made)


def get(origin: str, target: str = "/", *, method: str = "GET", body: bytes = b"") -> UpstreamRequest:
    return UpstreamRequest(method, origin, target, (("Accept", "*/*"),), body)


def read(incoming: UpstreamResponse) -> bytes:
    return b"".join(iter(incoming.read, b""))


@pytest.mark.parametrize("address", PRIVATE)
def test_no_private_address_counts_as_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("origin", TRICKS)
def test_supplied_addresses_never_reach_private_networks(origin: str) -> None:
    public = PublicUpstream(connect_seconds=Decimal(1), read_seconds=Decimal(1))
    with pytest.raises((Rejected, Unreachable)):
        public.send(get(origin))
    close_idle(public)


def test_a_name_is_not_resolved_again_after_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    connected: list[object] = []

    def rebinding(host: str, port: int, *_rest: object, **_more: object) -> list[tuple[object, ...]]:
        asked.append(host)
        address = "1.1.1.1" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    def connect(_self: socket.socket, address: object) -> None:
        connected.append(address)
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(socket.socket, "connect", connect)
    public = PublicUpstream(connect_seconds=Decimal(1), read_seconds=Decimal(1))
    with pytest.raises(Unreachable):
        public.send(get("https://rebinding.example"))
    assert (asked, connected) == (["rebinding.example"], [("1.1.1.1", 443)])


def test_one_private_address_among_public_ones_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 443)) for each in ("1.1.1.1", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: both)
    public = PublicUpstream(connect_seconds=Decimal(1), read_seconds=Decimal(1))
    with pytest.raises(Rejected):
        public.send(get("https://two.example"))


def test_a_refused_connection_has_sent_nothing(upstream: HttpUpstream) -> None:
    with pytest.raises(Unreachable):
        upstream.send(get(unused_url()))


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (get("http://127.0.0.1", "/a b"), "target"),
        (get("http://127.0.0.1", "/a\r\nHost: evil"), "target"),
        (get("http://127.0.0.1", "evil.example"), "target"),
        (get("http://127.0.0.1", method="GET / HTTP/1.1\r\nX: "), "method"),
        (UpstreamRequest("GET", "http://127.0.0.1", "/", (("X", "a\r\nY: b"),)), "value"),
        (UpstreamRequest("GET", "http://127.0.0.1", "/", (("X: y\r\nZ", "a"),)), "name"),
        (UpstreamRequest("GET", "http://127.0.0.1", "/", (("X", "\u20ac"),)), "letters"),
    ],
)
def test_request_smuggling_is_refused(upstream: HttpUpstream, request_: UpstreamRequest, problem: str) -> None:
    with pytest.raises(Rejected):
        upstream.send(request_)
    assert problem


def test_a_connection_is_used_again_and_a_dead_one_is_not(upstream: HttpUpstream) -> None:
    with misbehaving_upstream(lambda exchange: exchange.answer(b"ok")) as server:
        for _ in range(3):
            assert read(upstream.send(get(server.url))) == b"ok"
        assert server.connections == 1

        def once(exchange: Exchange) -> None:
            exchange.answer(b"bye")
            exchange.hang_up()

        server.behave = once
        for ended in (1, 2, 3):
            assert read(upstream.send(get(server.url, method="POST", body=b"x"))) == b"bye"
            # A response may be complete before its connection's end has arrived; a request sent in between is lost.
            server.await_ended(ended)
        assert len(server.asked) == 6


def test_a_piece_is_returned_before_the_response_has_ended(upstream: HttpUpstream) -> None:
    def slow(exchange: Exchange) -> None:
        exchange.head(200, ("Content-Type", "text/event-stream"))
        exchange.send(b"data: 1\n\n")
        exchange.wait_for("more")
        exchange.send(b"data: 2\n\n")
        exchange.hang_up()

    with misbehaving_upstream(slow) as server:
        incoming = upstream.send(get(server.url))
        assert incoming.read() == b"data: 1\n\n"
        server.open("more")
        assert read(incoming) == b"data: 2\n\n"


def test_silence_after_the_head_is_a_timeout_and_closes_the_connection(upstream: HttpUpstream) -> None:
    def silent(exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.await_hang_up()

    with misbehaving_upstream(silent) as server:
        incoming = upstream.send(get(server.url))
        with pytest.raises(OutcomeUnknown) as error:
            incoming.read()
        assert error.value.reason == "timeout"
        server.await_hang_ups()


def _a_byte_at_a_time(exchange: Exchange, start: bytes, endless: bytes) -> None:
    """Send bytes without long pauses and without an end."""
    exchange.send(start)
    while not exchange.is_over(0.05):
        exchange.send(endless)


@pytest.mark.parametrize(
    ("start", "endless"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"y"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"y"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
    ],
    ids=["head", "size of a chunk", "trailers"],
)
def test_a_trickling_response_is_a_timeout(upstream: HttpUpstream, start: bytes, endless: bytes) -> None:
    with misbehaving_upstream(partial(_a_byte_at_a_time, start=start, endless=endless)) as server:
        with pytest.raises(OutcomeUnknown) as error:
            read(upstream.send(get(server.url)))
        assert error.value.reason == "timeout"
        server.await_ended()


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("rest", [b"", b"0\r\n\r\n"])
def test_a_response_without_body_is_not_read_as_chunks(upstream: HttpUpstream, status: int, rest: bytes) -> None:
    def chunked(exchange: Exchange) -> None:
        exchange.head(status, ("Transfer-Encoding", "chunked"))
        exchange.send(rest)

    with misbehaving_upstream(chunked) as server:
        for _ in range(2):
            incoming = upstream.send(get(server.url))
            assert (incoming.status, read(incoming)) == (status, b"")


EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"


def test_informational_responses_are_skipped(upstream: HttpUpstream) -> None:
    """If it were returned as the response, the real one would be read by the next request on this connection."""

    def early(exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 100 Continue\r\n\r\n" + EARLY + EARLY)
        exchange.answer(exchange.asked.target.encode())

    with misbehaving_upstream(early) as server:
        for target in ("/mine", "/yours"):
            incoming = upstream.send(get(server.url, target))
            assert (incoming.status, read(incoming)) == (200, target.encode())
        assert server.connections == 1


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n", EARLY * 100], ids=["101", "no end"]
)
def test_an_upstream_with_only_informational_responses_has_not_answered(upstream: HttpUpstream, said: bytes) -> None:
    with misbehaving_upstream(lambda exchange: exchange.send(said)) as server:
        with pytest.raises(OutcomeUnknown) as error:
            upstream.send(get(server.url))
        assert error.value.reason == "broken"
        server.await_ended()


def test_concurrency_is_not_bounded_by_the_pool(upstream: HttpUpstream) -> None:
    def held(exchange: Exchange) -> None:
        exchange.wait_for("all")
        exchange.answer(b"ok")

    patient = HttpUpstream(connect_seconds=Decimal(10), read_seconds=Decimal(30))
    with misbehaving_upstream(held) as server:
        answers: list[bytes] = []
        calls = [
            threading.Thread(target=lambda: answers.append(read(patient.send(get(server.url))))) for _ in range(150)
        ]
        for call in calls:
            call.start()
        server.await_asked(150)
        server.open("all")
        for call in calls:
            call.join()
        assert answers == [b"ok"] * 150
    close_idle(patient)
    close_idle(upstream)
