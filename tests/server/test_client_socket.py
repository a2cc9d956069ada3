"""Timeouts of client connections, and the pools of threads and memory that they wait within."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from server import client_socket
from server.client_socket import ClientSocket, ConnectionShed
from server.hooks import Hooks, ShedReason
from server.pool import ANONYMOUS, ResourcePool, ResourceUse

BODY_BYTES = 2**21
# Far less than the time that the bytes sent would be worth without an upper bound.
SOON_SECONDS = 30


class CountingHooks(Hooks):
    def __init__(self, threads: ResourcePool) -> None:
        super().__init__(threads)
        self.bodies = ResourcePool(BODY_BYTES, {})
        self.shed: list[ShedReason] = []

    def count_shed(self, reason: ShedReason) -> None:
        self.shed.append(reason)


class OneThread:
    """A permit for a thread of a pool."""

    is_held = True

    def __init__(self, threads: ResourcePool) -> None:
        assert threads.acquire(ResourceUse.UPSTREAM, "account")
        self._threads = threads

    def close(self) -> None:
        self._threads.release(ResourceUse.UPSTREAM, "account")
        self.is_held = False


@pytest.fixture
def threads() -> ResourcePool:
    """The smallest pool, in which one thread may wait."""
    return ResourcePool.for_threads(1)


@pytest.fixture
def hooks(threads: ResourcePool) -> CountingHooks:
    """Hooks with that pool, and one of two MiB for bodies."""
    return CountingHooks(threads)


@pytest.fixture
def ends(hooks: CountingHooks) -> Iterator[tuple[ClientSocket, socket.socket]]:
    """The server's end of a connection and the client's."""
    accepted, client = socket.socketpair()
    with ClientSocket.wrap(accepted, hooks) as ours, client:
        yield ours, client


def read_on(ours: ClientSocket, size: int = 1, read: list[int] | None = None) -> None:
    while piece := ours.recv(size):
        if read is not None:
            read.append(len(piece))


def test_received_bytes_are_read_without_waiting(
    ends: tuple[ClientSocket, socket.socket], threads: ResourcePool
) -> None:
    ours, client = ends
    client.sendall(b"one")
    with threads.try_acquire(ResourceUse.ANONYMOUS_CLIENT, ANONYMOUS) as taken:
        assert taken
        assert ours.recv(10) == b"one"


def test_single_bytes_do_not_reset_the_read_timeout(
    ends: tuple[ClientSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_socket, "READ_TIMEOUT_MS", 300)
    ours, client = ends
    ours.begin_request()
    stopped = threading.Event()

    def drip() -> None:
        while not stopped.wait(0.02):
            client.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(ConnectionShed):
            read_on(ours)
    finally:
        stopped.set()
        thread.join()


def test_each_request_has_its_own_timeout(
    ends: tuple[ClientSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_socket, "READ_TIMEOUT_MS", 50)
    ours, client = ends
    ours.begin_request()
    with pytest.raises(ConnectionShed):
        ours.recv(1)
    ours.begin_request()
    client.sendall(b"x")
    assert ours.recv(1) == b"x"


def test_a_client_that_does_not_read_is_shed(
    ends: tuple[ClientSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_socket, "WRITE_TIMEOUT_MS", 100)
    # Bytes that fit into the socket buffers must not replenish the timeout.
    monkeypatch.setattr(client_socket, "MIN_BYTES_PER_SECOND", 2**40)
    ours, _client = ends
    ours.begin_request()
    with pytest.raises(ConnectionShed):
        ours.sendall(b"x" * 2**24)


def test_a_burst_of_sent_bytes_does_not_extend_the_read_timeout(
    ends: tuple[ClientSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_socket, "READ_TIMEOUT_MS", 200)
    ours, client = ends
    ours.begin_request()
    # Worth two minutes at the minimum rate.
    sending = threading.Thread(target=client.sendall, args=(b"x" * 2**20,))
    sending.start()
    started = time.monotonic()
    read: list[int] = []
    with pytest.raises(ConnectionShed) as refused:
        read_on(ours, 2**16, read)
    sending.join()
    assert (sum(read), refused.value.reason) == (2**20, ShedReason.SLOW_SENDER)
    assert time.monotonic() - started < SOON_SECONDS


def test_a_burst_of_read_bytes_does_not_extend_the_write_timeout(
    ends: tuple[ClientSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_socket, "WRITE_TIMEOUT_MS", 200)
    ours, client = ends
    ours.begin_request()

    def read_some() -> None:
        left = 2**22
        while left > 0:
            left -= len(client.recv(2**16))

    reading = threading.Thread(target=read_some)
    reading.start()
    started = time.monotonic()
    with pytest.raises(ConnectionShed) as refused:
        ours.sendall(b"x" * 2**24)
    reading.join()
    assert refused.value.reason is ShedReason.SLOW_READER
    assert time.monotonic() - started < SOON_SECONDS


def test_the_write_deadline_holds_while_waiting_for_the_client(ends: tuple[ClientSocket, socket.socket]) -> None:
    ours, _client = ends
    started = time.monotonic()
    ours.set_write_deadline(time.monotonic_ns() + 10**8)
    with pytest.raises(ConnectionShed) as refused:
        ours.sendall(b"x" * 2**24)
    assert refused.value.reason is ShedReason.STREAM_TOO_LONG
    assert time.monotonic() - started < SOON_SECONDS


def test_interim_responses_are_subject_to_the_write_timeout(
    ends: tuple[ClientSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_socket, "WRITE_TIMEOUT_MS", 100)
    ours, _client = ends
    ours.begin_request()

    def send_interim_responses() -> None:
        while True:
            ours.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    with pytest.raises(ConnectionShed):
        send_interim_responses()


def test_no_more_connections_wait_than_the_pool_has_threads(
    ends: tuple[ClientSocket, socket.socket], hooks: CountingHooks
) -> None:
    ours, _client = ends
    with (
        hooks.threads.try_acquire(ResourceUse.AUTHENTICATED_CLIENT, ANONYMOUS),
        pytest.raises(ConnectionShed) as refused,
    ):
        ours.recv(1)
    assert refused.value.reason is ShedReason.TOO_MANY_WAITING
    assert hooks.shed == [ShedReason.TOO_MANY_WAITING]
    with hooks.threads.try_acquire(ResourceUse.ANONYMOUS_CLIENT, ANONYMOUS) as taken:
        assert taken


def test_a_connection_with_a_permit_waits_in_it_until_the_request_ends(
    ends: tuple[ClientSocket, socket.socket], threads: ResourcePool
) -> None:
    ours, client = ends
    permit = OneThread(threads)
    ours.attach_permit(permit)
    timer = threading.Timer(0.1, client.sendall, args=(b"x",))
    timer.start()
    assert ours.recv(1) == b"x"
    timer.join()
    ours.end_request()
    assert not permit.is_held
    assert threads.acquire(ResourceUse.UPSTREAM, "another")
    with pytest.raises(ConnectionShed):
        ours.recv(1)


def test_bodies_are_read_while_there_is_memory(ends: tuple[ClientSocket, socket.socket], hooks: CountingHooks) -> None:
    ours, client = ends
    other_end, other_client = socket.socketpair()

    def send_and_read() -> None:
        while True:
            client.sendall(b"x" * 2**16)
            ours.recv(2**16)

    with ClientSocket.wrap(other_end, hooks) as other, other_client:
        other.account_id = "another"
        with pytest.raises(ConnectionShed) as refused:
            send_and_read()
        assert refused.value.reason is ShedReason.BODY_MEMORY_EXHAUSTED
        # Anonymous clients together have not taken all of it.
        other_client.sendall(b"x" * 2**16)
        assert other.recv(2**16)
        ours.end_request()
        ours.begin_request()
        for _ in range(8):
            client.sendall(b"x" * 2**16)
            assert ours.recv(2**16)


def test_memory_for_a_decoded_body_is_reserved_once_and_released(
    ends: tuple[ClientSocket, socket.socket], hooks: CountingHooks
) -> None:
    ours, _client = ends
    half = BODY_BYTES // 2
    assert ours.decoded_limit == half
    for _ in range(3):
        ours.reserve_decoded(half)
    assert not hooks.bodies.acquire(ResourceUse.BODY, "another", half + 1)
    ours.release_decoded()
    ours.release_decoded()
    assert hooks.bodies.acquire(ResourceUse.BODY, "another", half + 1)
    with pytest.raises(ConnectionShed) as refused:
        ours.reserve_decoded(half)
    assert refused.value.reason is ShedReason.BODY_MEMORY_EXHAUSTED
    ours.end_request()
    hooks.bodies.release(ResourceUse.BODY, "another", half + 1)
    assert hooks.bodies.acquire(ResourceUse.BODY, "another", BODY_BYTES * 4 // 5)


def test_a_large_body_without_memory_is_refused_before_it_is_read(
    ends: tuple[ClientSocket, socket.socket], hooks: CountingHooks
) -> None:
    ours, _client = ends
    assert hooks.bodies.acquire(ResourceUse.BODY, "another", BODY_BYTES // 2)
    with pytest.raises(ConnectionShed):
        ours.check_body_fits(BODY_BYTES // 2 + 1)
    # An announced length reserves nothing.
    for _ in range(10):
        ours.check_body_fits(BODY_BYTES // 4)


def test_a_non_blocking_socket_does_not_wait(ends: tuple[ClientSocket, socket.socket]) -> None:
    ours, _client = ends
    ours.setblocking(False)  # noqa: FBT003 - the library's own signature
    with pytest.raises(BlockingIOError):
        ours.recv(1)
    with pytest.raises(BlockingIOError):
        ours.sendall(b"x" * 2**24)


def test_large_responses_arrive_completely(ends: tuple[ClientSocket, socket.socket]) -> None:
    ours, client = ends
    sent = bytes(range(256)) * 2**14
    writer = threading.Thread(target=ours.sendall, args=(memoryview(sent),))
    writer.start()
    received = bytearray()
    while len(received) < len(sent):
        received += client.recv(65_536)
    writer.join()
    assert received == sent
