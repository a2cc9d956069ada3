"""Clients that send, read or close slowly delay no other client, and hold resources only briefly.

The server has twenty threads, and each attack uses hundreds of connections.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest

from server.client_socket import READ_TIMEOUT_MS, WRITE_TIMEOUT_MS
from server.closing import LINGER_SECONDS
from server.worker import HEAD_TIMEOUT_SECONDS
from tests.support.upstreams import Exchange, MisbehavingUpstream
from tests.support.waiting import conclusive, wait_until
from tests.support.wire import CHUNKED, Wire, cpu_seconds, get, lingering_connections, post, worker_of
from tests.wire.conftest import THREADS

pytestmark = pytest.mark.timeout(300)
CROWD = 200
FORM = b"Content-Type: application/x-www-form-urlencoded"
PROMPT_SECONDS = 90.0
READING_SECONDS = READ_TIMEOUT_MS / 1000
WRITING_SECONDS = WRITE_TIMEOUT_MS / 1000
# A slower attempt may have met the server's time limit for a head.
SOON_SECONDS = HEAD_TIMEOUT_SECONDS - 1


@contextmanager
def crowd(wire: Wire, count: int = CROWD, *, receive_bytes: int | None = None) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(wire.connection(receive_bytes=receive_bytes)) for _ in range(count)]


def assert_others_are_served(wire: Wire) -> None:
    assert wire.is_well()
    status, _, _ = wire.service.ask("GET", "/v1/balance", headers={"X-API-Key": wire.key})
    assert status == 200
    status, _, _ = wire.service.ask("POST", "/v1/agents/register", {"name": "other"})
    assert status == 201


def assert_others_are_served_during(
    attack: Callable[[], AbstractContextManager[object]], wire: Wire, limit: float
) -> None:
    """Check that others are served before `limit`, the time after which the server ends what the attack occupies."""

    def attempt() -> None:
        began = time.monotonic()
        with attack():
            assert_others_are_served(wire)
            assert time.monotonic() - began < limit

    conclusive(attempt, limit)


def test_silent_clients_and_incomplete_heads_delay_no_other_client(wire: Wire) -> None:
    @contextmanager
    def attack() -> Iterator[None]:
        with crowd(wire) as callers:
            for number, caller in enumerate(callers):
                caller.sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "[: number % 40])
            yield

    assert_others_are_served_during(attack, wire, HEAD_TIMEOUT_SECONDS)


def test_an_incomplete_head_times_out_within_seconds(wire: Wire) -> None:
    with wire.connection() as silent, wire.connection() as slow, wire.connection() as next_one:
        began = time.monotonic()
        slow.sendall(b"GET /v1/health HTTP/1.1\r\n")
        next_one.sendall(get(b"/v1/health") + b"G")
        (answer,) = wire.read_all(slow)
        assert (answer.status, answer.json()["code"]) == (408, "REQUEST_TIMEOUT")
        assert wire.read_all(silent) == []
        assert [answer.status for answer in wire.read_all(next_one)] == [200, 408]
        assert time.monotonic() - began >= HEAD_TIMEOUT_SECONDS - 1


def test_incomplete_bodies_delay_no_other_client(wire: Wire) -> None:
    paths = [b"/v1/keys", b"/v1/gateway/openai/chat/completions", b"/v1/health", b"/device"]
    # A small body is buffered by the loop; a large one or one of unknown length is read by a thread.
    frames = [b"Content-Length: 1000", b"Content-Length: 1000000", CHUNKED]

    @contextmanager
    def attack() -> Iterator[None]:
        with crowd(wire) as callers:
            for number, caller in enumerate(callers):
                caller.sendall(post(frames[number % 3], FORM, body=b"1", path=paths[number % 4]))
            yield

    assert_others_are_served_during(attack, wire, READING_SECONDS)


def test_a_shed_request_gets_an_error_response(wire: Wire) -> None:
    def attempt() -> None:
        with crowd(wire) as callers:
            for caller in callers:
                caller.sendall(post(b"Content-Length: 200000", body=b"{"))
            # Some get a thread to wait in; the others are shed immediately.
            last = callers[-1]
            (answer,) = wire.read_all(last)
            assert (answer.status, answer.json()["code"]) == (408, "REQUEST_TIMEOUT")
        # The line may be written by another thread, after the response.
        wait_until(lambda: answer.headers["x-request-id"] in shed(), timeout=READING_SECONDS / 2)

    def shed() -> set[str]:
        lines = wire.service.log.read_text(errors="replace").rpartition("\n")[0].splitlines()
        logged = [json.loads(line) for line in lines if '"connection_shed"' in line]
        return {line["request_id"] for line in logged if line["reason"] == "too_many_waiting"}

    # Later, the first of them time out and free their threads.
    conclusive(attempt, READING_SECONDS)


def test_exhausted_permits_and_stalled_clients_leave_threads_for_others(
    wire: Wire, upstream: MisbehavingUpstream
) -> None:
    def stream(exchange: Exchange) -> None:
        exchange.start_stream()
        while not exchange.is_over(0.5):
            exchange.chunk(b": \n\n")

    upstream.behave = stream
    worker = worker_of(wire.service)
    measured = [0.0]

    def is_idle() -> bool:
        past, measured[0] = measured[0], cpu_seconds(worker)
        return measured[0] - past < 0.03

    keys = [wire.service.register()["apiKey"].encode() for _ in range(3)]

    def attempt() -> None:
        with ExitStack() as stack:
            began = time.monotonic()
            for _ in range(THREADS // 2):
                unread = stack.enter_context(wire.connection(receive_bytes=1024))
                # More than all socket buffers hold.
                unread.sendall(get(b"/openapi.json") * 40)
                incomplete = stack.enter_context(wire.connection())
                incomplete.sendall(post(b"Content-Length: 1000000", body=b"{"))
            # Until each has a waiting thread, or was shed.
            wait_until(is_idle, PROMPT_SECONDS, interval=0.3, what="an idle process")
            assert wire.is_well()
            status, _, _ = wire.service.ask("GET", "/v1/balance", headers={"X-API-Key": wire.key})
            assert status == 200
            # Before any read timeout expires.
            assert time.monotonic() - began < READING_SECONDS

    with crowd(wire, THREADS) as paying:
        before = len(upstream.asked)
        for number, caller in enumerate(paying):
            caller.sendall(get(b"/v1/gateway/brave/web/search", b"X-API-Key: " + keys[number % len(keys)]))
        # Of few threads half may forward calls.
        wait_until(
            lambda: len(upstream.asked) - before >= THREADS // 2 - 2, PROMPT_SECONDS, what="all permits to be taken"
        )
        conclusive(attempt, READING_SECONDS)


def test_clients_that_do_not_close_after_the_response_delay_no_other_client(wire: Wire) -> None:
    def attempt() -> None:
        with crowd(wire) as callers:
            for number, caller in enumerate(callers):
                # The server responds and closes; these clients do not close.
                caller.sendall([get(b"/v1/health", b"Connection: close"), b"nonsense\r\n\r\n"][number % 2])
            # A loop that waited for one would not close the next.
            wait_until(lambda: lingering_connections(wire.service) > 1, LINGER_SECONDS, what="two of them")
            assert_others_are_served(wire)

    conclusive(attempt, LINGER_SECONDS)


def test_clients_that_do_not_read_large_responses_delay_no_other_client(wire: Wire) -> None:
    @contextmanager
    def attack() -> Iterator[None]:
        with crowd(wire, 3 * THREADS, receive_bytes=1024) as callers:
            for caller in callers:
                caller.sendall(get(b"/openapi.json") * 10)
            yield

    assert_others_are_served_during(attack, wire, WRITING_SECONDS)


def test_clients_that_do_not_read_their_stream_delay_no_other_client(wire: Wire, upstream: MisbehavingUpstream) -> None:
    def stream(exchange: Exchange) -> None:
        exchange.start_stream()
        while not exchange.is_over(0):
            exchange.chunk(b"data: " + b"x" * 60_000 + b"\n\n")

    upstream.behave = stream
    key = b"X-API-Key: " + wire.key.encode()

    @contextmanager
    def attack() -> Iterator[None]:
        with crowd(wire, 3 * THREADS, receive_bytes=1024) as callers:
            for caller in callers:
                caller.sendall(get(b"/v1/gateway/brave/web/search", key))
            yield

    assert_others_are_served_during(attack, wire, WRITING_SECONDS)


def test_a_paid_stream_is_not_cut_in_favour_of_silent_clients(wire: Wire, upstream: MisbehavingUpstream) -> None:
    # More than all socket buffers hold.
    pieces, piece = 400, b"x" * 60_000
    sent: list[int] = []
    measured = [0]

    def stream(exchange: Exchange) -> None:
        exchange.start_stream()
        for number in range(pieces):
            exchange.chunk(piece)
            sent.append(number)
        exchange.end_stream()

    def is_stalled() -> bool:
        before, measured[0] = measured[0], len(sent)
        return before == len(sent) > 0

    upstream.behave = stream
    with crowd(wire, 2 * THREADS - 5) as callers, ExitStack() as stack:
        for caller in callers:
            caller.sendall(post(b"Content-Length: 70000"))
        # A first eviction shows that the limit of connections is reached.
        selectable, _, _ = select.select(callers, [], [], PROMPT_SECONDS)
        assert selectable
        # Connected only now: an idle connection would be the first to be evicted.
        paying = stack.enter_context(wire.connection(receive_bytes=200_000))
        key = b"X-API-Key: " + wire.key.encode()
        paying.sendall(get(b"/v1/gateway/brave/web/search", key, b"Connection: close"))
        wait_until(is_stalled, PROMPT_SECONDS, interval=0.3, what="a stream that waits to be read")
        (answer,) = wire.read_all(paying)
    assert len(answer.body) == pieces * len(piece)


def test_idle_connections_are_evicted_for_new_ones(wire: Wire) -> None:
    with ExitStack() as stack:
        for _ in range(5 * THREADS):
            caller = stack.enter_context(wire.connection())
            caller.sendall(get(b"/v1/health"))
            assert caller.recv(12) == b"HTTP/1.1 200"
        assert_others_are_served(wire)


def test_idle_connections_are_evicted_before_active_ones(wire: Wire) -> None:
    def attempt() -> None:
        with wire.connection() as active, ExitStack() as stack:
            active.sendall(get(b"/v1/health", b"Connection: close")[:-2])
            idle = [stack.enter_context(wire.connection()) for _ in range(THREADS - 5)]
            for caller in idle:
                caller.sendall(get(b"/nowhere", method=b"HEAD"))
                assert caller.recv(65_536).endswith(b"\r\n\r\n")
            # A thread returns its connection after the response: these are idle once later requests are answered.
            assert wire.is_well()
            assert wire.is_well()
            stack.enter_context(crowd(wire, THREADS + 10))
            evicted, _, _ = select.select(idle, [], [], HEAD_TIMEOUT_SECONDS)
            assert evicted
            active.sendall(b"\r\n")
            assert [answer.status for answer in wire.read_all(active)] == [200]

    conclusive(attempt, SOON_SECONDS)
    wait_until(lambda: '"connections_evicted"' in wire.service.log.read_text(errors="replace"), what="a log line")


def test_of_incomplete_requests_the_longest_stalled_is_evicted_with_408(wire: Wire) -> None:
    def attempt() -> None:
        with wire.connection() as busy, crowd(wire, 2 * THREADS - 5) as silent:
            busy.sendall(b"GET /v1/health HTTP/1.1\r\n")
            for caller in silent:
                caller.sendall(b"G")
            # A request that is answered was accepted after them.
            assert wire.is_well()
            busy.sendall(b"Host: localhost\r\nConnection: close\r\n")
            with crowd(wire, 8):
                closed, _, _ = select.select(silent, [], [], HEAD_TIMEOUT_SECONDS)
                assert closed
                busy.sendall(b"\r\n")
                assert [answer.status for answer in wire.read_all(busy)] == [200]
                assert [answer.status for answer in wire.read_all(closed[0])] == [408]

    conclusive(attempt, SOON_SECONDS)


def test_a_slow_but_steady_body_is_read(wire: Wire) -> None:
    body = b'{"name": "slow but honest"}'
    request = post(b"Content-Length: %d" % len(body), b"Connection: close", body=body, path=b"/v1/agents/register")

    def attempt() -> None:
        with wire.connection() as made:
            for place in range(len(request)):
                made.sendall(request[place : place + 1])
                time.sleep(0.005)
            (answer,) = wire.read_all(made)
            assert answer.status == 201
            assert answer.json()["wallet"]

    conclusive(attempt, SOON_SECONDS)
