"""CORS: preflights, readable responses and errors for allowed origins, and nothing for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask

from app.config import Settings
from tests.support.applications import settings_for
from tests.support.gateway import CHAT, QUESTION, SEARCH, Stage, gateway_stage
from tests.support.market import market

PAGE = "https://app.example.com"
OTHER = "https://evil.example"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-api-key,x-stainless-lang",
    "Access-Control-Request-Private-Network": "true",
}
_ALLOWED = "https://other.example, https://app.example.com"

BuildApp = Callable[..., Flask]


@pytest.fixture
def stage(build_app: BuildApp, sqlite_url: str) -> Iterator[Stage]:
    with gateway_stage(build_app, sqlite_url, cors_allowed_origins=_ALLOWED) as made:
        yield made


def cors_headers(answer: Any) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("Access-Control-")}


def test_a_preflight_needs_no_key_and_reaches_no_upstream(stage: Stage) -> None:
    client = stage.app.test_client()
    for path in (CHAT, "/v1/gateway/shopping/buy", "/v1/wallets/some-id/transfer", "/v1/agents/register"):
        answer = client.options(path, headers=PREFLIGHT)
        assert (answer.status_code, answer.data) == (204, b""), path
        methods = answer.headers["Access-Control-Allow-Methods"]
        assert {"POST", "OPTIONS"} <= set(methods.split(", "))
        assert cors_headers(answer) == {
            "Access-Control-Allow-Origin": PAGE,
            "Access-Control-Allow-Methods": methods,
            "Access-Control-Allow-Headers": "*, Authorization, MCP-Protocol-Version, Mcp-Method, Mcp-Name, "
            "Mcp-Session-Id",
            "Access-Control-Expose-Headers": "*",
            "Access-Control-Max-Age": "7200",
        }
        assert "Origin" in answer.headers["Vary"]
    assert stage.upstream.asked == []
    assert "DELETE" not in client.options("/v1/balance", headers=PREFLIGHT).headers["Allow"]
    assert client.options("/v1/nothing", headers=PREFLIGHT).status_code == 404


def test_a_page_of_an_allowed_origin_speaks_mcp_and_reads_where_to_sign_in(stage: Stage) -> None:
    client = stage.app.test_client()
    answer = client.options("/mcp", headers={**PREFLIGHT, "Access-Control-Request-Headers": "mcp-protocol-version"})
    assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (204, PAGE)
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "get_usage"}}
    refused = client.post("/mcp", json=message, headers={"Origin": PAGE})
    assert (refused.status_code, cors_headers(refused)["Access-Control-Expose-Headers"]) == (401, "*")
    for path in ("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"):
        assert cors_headers(client.get(path, headers={"Origin": PAGE}))["Access-Control-Allow-Origin"] == PAGE
        assert cors_headers(client.get(path, headers={"Origin": OTHER})) == {}


def test_a_preflight_of_a_sellers_service_is_neither_forwarded_nor_charged(
    build_app: BuildApp, sqlite_url: str
) -> None:
    with market(build_app, sqlite_url, cors_allowed_origins="*") as stage:
        answer = stage.call("/things/1", "OPTIONS", headers=PREFLIGHT)
        assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (204, "*")
        assert stage.upstream.asked == []
        stage.assert_charged(0)


def test_options_that_is_no_preflight_reaches_the_service_and_is_paid_for(build_app: BuildApp, sqlite_url: str) -> None:
    with market(build_app, sqlite_url, cors_allowed_origins="*") as stage:
        stage.behave(lambda exchange: exchange.json({"methods": ["GET"]}))
        for path in ("/things/1", ""):
            answer = stage.call(path, "OPTIONS", headers={"Origin": PAGE})
            assert (answer.status_code, answer.get_json()) == (200, {"methods": ["GET"]})
        assert [asked.method for asked in stage.upstream.asked] == ["OPTIONS", "OPTIONS"]
        stage.assert_charged(2)


def test_options_without_a_key_is_refused_as_any_other_call(build_app: BuildApp, sqlite_url: str) -> None:
    with market(build_app, sqlite_url) as stage:
        client = stage.app.test_client()
        for method in ("OPTIONS", "HEAD", "GET"):
            for path, status in (
                (f"/v1/proxy/{stage.id}/x", 401),
                (f"/v1/proxy/{stage.id}", 401),
                (f"/v1/x402/services/{stage.id}/x", 402),
                (f"/v1/x402/services/{stage.id}", 402),
                ("/v1/gateway/openai/chat/completions", 403),
            ):
                assert client.open(path, method=method).status_code == status, (method, path)
        assert stage.upstream.asked == []


def test_an_allowed_origin_reads_responses_and_errors(stage: Stage) -> None:
    client = stage.app.test_client()
    origin = {"Origin": PAGE}
    stage.behave(
        lambda exchange: exchange.json(
            {}, 200, ("Access-Control-Allow-Origin", "*"), ("Access-Control-Allow-Credentials", "true")
        )
    )
    answers = {
        200: stage.search(headers=origin),
        401: client.get("/v1/balance", headers=origin),
        402: client.post(CHAT, json=QUESTION, headers=origin),
        403: stage.call("/v1/gateway/openai/files", headers=origin),
        404: client.get("/v1/nothing", headers=origin),
        405: client.delete("/v1/health", headers=origin),
        413: client.post("/v1/agents/register", data=b" " * 1_100_000, headers=origin),
    }
    for status, answer in answers.items():
        assert answer.status_code == status
        assert cors_headers(answer) == {"Access-Control-Allow-Origin": PAGE, "Access-Control-Expose-Headers": "*"}
        assert "Origin" in answer.headers["Vary"]


def test_another_origin_reads_nothing(stage: Stage) -> None:
    client = stage.app.test_client()
    for origin in (OTHER, "null", f"{PAGE}.evil.example", PAGE.replace("https", "http"), f"{PAGE}:8443", "*"):
        for answer in (
            client.options(SEARCH, headers={**PREFLIGHT, "Origin": origin}),
            client.get(SEARCH, headers={"Origin": origin}),
        ):
            assert cors_headers(answer) == {}
            assert "Origin" in answer.headers["Vary"]  # a cache must not give this answer to the allowed page


def test_without_the_setting_options_is_answered_plainly(build_app: BuildApp, sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url) as stage:
        answer = stage.app.test_client().options(CHAT, headers=PREFLIGHT)
        assert answer.status_code == 204
        assert "POST" in answer.headers["Allow"]
        assert cors_headers(answer) == {}
        assert "Origin" not in answer.headers.get("Vary", "")
        assert stage.upstream.asked == []


def test_any_origin_may_be_allowed_but_not_for_owner_pages(build_app: BuildApp, sqlite_url: str) -> None:
    client = build_app(sqlite_url, settings={"cors_allowed_origins": "*"}).test_client()
    answer = client.get("/v1/health", headers={"Origin": OTHER})
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "Origin" not in answer.headers.get("Vary", "")
    for path in ("/device", "/owner", "/metrics", "/openapi.json", "/"):
        for method in ("GET", "OPTIONS"):
            assert cors_headers(client.open(path, method=method, headers=PREFLIGHT)) == {}, path


@pytest.mark.parametrize(
    "origins",
    [
        "https://app.example.com/",
        "https://app.example.com/path",
        "https://APP.example.com",
        "https://app.example.com:443",
        "http://app.example.com:80",
        "app.example.com",
        "https://*.example.com",
        "null",
        "*, null",
    ],
)
def test_an_origin_that_no_browser_sends_is_an_invalid_setting(origins: str) -> None:
    with pytest.raises(ValueError, match="CORS_ALLOWED_ORIGINS must be"):
        settings_for("sqlite://", cors_allowed_origins=origins)


def test_origins_of_all_forms_are_accepted() -> None:
    origins = ("https://a.example", "http://localhost:3000", "http://[::1]:8080", "chrome-extension://abcdef")
    settings: Settings = settings_for("sqlite://", cors_allowed_origins=" ,".join(origins))
    assert settings.cors_allowed_origins == origins
