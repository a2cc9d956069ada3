"""The client of configured services: what is certain when it fails, and what a server cannot make it do."""

from __future__ import annotations

import base64
import gzip
import ipaddress
import logging
import socket
import ssl
import threading
import time
import tracemalloc
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509

from app.adapters.http_client import HttpClient, ResponseTooLargeError
from app.adapters.upstream_http.exchange import tls_context
from app.ports.errors import Unreachable
from tests.support.certificates import certificate
from tests.support.loopback_http import Reply, serve, unused_url
from tests.support.upstreams import Exchange, misbehaving_upstream

SECRET = "canary-0123456789abcdef"
OK = b"HTTP/1.1 200 OK\r\n"


def client(*, total_seconds: float = 5, connect_seconds: float = 1, max_bytes: int = 2**20) -> HttpClient:
    return HttpClient(connect_seconds=connect_seconds, total_seconds=total_seconds, max_bytes=max_bytes)


def reason_of(http: HttpClient, url: str, body: bytes = b"{}") -> str:
    with pytest.raises(Unreachable) as failure:
        http.post(url, body)
    assert failure.value.__cause__ is failure.value.__context__ is None, "a foreign exception names the address"
    return failure.value.reason


def endless(exchange: Exchange, start: bytes, piece: bytes) -> None:
    """Send one piece after another, without a pause that a time limit for each would notice."""
    exchange.send(start)
    while not exchange.is_over(0.02):
        exchange.send(piece)


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (OK + b"X-Slow: ", b"y"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2000, b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (OK + b"Content-Length: 99999\r\n\r\n", b" "),
        (OK + b"Content-Type: application/json\r\n\r\n", b" "),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"y"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
    ],
    ids=[
        "head",
        "100",
        "103",
        "103, many at once",
        "body",
        "body until the end",
        "chunks",
        "size of a chunk",
        "trailers",
    ],
)
def test_a_response_without_end_is_cut_off_at_the_deadline(start: bytes, piece: bytes) -> None:
    with misbehaving_upstream(partial(endless, start=start, piece=piece)) as server:
        assert reason_of(client(total_seconds=0.3), server.url) == "no_answer"
        assert len(server.asked) == 1


def test_a_server_that_reads_nothing_is_left_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert reason_of(client(total_seconds=0.3, connect_seconds=0.3), url, b" " * 2**25) == "no_answer"


def test_the_addresses_of_a_name_share_the_time_for_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{number}", 80)) for number in range(1, 9)]
    now = time.monotonic()
    elapsed = [0.0]

    def time_out(tried: socket.socket, _address: object) -> None:
        elapsed[0] += tried.gettimeout() or 0
        raise TimeoutError

    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: found if host == "many.example" else found[:1])
    monkeypatch.setattr(socket.socket, "connect", time_out)
    monkeypatch.setattr(time, "monotonic", lambda: now + elapsed[0])
    assert reason_of(client(connect_seconds=2), "http://many.example") == "not_sent"
    assert elapsed == [2.0]


@pytest.mark.parametrize(
    ("connecting", "sending", "reason"), [(0.4, 0.4, None), (0.6, 0.6, "no_answer"), (1.2, 0, "not_sent")]
)
def test_one_deadline_ends_connection_request_and_response(
    connecting: float, sending: float, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    elapsed, now = [0.0], time.monotonic
    connect, sendall = socket.socket.connect, socket.socket.sendall

    def slow_connect(tried: socket.socket, address: object) -> None:
        connect(tried, address)
        elapsed[0] += connecting

    def slow_sendall(connected: socket.socket, data: bytes) -> None:
        sendall(connected, data)
        elapsed[0] += sending if data.startswith(b"POST") else 0

    with serve(lambda _asked: Reply(b"{}")) as server:
        monkeypatch.setattr(socket.socket, "connect", slow_connect)
        monkeypatch.setattr(socket.socket, "sendall", slow_sendall)
        monkeypatch.setattr(time, "monotonic", lambda: now() + elapsed[0])
        http = client(total_seconds=1, connect_seconds=5)
        if reason is None:
            assert http.post(server.url, b"{}").body == b"{}"
        else:
            assert reason_of(http, server.url) == reason
        assert reason != "not_sent" or not server.asked


def test_what_was_certainly_not_sent_is_told_apart() -> None:
    with serve(lambda _asked: Reply(b"{}")) as plain:
        # The handshake fails, because this server does not speak TLS.
        assert reason_of(client(), plain.url.replace("http:", "https:")) == "not_sent"
        assert plain.asked == []
    for unusable in (
        unused_url(),
        "http://127.0.0.1:99999",
        "http://[x",
        "ftp://127.0.0.1",
        "http://",
        "http://a.invalid",
    ):
        assert reason_of(client(), unusable) == "not_sent"


@pytest.mark.parametrize(
    "sent",
    [
        OK + b"Content-Length: 5\r\n\r\n{}",
        OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}",
        OK + b"Transfer-Encoding: chunked\r\n\r\nx\r\n{}\r\n0\r\n\r\n",
        OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        OK + b"no header\r\nContent-Length: 2\r\n\r\n{}",
        OK + b"X-Long: " + b"y" * 70_000 + b"\r\n\r\n{}",
        OK + b"X: y\r\n" * 200 + b"\r\n{}",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n{}",
        b"SSH-2.0-OpenSSH\r\n",
        b"",
    ],
)
def test_a_malformed_or_truncated_response_is_none(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    def answer(exchange: Exchange) -> None:
        exchange.send(sent)
        exchange.hang_up()

    with misbehaving_upstream(answer) as server:
        assert reason_of(client(), f"{server.url}/{SECRET}") == "no_answer"
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("sent", "repeats", "asked"), [(b"", True, 2), (b"", False, 1), (b"SSH-2.0-OpenSSH\r\n", True, 1), (OK, True, 1)]
)
def test_a_request_is_sent_again_only_after_a_connection_broke_without_a_response(
    sent: bytes, asked: int, *, repeats: bool
) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.send(sent)
        exchange.hang_up()

    with misbehaving_upstream(answer) as server:
        with pytest.raises(Unreachable, match="no_answer"):
            client().post(server.url, b"{}", repeats=repeats)
        assert len(server.asked) == asked


