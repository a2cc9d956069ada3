"""Compressed request bodies: decoded completely within the limit of the route, or refused."""

from __future__ import annotations

import gzip
import queue
import socket
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import brotli  # type: ignore[import-untyped]
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from werkzeug.test import EnvironBuilder

from app.errors import InvalidInput, Overloaded, PayloadTooLarge
from app.web import request_bodies
from app.web.client_request import ClientRequest
from server.client_socket import ClientSocket
from server.hooks import Hooks
from server.pool import ResourcePool
from tests.support.waiting import wait_until

_MEBIBYTE = 2**20
_ENCODERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd.compress, "br": brotli.compress}
_BOMB = b"\0" * (16 * _MEBIBYTE)


def decode(body: bytes, encoding: str, limit: int = _MEBIBYTE) -> bytes:
    builder = EnvironBuilder(method="POST", data=body, headers={"Content-Encoding": encoding})
    request = ClientRequest(builder.get_environ())
    request.max_content_length = limit
    return request_bodies.decoded_body(request)


@pytest.mark.parametrize("encoding", _ENCODERS)
@given(st.binary(max_size=300).map(lambda unit: unit * 700))
@settings(max_examples=25)
def test_a_compressed_body_is_decoded(encoding: str, body: bytes) -> None:
    assert decode(_ENCODERS[encoding](body), encoding) == body
    assert decode(_ENCODERS[encoding](body), f" {encoding.upper()}") == body


@pytest.mark.parametrize("encoding", ["", "identity", "Identity"])
def test_an_uncompressed_body_is_read_unchanged(encoding: str) -> None:
    assert decode(b"\x1f\x8b", encoding) == b"\x1f\x8b"


@pytest.mark.parametrize("encoding", _ENCODERS)
def test_a_decompression_bomb_is_refused_before_it_takes_memory(encoding: str) -> None:
    compressed = _ENCODERS[encoding](_BOMB)
    tracemalloc.start()
    with pytest.raises(PayloadTooLarge, match=f"at most {_MEBIBYTE} bytes, decoded"):
        decode(compressed, encoding)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * _MEBIBYTE


@pytest.mark.parametrize("encoding", _ENCODERS)
def test_a_body_of_exactly_the_limit_is_read(encoding: str) -> None:
    assert len(decode(_ENCODERS[encoding](b"a" * 1000), encoding, limit=1000)) == 1000
    with pytest.raises(PayloadTooLarge):
        decode(_ENCODERS[encoding](b"a" * 1001), encoding, limit=1000)


@pytest.mark.parametrize("encoding", _ENCODERS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[:-1], lambda body: body + b"x", lambda body: body + body, lambda _body: b"",
        lambda _body: b'{"a":1}',
    ],
    ids=["cut off", "followed by a byte", "sent twice", "empty", "not compressed"],
)  # fmt: skip
def test_truncated_or_concatenated_streams_are_refused(encoding: str, damage: Callable[[bytes], bytes]) -> None:
    body = _ENCODERS[encoding](bytes(range(256)) * 4)
    with pytest.raises(InvalidInput, match=f"is not valid {encoding}"):
        decode(damage(body), encoding)


def test_a_zstd_window_larger_than_rfc_9659_allows_is_refused() -> None:
    options = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.content_size_flag: 0}
    compressor = zstd.ZstdCompressor(options=options)
    compressed = compressor.compress(b"a" * 1000) + compressor.flush()
    with pytest.raises(InvalidInput, match="is not valid zstd"):
        decode(compressed, "zstd")


@pytest.mark.parametrize("encoding", ["deflate", "compress", "gzip, br", "x-gzip", "é" * 50])
def test_an_unsupported_encoding_is_refused_by_name(encoding: str) -> None:
    with pytest.raises(InvalidInput, match="send one of gzip, zstd, br, or none"):
        decode(zlib.compress(b"{}"), encoding)


@contextmanager
def reading_for(account_id: str, bodies: ResourcePool) -> Iterator[ClientRequest]:
    """A request of this account, on a connection of the server."""
    ours, other = socket.socketpair()
    hooks = Hooks(ResourcePool.for_threads(2))
    hooks.bodies = bodies
    with other, ClientSocket.wrap(ours, hooks) as connection:
        connection.account_id = account_id
        yield ClientRequest(EnvironBuilder(environ_base={"gunicorn.socket": connection}).get_environ())


def test_memory_for_a_decoded_body_is_at_most_half_of_all_and_what_is_free() -> None:
    bodies = ResourcePool(2 * _MEBIBYTE, {})
    with reading_for("account", bodies) as request:
        with pytest.raises(PayloadTooLarge, match="would take 1 MiB of memory; the limit for one request is 1 MiB"):
            request_bodies.reserve_memory(request, _MEBIBYTE + 1)
        request_bodies.reserve_memory(request, _MEBIBYTE)
        with reading_for("another", bodies) as other, pytest.raises(Overloaded) as refused:
            request_bodies.reserve_memory(other, _MEBIBYTE)
        assert refused.value.retry_after_seconds
        request_bodies.release_decoded(request)
        with reading_for("another", bodies) as other:
            request_bodies.reserve_memory(other, _MEBIBYTE)
            request_bodies.release_decoded(other)


class FairLock:
    """A lock that is passed on in the order of arrival; the first in `queue` holds it."""

    def __init__(self) -> None:
        self.queue: list[threading.Thread] = []
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        own = threading.current_thread()
        with self._changed:
            self.queue.append(own)
            self._changed.wait_for(lambda: self.queue[0] is own)

    def __exit__(self, *_error: object) -> None:
        with self._changed:
            self.queue.pop(0)
            self._changed.notify_all()


def test_an_account_with_many_large_bodies_delays_another_account_by_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered: queue.Queue[str] = queue.Queue()
    may_finish = threading.Semaphore(0)
    lock = FairLock()
    monkeypatch.setattr(request_bodies, "_decoding_lock", lock)

    def decode_for(account: str) -> None:
        with (
            reading_for(account, ResourcePool.for_bodies()) as request,
            request_bodies.serialize_decoding(request, _MEBIBYTE),
        ):
            entered.put(account)
            may_finish.acquire()

    def start(account: str) -> threading.Thread:
        thread = threading.Thread(target=decode_for, args=(account,), daemon=True)
        thread.start()
        return thread

    threads = [start("many")]
    assert entered.get(timeout=10) == "many"
    threads += [start("many") for _ in range(4)]
    threads.append(start("one"))
    # The other bodies of the first account do not wait here.
    wait_until(lambda: lock.queue[1:] == threads[-1:])
    may_finish.release(6)
    for thread in threads:
        thread.join(10)
    assert entered.get_nowait() == "one"
