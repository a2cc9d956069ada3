"""In maintenance, reads and operators go on; nothing changes for others, and no call costs credits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask

from tests.support.agents import register
from tests.support.operators import operator


@pytest.fixture
def service(sqlite_url: str, build_app: Callable[..., Flask]) -> tuple[Flask, Flask]:
    """Return two processes on one database: one before the maintenance, one in it."""
    return build_app(sqlite_url), build_app(sqlite_url, settings={"maintenance": "1"})


def test_only_reads_and_operators_go_on(service: tuple[Flask, Flask]) -> None:
    before, during = service
    agent = register(before.test_client())
    client, headers = during.test_client(), agent.headers()
    assert client.get(f"/v1/wallets/{agent.wallet_id}", headers=headers).status_code == 200
    assert client.get("/v1/balance", headers=headers).status_code == 200
    for method, path in (
        ("POST", "/v1/agents/register"),
        ("POST", f"/v1/wallets/{agent.wallet_id}/transfer"),
        ("DELETE", f"/v1/wallets/{agent.wallet_id}"),
        ("POST", "/v1/gateway/openai/chat/completions"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/gateway/brave/web/search?q=agents"),
        ("GET", "/v1/proxy/48f59f37-5df8-4013-b979-d4f29bc6b346/today"),
        ("GET", "/v1/x402/services/48f59f37-5df8-4013-b979-d4f29bc6b346"),
    ):
        answer = client.open(path, method=method, headers=headers, json=None if method == "GET" else {})
        assert (answer.status_code, answer.get_json()["code"]) == (503, "MAINTENANCE"), path
        assert answer.headers["Retry-After"] == "60"
    with during.app_context():
        ops = operator(client)
    assert ops.get("/agents").status_code == 200
    assert ops.post(f"/agents/{agent.id}/freeze", {}).status_code == 200


def test_tools_of_mcp_are_refused_as_the_requests_that_they_make(service: tuple[Flask, Flask]) -> None:
    before, during = service
    agent = register(before.test_client())

    def call(name: str, **arguments: object) -> str:
        message = {
            "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}
        }  # fmt: skip
        answer = during.test_client().post("/mcp", json=message, headers=agent.headers())
        assert answer.status_code == 200
        return answer.get_data(as_text=True)

    assert "MAINTENANCE" not in call("get_usage")
    call_of_provider = {"service": "brave", "path": "web/search?q=agents", "method": "GET"}
    assert "MAINTENANCE" in call("call_service", **call_of_provider)