def test_an_early_response_does_not_leave_its_successor_to_the_next_request() -> None:
    def early(exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n")
        exchange.answer(exchange.asked.target.encode())

    with misbehaving_upstream(early) as server:
        http = client()
        assert [http.get(server.url + target).body for target in ("/mine", "/yours")] == [b"/mine", b"/yours"]
        assert server.connections == 1


def test_a_surplus_is_not_the_response_of_the_next_request() -> None:
    def twice(exchange: Exchange) -> None:
        exchange.send(OK + b"Content-Length: 5\r\n\r\nfirst" + OK + b"Content-Length: 6\r\n\r\nsecond" + b" " * 20_000)

    with misbehaving_upstream(twice) as server:
        http = client()
        assert [http.get(server.url).body for _ in range(2)] == [b"first", b"first"]


def test_a_redirect_is_returned_and_its_body_is_limited_too() -> None:
    expanded = 100 * 2**20
    bomb = gzip.compress(b" " * expanded)
    headers = {"Location": unused_url(), "Content-Encoding": "gzip"}
    with serve(lambda _asked: Reply(bomb, 302, headers)) as server:
        tracemalloc.start()
        try:
            with pytest.raises(ResponseTooLargeError):
                client().get(server.url)
            assert tracemalloc.get_traced_memory()[1] < expanded / 10
        finally:
            tracemalloc.stop()
        server.answer = lambda _asked: Reply(b"moved", 302, headers={"Location": server.url})
        assert (client().get(server.url).status, len(server.asked)) == (302, 2)


def test_a_connection_that_a_network_may_have_forgotten_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(lambda _asked: Reply(b"{}")) as server:
        http = client()
        for later, connections in ((0, 1), (200, 1), (600, 2)):
            now = time.monotonic() + later
            with monkeypatch.context() as patch:
                patch.setattr(time, "monotonic", lambda now=now: now)
                http.get(server.url)
            assert server.connections == connections


def test_credentials_and_headers_are_sent_and_nothing_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("default login stranger password stranger\n")
    for name, value in (("NETRC", tmp_path / "netrc"), ("ALL_PROXY", unused_url()), ("REQUESTS_CA_BUNDLE", tmp_path)):
        monkeypatch.setenv(name, str(value))
    with serve(lambda _asked: Reply(b"{}", headers={"Set-Cookie": "tracker=1; Path=/"})) as server:
        http = HttpClient(connect_seconds=1, total_seconds=5, headers={"x-api-key": "key"})
        for _ in range(2):
            http.post(server.url + "/a/b?c=d%20e", b"{}")
            http.get(server.url.replace("//", "//us%C3%A9r:pass%2Fword@"), query={"a": "b c"})
    host = server.url.removeprefix("http://")
    common = {"Host": host, "Accept": "application/json", "Accept-Encoding": "gzip, deflate", "User-Agent": "purser"}
    basic = "Basic " + base64.b64encode("usér:pass/word".encode()).decode()
    posted, got = server.asked[2:]
    assert (posted.target, got.target) == ("/a/b?c=d%20e", "/?a=b+c")
    assert posted.headers == {**common, "x-api-key": "key", "Content-Type": "application/json", "Content-Length": "2"}
    assert got.headers == {**common, "x-api-key": "key", "Authorization": basic}


@pytest.mark.parametrize(
    ("name", "accepted"), [(x509.IPAddress(ipaddress.ip_address("127.0.0.1")), 4), (x509.DNSName("a.example"), 0)]
)
def test_the_certificate_of_a_server_must_be_trusted_and_valid_for_its_name(
    name: x509.GeneralName, accepted: int, tmp_path: Path
) -> None:
    path = certificate(tmp_path, name=name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    reply = OK + b"Content-Length: 2\r\n\r\n"
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer(plain: socket.socket) -> None:
            with suppress(OSError), context.wrap_socket(plain, server_side=True) as connection:
                while received := connection.recv(65_536):
                    requests.append(received)
                    # The surplus stays in the client's TLS, where no poll of the socket shows it.
                    connection.sendall(reply + b"{}" + (reply + b"[]" + b" " * 12_000 if len(requests) > 1 else b""))

        def listen() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=listen, daemon=True).start()
        http, url = client(), f"https://127.0.0.1:{listener.getsockname()[1]}"
        assert reason_of(http, url) == "not_sent"
        tls_context().load_verify_locations(path)
        assert [http.get(url).body for _ in range(accepted)] == [b"{}"] * accepted
        if not accepted:
            assert reason_of(http, url) == "not_sent"
        listener.shutdown(socket.SHUT_RDWR)
    assert len(requests) == accepted
