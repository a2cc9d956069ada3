"""Requests that a proxy could parse differently (request smuggling) are refused and close the connection."""

from __future__ import annotations

import gzip
import json
import time
from contextlib import suppress

import pytest

from tests.support.wire import CHUNKED, Answer, Wire, get, post

SECOND = b"GET /v1/second HTTP/1.1\r\nHost: localhost\r\n\r\n"


def assert_refused(answer: Answer, status: int = 400, code: str = "INVALID_INPUT") -> None:
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json"), answer
    body = answer.json()
    assert set(body) - {"details"} == {"error", "code", "request_id"}
    assert body["code"] == code
    assert body["request_id"] == answer.headers["x-request-id"]
    assert answer.headers["x-content-type-options"] == "nosniff"


AMBIGUOUS = {
    "a length and chunks": post(b"Content-Length: 4", CHUNKED, body=b"0\r\n\r\n"),
    "chunks and a length": post(CHUNKED, b"Content-Length: 4", body=b"0\r\n\r\n"),
    "chunks twice": post(CHUNKED, CHUNKED, body=b"0\r\n\r\n"),
    "chunks in chunks": post(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "chunks, then nothing": post(CHUNKED, b"Transfer-Encoding: identity", body=b"0\r\n\r\n"),
    "chunks, then something": post(b"Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n"),
    "no chunks after all": post(b"Transfer-Encoding: gzip", body=b"0\r\n\r\n"),
    "an unknown coding": post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "a quoted coding": post(b'Transfer-Encoding: "chunked"', body=b"0\r\n\r\n"),
    "a space before the colon": post(b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"),
    "a tab before the colon": post(b"Transfer-Encoding\t: chunked", body=b"0\r\n\r\n"),
    "a vertical tab": post(b"Transfer-Encoding:\x0bchunked", body=b"0\r\n\r\n"),
    "a zero byte in a value": post(b"Transfer-Encoding: chunked\x00", body=b"0\r\n\r\n"),
    "a zero byte in a name": post(b"Transfer-Encoding\x00: chunked", body=b"0\r\n\r\n"),
    "a lone CR": post(b"X: y\rTransfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "a lone LF in a head": post(b"X: y\nTransfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "lone LFs throughout": b"POST /v1/keys HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n",
    "a folded line": post(b"X: y", b" Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "a folded first line": b"POST /v1/keys HTTP/1.1\r\n Transfer-Encoding: chunked\r\nHost: localhost\r\n\r\n0\r\n\r\n",
    "chunks in an old version": post(CHUNKED, body=b"0\r\n\r\n", version=b"1.0"),
    "two lengths": post(b"Content-Length: 0", b"Content-Length: 5", body=b""),
    "one length twice": post(b"Content-Length: 0", b"Content-Length: 0"),
    "a list of lengths": post(b"Content-Length: 0, 0"),
    "a length with a sign": post(b"Content-Length: +0"),
    "a length below nothing": post(b"Content-Length: -1"),
    "a length with an underscore": post(b"Content-Length: 1_0", body=b"0123456789"),
    "a length in hexadecimal": post(b"Content-Length: 0x0"),
    "a length in another script": post(b"Content-Length: \xb2", body=b"{}"),
    "a length of too many digits": post(b"Content-Length: " + b"9" * 5_000),
    "an empty length": post(b"Content-Length:"),
    "a line without a colon": post(b"X-API-Key ak_canaryOfAKeyInABrokenLine0123456789abc"),
    "two hosts": get(b"/v1/health", b"Host: y"),
    "an old request": b"GET /v1/health\r\n\r\n",
    "a version of one figure": get(b"/v1/health", version=b"HTTP/1"),
    "a newer version": get(b"/v1/health", version=b"HTTP/2.0"),
    "an older version": get(b"/v1/health", version=b"HTTP/0.9"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "three words of which two are paths": get(b"/v1/health /v1/second"),
    "a target with bytes": get(b"/v1/\xff"),
    "a target with a control": get(b"/v1/\x0bx"),
    "an authority": get(b"evil.example:80"),
    "an asterisk": get(b"*"),
    "a method in small letters": get(b"/v1/health", method=b"get"),
    "an expectation of something else": get(b"/v1/health", b"Expect: 200-ok"),
}


@pytest.mark.parametrize("danger", AMBIGUOUS)
def test_ambiguous_framing_is_refused_and_closes_the_connection(wire: Wire, danger: str) -> None:
    (answer,) = wire.exchange(AMBIGUOUS[danger] + SECOND)
    assert_refused(answer)
    assert answer.headers["connection"] == "close"
    assert b"canary" not in answer.body


BAD_CHUNKS = {
    "in hexadecimal with a mark": b"0x2\r\n{}\r\n0\r\n\r\n",
    "with a sign": b"+2\r\n{}\r\n0\r\n\r\n",
    "below nothing": b"-2\r\n{}\r\n0\r\n\r\n",
    "with a blank before": b" 2\r\n{}\r\n0\r\n\r\n",
    "with an underscore": b"0_2\r\n{}\r\n0\r\n\r\n",
    "of no size": b"\r\n{}\r\n0\r\n\r\n",
    "ended by a lone LF": b"2\n{}\n0\n\n",
    "with a lone LF in an extension": b"2;a\nb\r\n{}\r\n0\r\n\r\n",
    "with a lone CR in an extension": b"2;a\rb\r\n{}\r\n0\r\n\r\n",
    "longer than it says": b"1\r\n{}\r\n0\r\n\r\n",
    "without end": b"ffffffffffffffff\r\n{}",
    "with a length among the trailers": b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n",
    "that are truncated": b"2\r\n{}\r\n0\r\n",
}


@pytest.mark.parametrize("danger", BAD_CHUNKS)
def test_malformed_chunks_are_refused_and_close_the_connection(wire: Wire, danger: str) -> None:
    (answer,) = wire.exchange(post(CHUNKED, body=BAD_CHUNKS[danger]) + SECOND)
    assert_refused(answer)
    # A form is parsed by the framework, and its response is a page.
    form = b"Content-Type: application/x-www-form-urlencoded"
    (page,) = wire.exchange(post(CHUNKED, form, body=BAD_CHUNKS[danger], path=b"/device") + SECOND)
    assert (page.status, page.headers["content-type"]) == (400, "text/html; charset=utf-8")


def test_a_request_gets_exactly_one_response(wire: Wire) -> None:
    # The body is not read before the response.
    for path, status in ((b"/v1/health", 405), (b"/v1/nowhere", 404)):
        (answer,) = wire.exchange(post(CHUNKED, body=b"+2\r\n{}\r\n0\r\n\r\n", path=path) + SECOND)
        assert answer.status == status


def test_a_key_in_the_trailers_does_not_authenticate(wire: Wire) -> None:
    trailer = b"X-API-Key: " + wire.key.encode()
    request = post(
        CHUNKED, b"Trailer: X-API-Key", body=b"2\r\n{}\r\n0\r\n" + trailer + b"\r\n\r\n", path=b"/v1/wallets"
    )
    assert_refused(wire.exchange(request)[0], 401, "UNAUTHORIZED")


def test_header_names_with_underscores_are_not_ours(wire: Wire) -> None:
    key = wire.key.encode()
    assert_refused(wire.exchange(get(b"/v1/balance", b"X_API_Key: " + key))[0], 401, "UNAUTHORIZED")
    (served,) = wire.exchange(get(b"/v1/balance", b"X-API-Key: " + key, b"X_API_Key: mk_other", b"Content_Length: 5"))
    assert served.status == 200
    (same_place,) = wire.exchange(
        get(b"/v1/balance", b"SCRIPT_NAME: /v1", b"PATH_INFO: /v1/health", b"X-API-Key: " + key)
    )
    assert "credits_usd" in same_place.json()
    (elsewhere,) = wire.exchange(get(b"/v1/health", b"SCRIPT_NAME: /elsewhere"))
    assert elsewhere.status == 200


def test_lookalikes_of_framing_headers_do_not_frame_a_body(wire: Wire) -> None:
    # What follows is parsed as the next request, and is malformed.
    first, second = wire.exchange(get(b"/v1/health", b"Transfer_Encoding: chunked") + b"0\r\n\r\n" + SECOND)
    assert first.status == 200
    assert_refused(second)


def test_pipelined_requests_are_answered_in_order(wire: Wire) -> None:
    body = b'{"email": "\xc3\xa4"}'
    pipelined = [
        get(b"/v1/health"),
        post(b"Content-Length: %d" % len(body), body=body),
        post(CHUNKED, body=b"1;ext=1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"),
        SECOND,
    ]
    answers = wire.exchange(b"".join(pipelined))
    assert [answer.status for answer in answers] == [200, 400, 201, 404]


@pytest.mark.parametrize("method", [b"TRACE", b"CONNECT", b"TRACK", b"DEBUG"])
@pytest.mark.parametrize("path", [b"/v1/health", b"/v1/gateway/brave/web/search", b"/v1/balance"])
def test_trace_and_connect_expose_nothing(wire: Wire, method: bytes, path: bytes) -> None:
    key = b"X-API-Key: " + wire.key.encode()
    (answer,) = wire.exchange(get(path, key, b"X-Canary: echoed", method=method))
    assert_refused(answer, 405, "METHOD_NOT_ALLOWED")
    assert b"echoed" not in answer.body


def test_connect_opens_no_tunnel_and_what_follows_is_not_read(wire: Wire) -> None:
    (answer,) = wire.exchange(get(b"evil.example:443", method=b"CONNECT") + SECOND)
    assert answer.status == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"), 200),
        ((b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: x", b"Sec-WebSocket-Version: 13"), 400),
    ],
    ids=["h2c", "websocket"],
)  # fmt: skip
def test_upgrades_to_other_protocols_are_ignored_or_refused(
    wire: Wire, headers: tuple[bytes, ...], status: int
) -> None:
    (answer,) = wire.exchange(get(b"/v1/health", *headers))
    assert answer.status == status
    assert "upgrade" not in answer.headers


def test_expect_100_continue_gets_the_interim_or_the_final_response(wire: Wire) -> None:
    interim, answer = wire.exchange(post(b"Expect: 100-Continue", b"Content-Length: 2", body=b"{}"))
    assert (interim.status, answer.status) == (100, 201)


TARGETS = {
    b"http://evil.example/v1/health": 200,
    b"http://evil.example:0/v1/health": 200,
    b"http://[::1/v1/health": 400,
    b"//v1/health": 200,
    b"/v1//health": 404,
    b"/v1/health?%00": 200,
    b"/v1/health;x=1": 404,
    b"/v1/%2e%2e/health": 404,
    b"/v1/wallets/%00": 401,
    b"/%c0%ae": 404,
    b"/static/..%2f..%2fwsgi.py": 404,
    b"/static/%2e%2e/wsgi.py": 404,
    b"/static/../wsgi.py": 404,
    b"/static//etc/passwd": 404,
    b"/static/\\..\\wsgi.py": 404,
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.decode("latin-1"))
def test_unusual_targets_are_routed_literally_or_refused(wire: Wire, target: bytes) -> None:
    (answer,) = wire.exchange(get(target))
    assert answer.status == TARGETS[target], answer
    if answer.status >= 400:
        assert answer.json()["code"]


HOSTS = [b"", b" ", b"x:99999999", b"[::1", b"\xff\xfe", b"a b", b"x/../y", b"x@y", b"." * 300, b"xn--\x80", b"'\"<>"]


@pytest.mark.parametrize("path", [b"/v1/health", b"/v1/gateway/brave/web/search", b"/device", b"/v1//x", b"/owner"])
def test_a_forged_host_is_never_reflected(wire: Wire, path: bytes) -> None:
    for host in HOSTS:
        (answer,) = wire.exchange(b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        assert answer.status < 500
        assert answer.headers.get("location", "/").startswith("/")
    (nameless,) = wire.exchange(b"GET " + path + b" HTTP/1.1\r\n\r\n")
    assert nameless.status < 500


TOO_LARGE = {
    "target": get(b"/v1/health?" + b"x" * 8_200),
    "target that does not end": b"GET /" + b"x" * 200_000,
    "header": get(b"/v1/health", b"X: " + b"x" * 8_200),
    "number of headers": get(b"/v1/health", *(b"X%d: y" % number for number in range(101))),
    "head that does not end": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 50_000,
}


@pytest.mark.parametrize("part", TOO_LARGE)
def test_a_head_that_is_too_large_is_refused_with_the_api_s_error_body(wire: Wire, part: str) -> None:
    (answer,) = wire.exchange(TOO_LARGE[part])
    assert_refused(answer, 431, "HEAD_TOO_LARGE")


def test_a_body_announced_as_too_large_is_refused_immediately(wire: Wire) -> None:
    for length in (b"1048577", b"99999999999999999999"):
        with wire.connection() as made:
            made.sendall(post(b"Content-Length: " + length, b"Connection: close"))
            (answer,) = wire.read_all(made)
            assert_refused(answer, 413, "PAYLOAD_TOO_LARGE")


def test_endless_chunks_are_read_only_up_to_the_limit(wire: Wire) -> None:
    with wire.connection() as made:
        began, chunk = time.monotonic(), b"10000\r\n" + b" " * 65_536 + b"\r\n"
        made.sendall(post(CHUNKED))
        sent = 0
        with suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - began < 30:
                made.sendall(chunk)
                sent += len(chunk)
        assert sent < 64 * 2**20
    assert wire.is_well()


def test_a_compressed_body_is_decoded_within_the_limit_of_its_route(wire: Wire) -> None:
    bomb = gzip.compress(b"[" * 2**24)
    headers = (
        b"X-API-Key: " + wire.key.encode(), b"Content-Encoding: gzip", b"Content-Length: %d" % len(bomb)
    )  # fmt: skip
    assert_refused(wire.exchange(post(*headers, body=bomb, path=b"/v1/keys"))[0], 413, "PAYLOAD_TOO_LARGE")
    assert_refused(wire.exchange(post(*headers, body=bomb, path=b"/v1/gateway/openai/chat/completions"))[0])


def test_a_code_in_a_malformed_request_line_is_not_logged(wire: Wire) -> None:
    code = json.loads(wire.service.ask("POST", "/v1/agents/register", {})[2])["claimCode"].encode()
    (answer,) = wire.exchange(get(b"/device?code=" + code + b" x"))
    assert_refused(answer)
    assert code not in answer.body
    assert code.decode() not in wire.service.log.read_text()
