"""The sandbox has no real money and no limits: it is not exposed by accident, and no web page can read it."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from gunicorn.config import Config

from app.config import Settings
from app.core.ip_ranges import is_loopback
from app.web.client_request import is_allowed_host
from tests.support.applications import key_of, settings_for

ROOT = Path(__file__).resolve().parents[2]
SECRETS = {"SECRET_KEY": "s" * 32, "CODE_PEPPERS": key_of("p1"), "ENCRYPTION_KEYS": key_of("k1")}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.8.7", "::1", "localhost", "LOCALHOST"])
def test_loopback_hosts_are_recognized(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [None, "", "0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "2130706433"],  # noqa: S104 - compared, not bound
)
def test_other_hosts_are_not_loopback(host: str | None) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    "address", ["https://purser.example", "http://192.168.1.5:8000", "http://0.0.0.0", "purser.example"]
)
def test_a_sandbox_with_a_public_address_does_not_start(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    for name, value in {**SECRETS, "BASE_URL": address}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as refused:
        Settings.load()
    assert "\nNETWORK is sandbox, and BASE_URL is not a loopback address." in str(refused.value)
    assert "set NETWORK to testnet or mainnet, or SANDBOX_PUBLIC=1" in str(refused.value)
    monkeypatch.setenv("SANDBOX_PUBLIC", "1")
    assert Settings.load().public_url == address
    monkeypatch.delenv("SANDBOX_PUBLIC")
    monkeypatch.setenv("NETWORK", "testnet")
    assert Settings.load().public_url == address


@pytest.mark.parametrize("address", ["", "http://127.0.0.1:8000", "http://localhost:1", "http://[::1]:8000/x"])
def test_a_sandbox_of_this_machine_starts(address: str) -> None:
    assert settings_for("sqlite://", base_url=address, sandbox_public="0").is_sandbox


def gunicorn_settings(monkeypatch: pytest.MonkeyPatch, **environment: str) -> dict[str, Any]:
    for name in ("NETWORK", "SANDBOX_PUBLIC", "PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return runpy.run_path(str(ROOT / "gunicorn.conf.py"))


def start(settings: dict[str, Any], *binds: str) -> None:
    config = Config()
    config.set("bind", list(binds) or settings["bind"])
    settings["on_starting"](SimpleNamespace(cfg=config))


@pytest.mark.parametrize(
    ("environment", "bind"),
    [
        ({}, "127.0.0.1:8000"),
        ({"NETWORK": "sandbox", "PORT": "81"}, "127.0.0.1:81"),
        ({"NETWORK": "", "SANDBOX_PUBLIC": "0"}, "127.0.0.1:8000"),
        ({"SANDBOX_PUBLIC": "1"}, "0.0.0.0:8000"),
        ({"NETWORK": "mainnet", "PORT": "81"}, "0.0.0.0:81"),
    ],
)
def test_only_a_sandbox_listens_on_loopback_by_default(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], bind: str
) -> None:
    settings = gunicorn_settings(monkeypatch, **environment)
    assert settings["bind"] == bind
    start(settings)


@pytest.mark.parametrize("bind", ["0.0.0.0:8000", ":8000", "[::]:8000", "192.168.1.5:80"])
def test_a_sandbox_does_not_start_on_a_public_interface(monkeypatch: pytest.MonkeyPatch, bind: str) -> None:
    with pytest.raises(SystemExit, match="SANDBOX_PUBLIC=1"):
        start(gunicorn_settings(monkeypatch), "127.0.0.1:8000", bind)
    start(gunicorn_settings(monkeypatch, SANDBOX_PUBLIC="true"), bind)
    start(gunicorn_settings(monkeypatch, NETWORK="testnet"), bind)


def test_a_sandbox_behind_a_socket_or_on_loopback_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    start(gunicorn_settings(monkeypatch), "127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/purser.sock")


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "purser.test", "PURSER.test:99"]
)
def test_the_sandbox_serves_its_own_names(host: str) -> None:
    assert is_allowed_host(host, "purser.test")


@pytest.mark.parametrize(
    "host",
    ["rebind.example:18731", "localhost.example", "127.0.0.1.nip.example", "0.0.0.0:8000", "[::1", "a@purser.test.b",
     "127.0.0.1:18340.evil.com", "127.0.0.1:abc", "localhost:1:2", "evil.com@127.0.0.1", "127.0.0.1/evil.com",
     "purser.test:1.evil.com", "[::1]evil.com", "[::1]:1.evil.com", "127.0.0.1 evil.com", "127.0.0.1:٣"],
)  # fmt: skip
def test_the_sandbox_serves_no_other_names(host: str) -> None:
    assert not is_allowed_host(host, "purser.test")
    assert not is_allowed_host(host, None)


def test_dns_rebinding_reads_nothing_from_the_sandbox(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    client = build_app(sqlite_url).test_client()
    elsewhere = {"Host": "rebind.attacker.example:18731"}
    for path in (
        "/v1/health",
        "/metrics",
        "/",
        "/openapi.json",
        "/v1/proxy/x/y",
        "/v1/x402/services/x/y",
        "/v1/gateway/openai/x",
        "/nowhere",
    ):
        answer = client.open(path, method="POST" if path.startswith("/v1/g") else "GET", headers=elsewhere)
        assert (answer.status_code, answer.get_json()["code"]) == (403, "ROUTE_NOT_ALLOWED")
        assert "BASE_URL" in answer.get_json()["error"]
        assert "attacker" not in answer.text
    for page in ("/device", "/owner"):
        assert client.get(page, headers=elsewhere).status_code == 403
    assert client.get("/openapi.json").status_code == 200


def test_outside_the_sandbox_any_host_is_served(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url, settings={"network": "testnet"})
    assert app.test_client().get("/openapi.json", headers={"Host": "elsewhere.example"}).status_code == 200
