"""Paths and methods: what is listed is forwarded as matched, and nothing escapes the provider's base URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import unquote_to_bytes

import pytest
from flask import Flask
from werkzeug.test import EnvironBuilder, TestResponse, run_wsgi_app

from tests.support.gateway import Stage, gateway_stage

QUERIES = ["q=a%20b+c&country=DE", "q=%2e%2e%2f&x=//&y=http://z/", "", "only=query", "a=1;b=2"]


@pytest.fixture
def stage(sqlite_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    with gateway_stage(build_app, sqlite_url) as made:
        yield made


def raw(stage: Stage, line: str) -> TestResponse:
    """Send a request with exactly this target, as a server passes it on."""
    builder = EnvironBuilder("/", headers={"X-API-Key": stage.agent.key})
    path, _, query = line.partition("?")
    path = path.removeprefix("http://purser.test")
    environ = {
        **builder.get_environ(), "PATH_INFO": unquote_to_bytes(path).decode("latin-1"), "QUERY_STRING": query,
        "RAW_URI": line, "REQUEST_URI": line,
    }  # fmt: skip
    return TestResponse(*run_wsgi_app(stage.app.wsgi_app, environ), request=None)  # type: ignore[arg-type]


def test_a_query_is_forwarded_byte_for_byte_after_the_matched_path(stage: Stage) -> None:
    for query in QUERIES:
        assert raw(stage, f"/v1/gateway/brave/w%65b%2Fsearch?{query}").status_code == 200
        assert stage.upstream.asked[-1].target == f"/res/v1/web/search?{query}".removesuffix("?")


def test_a_path_above_the_base_url_is_refused(stage: Stage) -> None:
    for rest in ("../x", "%2e%2e/secret"):
        answer = raw(stage, f"/v1/gateway/brave/{rest}")
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert stage.upstream.asked == []
    assert stage.spent_nanos() == 0


def test_a_disguised_prefix_is_not_forwarded(stage: Stage) -> None:
    for line in (
        "//v1/gateway/brave/x",
        "/v1//gateway/brave/x",
        "/v1/gateway//brave/x",
        "/v1/gateway/%62rave/x",
        "/v1/gateway/brave%2fx",
        "/v1/../v1/gateway/brave/x",
        "/x/../v1/gateway/brave/x",
    ):
        assert raw(stage, line).status_code == 404, line
    assert stage.upstream.asked == []


def test_an_absolute_request_target_is_read_as_its_path(stage: Stage) -> None:
    assert raw(stage, "http://purser.test/v1/gateway/brave/web/search?q=1").status_code == 200
    assert stage.upstream.asked[0].target == "/res/v1/web/search?q=1"


def test_non_ascii_characters_are_percent_encoded(stage: Stage) -> None:
    assert raw(stage, "/v1/gateway/brave/web/search?q=\u00e4".encode().decode("latin-1")).status_code == 200
    assert stage.upstream.asked[0].target == "/res/v1/web/search?q=%C3%A4"


@pytest.mark.parametrize("path", ["chat/completions", "v1/chat/completions"])
def test_a_base_url_works_with_and_without_its_version(stage: Stage, path: str) -> None:
    body = {"model": "gpt-5", "messages": []}
    for slug, target in [
        ("openai", "/v1/chat/completions"),
        ("llm_provider_1", "/v1/chat/completions"),
        ("openrouter", "/api/v1/chat/completions"),
        ("groq", "/openai/v1/chat/completions"),
    ]:
        answer = stage.call(f"/v1/gateway/{slug}/{path}", "POST", json=body)
        assert answer.status_code == 200, answer.text
        assert stage.upstream.asked[-1].target == target


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "QUERY", "PROPFIND", "PURGE"])
def test_a_method_that_the_route_does_not_list_is_refused(stage: Stage, method: str) -> None:
    answer = stage.call("/v1/gateway/brave/web/search?q=x", method)
    assert (answer.status_code, answer.get_json()["code"]) == (403, "ROUTE_NOT_ALLOWED")
    assert "GET local/{pois|descriptions}" in answer.get_json()["details"]["allowed"]
    assert stage.upstream.asked == []


def test_a_head_request_is_routed_like_a_get(stage: Stage) -> None:
    assert stage.call("/v1/gateway/brave/web/search?q=x", "HEAD").status_code == 200
    assert stage.upstream.asked[0].method == "HEAD"


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "FOO"])
def test_trace_connect_and_unknown_methods_are_not_forwarded(stage: Stage, method: str) -> None:
    assert stage.call("/v1/gateway/brave/anything", method).status_code == 405
    assert stage.upstream.asked == []


def test_a_path_that_repeats_the_providers_base_is_accepted(stage: Stage) -> None:
    # Groq's package appends openai/v1 to its base URL.
    body = {"model": "llama-3.3-70b-versatile", "messages": []}
    for path, target in [
        ("groq/openai/v1/chat/completions", "/openai/v1/chat/completions"),
        ("openrouter/api/v1/chat/completions", "/api/v1/chat/completions"),
    ]:
        assert stage.call(f"/v1/gateway/{path}", "POST", json=body).status_code == 200
        assert stage.upstream.asked[-1].target == target


def test_a_chain_name_cannot_change_the_host(stage: Stage) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}
    for segment, network in [("base", "base-mainnet"), ("eth-mainnet", "eth-mainnet"), ("OP/", "opt-mainnet")]:
        assert stage.call(f"/v1/gateway/alchemy/{segment}", "POST", json=call).status_code == 200
        assert stage.upstream.asked[-1].target == f"/v2/{network}/operator-alchemy"
    count = len(stage.upstream.asked)
    for segment in ("evil.example", "base%2f..", "base.evil", "", "dogecoin", "%23"):
        assert stage.call(f"/v1/gateway/alchemy/{segment}", "POST", json=call).status_code == 400
    assert stage.call("/v1/gateway/alchemy/base/nft", "POST", json=call).status_code == 403
    assert len(stage.upstream.asked) == count
