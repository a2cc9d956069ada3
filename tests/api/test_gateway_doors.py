"""Who gets through the gateway's doors, in which order they are checked, and what is refused behind them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from tests.support.agents import register
from tests.support.gateway import KEYS, QUESTION, Stage, gateway_stage, provider_settings
from tests.support.upstreams import chat_answer, misbehaving_upstream

WRONG_KEY = {"X-API-Key": "ak_wrong"}


@pytest.fixture
def stage(sqlite_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    with gateway_stage(build_app, sqlite_url, exa_api_key="", web_threads=2) as made:
        yield made


def test_checks_come_in_the_order_that_callers_are_told(stage: Stage) -> None:
    def code(path: str, method: str = "GET", **request: Any) -> str:
        answer = stage.call(path, method, **request)
        found: str = answer.get_json()["code"]
        return found

    assert code("/v1/gateway/nobody/x", headers=WRONG_KEY) == "NOT_FOUND"
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


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("openai/files", "GET"), ("openai/v1/files/file-1", "DELETE"), ("openai/%66iles", "GET"),
        ("openai/Files", "GET"), ("openai/files;x=1", "GET"), ("openai/files/", "GET"),
        ("openai/responses/resp_1", "GET"), ("openai/responses/resp_1/cancel", "POST"),
        ("openai/chat/completions/chatcmpl-1", "GET"), ("openai/chat/completions", "GET"),
        ("openai/batches", "POST"), ("openai/realtime/client_secrets", "POST"), ("openai/models/gpt-5", "DELETE"),
        ("openai/organization/admin_api_keys", "GET"), ("openai/vector_stores", "GET"),
        ("anthropic/v1/files", "GET"), ("anthropic/v1/messages/batches", "POST"),
        ("anthropic/v1/messages/batches/1/results", "GET"), ("anthropic/v1/organizations/me", "GET"),
        ("gemini/v1beta/files", "GET"), ("gemini/upload/v1beta/files", "POST"),
        ("gemini/v1beta/cachedContents", "GET"), ("gemini/v1beta/models/veo-3:predictLongRunning", "POST"),
        ("gemini/v1beta/models/gemini-2.5-pro:batchGenerateContent", "POST"),
        ("gemini/v1alpha/auth_tokens", "POST"), ("gemini/v1beta/operations/1", "GET"),
        ("openrouter/keys", "GET"), ("openrouter/credits", "GET"), ("openrouter/generation?id=1", "GET"),
        ("groq/batches", "GET"), ("coingecko/key", "GET"), ("tavily/usage", "GET"),
        ("tavily/crawl", "POST"), ("tavily/map", "POST"), ("brave/chat/completions", "POST"),
    ],
)  # fmt: skip
def test_what_belongs_to_all_who_share_the_account_is_refused(stage: Stage, path: str, method: str) -> None:
    answer = stage.call(f"/v1/gateway/{path}", method, json={} if method == "POST" else None)
    assert (answer.status_code, answer.get_json()["code"]) == (403, "ROUTE_NOT_ALLOWED")
    assert stage.upstream.asked == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("openai/responses", {"model": "gpt-5", "input": "x", "previous_response_id": "resp_1"}),
        ("openai/responses", {"model": "gpt-5", "input": "x", "background": True}),
        (
            "openai/responses",
            {"model": "gpt-5", "input": [{"content": [{"type": "input_file", "file_id": "f"}]}]},
        ),
        (
            "openai/responses",
            {"model": "gpt-5", "tools": [{"type": "file_search", "vector_store_ids": ["v"]}]},
        ),
        (
            "openai/responses",
            {"model": "gpt-5", "tools": [{"type": "code_interpreter", "container": "cntr_1"}]},
        ),
        ("openai/responses", {"model": "gpt-5", "conversation": {"id": "conv_1"}}),
        ("openai/responses", {"model": "gpt-5", "input": [{"type": "item_reference", "id": "msg_1"}]}),
        ("openai/responses", {"model": "gpt-5", "input": [{"id": "msg_1"}]}),
        ("openai/responses", {"model": "gpt-5", "input": "x", "prompt": {"id": "pmpt_1"}}),
        ("openrouter/chat/completions", {"model": "a/b:free", "preset": "dear"}),
        ("openrouter/chat/completions", {"model": "a/b@preset/dear"}),
        ("anthropic/v1/messages", {"model": "claude-sonnet-4-5", "container": "container_1"}),
        (
            "gemini/v1beta/models/gemini-2.5-pro:generateContent",
            {"contents": [], "cachedContent": "cachedContents/1"},
        ),
        (
            "gemini/v1beta/models/gemini-2.5-pro:generateContent",
            {
                "contents": [
                    {
                        "parts": [
                            {"fileData": {"fileUri": "https://generativelanguage.googleapis.com/files/1"}}
                        ]
                    }
                ]
            },
        ),
    ],
)
def test_fields_that_refer_to_stored_things_are_refused(stage: Stage, path: str, body: Any) -> None:
    answer = stage.call(f"/v1/gateway/{path}", "POST", json=body)
    assert (answer.status_code, answer.get_json()["code"]) == (403, "ROUTE_NOT_ALLOWED")
    disguised = json.dumps(body).replace("_id", "\\u005fid").replace("back", "\\u0062ack")
    assert stage.call(f"/v1/gateway/{path}", "POST", data=disguised.encode()).status_code == 403
    assert stage.upstream.asked == []


def test_a_tool_of_the_caller_s_own_may_call_its_arguments_what_it_likes(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json(chat_answer()))
    schema = {
        "type": "object",
        "properties": {"file_id": {"type": "string"}, "background": {"type": "boolean"}},
    }
    tool = {"type": "function", "function": {"name": "open", "parameters": schema}}
    assert stage.chat(tools=[tool], background=False, previous_response_id=None).status_code == 200


def test_a_body_is_read_up_to_its_limit_and_never_compressed(stage: Stage) -> None:
    large = b'{"x": "' + b"a" * (32 * 2**20) + b'"}'
    answer = stage.call("/v1/gateway/brave/x", "POST", data=large)
    assert (answer.status_code, answer.get_json()["code"]) == (413, "PAYLOAD_TOO_LARGE")
    answer = stage.call("/v1/gateway/brave/x", "POST", data=b"x", headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    stage.assert_all_agree()


def test_a_body_larger_than_json_elsewhere_passes_byte_for_byte(stage: Stage) -> None:
    body = bytes(range(256)) * 8192
    assert stage.call("/v1/gateway/brave/x", "PUT", data=body).status_code == 200
    assert stage.upstream.asked[0].body == body


def test_credits_that_do_not_reach_say_what_would(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url, initial_credits_usd="0.01") as stage:
        answer = stage.chat(messages=[{"role": "user", "content": "x" * 40_000}])
        assert (answer.status_code, answer.get_json()["code"]) == (402, "INSUFFICIENT_CREDITS")
        assert answer.get_json()["details"]["affordable_max_tokens"] == 0
        stage.behave(lambda exchange: exchange.json(chat_answer()))
        # What is left is held where that is less than the worst case.
        assert stage.chat(max_tokens=100_000).status_code == 200
    with gateway_stage(build_app, sqlite_url, initial_credits_usd="0") as stage:
        for answer in (stage.chat(), stage.search(), stage.call("/v1/gateway/openai/models")):
            assert (answer.status_code, answer.get_json()["code"]) == (402, "INSUFFICIENT_CREDITS")
        assert stage.upstream.asked == []


def test_a_free_model_is_for_those_who_could_pay(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url, initial_credits_usd="0") as stage:
        for slug in ("openrouter", "openai", "groq"):
            body = {"model": "meta/llama-3:free", "messages": []}
            answer = stage.call(f"/v1/gateway/{slug}/chat/completions", "POST", json=body)
            assert (answer.status_code, answer.get_json()["code"]) == (402, "INSUFFICIENT_CREDITS")
        assert stage.upstream.asked == []


def test_when_all_lanes_are_taken_the_next_call_is_told_to_come_back(stage: Stage) -> None:
    def hold(exchange: Any) -> None:
        exchange.start_stream()
        exchange.await_hang_up()

    stage.behave(hold)
    with stage.stream():
        answer = stage.search()
        assert (answer.status_code, answer.get_json()["code"]) == (503, "OVERLOADED")
        assert int(answer.headers["Retry-After"]) >= 1
        assert stage.agent.get("/v1/balance").status_code == 200
    stage.behave(lambda exchange: exchange.json({}))
    assert stage.search().status_code == 200
    stage.assert_nothing_held()


def test_the_providers_tell_their_prices_and_no_secret(stage: Stage) -> None:
    listed = stage.agent.client.get("/v1/providers")
    rows = {row["slug"]: row for row in listed.get_json()["providers"]}
    assert set(rows) == {*KEYS, "shopping"}
    assert not any(key in listed.text for key in KEYS.values())
    assert stage.upstream.url not in listed.text
    assert rows["exa"]["configured"] is False
    assert rows["gemini"]["aliases"] == ["google", "llm_provider_3"]
    assert rows["brave"]["pricing"]["usd"] == 0.005
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

[providers.brave]
price = {{type = "fixed", usd = "0.25"}}
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
            assert agent.get("/v1/gateway/brave/x").headers["X-Cost-Usd"] == "0.25"


def test_each_mistake_in_the_file_is_named_in_one_line(
    build_app: Callable[..., Flask], sqlite_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "providers.toml"
    path.write_text(
        '[providers.new]\nkind = "tea"\nprice = {type = "fixed", usd = 5}\ndenied_routes = ["("]\ntaste = 1\n'
        '[providers.shopping]\nbase_url = "https://x.example"\nprice = {type = "fixed", usd = "1"}\n'
        '[providers.other]\nbase_url = "ftp://x"\nprice = {type = "fixed", usd = "1"}\naliases = ["openai"]\n'
        '[providers.exa]\napi_key = "secret-in-the-file"\naliases = ["groq"]\n'
    )
    with pytest.raises(SystemExit) as stopped:
        build_app(sqlite_url, settings={"gateway_providers_file": str(path)})
    lines = str(stopped.value).splitlines()[1:]
    for start in (
        "providers.new.kind: ", "providers.new.price: ", "providers.new.denied_routes: ", "providers.new.taste: ",
        "providers.new.base_url: is missing", "providers.shopping: ", "providers.other.base_url: ",
        "providers.exa: the name groq is taken",
    ):  # fmt: skip
        assert [line for line in lines if line.startswith(start)], (start, lines)
    assert "secret-in-the-file" not in str(stopped.value)


GEMINI = "/v1/gateway/gemini/v1beta/models/gemini-2.5-pro:generateContent"


@pytest.mark.parametrize(
    "query",
    [
        "fields=candidates", "%24fields=candidates", "$fields=candidates", "Fields=candidates", "callback=f",
        "$callback=f", "alt=proto", "$alt=proto", "alt=json&alt=media", "alt=sse;fields=candidates", "f%69elds=x",
        "fields%20=x", "alt=",
    ],
)  # fmt: skip
def test_nobody_takes_the_usage_out_of_an_answer(stage: Stage, query: str) -> None:
    answer = stage.call(f"{GEMINI}?{query}", "POST", json={"contents": []})
    assert (answer.status_code, answer.get_json()["code"]) == (403, "ROUTE_NOT_ALLOWED")
    assert stage.upstream.asked == []


def test_a_mask_for_the_answer_s_fields_is_refused_and_plain_parameters_pass(stage: Stage) -> None:
    masked = stage.call(GEMINI, "POST", json={"contents": []}, headers={"X-Goog-FieldMask": "candidates"})
    assert masked.status_code == 403
    for query in ("alt=json", "alt=sse", "$alt=json", "prettyPrint=false"):
        assert stage.call(f"{GEMINI}?{query}", "POST", json={"contents": []}).status_code == 200


def rpc(method: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": []}


STEERING = (
    "anvil_setBalance", "anvil_reset", "hardhat_impersonateAccount", "evm_mine", "eth_sendTransaction", "eth_sign",
    "eth_signTypedData_v4", "personal_sign", "wallet_addEthereumChain", "debug_traceTransaction", "trace_block",
    "sandbox_setBalance", "requestAirdrop", "ots_getBlockDetails", "eth_accounts", "", "ETH_CALL", "eth_call\n",
    "getBalance ", "rpc_modules",
)  # fmt: skip
READS = (
    "eth_call",
    "eth_getBalance",
    "eth_sendRawTransaction",
    "net_version",
    "getBalance",
    "sendTransaction",
)
BEYOND = (
    "debug_traceTransaction", "trace_filter", "admin_peers", "pm_sponsor", "alchemy_updateNotifyAddresses",
    "alchemy_requestGasAndPaymasterAndData", "eth_sendTransaction", "wallet_prepareCalls",
)  # fmt: skip


def test_nobody_steers_the_sandbox_s_chains(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with misbehaving_upstream() as chain:
        app = build_app(sqlite_url, settings={"alchemy_api_key": "", "base_rpc_url": chain.url})
        with app.app_context():
            agent = register(app.test_client())
            path, headers = "/v1/gateway/alchemy/base", {"X-API-Key": agent.key}
            refused = [body for method in STEERING for body in (rpc(method), [rpc("eth_call"), rpc(method)])]
            for body in (*refused, [[rpc("eth_call")]], []):
                answer = agent.client.post(path, json=body, headers=headers)
                assert (answer.status_code, answer.get_json()["code"]) == (403, "ROUTE_NOT_ALLOWED")
            assert chain.asked == []
            for body in (*(rpc(read) for read in READS), [rpc(read) for read in READS]):
                assert agent.client.post(path, json=body, headers=headers).status_code == 200


def test_methods_that_bill_or_steer_beyond_the_call_are_refused_at_real_nodes(stage: Stage) -> None:
    path = "/v1/gateway/alchemy/base"
    for method in BEYOND:
        for body in (rpc(method), [rpc("eth_call"), rpc(method)]):
            answer = stage.call(path, "POST", json=body)
            assert (answer.status_code, answer.get_json()["code"]) == (403, "ROUTE_NOT_ALLOWED")
    assert stage.upstream.asked == []
    assert stage.call(path, "POST", json=rpc("alchemy_getTokenBalances")).status_code == 200


@pytest.mark.parametrize(
    "uri",
    [
        "https://GenerativeLanguage.googleapis.com/f", "https://generativelanguag%65.googleapis.com/f", "files/1",
        "https://generative\tlanguage.googleapis.com/f", "https://\uff47enerativelanguage.googleapis.com/f",
    ],
)  # fmt: skip
def test_a_stored_file_is_refused_however_its_address_is_spelled(stage: Stage, uri: str) -> None:
    for part in ({"fileData": {"fileUri": uri}}, {"file_data": {"file_uri": uri}}):
        assert stage.call(GEMINI, "POST", json={"contents": [{"parts": [part]}]}).status_code == 403
    assert stage.upstream.asked == []


def test_plain_settings_that_look_like_references_pass(stage: Stage) -> None:
    picture = {"model": "gpt-image-1", "prompt": "a cat", "background": "transparent"}
    assert stage.call("/v1/gateway/openai/images/generations", "POST", json=picture).status_code == 200
    item = {"type": "message", "id": "msg_1", "role": "user", "content": "Hello"}
    turn = {"model": "gpt-5", "input": [item], "background": False}
    assert stage.call("/v1/gateway/openai/responses", "POST", json=turn).status_code == 200
    shared = {"contents": [{"parts": [{"fileData": {"fileUri": "HTTPS://www.youtube.com/watch?v=1"}}]}]}
    assert stage.call(GEMINI, "POST", json=shared).status_code == 200


def test_a_conversation_of_countless_pictures_is_refused_at_once(stage: Stage) -> None:
    for count in (4_001, 50_001):
        part = {"type": "image_url"} if count < 10_000 else {"type": "text"}
        answer = stage.chat(messages=[{"role": "user", "content": [part] * count}])
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert stage.upstream.asked == []


def test_what_is_billed_by_its_size_is_bounded(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url) as stage:
        for path, body in (
            ("search", {"query": "x", "numResults": 11}),
            ("search", {"query": "x", "numResults": 1e2}),
            ("search", {"query": "x", "contents": {"subpages": 5}}),
            ("contents", {"urls": ["https://a.example"] * 11}),
            ("contents", {"ids": ["a"] * 11}),
        ):
            assert stage.call(f"/v1/gateway/exa/{path}", "POST", json=body).status_code == 403
        assert stage.upstream.asked == []
        for path, body in (
            ("search", {"query": "x", "numResults": 10}),
            ("contents", {"urls": ["https://a.example"]}),
        ):
            assert stage.call(f"/v1/gateway/exa/{path}", "POST", json=body).status_code == 200
