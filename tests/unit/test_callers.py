"""How long a thread waits for a caller, and in how much company."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from app.core import tallies
from app.errors import Overloaded
from app.web import callers
from app.web.budgets import STRANGERS, Budget, Use
from app.web.callers import CallerSocket, LetGoError, Why

BODY_BYTES = 2**21
# Far less than the patience that bytes could once have bought.
SOON_SECONDS = 30


@pytest.fixture
def threads() -> Budget:
    """Of the fewest threads that there can be one may wait."""
    return Budget.of_threads(1)


@pytest.fixture
def ends(threads: Budget) -> Iterator[tuple[CallerSocket, socket.socket]]:
    """Our end of a connection and the caller's."""
    accepted, caller = socket.socketpair()
    bodies = Budget(BODY_BYTES, {})
    with CallerSocket.of(accepted, threads, bodies) as ours, caller:
        yield ours, caller


def read_on(ours: CallerSocket, size: int = 1, read: list[int] | None = None) -> None:
    while piece := ours.recv(size):
        if read is not None:
            read.append(len(piece))


def test_what_has_arrived_is_read_without_waiting(
    ends: tuple[CallerSocket, socket.socket], threads: Budget
) -> None:
    ours, caller = ends
    caller.sendall(b"one")
    with threads.place(Use.STRANGER, STRANGERS) as taken:
        assert taken
        assert ours.recv(10) == b"one"


def test_bytes_that_drip_buy_no_more_time_than_they_are_worth(
    ends: tuple[CallerSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "READING_MS", 300)
    ours, caller = ends
    ours.begin()
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.02):
            caller.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(LetGoError):
            read_on(ours)
    finally:
        over.set()
        thread.join()


def test_each_request_has_its_own_time(
    ends: tuple[CallerSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "READING_MS", 50)
    ours, caller = ends
    ours.begin()
    with pytest.raises(LetGoError):
        ours.recv(1)
    ours.begin()
    caller.sendall(b"x")
    assert ours.recv(1) == b"x"


def test_who_does_not_read_is_not_written_to_for_ever(
    ends: tuple[CallerSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "WRITING_MS", 100)
    # What fits the buffers of the two ends is worth nothing here.
    monkeypatch.setattr(callers, "BYTES_PER_SECOND", 2**40)
    ours, _caller = ends
    ours.begin()
    with pytest.raises(LetGoError):
        ours.sendall(b"x" * 2**24)


def test_bytes_sent_at_once_buy_no_time_for_later(
    ends: tuple[CallerSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "READING_MS", 200)
    ours, caller = ends
    ours.begin()
    # Worth two minutes.
    sending = threading.Thread(target=caller.sendall, args=(b"x" * 2**20,))
    sending.start()
    began = time.monotonic()
    read: list[int] = []
    with pytest.raises(LetGoError) as refused:
        read_on(ours, 2**16, read)
    sending.join()
    assert (sum(read), refused.value.why) == (2**20, Why.SENDS_SLOWLY)
    assert time.monotonic() - began < SOON_SECONDS


def test_bytes_read_at_once_buy_no_time_for_later(
    ends: tuple[CallerSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "WRITING_MS", 200)
    ours, caller = ends
    ours.begin()

    def read_some() -> None:
        left = 2**22
        while left > 0:
            left -= len(caller.recv(2**16))

    reading = threading.Thread(target=read_some)
    reading.start()
    began = time.monotonic()
    with pytest.raises(LetGoError) as refused:
        ours.sendall(b"x" * 2**24)
    reading.join()
    assert refused.value.why is Why.READS_SLOWLY
    assert time.monotonic() - began < SOON_SECONDS


def test_a_stream_s_time_is_over_also_while_its_caller_is_waited_for(
    ends: tuple[CallerSocket, socket.socket],
) -> None:
    ours, _caller = ends
    began = time.monotonic()
    ours.end_at(time.monotonic_ns() + 10**8)
    with pytest.raises(LetGoError) as refused:
        ours.sendall(b"x" * 2**24)
    assert refused.value.why is Why.STREAM_TOO_LONG
    assert time.monotonic() - began < SOON_SECONDS


def test_the_server_s_own_short_words_wait_no_longer_than_others(
    ends: tuple[CallerSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "WRITING_MS", 100)
    ours, _caller = ends
    ours.begin()

    def go_on() -> None:
        while True:
            ours.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    with pytest.raises(LetGoError):
        go_on()


def test_no_more_wait_at_once_than_there_are_places_for(
    ends: tuple[CallerSocket, socket.socket], threads: Budget
) -> None:
    ours, _caller = ends
    tallies.take()
    with threads.place(Use.CALLER, STRANGERS), pytest.raises(LetGoError) as refused:
        ours.recv(1)
    assert refused.value.why is Why.CROWD
    assert tallies.take() == {"callers_let_go\twhy=too_many_wait": 1}
    with threads.place(Use.STRANGER, STRANGERS) as taken:
        assert taken


class _Lane:
    """A lane that somebody has."""

    is_held = True

    def leave(self) -> None:
        self.is_held = False


def test_who_has_a_lane_is_waited_for_in_it_until_its_answer_is_written(
    ends: tuple[CallerSocket, socket.socket], threads: Budget
) -> None:
    ours, caller = ends
    lane = _Lane()
    ours.hold(lane)
    heard = threading.Timer(0.1, caller.sendall, args=(b"x",))
    heard.start()
    with threads.place(Use.UPSTREAM, STRANGERS):
        assert ours.recv(1) == b"x"
        ours.end()
        assert not lane.is_held
        with pytest.raises(LetGoError):
            ours.recv(1)
    heard.join()


def test_bodies_are_read_while_there_is_memory_for_all_of_them(
    ends: tuple[CallerSocket, socket.socket],
) -> None:
    ours, caller = ends
    other_end, other_caller = socket.socketpair()

    def pass_on() -> None:
        while True:
            caller.sendall(b"x" * 2**16)
            ours.recv(2**16)

    with (
        CallerSocket.of(other_end, ours._threads, ours._bodies) as other,
        other_caller,
    ):
        other.whose = "somebody else"
        with pytest.raises(LetGoError) as refused:
            pass_on()
        assert isinstance(refused.value.failure, Overloaded)
        assert refused.value.failure.retry_after_seconds
        # All strangers together have not taken everything.
        other_caller.sendall(b"x" * 2**16)
        assert other.recv(2**16)
        ours.end()
        ours.begin()
        for _ in range(8):
            caller.sendall(b"x" * 2**16)
            assert ours.recv(2**16)


def test_a_socket_that_is_not_to_wait_does_not(ends: tuple[CallerSocket, socket.socket]) -> None:
    ours, _caller = ends
    ours.setblocking(False)  # noqa: FBT003 - the library's own signature
    with pytest.raises(BlockingIOError):
        ours.recv(1)
    with pytest.raises(BlockingIOError):
        ours.sendall(b"x" * 2**24)


def test_large_answers_arrive_whole(ends: tuple[CallerSocket, socket.socket]) -> None:
    ours, caller = ends
    sent = bytes(range(256)) * 2**14
    writing = threading.Thread(target=ours.sendall, args=(memoryview(sent),))
    writing.start()
    heard = bytearray()
    while len(heard) < len(sent):
        heard += caller.recv(65_536)
    writing.join()
    assert heard == sent
