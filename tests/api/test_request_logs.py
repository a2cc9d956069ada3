"""The log line of each request: whose it was and how it ended, without what identifies a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.support.agents import register
from tests.support.logs import written_logs


def logged(client: FlaskClient, path: str, key: str = "", address: str = "203.0.113.77") -> dict[str, Any]:
    headers = {"X-API-Key": key} if key else {}
    with written_logs() as lines:
        client.get(path, headers=headers, environ_overrides={"REMOTE_ADDR": address})
        [line] = [each for each in lines() if each["event"] == "request"]
    return line


def test_a_line_names_the_account_and_the_code(client: FlaskClient) -> None:
    agent = register(client)
    line = logged(client, "/v1/wallets", agent.key)
    assert (line["account_id"], line["code"], line["status"]) == (agent.id, "", 200)
    assert line["bytes"] > 2
    refused = logged(client, "/v1/wallets/00000000-0000-4000-8000-000000000000", agent.key)
    assert (refused["account_id"], refused["code"], refused["status"]) == (agent.id, "NOT_FOUND", 404)
    assert logged(client, "/v1/wallets")["code"] == "UNAUTHORIZED"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("203.0.113.77", "203.0.113.0"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
        ("unix:", ""),
    ],
)
def test_the_address_of_the_client_is_truncated(client: FlaskClient, address: str, shown: str) -> None:
    assert logged(client, "/v1/health", address=address)["client"] == shown


def test_a_client_behind_a_trusted_proxy_cannot_choose_its_own_address(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    client = build_app(sqlite_url, settings={"trusted_proxy_hops": 1}).test_client()
    with written_logs() as lines:
        client.get("/v1/health", headers={"X-Forwarded-For": "198.51.100.9, 203.0.113.77"})
        [line] = [each for each in lines() if each["event"] == "request"]
    assert line["client"] == "203.0.113.0"


def test_without_a_trusted_proxy_the_header_of_a_client_is_ignored(client: FlaskClient) -> None:
    with written_logs() as lines:
        client.get(
            "/v1/health", headers={"X-Forwarded-For": "198.51.100.9"}, environ_overrides={"REMOTE_ADDR": "203.0.113.77"}
        )
        [line] = [each for each in lines() if each["event"] == "request"]
    assert line["client"] == "203.0.113.0"
