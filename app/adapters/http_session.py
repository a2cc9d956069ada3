"""Sessions of `requests` with what the library lacks: a deadline, and connections whose next bytes are a response."""

from __future__ import annotations

import io
import socket
import ssl
import time
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPResponse, UnknownProtocol
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util.connection import create_connection
from urllib3.util.response import assert_header_parsing

from app.adapters.upstream_http.connections import tls_context
from app.adapters.upstream_http.response_reader import set_timeout
from app.ports.errors import Unreachable

_MAX_HOSTS = 16
_MAX_IDLE = 256
"""Connections to one host that are kept; a busy process opens more."""
_IDLE_SECONDS = 300.0
"""Networks drop connections that were idle for longer, and nobody is told."""


def new_session() -> requests.Session:
    """Return a session that may be used by many threads."""
    session = _Session()
    session.trust_env = False
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    adapter = _Adapter(_MAX_HOSTS, _MAX_IDLE)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


class _Session(requests.Session):
    def get_redirect_target(self, resp: Any) -> None:
        """Return None: requests reads the body of a redirect, however large, even if it is not followed."""


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, ssl_context=tls_context())

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
        pool.ConnectionCls = _SecureConnection if pool.scheme == "https" else _Connection
        return pool

    def cert_verify(self, *_: Any) -> None:
        """Leave that to the context: with a path of certificates, each connection would load them again."""


class _DeadlineReader(io.RawIOBase):
    """Reads a socket until one point in time; the timeout of urllib3 begins again with each byte."""

    def __init__(self, raw: io.RawIOBase, open_socket: socket.socket) -> None:
        self._raw, self._socket = raw, open_socket
        self._deadline = time.monotonic() + (open_socket.gettimeout() or 0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        set_timeout(self._socket, left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_DeadlineReader(self.fp.detach(), sock))

    def begin(self) -> None:
        """Read the head, after those of informational responses, which would leave it to the next request."""
        while True:
            super().begin()
            # urllib3 would only log it, with the URL.
            assert_header_parsing(self.headers)
            if self.status >= HTTPStatus.OK:
                return
            if self.status == HTTPStatus.SWITCHING_PROTOCOLS:
                raise UnknownProtocol("")
            self.headers = self.msg = None  # type: ignore[assignment]


class _Connection(HTTPConnection):
    response_class = _Response
    _used_at = 0.0

    @property
    def is_connected(self) -> bool:
        """Return whether the next bytes on an idle connection can only be the next response."""
        is_old = time.monotonic() - self._used_at > _IDLE_SECONDS
        # TLS keeps what it decrypted, where no poll sees it.
        has_rest = isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()
        return not is_old and not has_rest and super().is_connected

    def connect(self) -> None:
        """Connect. Raises: Unreachable, which passes through urllib3 and requests."""
        with suppress(OSError, HTTPError, ValueError):
            super().connect()
            return
        raise Unreachable("not_sent")

    def getresponse(self) -> Any:
        self._used_at = time.monotonic()
        return super().getresponse()

    def _new_conn(self) -> socket.socket:
        """Connect to one address of the host, all within the time limit; urllib3 would have it for each."""
        deadline = time.monotonic() + (self.timeout or 0)
        for *_, address in socket.getaddrinfo(self._dns_host, self.port, type=socket.SOCK_STREAM):
            with suppress(OSError):
                left = deadline - time.monotonic()
                return create_connection((str(address[0]), self.port), left, socket_options=self.socket_options)
        raise OSError


class _SecureConnection(_Connection, HTTPSConnection):
    pass
