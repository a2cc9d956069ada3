"""Silent streams: comments of an upstream pass at once, and the gateway sends its own while an upstream is silent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest
from flask import Flask

from tests.support.gateway import CHAT, Stage, gateway_stage
from tests.support.upstreams import Exchange

KEEP_ALIVE = b": keep-alive\n"
PATIENT = {"stream_keep_alive_seconds": "600"}
IMPATIENT = {"stream_keep_alive_seconds": "0.05"}


def event(text: str) -> bytes:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': text}}]})}\n\n".encode()


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":2}}\n\ndata: [DONE]\n\n'


@pytest.fixture
def patient(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Stage]:
    with gateway_stage(build_app, sqlite_url, **PATIENT) as made:
        yield made


@pytest.fixture
def impatient(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Stage]:
    with gateway_stage(build_app, sqlite_url, **IMPATIENT) as made:
        yield made


class Slowly:
    """An upstream that sends the next piece when it is told to."""

    def __init__(self, *pieces: bytes, content_type: str = "text/event-stream") -> None:
        self._pieces = pieces
        self._type = content_type
        self._next = threading.Semaphore(0)

    def __call__(self, exchange: Exchange) -> None:
        exchange.start_stream(self._type)
        for piece in self._pieces:
            self._next.acquire(timeout=30)
            exchange.chunk(piece)
        self._next.acquire(timeout=30)
        exchange.end_stream()

    def go_on(self) -> None:
        self._next.release()


@pytest.mark.parametrize("injected", [True, False], ids=["usage injected", "usage asked for"])
@pytest.mark.parametrize("comment", [b": ping\n", b": ping\r\n", b": ping\n\n", b":\n"])
def test_a_comment_of_the_upstream_passes_at_once(patient: Stage, *, injected: bool, comment: bytes) -> None:
    upstream = Slowly(event("a"), comment, comment, event("b"), USAGE)
    patient.behave(upstream)
    upstream.go_on()
    more = {} if injected else {"stream_options": {"include_usage": True}}
    with patient.stream(CHAT, **more) as pieces:
        assert next(pieces) == event("a")
        for _ in range(2):
            upstream.go_on()
            assert next(pieces).strip(b"\r\n") == comment.strip(b"\r\n")
        upstream.go_on()
        assert b"".join(iter(lambda: next(pieces), event("b"))).strip(b"\r\n") == b""
        upstream.go_on()
        upstream.go_on()
        rest = b"".join(pieces)
    assert (b"usage" in rest) is not injected
    assert patient.spent_nanos() == 10 * 1250 + 2 * 10_000


def test_a_comment_within_an_event_is_not_moved_before_it(patient: Stage) -> None:
    whole = b'data: {"choices":[\n: ping\ndata: {"index":0,"delta":{}}]}\n\n'
    upstream = Slowly(whole[:25], whole[25:40], whole[40:])
    patient.behave(upstream)
    for _ in range(4):
        upstream.go_on()
    with patient.stream() as pieces:
        assert b"".join(pieces) == whole


@pytest.mark.parametrize("injected", [True, False], ids=["usage injected", "usage asked for"])
def test_a_silent_stream_is_kept_alive_before_and_between_its_events(impatient: Stage, *, injected: bool) -> None:
    upstream = Slowly(event("a"), event("b"), USAGE)
    impatient.behave(upstream)
    more = {} if injected else {"stream_options": {"include_usage": True}}
    with impatient.stream(CHAT, **more) as pieces:
        assert [next(pieces), next(pieces)] == [KEEP_ALIVE, KEEP_ALIVE]
        upstream.go_on()
        assert next(piece for piece in pieces if piece != KEEP_ALIVE) == event("a")
        assert [next(pieces), next(pieces)] == [KEEP_ALIVE, KEEP_ALIVE]
        for _ in range(3):
            upstream.go_on()
        rest = b"".join(pieces).replace(KEEP_ALIVE, b"")
    assert rest.startswith(event("b"))
    assert impatient.spent_nanos() == 10 * 1250 + 2 * 10_000
    impatient.assert_all_agree()


def test_no_comment_is_put_inside_an_event(impatient: Stage) -> None:
    whole = event("a")
    upstream = Slowly(whole[:10], whole[10:-1], whole[-1:], USAGE)
    impatient.behave(upstream)
    upstream.go_on()
    got: list[bytes] = []
    with impatient.stream(CHAT, stream_options={"include_usage": True}) as pieces:

        def collect() -> None:
            got.extend(pieces)

        reader = threading.Thread(target=collect)
        reader.start()
        for _ in range(3):
            reader.join(0.3)  # several times the interval: the upstream is silent within its event
            upstream.go_on()
        upstream.go_on()
        reader.join(30)
    assert whole in b"".join(got)


def test_json_and_services_are_never_given_a_comment(impatient: Stage) -> None:
    upstream = Slowly(b'{"choices": [],', b'"usage": {"prompt_tokens": 1, "completion_tokens": 1}}',
                      content_type="application/x-ndjson")  # fmt: skip
    impatient.behave(upstream)
    timer = threading.Timer(0.4, lambda: [upstream.go_on() for _ in range(3)])
    timer.start()
    with impatient.stream() as pieces:
        assert b"".join(pieces) == b'{"choices": [],"usage": {"prompt_tokens": 1, "completion_tokens": 1}}'


def test_keep_alives_do_not_prolong_the_silence_that_an_upstream_is_allowed(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    settings = {**IMPATIENT, "upstream_read_timeout_seconds": "0.5"}
    with gateway_stage(build_app, sqlite_url, **settings) as stage:
        upstream = Slowly(event("a"))
        stage.behave(upstream)
        upstream.go_on()
        with stage.stream() as pieces, pytest.raises(ConnectionResetError):
            b"".join(pieces)
        upstream.go_on()


def test_a_stream_that_breaks_off_before_its_first_byte_is_an_error_and_free(impatient: Stage) -> None:
    def broken(exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.send(b"-2\r\nxx\r\n")

    impatient.behave(broken)
    answer = impatient.chat(stream=True)
    assert (answer.status_code, answer.get_json()["code"]) == (502, "UPSTREAM_ERROR")
    assert impatient.spent_nanos() == 0
    impatient.assert_nothing_held()
