"""Supplied addresses: however they are written, only the public internet is ever connected to."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from flask import Flask

from app import base_urls
from app.adapters.upstream_http.exchange import PublicUpstream
from app.config import Settings
from app.ports.errors import PortError, Rejected, Unreachable
from app.ports.upstream import UpstreamRequest
from tests.support.agents import register
from tests.support.applications import DEAD_PLACE, settings_for
from tests.support.market import offer
from tests.support.upstreams import misbehaving_upstream

PUBLIC = "93.184.215.14"
PUBLIC_IPV6 = "2606:2800:21f:cb07:6820:80da:af6b:8b2c"
SERVICE_S_OWN = "purser.example.org"

# Every known notation of a private address: RFC 6890 and its registries, what inet_aton accepts, IPv4 addresses
# embedded in IPv6 ones, the metadata services of clouds.
INSIDE = [
    "127.0.0.1", "127.0.0.2", "127.1", "127.0.1", "127.255.255.254", "2130706433", "017700000001", "0x7f000001",
    "0x7f.0.0.1", "0x7f.1", "0177.0.0.1", "0177.1", "0x7F.0x0.0x0.0x1", "00000177.0.0.1", "127.0.0.1.", "0",
    "0.0.0.0",  # noqa: S104 - never bound

    "0.0.0.1", "10.0.0.1", "10.255.255.255", "10.1", "167772161", "0xa000001", "012.0.0.1", "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1", "192.168.1", "3232235521", "0xc0a80001", "169.254.169.254", "169.254.170.2", "2852039166",
    "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "100.64.0.1", "100.100.100.200", "100.127.255.255",
    "168.63.129.16", "192.0.0.192", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.1",
    "203.0.113.1", "192.88.99.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:169.254.169.254]",
    "[::ffff:10.0.0.1]", "[::127.0.0.1]", "[::7f00:1]", "[64:ff9b::7f00:1]", "[64:ff9b::169.254.169.254]",
    "[64:ff9b:1::1]", "[2002:7f00:1::]", "[2002:a9fe:a9fe::1]", "[2001:0:7f00:1::]", "[2001:db8::1]", "[fe80::1]",
    "[fe80::1%25lo]", "[fe80::1%lo]", "[fc00::1]", "[fd00:ec2::254]", "[fd12:3456::1]", "[fec0::1]", "[ff02::1]",
    "[100::1]", "[3fff::1]", "[2001:10::1]", "[2620:4f:8000::1]",
    # Addresses that parsers interpret differently.
    "127.0.0.1%00.example.org", "127。0。0。1", "①②⑦.0.0.1", "127.0.0.1\\@example.org", "example.org\\@127.0.0.1",
    "example.org@127.0.0.1", "127.0.0.1#@example.org", "127.0.0.1?@example.org", "example.org:443@127.0.0.1",
    "127.0.0.1 .example.org", "127.0.0.1\t", "[127.0.0.1]", "[::1].example.org", "127.0.0.1:443:443",
]  # fmt: skip
NAMES_INSIDE = [
    "localhost", "LOCALHOST", "localhost.", "a.localhost", "router.local", "metadata.google.internal", "metadata",
    "printer", "nas.lan", "db.internal", "x.onion", "service.home.arpa", "vault.corp",
]  # fmt: skip
NOT_HTTPS = [
    "http://example.org", "https://example.org:80", "https://example.org:8443", "https://example.org:22",
    "https://example.org:0", "https://example.org:99999", "https://example.org:", "ftp://example.org",
    "file:///etc/passwd", "gopher://example.org", "//example.org", "example.org", "https:example.org", "https:///x",
    "https://", "javascript:alert(1)", "unix:///run/docker.sock", "https+unix://%2Frun%2Fdocker.sock",
    "https://example.org?x=1", "https://example.org#x", "https://user@example.org", "https://user:pw@example.org",
    "https://example.org/../x", "https://example.org/./x", "https://example.org/a//b", "https://example.org/%2e%2e/x",
    "https://example.org/a\nb", " https://example.org", "https://exa mple.org", "https://-a.example.org",
    "https://a_b.example.org", "https://" + "a" * 64 + ".example.org", "https://example.org/" + "x" * 500,
]  # fmt: skip


@pytest.fixture(scope="module")
def production() -> Settings:
    return settings_for("sqlite://", allow_private_upstreams="0", base_url=f"https://{SERVICE_S_OWN}")


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the addresses of attempted connections, and refuse them all.

    The application's own unreachable Redis is left out: the rate limits try it again occasionally.
    """
    tried: list[Any] = []

    def refuse(_socket: socket.socket, address: Any) -> None:
        if address != DEAD_PLACE:
            tried.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tried


