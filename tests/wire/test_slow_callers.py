"""Callers who send, read or leave slowly: they hold up neither the others nor, for long, anything at all.

The server has twenty threads, and each of these comes in hundreds.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from app.web.callers import READING_MS
from app.web.server import HEAD_SECONDS
from tests.support.upstreams import Exchange, MisbehavingUpstream
from tests.support.waiting import wait_until
from tests.support.wire import CHUNKED, Wire, cpu_seconds, get, post, worker_of
from tests.wire.conftest import THREADS

pytestmark = pytest.mark.timeout(300)
CROWD = 200
FORM = b"Content-Type: application/x-www-form-urlencoded"
# For a machine under load. Threads that are held are never given back, and a loop that is held takes two seconds for
# each of the crowd.
PROMPT_SECONDS = 90.0


@contextmanager
def crowd(
    wire: Wire, count: int = CROWD, *, receive_bytes: int | None = None
) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(wire.connection(receive_bytes=receive_bytes)) for _ in range(count)]


def assert_others_are_served(wire: Wire) -> None:
    began = time.monotonic()
    for _ in range(5):
        assert wire.is_well()
        status, _, _ = wire.service.ask("GET", "/v1/balance", headers={"X-API-Key": wire.key})
        assert status == 200
        status, _, _ = wire.service.ask("POST", "/v1/agents/register", {"name": "other"})
        assert status == 201
    assert time.monotonic() - began < PROMPT_SECONDS


def test_who_says_nothing_or_half_a_head_holds_up_nobody(wire: Wire) -> None:
    with crowd(wire) as callers:
        for number, caller in enumerate(callers):
            caller.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\nX-Slow: "[: number % 40])
        assert_others_are_served(wire)


def test_a_head_that_does_not_end_is_waited_for_seconds_only(wire: Wire) -> None:
    with wire.connection() as silent, wire.connection() as slow, wire.connection() as next_one:
        began = time.monotonic()
        slow.sendall(b"GET /v1/health HTTP/1.1\r\n")
        next_one.sendall(get(b"/v1/health") + b"G")
        (answer,) = wire.hear(slow)
        assert (answer.status, answer.json()["code"]) == (408, "REQUEST_TIMEOUT")
        assert wire.hear(silent) == []
        assert [answer.status for answer in wire.hear(next_one)] == [200, 408]
        assert time.monotonic() - began >= HEAD_SECONDS - 1


def test_who_sends_half_a_body_holds_up_nobody(wire: Wire) -> None:
    with crowd(wire) as callers:
        for number, caller in enumerate(callers):
            path = [b"/v1/keys", b"/v1/gateway/openai/chat/completions", b"/v1/health", b"/device"][
                number % 4
            ]
            # A small body is gathered; a large one and one of unknown length are read by a thread.
            frame = [b"Content-Length: 1000", b"Content-Length: 1000000", CHUNKED][number % 3]
            caller.sendall(post(frame, FORM, body=b"1", path=path))
        assert_others_are_served(wire)


def test_who_is_let_go_for_the_sake_of_others_is_told_so(wire: Wire) -> None:
    with crowd(wire) as callers:
        for caller in callers:
            caller.sendall(post(b"Content-Length: 1000000", body=b"{"))
        # Some wait; for the rest there is no place, and they hear of it at once.
        last = callers[-1]
        (answer,) = wire.hear(last)
        assert (answer.status, answer.json()["code"]) == (408, "REQUEST_TIMEOUT")
    lines = wire.service.log.read_text(errors="replace").splitlines()
    logged = [json.loads(line) for line in lines if '"caller_let_go"' in line]
    assert answer.headers["x-request-id"] in {
        line["request_id"] for line in logged if line["reason"] == "too_many_wait"
    }


def test_full_lanes_and_crowds_who_send_and_read_nothing_leave_threads_to_others(
    wire: Wire, upstream: MisbehavingUpstream
) -> None:
    def stream(exchange: Exchange) -> None:
        exchange.start_stream()
        while not exchange.is_over(0.5):
            exchange.chunk(b": \n\n")

    upstream.behave = stream
    before, worker = len(upstream.asked), worker_of(wire.service)
    looked_at = [0.0]

    def stands_still() -> bool:
        past, looked_at[0] = looked_at[0], cpu_seconds(worker)
        return looked_at[0] - past < 0.03

    keys = [wire.service.register()["apiKey"].encode() for _ in range(3)]
    with crowd(wire, THREADS) as paying:
        for number, caller in enumerate(paying):
            caller.sendall(get(b"/v1/gateway/brave/web/search", b"X-API-Key: " + keys[number % len(keys)]))
        # Of few threads half may wait.
        wait_until(
            lambda: len(upstream.asked) - before >= THREADS // 2 - 2, PROMPT_SECONDS, what="full lanes"
        )
        with ExitStack() as stack:
            began = time.monotonic()
            for _ in range(THREADS // 2):
                deaf = stack.enter_context(wire.connection(receive_bytes=1024))
                # More than all buffers on their way hold.
                deaf.sendall(get(b"/openapi.json") * 40)
                half = stack.enter_context(wire.connection())
                half.sendall(post(b"Content-Length: 1000000", body=b"{"))
            # Until all of them are waited for, or were let go.
            wait_until(stands_still, PROMPT_SECONDS, interval=0.3, what="a process that only waits")
            assert wire.is_well()
            status, _, _ = wire.service.ask("GET", "/v1/balance", headers={"X-API-Key": wire.key})
            assert status == 200
            # Before anybody's patience is at its end.
            assert (time.monotonic() - began) * 1000 < READING_MS


def test_who_does_not_leave_after_its_answer_holds_up_nobody(wire: Wire) -> None:
    with crowd(wire) as callers:
        for number, caller in enumerate(callers):
            # Answered and closed from our side, for whichever reason; these stay.
            caller.sendall([get(b"/v1/health", b"Connection: close"), b"nonsense\r\n\r\n"][number % 2])
        assert_others_are_served(wire)


def test_who_asks_for_much_and_reads_nothing_holds_up_nobody(wire: Wire) -> None:
    with crowd(wire, 3 * THREADS, receive_bytes=1024) as callers:
        for caller in callers:
            caller.sendall(get(b"/openapi.json") * 10)
        assert_others_are_served(wire)


def test_who_does_not_read_its_stream_holds_up_nobody(wire: Wire, upstream: MisbehavingUpstream) -> None:
    def stream(exchange: Exchange) -> None:
        exchange.start_stream()
        while not exchange.is_over(0):
            exchange.chunk(b"data: " + b"x" * 60_000 + b"\n\n")

    upstream.behave = stream
    key = b"X-API-Key: " + wire.key.encode()
    with crowd(wire, 3 * THREADS, receive_bytes=1024) as callers:
        for caller in callers:
            caller.sendall(get(b"/v1/gateway/brave/web/search", key))
        assert_others_are_served(wire)


def test_a_stream_that_was_paid_for_is_not_cut_for_the_sake_of_who_sends_nothing(
    wire: Wire, upstream: MisbehavingUpstream
) -> None:
    # More than all buffers on its way hold.
    pieces, piece = 400, b"x" * 60_000
    sent: list[int] = []
    looked_at = [0]

    def stream(exchange: Exchange) -> None:
        exchange.start_stream()
        for number in range(pieces):
            exchange.chunk(piece)
            sent.append(number)
        exchange.end_stream()

    def stands_still() -> bool:
        before, looked_at[0] = looked_at[0], len(sent)
        return before == len(sent) > 0

    upstream.behave = stream
    with crowd(wire, 2 * THREADS - 5) as callers, wire.connection(receive_bytes=200_000) as paying:
        for caller in callers:
            caller.sendall(post(b"Content-Length: 70000"))
        # Who is told to go shows that no place is left.
        selectable, _, _ = select.select(callers, [], [], PROMPT_SECONDS)
        assert selectable
        key = b"X-API-Key: " + wire.key.encode()
        paying.sendall(get(b"/v1/gateway/brave/web/search", key, b"Connection: close"))
        wait_until(stands_still, PROMPT_SECONDS, interval=0.3, what="a stream that waits to be read")
        (answer,) = wire.hear(paying)
    assert len(answer.body) == pieces * len(piece)


def test_connections_that_rest_give_way_to_new_ones(wire: Wire) -> None:
    with ExitStack() as stack:
        for _ in range(5 * THREADS):
            caller = stack.enter_context(wire.connection())
            caller.sendall(get(b"/v1/health"))
            assert caller.recv(12) == b"HTTP/1.1 200"
        assert_others_are_served(wire)


def test_who_rests_gives_way_before_whoever_is_in_the_middle_of_a_request(wire: Wire) -> None:
    with wire.connection() as begun, ExitStack() as stack:
        begun.sendall(get(b"/v1/health", b"Connection: close")[:-2])
        resting = [stack.enter_context(wire.connection()) for _ in range(THREADS - 5)]
        for caller in resting:
            caller.sendall(get(b"/nowhere", method=b"HEAD"))
            assert caller.recv(65_536).endswith(b"\r\n\r\n")
        stack.enter_context(crowd(wire, THREADS + 10))
        left, _, _ = select.select(resting, [], [], HEAD_SECONDS)
        assert left
        begun.sendall(b"\r\n")
        assert [answer.status for answer in wire.hear(begun)] == [200]
    wait_until(
        lambda: '"callers_gave_way"' in wire.service.log.read_text(errors="replace"), what="a line in the log"
    )


def test_of_half_requests_the_one_silent_for_longest_gives_way_and_is_told(wire: Wire) -> None:
    with wire.connection() as busy, crowd(wire, 2 * THREADS - 5) as silent:
        busy.sendall(b"GET /v1/health HTTP/1.1\r\n")
        for caller in silent:
            caller.sendall(b"G")
        # Whoever is answered came after them.
        assert wire.is_well()
        busy.sendall(b"Host: x\r\nConnection: close\r\n")
        with crowd(wire, 8):
            told, _, _ = select.select(silent, [], [], HEAD_SECONDS)
            busy.sendall(b"\r\n")
            assert [answer.status for answer in wire.hear(busy)] == [200]
            assert [answer.status for answer in wire.hear(told[0])] == [408]


def test_a_body_that_comes_in_small_pieces_is_read_all_the_same(wire: Wire) -> None:
    with wire.connection() as made:
        body = b'{"name": "slow but honest"}'
        request = post(
            b"Content-Length: %d" % len(body), b"Connection: close", body=body, path=b"/v1/agents/register"
        )
        for place in range(len(request)):
            made.sendall(request[place : place + 1])
            time.sleep(0.005)
        (answer,) = wire.hear(made)
        assert answer.status == 201
        assert answer.json()["wallet"]


@pytest.fixture(autouse=True)
def _nobody_is_left(wire: Wire) -> Iterator[None]:
    yield
    wait_until(wire.is_well, PROMPT_SECONDS, what="an answer after the crowd has left")
