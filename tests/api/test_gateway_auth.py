"""Authorization and validation of gateway calls, and the order of the checks."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from backports import zstd
from flask import Flask

from app.gateway.schemas import ProviderShape
from tests.support.agents import register
from tests.support.gateway import CHAT, KEYS, QUESTION, Stage, gateway_stage, provider_settings
from tests.support.provider_rows import FORM, form_of
from tests.support.upstreams import chat_answer, misbehaving_upstream

WRONG_KEY = {"X-API-Key": "ak_wrong"}


@pytest.fixture
def stage(sqlite_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    with gateway_stage(build_app, sqlite_url, exa_api_key="", web_threads=2) as made:
        yield made


def test_checks_run_in_the_documented_order(stage: Stage) -> None:
    def code(path: str, method: str = "GET", **request: Any) -> str:
        answer = stage.call(path, method, **request)
        found: str = answer.get_json()["code"]
        return found

    assert code("/v1/gateway/unknown/x", headers=WRONG_KEY) == "NOT_FOUND"
    assert code("/v1/gateway/exa/x//y", headers=WRONG_KEY) == "UNAUTHORIZED"
    assert code("/v1/gateway/exa/websets") == "PROVIDER_NOT_CONFIGURED"
    assert code("/v1/gateway/openai/files", "POST", data=b"{") == "ROUTE_NOT_ALLOWED"
    assert code("/v1/gateway/openai/chat/completions", "POST", data=b"{") == "INVALID_INPUT"
    dear = {**QUESTION, "model": "o1-pro", "max_tokens": 100_000}
    assert code("/v1/gateway/openai/chat/completions", "POST", json=dear) == "INVALID_INPUT"
    refused = stage.call("/v1/gateway/openai/chat/completions", "POST", json=dear).get_json()["details"]
    assert refused["fields"] == {"max_tokens": [f"must be at most {refused['affordable_max_tokens']}"]}
    assert stage.upstream.asked == []
    stage.assert_all_agree()


def test_a_gateway_only_key_pays_with_its_own_credits(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json(chat_answer()))
    key = stage.agent.client.post("/v1/keys", json={}).get_json()["api_key"]
    answer = stage.chat(headers={"X-API-Key": key})
    assert answer.headers["X-Credits-Remaining"] == "9.99375"
    assert stage.spent_nanos() == 0


def test_routes_and_fields_outside_the_allowlist_are_refused_however_the_call_is_paid(stage: Stage) -> None:
    stored = {"model": "gpt-5", "input": "x", "previous_response_id": "resp_1"}
    for path, method, body in (
        ("openai/files", "GET", None),
        ("openai/agents/sessions", "POST", {}),
        ("gemini/$rpc/google.ai.generativelanguage.v1beta.FileService/ListFiles", "POST", {}),
        ("openai/responses", "POST", stored),
    ):
        for headers in ({}, {"X-API-Key": ""}, {"X-API-Key": "", "X-Payment": "0x" + "1" * 64}):
            answer = stage.call(f"/v1/gateway/{path}", method, json=body, headers=headers)
            assert (answer.status_code, answer.get_json()["code"]) == (403, "ROUTE_NOT_ALLOWED")
            assert "X-Payment-Required" not in answer.headers
    assert stage.upstream.asked == []
    allowed = stage.call("/v1/gateway/openai/files").get_json()["details"]["allowed"]
    assert "POST chat/completions" in allowed


def test_an_anonymous_client_is_not_asked_to_pay_for_a_request_that_would_be_refused(stage: Stage) -> None:
    def ask(path: str, method: str = "POST", **request: Any) -> tuple[int, str]:
        answer = stage.agent.client.open(f"/v1/gateway/{path}", method=method, **request)
        return answer.status_code, answer.get_json()["code"]

    assert ask("brave/web/search?q=x", "GET") == (402, "PAYMENT_REQUIRED")
    # A request without a body asks for the terms.
    assert ask("openai/chat/completions") == (402, "PAYMENT_REQUIRED")
    assert ask("alchemy/base") == (402, "PAYMENT_REQUIRED")
    # The specification has 402 for every provider without a key; this one is not configured.
    assert ask("exa/search", json={"query": "x"}) == (402, "PAYMENT_REQUIRED")
    assert ask("exa/agent/runs", json={"query": "x"}) == (403, "ROUTE_NOT_ALLOWED")
    assert ask("openai/chat/completions", data=b"{") == (400, "INVALID_INPUT")
    assert ask("openai/chat/completions", json={"model": "o1-pro", "max_tokens": 10**6}) == (400, "INVALID_INPUT")
    assert ask("openai/chat/completions", data=b'{"x":"' + b"a" * 2**23 + b'"}') == (413, "PAYLOAD_TOO_LARGE")
    assert ask("alchemy/base", json={"method": "debug_traceCall"}) == (403, "ROUTE_NOT_ALLOWED")
    assert ask("alchemy/base", json={"METHOD": "debug_traceCall"}) == (400, "INVALID_INPUT")


def test_arguments_of_a_clients_own_tool_may_have_any_name(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json(chat_answer()))
    schema = {"type": "object", "properties": {"file_id": {"type": "string"}, "background": {"type": "boolean"}}}
    tool = {"type": "function", "function": {"name": "open", "parameters": schema}}
    assert stage.chat(tools=[tool], background=False, previous_response_id=None).status_code == 200


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstd.compress)])
def test_a_compressed_body_is_priced_and_forwarded_decoded(
    stage: Stage, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    stage.behave(lambda exchange: exchange.json(chat_answer()))
    body = json.dumps(QUESTION).encode()
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    answer = stage.call(CHAT, "POST", data=compress(body), headers=headers)
    assert (answer.status_code, answer.headers["X-Cost-Usd"]) == (200, stage.chat().headers["X-Cost-Usd"])
    assert stage.upstream.asked[0].body == body
    assert stage.upstream.asked[0].header("content-encoding") is None


def test_bodies_without_a_key_have_a_lower_limit(stage: Stage) -> None:
    def refusal(**more: object) -> str:
        headers = {"X-Payment": "0x" + "12" * 32}
        return stage.agent.client.post(CHAT, json={**QUESTION, **more}, headers=headers).text

    assert "at most 262144 bytes" in refusal(x="a" * 256 * 1024)
    assert "more than 20000 names and values" in refusal(x=[0] * 20_001)
    stage.behave(lambda exchange: exchange.json(chat_answer()))
    assert stage.chat(x=[0] * 20_001).status_code == 200


def test_anonymous_clients_are_rate_limited_before_the_body_is_read(
    sqlite_url: str, build_app: Callable[..., Flask]
) -> None:
    with gateway_stage(build_app, sqlite_url, keyless_rate_limit="3 per minute") as stage:
        stage.behave(lambda exchange: exchange.json(chat_answer()))
        client = stage.agent.client
        assert [client.post(CHAT, json=QUESTION).status_code for _ in range(3)] == [402] * 3

        class Unread:
            def read(self, *_sizes: object) -> bytes:
                raise AssertionError("the body of a refused request was read")

        for path in (CHAT, "/v1/device/claim", "/v1/gateway/shopping/buy"):
            hostile = {"wsgi.input": Unread(), "wsgi.input_terminated": True}
            answer = client.post(path, environ_overrides=hostile, headers={"X-Payment": "0x" + "12" * 32})
            assert (answer.status_code, answer.get_json()["code"]) == (429, "RATE_LIMITED"), path
            assert int(answer.headers["Retry-After"]) > 0
        # Neighbours behind one address do not keep an owner out; the pages have a count of their own.
        assert client.post("/owner/sign-in").status_code == 400
        for _ in range(2):
            client.post("/owner/sign-in")
        for page in ("/device", "/device/claim", "/owner/sign-in"):
            assert client.post(page, environ_overrides=hostile).status_code == 429, page
        assert stage.chat().status_code == 200
        assert client.post(CHAT, json=QUESTION, environ_overrides={"REMOTE_ADDR": "203.0.113.9"}).status_code == 402


def test_a_body_is_read_up_to_its_limit(stage: Stage) -> None:
    large = b'{"x": "' + b"a" * (32 * 2**20) + b'"}'
    answer = stage.call("/v1/gateway/brave/web/search", "POST", data=large)
    assert (answer.status_code, answer.get_json()["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert "at most 33554432 bytes" in answer.text
    answer = stage.call("/v1/gateway/brave/web/search", "POST", data=b"x", headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    stage.assert_all_agree()


def test_a_large_body_is_forwarded_byte_for_byte(stage: Stage) -> None:
    body = b' {"q": "' + b"a" * 2**21 + b'",\n "n":1.50}'
    assert stage.call("/v1/gateway/brave/web/search", "POST", data=body, content_type="text/plain").status_code == 200
    asked = stage.upstream.asked[0]
    assert (asked.body, asked.header("content-type")) == (body, "application/json")


def test_a_form_with_a_recording_is_forwarded_byte_for_byte(stage: Stage) -> None:
    form = form_of(("model", b"whisper-1"), ('file; filename="a.mp3"', bytes(range(256))))
    path = "/v1/gateway/openai/audio/transcriptions"
    assert stage.call(path, "POST", data=form, content_type=FORM).status_code == 200
    asked = stage.upstream.asked[0]
    assert (asked.body, asked.header("content-type")) == (form, FORM)
    assert stage.call(path, "POST", json={"model": "whisper-1"}).status_code == 400


def test_insufficient_credits_state_what_is_affordable(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url, initial_credits_usd="0.01") as stage:
        answer = stage.chat(messages=[{"role": "user", "content": "x" * 40_000}])
        assert (answer.status_code, answer.get_json()["code"]) == (402, "INSUFFICIENT_CREDITS")
        assert answer.get_json()["details"]["affordable_max_tokens"] == 0
        stage.behave(lambda exchange: exchange.json(chat_answer()))
        # Less than the worst case is left: all of it is held.
        assert stage.chat(max_tokens=100_000).status_code == 200
    with gateway_stage(build_app, sqlite_url, initial_credits_usd="0") as stage:
        for answer in (stage.chat(), stage.search(), stage.call("/v1/gateway/openai/models")):
            assert (answer.status_code, answer.get_json()["code"]) == (402, "INSUFFICIENT_CREDITS")
        assert stage.upstream.asked == []


def test_a_free_model_requires_an_account_with_credits(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url, initial_credits_usd="0") as stage:
        for slug in ("openrouter", "openai", "groq"):
            body = {"model": "meta/llama-3:free", "messages": []}
            answer = stage.call(f"/v1/gateway/{slug}/chat/completions", "POST", json=body)
            assert (answer.status_code, answer.get_json()["code"]) == (402, "INSUFFICIENT_CREDITS")
        assert stage.upstream.asked == []


def test_calls_beyond_the_concurrency_limit_are_refused_with_retry_after(stage: Stage) -> None:
    def hold(exchange: Any) -> None:
        exchange.start_stream()
        exchange.wait_for("another call")
        exchange.end_stream()

    stage.behave(hold)
    with stage.stream():
        answer = stage.search()
        assert (answer.status_code, answer.get_json()["code"]) == (503, "OVERLOADED")
        assert int(answer.headers["Retry-After"]) >= 1
        assert stage.agent.get("/v1/balance").status_code == 200
        stage.upstream.open("another call")
    stage.behave(lambda exchange: exchange.json({}))
    assert stage.search().status_code == 200
    stage.assert_nothing_held()


def test_the_provider_list_shows_prices_and_no_secrets(stage: Stage) -> None:
    listed = stage.agent.client.get("/v1/providers")
    rows = {row["slug"]: row for row in listed.get_json()["providers"]}
    assert set(rows) == {*KEYS, "shopping"}
    assert all(set(row) == set(ProviderShape().fields) for row in rows.values())
    assert not any(key in listed.text for key in KEYS.values())
    assert stage.upstream.url not in listed.text
    assert rows["exa"]["configured"] is False
    assert rows["gemini"]["aliases"] == ["google", "llm_provider_3"]
    assert rows["brave"]["pricing"]["prices"]["GET llm/context"] == 0.005
    assert rows["exa"]["pricing"]["model"] == "reported"
    assert rows["openai"]["pricing"]["model"] == "per_token"
    assert "base" in rows["alchemy"]["chains"]
    assert rows["openai"]["x402_price_usd"] == 0.01


FILE = """
[providers.mistral]
kind = "language-model"
base_url = "{url}/mistral/v1"
api_key = "mistral-key"
credential = {{header = "Authorization", value = "Bearer {{key}}"}}
dialect = "openai"
price = {{type = "tokens", table = "mistral"}}
aliases = ["le_chat"]
routes = {{"POST chat/completions" = "chat", "POST ocr" = "0.1"}}

