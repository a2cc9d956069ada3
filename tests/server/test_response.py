"""The server's responses have the bytes of gunicorn's, in fewer writes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.errors import InvalidResponseHeader, InvalidResponseHeaderName

from server.response import Response

LENGTH = ("Content-Length", "6")
TYPE = ("Content-Type", "text/plain")


class Recorder:
    """The sending side of a socket."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self.writes.append(data)


def written(
    response_class: type,
    method: str,
    version: tuple[int, int],
    status: str,
    headers: Iterable[tuple[str, str]],
    pieces: Iterable[bytes],
) -> list[bytes]:
    request = SimpleNamespace(method=method, version=version, should_close=lambda: version < (1, 1))
    recorder = Recorder()
    response: Any = response_class(request, recorder, Config())
    response.start_response(status, list(headers))
    for piece in pieces:
        response.write(piece)
    response.close()
    return recorder.writes


def without_date(writes: list[bytes]) -> list[bytes]:
    return [line for line in b"".join(writes).split(b"\r\n") if not line.startswith(b"Date: ")]


@pytest.mark.parametrize(
    ("method", "version", "status"),
    list(product(["GET", "HEAD"], [(1, 0), (1, 1)], ["200 OK", "204 No Content", "304 Not Modified"])),
)
@pytest.mark.parametrize("headers", [[TYPE, LENGTH], [TYPE]], ids=["length", "no length"])
@pytest.mark.parametrize(
    "pieces", [[], [b""], [b"abcdef"], [b"abc", b"def"], [b"", b"abc", b"", b"def"], [b"abcdefg", b"h"]], ids=repr
)
def test_a_response_has_the_bytes_of_gunicorn_s(
    method: str, version: tuple[int, int], status: str, headers: list[tuple[str, str]], pieces: list[bytes]
) -> None:
    arguments = (method, version, status, headers, pieces)
    assert without_date(written(Response, *arguments)) == without_date(written(wsgi.Response, *arguments))


def test_a_small_response_is_one_write() -> None:
    assert len(written(Response, "GET", (1, 1), "200 OK", [LENGTH], [b"abcdef"])) == 1


def test_a_slow_reader_of_a_large_response_holds_one_copy_of_it() -> None:
    large = b"a" * 100_000
    *_, last = written(Response, "GET", (1, 1), "200 OK", [("Content-Length", str(len(large)))], [large])
    assert last is large


def test_the_first_event_of_a_stream_is_written_with_the_head_and_the_next_one_immediately() -> None:
    first, second, last = written(Response, "GET", (1, 1), "200 OK", [TYPE], [b"abc", b"def"])
    assert first.endswith(b"\r\n\r\n3\r\nabc\r\n")
    assert (second, last) == (b"3\r\ndef\r\n", b"0\r\n\r\n")


@pytest.mark.parametrize("headers", [[LENGTH], [TYPE]], ids=["length", "no length"])
def test_an_empty_first_piece_sends_the_head(headers: list[tuple[str, str]]) -> None:
    head, *_ = written(Response, "GET", (1, 1), "200 OK", headers, [b"", b"abcdef"])
    assert head.endswith(b"\r\n\r\n")


_GET = ("GET", (1, 1), "200 OK")
_OF_THE_SERVER = ["Connection", "keep-alive", "Transfer-Encoding", "DATE", "Server", "TE", "Trailers", "Upgrade"]


def test_headers_are_written_as_gunicorn_writes_them() -> None:
    headers = [("X-Text", " \t padded\tcaf\xe9 "), ("X-Empty", ""), ("x-twice", "1"), ("X-Twice", "2"), LENGTH]
    headers += [(name, "value") for name in _OF_THE_SERVER]
    ours, theirs = (written(each, *_GET, headers, [b"abcdef"]) for each in (Response, wsgi.Response))
    assert without_date(ours) == without_date(theirs)
    assert [line for line in b"".join(ours).split(b"\r\n") if line.startswith(b"Date: ")]


@pytest.mark.parametrize(
    "header",
    [
        ("X-Text", "a\r\nX-Other: b"), ("X-Text", "a\n"), ("X-Text", "\0"), ("X-Text", "\u2028"), ("X-Text", b"a"),
        ("X Y", "a"), ("", "a"), ("X-Text\n", "a"), ("X-Text:", "a"), (b"X-Text", "a"), ("Content-Length", "six"),
    ],
    ids=repr,
)  # fmt: skip
def test_headers_that_gunicorn_refuses_are_refused(header: tuple[Any, Any]) -> None:
    for response_class in (wsgi.Response, Response):
        with pytest.raises((InvalidResponseHeader, InvalidResponseHeaderName, TypeError, ValueError)):
            written(response_class, *_GET, [header], [b""])
