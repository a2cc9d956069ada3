"""Our side of reading a document: a fresh process for each, few at once, killed when their time is over."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog

from app.core.unit_of_work import assert_no_unit
from app.ports.errors import Rejected, Unreachable
from app.ports.specifications import MAX_BYTES, MAX_SECONDS, Specification

_log = structlog.get_logger(__name__)
_ROOT = Path(__file__).resolve().parents[3]
_READY = b"ready\n"
_AT_ONCE = 2
_QUEUE_SECONDS = 10.0
# Starting is our own work (libraries are loaded) and no fault of the document.
_START_SECONDS = 30.0
_CHUNK_BYTES = 65_536
_MAX_ANSWER_BYTES = 16 * MAX_BYTES


class _TooSlowError(Exception):
    """The process did not answer in time."""


class OpenApiReader:
    """Reads documents in processes that have neither secrets nor a way out."""

    def __init__(self, *, max_seconds: float = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._slots = threading.BoundedSemaphore(_AT_ONCE)

    def read(self, document: str) -> Specification:
        """Check a document and return what it offers. Raises: Rejected, Unreachable."""
        assert_no_unit()
        encoded = document.encode(errors="surrogatepass")
        if len(encoded) > MAX_BYTES:
            raise _invalid("The document is larger than 1 MiB.")
        if not self._slots.acquire(timeout=_QUEUE_SECONDS):
            raise Unreachable("busy")
        try:
            answer = self._ask(encoded)
        finally:
            self._slots.release()
        if "problem" in answer:
            raise _invalid(answer["problem"], answer["place"])
        return Specification(answer["document"], answer["endpoints"], answer["example"])

    def _ask(self, encoded: bytes) -> dict[str, Any]:
        with _process() as process:
            try:
                _await_ready(process)
            except _TooSlowError:
                _log.error("specification_reader_not_started")
                raise Unreachable("busy") from None
            try:
                raw = _exchange(process, encoded, deadline=time.monotonic() + self._max_seconds)
            except _TooSlowError:
                raise _invalid(f"Checking the document takes longer than {MAX_SECONDS} seconds.") from None
        try:
            answer: dict[str, Any] = json.loads(raw)
        except ValueError:
            # It was stopped by the kernel, for its processor time or memory, or crashed.
            raise _invalid("The document cannot be read within the limits of time and memory.") from None
        return answer


@contextlib.contextmanager
def _process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "app.adapters.openapi_reader.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=_ROOT,
        # None of our own environment: it holds the service's secrets.
        env={"PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    deadline, heard = time.monotonic() + _START_SECONDS, b""
    while len(heard) < len(_READY):
        _await(process, select.POLLIN, deadline, writing=False)
        piece = os.read(_descriptor(process, writing=False), len(_READY) - len(heard))
        if not piece:
            raise _TooSlowError
        heard += piece


def _exchange(process: subprocess.Popen[bytes], encoded: bytes, *, deadline: float) -> bytes:
    """Write the document and read the answer to its end. Raises: _TooSlowError."""
    into = _descriptor(process, writing=True)
    os.set_blocking(into, False)
    left = memoryview(encoded)
    try:
        while left:
            _await(process, select.POLLOUT, deadline, writing=True)
            left = left[os.write(into, left[:_CHUNK_BYTES]) :]
    except BrokenPipeError:
        return b""
    if process.stdin is not None:
        process.stdin.close()
    heard = bytearray()
    while True:
        _await(process, select.POLLIN, deadline, writing=False)
        piece = os.read(_descriptor(process, writing=False), _CHUNK_BYTES)
        if not piece or len(heard) > _MAX_ANSWER_BYTES:
            return bytes(heard)
        heard += piece


def _await(process: subprocess.Popen[bytes], event: int, deadline: float, *, writing: bool) -> None:
    # Not select(), which knows no descriptors above 1023.
    poll = select.poll()
    poll.register(_descriptor(process, writing=writing), event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise _TooSlowError


def _descriptor(process: subprocess.Popen[bytes], *, writing: bool) -> int:
    pipe = process.stdin if writing else process.stdout
    if pipe is None:
        raise _TooSlowError
    return pipe.fileno()


def _invalid(problem: str, place: str = "#") -> Rejected:
    return Rejected("invalid", details={"place": place, "problem": problem})
