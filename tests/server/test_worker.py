"""No error of accept(2) ends the process, which serves other clients; malformed bodies are one kind of error."""

from __future__ import annotations

import errno
import os
import selectors

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.http.errors import ChunkMissingTerminator, InvalidChunkSize, LimitRequestHeaders

from server.client_socket import MalformedBody
from server.closing import LingeringCloser
from server.request import BodyReader
from server.worker import Worker

OF_THE_PROCESS = ["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM"]
OF_THE_CONNECTION = [
    "EAGAIN", "ECONNABORTED", "EPROTO", "EPERM", "ENETDOWN", "ENOPROTOOPT", "EHOSTDOWN", "ENONET",
    "EHOSTUNREACH", "EOPNOTSUPP", "ENETUNREACH", "ETIMEDOUT",
]  # fmt: skip


class _Listener:
    """A listening socket with a failing accept()."""

    def __init__(self, name: str) -> None:
        self._error = getattr(errno, name)

    def accept(self) -> None:
        raise OSError(self._error, os.strerror(self._error))


@pytest.mark.parametrize("name", OF_THE_PROCESS + OF_THE_CONNECTION)
def test_a_failing_accept_does_not_end_the_process(name: str) -> None:
    settings = Config()
    worker = Worker(1, os.getppid(), [], None, 30, settings, Logger(settings))
    worker.lingering_closer = LingeringCloser()
    with selectors.DefaultSelector() as worker.poller:
        worker.set_accept_enabled(enabled=True)
        worker.accept(_Listener(name))
        # Without free descriptors, accepting pauses.
        worker.set_accept_enabled(enabled=True)
        assert worker._accepting is (name in OF_THE_CONNECTION)
    worker.lingering_closer.drain()
    worker.tmp.close()


@pytest.mark.parametrize(
    "error", [InvalidChunkSize(b"zz"), ChunkMissingTerminator(b"x"), LimitRequestHeaders("trailers")], ids=repr
)
def test_a_malformed_body_is_an_operating_system_error_which_servers_do_not_log(error: Exception) -> None:
    class _Malformed:
        def read(self, _size: int) -> bytes:
            raise error

    with pytest.raises(MalformedBody) as raised:
        BodyReader(_Malformed()).read(10)
    assert raised.value.errno == errno.ECONNRESET
