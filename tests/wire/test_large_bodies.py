"""Large bodies on a real server: legitimate ones are forwarded unchanged, excessive ones are refused."""

from __future__ import annotations

import gzip
import json
from typing import Any

import brotli  # type: ignore[import-untyped]

from tests.support.upstreams import MisbehavingUpstream, chat_answer
from tests.support.wire import Answer, Wire, post

_CHAT = b"/v1/gateway/openai/chat/completions"


def send(wire: Wire, body: bytes, *headers: bytes) -> Answer:
    key = b"X-API-Key: " + wire.key.encode()
    (answer,) = wire.exchange(
        post(b"Content-Length: %d" % len(body), b"Content-Type: application/json", key, *headers, body=body, path=_CHAT)
    )
    return answer


def vision(text: str) -> bytes:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 20_000_000}}
    content: list[dict[str, Any]] = [{"type": "text", "text": text}, image]
    question = {"model": "gpt-5", "max_tokens": 100, "messages": [{"role": "user", "content": content}]}
    return json.dumps(question, ensure_ascii=False).encode()


def test_a_20_megabyte_image_is_forwarded_with_text_of_any_language(wire: Wire, upstream: MisbehavingUpstream) -> None:
    upstream.behave = lambda exchange: exchange.json(chat_answer())
    for body in (vision("What is it?"), vision("これは何ですか 😀")):
        answer = send(wire, body)
        assert answer.status == 200, answer.body
        assert upstream.asked[-1].body == body


def test_a_compressed_image_is_forwarded_decoded(wire: Wire, upstream: MisbehavingUpstream) -> None:
    upstream.behave = lambda exchange: exchange.json(chat_answer())
    body = vision("What is it? 😀")
    for encoding, compressed in ((b"gzip", gzip.compress(body, 1)), (b"br", brotli.compress(body, quality=1))):
        answer = send(wire, compressed, b"Content-Encoding: " + encoding)
        assert answer.status == 200, answer.body
        assert upstream.asked[-1].body == body


def test_a_body_that_exceeds_the_memory_for_one_request_is_refused(wire: Wire) -> None:
    answer = send(wire, b'{"model":"gpt-5","input":"' + b"A" * 2**23 + "😀".encode() + b'"}')
    assert (answer.status, answer.json()["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert "the limit for one request is 48 MiB" in answer.json()["error"]


def test_a_body_with_too_many_values_is_refused_with_both_numbers(wire: Wire) -> None:
    answer = send(wire, b'{"x":[' + b"1.5," * 2**20 + b"1]}")
    assert (answer.status, answer.json()["code"]) == (400, "INVALID_INPUT")
    assert "more than 320000 names and values: 32" in answer.json()["error"]


def test_anonymous_forms_are_limited_in_size_also_when_chunked(wire: Wire) -> None:
    form = b"Content-Type: application/x-www-form-urlencoded"
    small, large = b"code=ABCD-1234", b"a&" * 200_000
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(large), large)
    for path in (b"/device", b"/owner/sign-in"):
        for body, headers, status in (
            (small, (form, b"Content-Length: %d" % len(small)), 400),
            (large, (form, b"Content-Length: %d" % len(large)), 413),
            (chunked, (form, b"Transfer-Encoding: chunked"), 400),
        ):
            (answer,) = wire.exchange(post(*headers, body=body, path=path))
            assert answer.status == status, (path, status, answer)
            assert answer.headers["content-type"].startswith("text/html")
