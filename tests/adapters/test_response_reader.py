"""Responses of upstreams, whole and malformed: where each ends, and whether its connection may be used again."""

from __future__ import annotations

import http.client
import io
import socket
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.upstream_http.response_reader import Http1Reader, MalformedResponse

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class ScriptedSocket:
    """Returns pieces as they are received, then the end of the connection."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def gettimeout(self) -> float | None:
        return None

    def settimeout(self, _seconds: float) -> None:
        """Accept any."""

    def recv(self, limit: int) -> bytes:
        if not self._pieces:
            return b""
        piece = self._pieces.pop(0)
        if len(piece) > limit:
            self._pieces.insert(0, piece[limit:])
        return piece[:limit]


def read(*pieces: bytes, method: str = "GET") -> tuple[int, list[tuple[str, str]], bytes, bool]:
    """Return status, headers, body, and whether the connection may be used again. Raises: as `Http1Reader`."""
    scripted = cast("socket.socket", ScriptedSocket([piece for piece in pieces if piece]))
    reader = Http1Reader(scripted, method=method, seconds=5)
    body = b"".join(iter(reader.read, b""))
    return reader.head.status, list(reader.head.headers), body, reader.is_reusable


def read_by_http_client(raw: bytes, *, method: str = "GET") -> tuple[int, list[tuple[str, str]], bytes]:
    class Received:
        def makefile(self, *_arguments: object) -> io.BytesIO:
            return io.BytesIO(raw)

    response = http.client.HTTPResponse(cast("socket.socket", Received()), method=method)
    response.begin()
    return response.status, response.getheaders(), response.read()


def outcome(*pieces: bytes, method: str = "GET") -> object:
    try:
        return read(*pieces, method=method)
    except (MalformedResponse, ConnectionResetError):
        return None


def split(raw: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(raw[:size])
        raw = raw[size:]
    return [*pieces, raw]


NAMES = st.from_regex(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,12}", fullmatch=True).map(lambda name: f"X-{name}")
VALUES = st.from_regex(r"([!-~\xa1-\xff]([ -~\xa1-\xff]{0,12}[!-~\xa1-\xff])?)?", fullmatch=True)
SIZES = st.lists(st.integers(1, 9), max_size=60)


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    status = draw(st.sampled_from([200, 201, 204, 304, 402, 500, 599, 999]))
    headers = draw(st.lists(st.tuples(NAMES, VALUES), max_size=6))
    chunks = [chunk for chunk in draw(st.lists(st.binary(max_size=40), max_size=5)) if chunk]
    body = b"".join(chunks)
    framing = draw(st.sampled_from(["length", "chunked", "end"]))
    if status in {204, 304}:
        body, framing = b"", "end"
    if framing == "length":
        headers.append(("content-length", str(len(body))))
    if framing == "chunked":
        headers.append(("Transfer-Encoding", "Chunked"))
        extension = draw(st.sampled_from([b"", b";a=b", b' ; a="b"']))
        trailers = draw(st.sampled_from([b"", b"X-Checksum: 5\r\n", b"A: 1\r\nB: 2\r\n"]))
        sized = [b"%X%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks]
        body = b"".join([*sized, b"0", extension, b"\r\n", trailers, b"\r\n"])
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    lines = [f"HTTP/1.1 {status} Reason", *(f"{name}: {value}" for name, value in headers)]
    return interim + "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


@given(responses(), SIZES, st.sampled_from(["GET", "HEAD"]))
def test_a_response_is_read_as_by_http_client_however_it_is_split(raw: bytes, sizes: list[int], method: str) -> None:
    assert read(*split(raw, sizes), method=method)[:3] == read_by_http_client(raw, method=method)


@given(responses(), SIZES, st.data())
def test_a_damaged_response_has_one_outcome_however_it_is_split(
    raw: bytes, sizes: list[int], data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(raw)))
    removed = data.draw(st.integers(0, 3))
    damage = data.draw(st.sampled_from([b"", b"\r", b"\n", b"\r\n", b"\0", b" ", b":", b"0", b"f", b";", b"\r\n\r\n"]))
    damaged = raw[:position] + damage + raw[position + removed :]
    assert outcome(*split(damaged, sizes)) == outcome(damaged)


@given(responses(), SIZES, st.data())
def test_a_truncated_response_is_never_complete(raw: bytes, sizes: list[int], data: st.DataObject) -> None:
    """Unless it ends with its connection, so that nothing shows that something is missing."""
    whole = read(raw)
    cut = outcome(*split(raw[: data.draw(st.integers(0, len(raw) - 1))], sizes))
    assert cut is None or not whole[3]


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (OK + b"Content-Length: 2\r\n\r\n{}", b"{}"),
        (OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", b"{}"),
        (OK + b"Content-Length: 0\r\n\r\n", b""),
        (CHUNKED + b"2\r\n{}\r\n0\r\n\r\n", b"{}"),
        (CHUNKED + b"02;x\r\n{}\r\n000\r\nX: y\r\n\r\n", b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b""),
        (b"HTTP/1.1 200\nContent-Length: 2\n\n{}", b"{}"),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\n{}", b"{}"),
        (b"HTTP/1.1 104 Upload Resumption Supported\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\n{}", b"{}"),
    ],
)
def test_a_connection_is_used_again_after_a_response_with_a_certain_end(raw: bytes, body: bytes) -> None:
    assert read(raw)[2:] == (body, True)


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (OK + b"\r\n{}", b"{}"),
        (OK + b"Connection: x, Close\r\nContent-Length: 2\r\n\r\n{}", b"{}"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"{}"),
        (OK + b"Content-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\n", b"{}"),
        (OK + b"Content-Length: two\r\n\r\n{}", b"{}"),
        (OK + b"Content-Length: +2\r\n\r\n{}x", b"{}x"),
        (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}", b"{}"),
        (OK + b"Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n2\r\n{}\r\n0\r\n\r\n", b"{}"),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b""),
        (CHUNKED + b"0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\nforged", b""),
    ],
)
def test_a_connection_is_not_used_again_after_a_response_with_an_uncertain_end(raw: bytes, body: bytes) -> None:
    """The next request would read what is left of this response as its own."""
    assert read(raw)[2:] == (body, False)


@pytest.mark.parametrize("head", [OK + b"Content-Length: 2\r\n\r\n", OK + b"Content-Length: 3\r\n\r\n{"])
def test_a_connection_is_not_used_again_if_more_than_the_rest_of_a_response_arrives(head: bytes) -> None:
    """With TLS, the surplus of a record is in the process: an idle connection's socket does not show it."""
    assert not read(head, b"{}HTTP/1.1 200 OK\r\n\r\n")[3]


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"HTTP/1.1 200 OK", OK, OK + b"X: y\r\n", b"\r\n" + OK + b"\r\n", b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/2 200 OK\r\n\r\n", b"HTTP/1.1 20 OK\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n", b"HTTP/1.1 099 OK\r\n\r\n",
        OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", OK + b"Content-Length: 2, 3\r\n\r\n{}",
        OK + b"Content-Length : 2\r\n\r\n{}", OK + b"no colon\r\n\r\n", OK + b": no name\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", OK + b"Transfer-Encoding: gzip\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"X: y\r\n" * 101 + b"\r\n", OK + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
        OK + b"Content-Length: 3\r\n\r\n{}", CHUNKED, CHUNKED + b"2\r\n{", CHUNKED + b"2\r\n{}", CHUNKED + b"0\r\n",
        CHUNKED + b"2\r\n{}0\r\n\r\n", CHUNKED + b"2\r\n{}x\r\n0\r\n\r\n", CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n", CHUNKED + b" 2\r\n{}\r\n0\r\n\r\n", CHUNKED + b"\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"2\n{}\r\n0\r\n\r\n", CHUNKED + b"1" * 16 + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + OK + b"\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 11 + OK + b"\r\n",
    ],
)  # fmt: skip
def test_a_malformed_or_truncated_response_is_an_error(raw: bytes) -> None:
    with pytest.raises((MalformedResponse, ConnectionResetError)):
        read(raw)


def test_odd_header_lines_do_not_lose_a_response_that_was_paid_for() -> None:
    raw = OK + b"X-Folded: a\r\n\tb\r\nX(Odd): \x01\r\nX-Empty:\r\nX-Latin: \xe9 \r\nContent-Length: 0\r\n\r\n"
    headers = [("X-Folded", "a b"), ("X(Odd)", "\x01"), ("X-Empty", ""), ("X-Latin", "é"), ("Content-Length", "0")]
    assert read(raw) == (200, headers, b"", True)


@pytest.mark.parametrize("start", [OK + b"X: ", CHUNKED + b"2;", CHUNKED + b"0\r\nX: "])
@pytest.mark.parametrize("more", [b"y" * 1000, b"y: z\r\n" * 100])
def test_an_endless_line_or_endless_headers_are_not_stored(start: bytes, more: bytes) -> None:
    endless = ScriptedSocket([start, *[more] * 1000])
    with pytest.raises((MalformedResponse, ConnectionResetError)):
        Http1Reader(cast("socket.socket", endless), method="GET", seconds=5).read()
    assert endless.recv(10)