[providers.brave.routes]
"GET web/search" = "0.25"
"GET rich/{{id}}" = "0.1"
"GET local/{{pois|descriptions}}" = false

[providers.alchemy.methods]
"debug_trace{{Name}}" = "0.005"
"""


def test_a_file_adds_providers_and_overrides_fields(
    build_app: Callable[..., Flask], sqlite_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "providers.toml"
    with gateway_stage(build_app, sqlite_url) as stage:
        path.write_text(FILE.format(url=stage.upstream.url))
        settings = provider_settings(stage.upstream.url, gateway_providers_file=str(path))
        app = build_app(sqlite_url, settings=settings)
        with app.app_context():
            agent = register(app.test_client())
            stage.behave(lambda exchange: exchange.json(chat_answer("mistral-large-2512")))
            body = {"model": "mistral-large-2512", "messages": []}
            assert agent.post("/v1/gateway/le_chat/chat/completions", body).status_code == 200
            asked = stage.upstream.asked[-1]
            assert (asked.target, asked.header("authorization")) == (
                "/mistral/v1/chat/completions", "Bearer mistral-key",
            )  # fmt: skip
            assert agent.get("/v1/gateway/brave/web/search").headers["X-Cost-Usd"] == "0.25"
            assert agent.get("/v1/gateway/brave/rich/1").headers["X-Cost-Usd"] == "0.1"
            assert agent.get("/v1/gateway/brave/local/pois").status_code == 403
            assert agent.post("/v1/gateway/le_chat/ocr", {}).headers["X-Cost-Usd"] == "0.1"
            assert agent.post("/v1/gateway/le_chat/files", {}).status_code == 403
            traced = agent.post("/v1/gateway/alchemy/base", rpc("debug_traceCall"))
            assert traced.headers["X-Cost-Usd"] == "0.005"


def test_each_mistake_in_the_file_is_reported_in_one_line(
    build_app: Callable[..., Flask], sqlite_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "providers.toml"
    path.write_text(
        '[providers.new]\nkind = "tea"\nprice = {type = "fixed", usd = "5"}\ndenied_routes = ["("]\ntaste = 1\n'
        '[providers.new.routes]\n"GET a//b" = "1"\n"GET x" = 5\n"FETCH x" = "1"\n"POST c" = "chat"\n"POST d" = "tea"\n'
        '"POST e" = {price = "1", body = "xml"}\n'
        '[providers.shopping]\nbase_url = "https://x.example"\nroutes = {"GET x" = "1"}\n'
        '[providers.other]\nbase_url = "ftp://x"\naliases = ["openai"]\nmethods = {"a b" = "1"}\nlimits = {n = "1"}\n'
        '[providers.exa]\napi_key = "secret-in-the-file"\naliases = ["groq"]\ndenied_fields = ["x"]\n'
        '[providers.empty]\nbase_url = "https://x.example"\n'
    )
    with pytest.raises(SystemExit) as stopped:
        build_app(sqlite_url, settings={"gateway_providers_file": str(path)})
    lines = str(stopped.value).splitlines()[1:]
    for start in (
        "providers.new.kind: ", "providers.new.price.type: ", "providers.new.denied_routes: is unknown; known are",
        "providers.new.taste: ", "providers.new.base_url: is missing", "providers.new.routes.'GET a//b': ",
        "providers.new.routes.'GET x': ", "providers.new.routes.'FETCH x': ",
        "providers.new.routes.'POST c': chat needs",
        "providers.new.routes.'POST d': ", "providers.new.routes.'POST e': ", "providers.shopping: ",
        "providers.other.base_url: ", "providers.other.methods.'a b': ", "providers.other.limits.n: ",
        "providers.exa.denied_fields: is unknown", "providers.empty.routes: is missing",
    ):  # fmt: skip
        assert [line for line in lines if line.startswith(start)], (start, lines)
    assert "secret-in-the-file" not in str(stopped.value)


GEMINI = "/v1/gateway/gemini/v1beta/models/gemini-2.5-pro:generateContent"


def test_a_parameter_that_removes_the_usage_from_a_response_is_refused(stage: Stage) -> None:
    answer = stage.call(f"{GEMINI}?$fields=candidates", "POST", json={"contents": []})
    assert (answer.status_code, answer.get_json()["code"]) == (403, "ROUTE_NOT_ALLOWED")
    assert "alt=json|sse" in answer.get_json()["details"]["allowed"]
    assert stage.upstream.asked == []
    assert stage.call(f"{GEMINI}?alt=sse&prettyPrint=false", "POST", json={"contents": []}).status_code == 200


def rpc(method: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": []}


def test_methods_outside_the_allowlist_reach_no_node(
    build_app: Callable[..., Flask], sqlite_url: str, stage: Stage
) -> None:
    with misbehaving_upstream() as chain:
        app = build_app(sqlite_url, settings={"alchemy_api_key": "", "base_rpc_url": chain.url})
        with app.app_context():
            for upstream, agent in ((chain, register(app.test_client())), (stage.upstream, stage.agent)):
                path = "/v1/gateway/alchemy/base"
                for method in ("anvil_setBalance", "sandbox_setBalance", "requestAirdrop", "eth_sign", "ETH_CALL", ""):
                    for body in (rpc(method), [rpc("eth_call"), rpc(method)]):
                        answer = agent.post(path, body)
                        assert (answer.status_code, answer.get_json()["code"]) == (403, "ROUTE_NOT_ALLOWED")
                for body in ([[rpc("eth_call")]], [], {"METHOD": "eth_call"}):
                    assert agent.post(path, body).status_code == 400
                assert upstream.asked == []
                for body in (rpc("eth_call"), [rpc("eth_getBalance"), rpc("sendTransaction")]):
                    assert agent.post(path, body).status_code == 200


def test_settings_that_look_like_references_are_accepted(stage: Stage) -> None:
    picture = {"model": "gpt-image-1", "prompt": "a cat", "background": "transparent"}
    assert stage.call("/v1/gateway/openai/images/generations", "POST", json=picture).status_code == 200
    item = {"type": "message", "id": "msg_1", "role": "user", "content": "Hello"}
    turn = {"model": "gpt-5", "input": [item], "background": False}
    assert stage.call("/v1/gateway/openai/responses", "POST", json=turn).status_code == 200
    shared = {"contents": [{"parts": [{"fileData": {"fileUri": "HTTPS://www.youtube.com/watch?v=1"}}]}]}
    assert stage.call(GEMINI, "POST", json=shared).status_code == 200


def test_a_conversation_with_thousands_of_images_is_refused_immediately(stage: Stage) -> None:
    for count in (4_001, 50_001):
        part = {"type": "image_url"} if count < 10_000 else {"type": "text"}
        answer = stage.chat(messages=[{"role": "user", "content": [part] * count}])
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert stage.upstream.asked == []


def test_the_size_of_requests_billed_by_size_is_bounded(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url) as stage:
        for path, body in (
            ("search", {"query": "x", "numResults": 101}),
            ("search", {"query": "x", "numResults": 1e2}),
            ("search", {"query": "x", "contents": {"subpages": 5}}),
            ("contents", {"urls": ["https://a.example"] * 101}),
            ("contents", {"ids": ["a"] * 101}),
        ):
            assert stage.call(f"/v1/gateway/exa/{path}", "POST", json=body).status_code == 400
        assert stage.upstream.asked == []
        for path, body in (("search", {"query": "x", "numResults": 10}), ("contents", {"urls": ["https://a.example"]})):
            assert stage.call(f"/v1/gateway/exa/{path}", "POST", json=body).status_code == 200
