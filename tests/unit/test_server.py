"""What accept(2) may fail with: none of it ends the process that serves everybody else."""

from __future__ import annotations

import errno
import os
import selectors

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger

from app.web.lingering import Lingering
from app.web.server import Worker

OF_THE_PROCESS = ["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM"]
OF_THE_CONNECTION = [
    "EAGAIN", "ECONNABORTED", "EPROTO", "EPERM", "ENETDOWN", "ENOPROTOOPT", "EHOSTDOWN", "ENONET",
    "EHOSTUNREACH", "EOPNOTSUPP", "ENETUNREACH", "ETIMEDOUT",
]  # fmt: skip


class _Listener:
    """A listening socket from which nobody can be accepted."""

    def __init__(self, name: str) -> None:
        self._error = getattr(errno, name)

    def accept(self) -> None:
        raise OSError(self._error, os.strerror(self._error))


@pytest.mark.parametrize("name", OF_THE_PROCESS + OF_THE_CONNECTION)
def test_who_cannot_be_accepted_ends_no_process(name: str) -> None:
    settings = Config()
    worker = Worker(1, os.getppid(), [], None, 30, settings, Logger(settings))
    worker.lingering = Lingering()
    with selectors.DefaultSelector() as worker.poller:
        worker.set_accept_enabled(enabled=True)
        worker.accept(_Listener(name))
        # Where there is no room for anybody, nobody is tried again at once.
        worker.set_accept_enabled(enabled=True)
        assert worker._accepting is (name in OF_THE_CONNECTION)
    worker.lingering.see_off()
    worker.tmp.close()