@pytest.fixture
def upstream() -> PublicUpstream:
    return PublicUpstream(connect_seconds=Decimal(1), read_seconds=Decimal(1))


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Make the resolver return these answers in order, repeating the last; return the requested hosts."""
    asked: list[str] = []

    def resolve(host: str, port: int, *_rest: object, **_more: object) -> list[Any]:
        answer = answers[min(len(asked), len(answers) - 1)]
        asked.append(host)
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in answer
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


def send(upstream: PublicUpstream, origin: str) -> PortError:
    with pytest.raises(PortError) as failed:
        upstream.send(UpstreamRequest("GET", origin, "/", []))
    return failed.value


@pytest.mark.parametrize("host", INSIDE)
def test_no_private_address_is_registered_or_connected_to(
    production: Settings, upstream: PublicUpstream, connects: list[Any], host: str
) -> None:
    with pytest.raises(ValueError, match=r"must|is not"):
        base_urls.assert_public(base_urls.parse(f"https://{host}/x"), production)
    assert isinstance(send(upstream, f"https://{host}"), Rejected | Unreachable)
    assert connects == []


@pytest.mark.parametrize("host", NAMES_INSIDE)
def test_no_private_name_is_registered(production: Settings, host: str) -> None:
    with pytest.raises(ValueError, match="public internet"):
        base_urls.assert_public(base_urls.parse(f"https://{host}/x"), production)


@pytest.mark.parametrize("address", NOT_HTTPS)
def test_nothing_but_a_plain_https_address_is_registered(production: Settings, address: str) -> None:
    with pytest.raises(ValueError, match=r"must|is not"):
        base_urls.assert_public(base_urls.parse(address), production)


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("https://api.example.com", "https://api.example.com"),
        ("https://API.Example.COM:443/v1/", "https://api.example.com/v1"),
        ("https://api.example.com./a.b/c~d", "https://api.example.com/a.b/c~d"),
        ("https://xn--bcher-kva.example.com", "https://xn--bcher-kva.example.com"),
        (f"https://{PUBLIC}/x", f"https://{PUBLIC}/x"),
        (f"https://[{PUBLIC_IPV6}]", f"https://[{PUBLIC_IPV6}]"),
    ],
)
def test_public_addresses_are_registered_in_canonical_form(production: Settings, address: str, kept: str) -> None:
    url = base_urls.parse(address)
    base_urls.assert_public(url, production)
    assert str(url) == kept


@pytest.mark.parametrize(
    "address",
    [
        f"https://{SERVICE_S_OWN}", f"https://{SERVICE_S_OWN.upper()}/v1/proxy", f"https://{SERVICE_S_OWN}.",
        f"https://{SERVICE_S_OWN}:443/v1",
    ],
)  # fmt: skip
def test_the_services_own_address_is_not_registered(production: Settings, address: str) -> None:
    with pytest.raises(ValueError, match="this service itself"):
        base_urls.assert_public(base_urls.parse(address), production)


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:8000", "http://localhost:8000", "http://127.0.0.9:8000/x", "http://[::1]:8000",
        "http://0.0.0.0:8000", "http://[::ffff:127.0.0.1]:8000", "http://a.localhost:8000", "http://LOCALHOST.:8000",
    ],
)  # fmt: skip
def test_the_sandboxs_own_address_is_not_registered_under_any_name(address: str) -> None:
    sandbox = settings_for("sqlite://", base_url="", port=8000)
    with pytest.raises(ValueError, match="this service itself"):
        base_urls.assert_public(base_urls.parse(address), sandbox)
    base_urls.assert_public(base_urls.parse(address.replace(":8000", ":8001")), sandbox)


def test_a_name_with_a_private_address_is_not_connected_to(
    upstream: PublicUpstream, connects: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in (
        ["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["::1"], ["fd00::1"], ["::ffff:10.0.0.1"],
        ["64:ff9b::a00:1"], ["0.0.0.0"], ["100.64.0.1"], ["fe80::1%lo"],  # noqa: S104 - compared, not bound
        [PUBLIC, "10.0.0.1"], ["::1", PUBLIC], [PUBLIC_IPV6, "fd00::1"],
    ):  # fmt: skip
        resolving(monkeypatch, answer)
        failure = send(upstream, "https://api.example.com")
        assert (type(failure), failure.reason) == (Rejected, "address_not_allowed"), answer
    assert connects == []


def test_a_name_is_resolved_once_and_the_checked_address_is_used(
    upstream: PublicUpstream, connects: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = resolving(monkeypatch, [PUBLIC], ["127.0.0.1"])
    assert isinstance(send(upstream, "https://api.example.com"), Unreachable)
    assert (asked, connects) == (["api.example.com"], [(PUBLIC, 443)])
    # The next connection is checked again.
    assert isinstance(send(upstream, "https://api.example.com"), Rejected)
    assert connects == [(PUBLIC, 443)]


def test_no_proxy_of_the_environment_receives_a_call(
    upstream: PublicUpstream, connects: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with misbehaving_upstream() as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        resolving(monkeypatch, [PUBLIC])
        send(upstream, "https://api.example.com")
        assert connects == [(PUBLIC, 443)]
        assert proxy.connections == 0


@pytest.mark.parametrize(
    "origin",
    [
        "http://api.example.com", "https://api.example.com:8443", "https://api.example.com:80", "ftp://x.example.com",
        "https://user@api.example.com", "https://api.example.com/x", "https://api.example.com?x", "unix:///run/x", "",
    ],
)  # fmt: skip
def test_only_https_on_its_port_is_connected_to(
    upstream: PublicUpstream, connects: list[Any], monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    resolving(monkeypatch, [PUBLIC])
    assert isinstance(send(upstream, origin), Rejected)
    assert connects == []


@pytest.fixture
def outside(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Flask]:
    """An application as in production: services are on the public internet or nowhere."""
    app = build_app(sqlite_url, settings={"allow_private_upstreams": "0"})
    with app.app_context():
        yield app


def test_a_rebound_service_is_refused_without_its_address_and_without_charge(
    outside: Flask, connects: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = register(outside.test_client())
    made = agent.post("/v1/services", offer(base_url="https://api.example.com/v1"))
    assert made.status_code == 201
    for inside in ("10.1.2.3", "169.254.169.254", "127.0.0.1"):
        resolving(monkeypatch, [inside])
        answer = agent.get(f"/v1/proxy/{made.get_json()['id']}/latest/meta-data")
        assert (answer.status_code, answer.get_json()["code"]) == (502, "UPSTREAM_ERROR")
        assert inside not in answer.get_data(as_text=True)
    assert connects == []
    assert agent.get("/v1/balance").get_json() == {"credits_usd": 10.0, "owed_usd": 0.0, "total_spent": 0.0}


def test_registration_and_change_refuse_private_addresses(outside: Flask) -> None:
    agent = register(outside.test_client())
    made = agent.post("/v1/services", offer(base_url="https://api.example.com")).get_json()
    for address in ("http://api.example.com", "https://10.0.0.1", "https://2130706433", "https://localhost"):
        for answer in (
            agent.post("/v1/services", offer(base_url=address)),
            agent.put(f"/v1/services/{made['id']}", {"base_url": address}),
        ):
            assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT"), address
            assert "base_url" in answer.get_json()["details"]["fields"]
    assert agent.get(f"/v1/services/{made['id']}").get_json()["base_url"] == "https://api.example.com"
