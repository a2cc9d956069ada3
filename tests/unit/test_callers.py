"""How long a thread waits for a caller, and in how much company."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from app.web import callers
from app.web.callers import CallerSocket, Company, TooSlowError


@pytest.fixture
def company() -> Company:
    return Company(1)


@pytest.fixture
def ends(company: Company) -> Iterator[tuple[CallerSocket, socket.socket]]:
    """Our end of a connection and the caller's."""
    accepted, caller = socket.socketpair()
    with CallerSocket.of(accepted, company, Company(1)) as ours, caller:
        yield ours, caller


def read_on(ours: CallerSocket) -> None:
    while ours.recv(1):
        pass


def test_what_has_arrived_is_read_without_waiting(
    ends: tuple[CallerSocket, socket.socket], company: Company
) -> None:
    ours, caller = ends
    caller.sendall(b"one")
    with company:
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
        with pytest.raises(TooSlowError):
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
    with pytest.raises(TooSlowError):
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
    with pytest.raises(TooSlowError):
        ours.sendall(b"x" * 2**24)


def test_no_more_wait_at_once_than_there_is_room_for(
    ends: tuple[CallerSocket, socket.socket], company: Company
) -> None:
    ours, _caller = ends
    with company, pytest.raises(TooSlowError):
        ours.recv(1)
    with company:
        pass


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
