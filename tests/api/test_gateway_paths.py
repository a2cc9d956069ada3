"""Paths: every byte of an honest one arrives, and no dishonest one leaves the provider's base."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import unquote_to_bytes

import pytest
from flask import Flask
from werkzeug.test import EnvironBuilder, TestResponse, run_wsgi_app

from tests.support.gateway import Stage, gateway_stage

HONEST = [
    "web/search?q=a%20b+c&country=DE",
    "web/search?q=%2e%2e%2f&x=//&y=http://z/",
    "models/openai%2Fgpt-5/endpoints",
    "a%2fb%2Fc",
    "with%20space/%E2%82%AC",
    "trailing/",
    "colon:generate",
    "semi;colon=1",
    "tilde~and.dots...and-..a",
    "...",
    "empty-query?",
    "plus+and%2Bplus",
    "?only=query",
    "",
    "braces{}|^`",
]
DISHONEST = [
    "..", "../", ".", "./x", "a/../../b", "a/..", "a/./b",
    "%2e%2e/secret", "%2E%2E/secret", ".%2e/secret", "%2e./secret", "a/%2e%2e%2fsecret", "..%2fsecret",
    "%252e%252e/secret", "%25252e%25252e/secret", "..;/secret", "..;x=1/secret", "%2e%2e;/secret",
    "..\\secret", "..%5csecret", "a\\b", "a%5cb", "%255c",
    "//evil.example/", "a//b", "a///", "http://evil.example/", "https:%2f%2fevil.example//",
    "a%00b", "a%0d%0aHost:%20evil", "a%0ab", "a%09b", "a%7fb", "a%2500",
    "%c0%ae%c0%ae/secret", "%c0%af", "%ff", "a%zz", "a%", "a%2",
    "%EF%BC%8E%EF%BC%8E/secret", "..%EF%BC%8Fsecret", "%E2%80%A4%E2%80%A4/secret",
    "a#b", "..#", "%20../x", "../%20",
]  # fmt: skip


@pytest.fixture
def stage(sqlite_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    with gateway_stage(build_app, sqlite_url) as made:
        yield made


def raw(stage: Stage, line: str) -> TestResponse:
    """Ask with this very request line, as a server hands it on."""
    builder = EnvironBuilder("/", headers={"X-API-Key": stage.agent.key})
    path, _, query = line.partition("?")
    path = path.removeprefix("http://purser.test")
    environ = {
        **builder.get_environ(), "PATH_INFO": unquote_to_bytes(path).decode("latin-1"), "QUERY_STRING": query,
        "RAW_URI": line, "REQUEST_URI": line,
    }  # fmt: skip
    return TestResponse(*run_wsgi_app(stage.app.wsgi_app, environ), request=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("rest", HONEST)
def test_an_honest_path_arrives_byte_for_byte(stage: Stage, rest: str) -> None:
    assert raw(stage, f"/v1/gateway/brave/{rest}").status_code == 200
    (asked,) = stage.upstream.asked
    expected = f"/res/v1/{rest}" if not rest.startswith("?") and rest else f"/res/v1{rest}"
    assert asked.target == expected.removesuffix("?")


@pytest.mark.parametrize("rest", DISHONEST)
def test_a_dishonest_path_is_refused_and_reaches_nobody(stage: Stage, rest: str) -> None:
    answer = raw(stage, f"/v1/gateway/brave/{rest}")
    assert answer.status_code in (400, 404), answer.text
    assert stage.upstream.asked == []
    assert stage.spent_nanos() == 0


@pytest.mark.parametrize(
    "line",
    [
        "//v1/gateway/brave/x",
        "/v1//gateway/brave/x",
        "/v1/gateway//brave/x",
        "/v1/gateway/%62rave/x",
        "/v1/gateway/brave%2fx",
        "/v1/../v1/gateway/brave/x",
        "/x/../v1/gateway/brave/x",
    ],
)
def test_a_disguised_prefix_reaches_nobody(stage: Stage, line: str) -> None:
    assert raw(stage, line).status_code in (400, 404)
    assert stage.upstream.asked == []


def test_a_request_line_with_a_whole_address_is_read_as_its_path(stage: Stage) -> None:
    assert raw(stage, "http://purser.test/v1/gateway/brave/web/search?q=1").status_code == 200
    assert stage.upstream.asked[0].target == "/res/v1/web/search?q=1"


def test_letters_beyond_ascii_go_out_as_escapes(stage: Stage) -> None:
    assert raw(stage, "/v1/gateway/brave/web/search?q=\u00e4".encode().decode("latin-1")).status_code == 200
    assert stage.upstream.asked[0].target == "/res/v1/web/search?q=%C3%A4"


@pytest.mark.parametrize("path", ["chat/completions", "v1/chat/completions"])
def test_a_base_with_and_without_its_version_leads_to_the_same_place(stage: Stage, path: str) -> None:
    body = {"model": "gpt-5", "messages": [], "max_tokens": 5}
    for slug, target in [
        ("openai", "/v1/chat/completions"),
        ("llm_provider_1", "/v1/chat/completions"),
        ("openrouter", "/api/v1/chat/completions"),
        ("groq", "/openai/v1/chat/completions"),
    ]:
        answer = stage.call(f"/v1/gateway/{slug}/{path}", "POST", json=body)
        assert answer.status_code == 200, answer.text
        assert stage.upstream.asked[-1].target == target


@pytest.mark.parametrize(
    "method",
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY", "SEARCH", "PROPFIND", "PURGE"],
)
def test_any_method_is_forwarded(stage: Stage, method: str) -> None:
    assert stage.call("/v1/gateway/brave/anything", method).status_code == 200
    assert stage.upstream.asked[0].method == method


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "FOO"])
def test_a_method_that_repeats_our_credential_tunnels_or_means_nothing_is_not_forwarded(
    stage: Stage, method: str
) -> None:
    assert stage.call("/v1/gateway/brave/anything", method).status_code == 405
    assert stage.upstream.asked == []


def test_a_chain_is_a_word_of_a_fixed_list_and_never_part_of_a_host(stage: Stage) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}
    for segment, network in [("base", "base-mainnet"), ("eth-mainnet", "eth-mainnet"), ("OP", "opt-mainnet")]:
        assert stage.call(f"/v1/gateway/alchemy/{segment}", "POST", json=call).status_code == 200
        assert stage.upstream.asked[-1].target == f"/v2/{network}/operator-alchemy"
    count = len(stage.upstream.asked)
    for segment in ("evil.example", "base%2f..", "base.evil", "", "dogecoin", "%23"):
        assert stage.call(f"/v1/gateway/alchemy/{segment}", "POST", json=call).status_code == 400
    assert stage.call("/v1/gateway/alchemy/base/nft", "POST", json=call).status_code == 404
    assert len(stage.upstream.asked) == count
