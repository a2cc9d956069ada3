"""A Redis that is reached by TLS, with a certificate of its own, as several hosts offer it."""

from __future__ import annotations

import ipaddress
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509

from app.adapters.redis_stores import RqQueue
from app.capacity.limiter import RateLimiter
from app.config import Settings
from app.errors import RateLimited
from app.jobs import JobName
from tests.support.applications import settings_for
from tests.support.certificates import certificate
from tests.support.loopback_http import unused_url
from tests.support.servers import redis_with_tls

pytestmark = pytest.mark.redis


@pytest.fixture
def certificate_file(tmp_path: Path) -> Path:
    return certificate(tmp_path, name=x509.IPAddress(ipaddress.ip_address("127.0.0.1")))


class _Router(socketserver.ThreadingTCPServer):
    """Ends TLS in front of a server, as a host's router does."""

    def __init__(self, certificate_file: Path, target: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate_file)
        self.target = target
        self.servers: list[socket.socket] = []


class _Connection(socketserver.BaseRequestHandler):
    server: _Router

    def handle(self) -> None:
        with (
            suppress(OSError),
            self.server.context.wrap_socket(self.request, server_side=True) as client,
            socket.create_connection(self.server.target) as server,
        ):
            self.server.servers.append(server)
            requests = threading.Thread(target=_copy, args=(client, server))
            requests.start()
            _copy(server, client)
            requests.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(65536):
            target.sendall(content)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@pytest.fixture(params=["its own", "a router's"])
def tls_url(request: pytest.FixtureRequest, certificate_file: Path) -> Iterator[str]:
    """TLS that Redis ends, and TLS that a router ends before it."""
    if request.param == "its own":
        with redis_with_tls(certificate_file) as own:
            yield own
        return
    url = urlsplit(request.getfixturevalue("redis_url"))
    with _Router(certificate_file, (str(url.hostname), int(url.port or 0))) as router:
        thread = threading.Thread(target=router.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"rediss://127.0.0.1:{router.server_address[1]}/0"
        router.shutdown()
        thread.join()
        for server in router.servers:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)


def _settings(url: str, ca_file: str = "") -> Settings:
    return settings_for("sqlite://", redis_url=url, redis_ca_file=ca_file)


def test_a_certificate_of_its_own_is_refused_and_the_operator_is_told(tls_url: str) -> None:
    queue = RqQueue(_settings(tls_url).redis_address)
    assert queue.ping() is False
    assert "its certificate is not accepted (self" in str(queue.problem())


@pytest.mark.parametrize("is_verified", [True, False])
def test_queue_and_limits_use_a_certificate_that_is_named_or_not_verified(
    tls_url: str, certificate_file: Path, *, is_verified: bool
) -> None:
    address = _settings(tls_url, str(certificate_file) if is_verified else "off").redis_address
    queue = RqQueue(address)
    assert queue.problem() is None
    assert queue.enqueue(JobName.SWEEP) is True
    first, second = RateLimiter(address), RateLimiter(address)
    first.count("1 per hour", "tls", tls_url)
    with pytest.raises(RateLimited):
        second.count("1 per hour", "tls", tls_url)


def test_another_certificate_is_refused(tls_url: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = certificate(tmp_path / "other", name=x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    queue = RqQueue(_settings(tls_url, str(other)).redis_address)
    assert queue.ping() is False
    assert "its certificate is not accepted" in str(queue.problem())


def test_the_cause_is_named_without_the_password() -> None:
    assert RqQueue("redis://:canary@name.invalid:6379/0").problem() == "its name is not resolved"
    refusing = RqQueue(unused_url().replace("http://", "redis://:canary@"))
    assert refusing.problem() == "it cannot be connected to (Connection refused)"


def test_a_redis_that_refuses_the_password_says_so(redis_url: str) -> None:
    assert RqQueue(redis_url.replace("//", "//nobody:canary@")).problem() == "it refuses the password"


def test_a_certificate_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    for url, ca_file in (("rediss://h/0", str(tmp_path / "absent.pem")), ("redis://h/0", "off")):
        with pytest.raises(ValueError, match="REDIS_CA_FILE"):
            _settings(url, ca_file)
