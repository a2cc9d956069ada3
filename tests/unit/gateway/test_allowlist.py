"""Only the routes, parameters and fields that the provider table lists are forwarded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from app.errors import InvalidInput, RouteNotAllowed
from app.gateway.pricing.quotes import PricedRequest, rpc_methods
from app.gateway.validation import body as request_body
from app.gateway.validation import rules as request_rules
from app.gateway.validation.body import BodyKind
from app.gateway.validation.rules import Pattern
from tests.support.provider_rows import FORM, UPSTREAM, form_of, place, table

FORWARDED = {
    "openai": [
        "POST chat/completions", "POST v1/chat/completions", "POST completions", "POST responses",
        "POST responses/compact", "POST responses/input_tokens", "POST embeddings", "POST moderations",
        "POST images/generations", "POST images/edits", "POST images/variations", "POST audio/speech",
        "POST audio/transcriptions", "POST audio/translations", "GET models", "HEAD models", "GET models/gpt-5",
        "GET models/ft:gpt-4o-mini:acme:suffix:abc123", "POST chat%2Fcompletions", "POST ch%61t/completions",
    ],
    "anthropic": [
        "POST v1/messages", "POST v1/messages?beta=true", "POST v1/messages/count_tokens", "GET v1/models?limit=20",
        "GET v1/models/claude-sonnet-4-5", "POST v1/chat/completions",
    ],
    "gemini": [
        "POST v1beta/models/gemini-2.5-pro:generateContent", "POST v1/models/gemini-2.5-pro:generateContent",
        "POST v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse", "POST v1beta/models/m:countTokens",
        "POST v1beta/models/m:embedContent", "POST v1beta/models/m:batchEmbedContents",
        "POST v1beta/models/imagen-4.0-generate-001:predict", "POST v1beta/models/gemini-2.5-pro%3AgenerateContent",
        "GET v1beta/models?pageSize=50", "GET v1beta/models/gemini-2.5-pro", "POST v1beta/openai/chat/completions",
        "POST v1beta/openai/embeddings", "POST v1beta/openai/images/generations", "GET v1beta/openai/models",
        "POST v1beta/models/m:generateContent?$alt=json&prettyPrint=false",
    ],
    "openrouter": [
        "POST chat/completions", "POST api/v1/chat/completions", "POST completions", "POST responses",
        "POST messages", "POST embeddings", "POST rerank", "GET models", "GET models?category=programming",
        "GET models/openai/gpt-5/endpoints", "GET models/deepseek/deepseek-r1:free/endpoints",
    ],
    "groq": [
        "POST chat/completions", "POST openai/v1/chat/completions", "POST v1/responses", "GET openai/v1/models",
        "GET models/openai%2Fgpt-oss-120b", "GET models/openai/gpt-oss-120b", "POST audio/transcriptions",
    ],
    "coingecko": [
        "GET ping", "GET simple/price?ids=ethereum&vs_currencies=usd", "GET coins/list", "GET coins/bitcoin/history",
        "GET coins/markets?vs_currency=usd", "GET coins/ethereum/contract/0xdAC17F958D2ee523a2206206994597C13D831ec7",
        "GET search?query=eth", "GET search/trending", "GET global", "GET token_lists/ethereum/all.json",
        "GET onchain/networks/eth/tokens/multi/0xa,0xb", "GET api/v3/simple/price",
    ],
    "brave": [
        "GET web/search?q=agents", "GET res/v1/web/search?q=agents", "POST web/search", "GET news/search?q=x",
        "GET suggest/search?q=x", "GET local/pois?ids=1",
    ],
    "exa": ["POST search", "POST contents", "POST answer", "POST findSimilar"],
    "tavily": ["POST search", "POST extract"],
    "alchemy": ["POST base", "POST eth-mainnet", "POST BASE/", "POST solana"],
}  # fmt: skip

REFUSED = {
    "openai": [
        # Stored objects, accounts, billing after the response, and routes that are newer than this table.
        "GET files", "POST files", "DELETE v1/files/file-1", "GET batches", "POST batches", "POST fine_tuning/jobs",
        "GET vector_stores", "POST assistants", "POST threads/runs", "POST conversations", "POST containers",
        "GET containers", "POST evals", "POST videos", "POST realtime/client_secrets", "POST realtime/sessions",
        "GET organization/admin_api_keys", "GET projects", "POST skills", "POST chatkit/sessions", "POST uploads",
        "GET me", "GET audio/voices", "GET audio/voice_consents", "POST audio/voices", "GET dashboard/billing/usage",
        "POST agents/sessions", "GET agents/sessions", "GET vaults", "POST agents/environments",
        "POST agents/automations", "GET agents/automations", "POST a-route/of-tomorrow", "GET engines",
        "GET responses/resp_1", "POST responses/resp_1/cancel", "DELETE responses/resp_1", "GET responses",
        "GET chat/completions", "GET chat/completions/chatcmpl-1", "DELETE models/gpt-5", "POST models/gpt-5",
        "PUT chat/completions", "PATCH chat/completions", "OPTIONS chat/completions", "PROPFIND models", "",
        # Variants that a server may treat as a plain path.
        "GET files.", "GET files.json", "GET Files", "GET files;x=1", "GET files/", "GET %66iles", "GET f%2569les",
        "POST chat/completions.", "POST chat/completions/", "POST Chat/completions", "POST CHAT/COMPLETIONS",
        "POST chat/completions;x=1", "POST chat/completions.json", "POST chat/completions:cancel",
        "POST chat/completions%00", "POST chat/completions%20", "POST %2Fchat/completions", "POST v1/v1/embeddings",
        "GET models/..", "GET models/.", "GET models/a%2Fb", "GET models/gpt-5.", "GET models/x;y", "GET models/%20",
        "post chat/completions", "POST images/{edits|variations}", "POST  chat/completions",
        # Parameters.
        "POST chat/completions?x=1", "GET models?after=1",
    ],
    "anthropic": [
        "GET v1/files", "POST v1/messages/batches", "GET v1/messages/batches", "GET v1/messages/batches/1/results",
        "GET v1/organizations/me", "POST v1/dreams", "GET v1/user_profiles", "POST v1/tunnels",
        "GET v1/deployment_runs", "POST v1/agents", "POST v1/sessions", "GET v1/vaults", "POST v1/skills",
        "GET v1/memory_stores", "POST messages", "POST v2/messages", "POST v1/complete", "POST v1/messages/",
    ],
    "gemini": [
        "POST $rpc/google.ai.generativelanguage.v1beta.FileService/ListFiles",
        "POST $rpc/google.ai.generativelanguage.v1beta.GenerativeService/GenerateContent",
        "POST %24rpc/google.ai.generativelanguage.v1beta.FileService/ListFiles",
        "POST google.ai.generativelanguage.v1beta.FileService/ListFiles", "POST batch", "POST batch/v1beta",
        "POST v1beta/files", "GET v1beta/files", "POST upload/v1beta/files", "POST resumable/upload/v1beta/files",
        "GET v1beta/cachedContents", "POST v1beta/cachedContents", "POST v1beta/corpora", "POST v1beta/tunedModels",
        "POST v1beta/tunedModels/x:generateContent", "POST v1beta/dynamic/x:generateContent",
        "POST v1beta/webhooks", "GET v1beta/webhooks", "DELETE v1beta/webhooks/1",
        "POST v1beta/webhooks/1:rotateSigningSecret", "GET v1beta/environments", "POST v1beta/interactions",
        "GET v1beta/interactions/1", "POST v1alpha/auth_tokens", "GET v1beta/operations/1", "POST v1beta/agents",
        "POST v1beta/models/veo-3:predictLongRunning", "POST v1beta/models/m:batchGenerateContent",
        "POST v1beta/models/m:asyncBatchEmbedContent", "POST v1beta/models/m:generateContent:cancel",
        "POST v1beta/models/m:generateContent.", "POST v1beta/models/m:GENERATECONTENT",
        "POST v1beta/models/m:generateContent;x=1", "POST v1beta/models/a/b:generateContent",
        "POST v1beta/models/a%2Fb:generateContent", "POST v1beta/models/m:x:generateContent",
        "POST v1beta/models/m%2E:generateContent", "GET v1beta/models/m:generateContent", "POST v1beta/openai/files",
        "POST v1beta/openai/batches", "POST v1beta/openai/videos", "POST v2/models/m:generateContent",
        "POST V1BETA/models/m:generateContent",
        # These remove the usage from the response, change its format, or start an upload.
        "POST v1beta/models/m:generateContent?fields=candidates", "POST v1beta/models/m:generateContent?$fields=x",
        "POST v1beta/models/m:generateContent?%24fields=x", "POST v1beta/models/m:generateContent?Fields=x",
        "POST v1beta/models/m:generateContent?f%69elds=x", "POST v1beta/models/m:generateContent?fields%20=x",
        "POST v1beta/models/m:generateContent?callback=f", "POST v1beta/models/m:generateContent?$callback=f",
        "POST v1beta/models/m:generateContent?alt=proto", "POST v1beta/models/m:generateContent?$alt=proto",
        "POST v1beta/models/m:generateContent?alt=json&alt=media", "POST v1beta/models/m:generateContent?alt=",
        "POST v1beta/models/m:generateContent?alt=sse;fields=x", "POST v1beta/models/m:generateContent?$httpMethod=GET",
        "POST v1beta/models/m:generateContent?uploadType=media",
        "POST v1beta/models/m:generateContent?upload_protocol=raw",
    ],
    "openrouter": [
        "GET key", "GET keys", "POST keys", "GET credits", "GET generation?id=1", "POST auth/keys", "GET activity",
        "GET organization/members", "GET guardrails", "POST containers/1/files", "GET containers/1/files/2",
        "GET models/user", "GET responses/resp_1", "POST videos", "POST batches", "GET presets",
    ],
    "groq": ["GET batches", "POST batches", "POST files", "GET fine_tunings", "POST openai/v1/files"],
    "coingecko": ["GET key", "POST simple/price", "GET webhooks", "GET coins/..%2Fkey", "GET Key", "GET coins/x/"],
    "brave": ["POST chat/completions", "GET summarizer/search", "GET key", "PUT web/search", "GET web/search/x"],
    "exa": [
        "POST agent/runs", "GET agent/runs", "GET agent/runs/1", "DELETE agent/runs/1", "POST agent/runs/1/cancel",
        "POST websets/v0/websets", "POST research/v1", "GET team-management/api-keys", "POST v0/monitors",
        "GET search", "POST chat/completions",
    ],
    "tavily": ["GET usage", "POST crawl", "POST map", "POST research", "POST keys", "POST generate-keys"],
    "alchemy": ["GET base", "POST base/nft", "DELETE base"],
}  # fmt: skip


def cases(table_: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(slug, text) for slug, texts in table_.items() for text in texts]


def check(slug: str, text: str) -> str:
    method, _, path = text.partition(" ")
    found = place(slug, method, path)
    request_rules.check_parameters(table().find(slug).parameters, path.partition("?")[2])
    return found.target


@pytest.mark.parametrize(("slug", "text"), cases(FORWARDED))
def test_stateless_calls_are_forwarded(slug: str, text: str) -> None:
    assert check(slug, text)


@pytest.mark.parametrize(("slug", "text"), cases(REFUSED))
def test_everything_else_is_refused_with_the_allowed_routes(slug: str, text: str) -> None:
    with pytest.raises(RouteNotAllowed) as refused:
        check(slug, text)
    assert refused.value.details.get("allowed") is not None


@pytest.mark.parametrize(
    ("slug", "path", "target"),
    [
        ("openai", "ch%61t%2Fcompletions", "/v1/chat/completions"),
        ("openai", "v1/chat/completions", "/v1/chat/completions"),
        ("groq", "openai/v1/chat/completions?x=%2e", "/openai/v1/chat/completions?x=%2e"),
        ("gemini", "v1/models/m%3AgenerateContent", "/v1/models/m:generateContent"),
        ("alchemy", "base", "/v2/base-mainnet/operator-alchemy"),
    ],
)
def test_the_matched_path_is_the_one_sent(slug: str, path: str, target: str) -> None:
    assert (place(slug, "POST", path).origin, place(slug, "POST", path).target) == (UPSTREAM, target)


@pytest.mark.parametrize(
    "text", ["/a", "a/", "a//b", "a b", "{", "{}", "{a", "a}", "{a***}", "a?b", "{a-b}", "a%2F", "{(|b}"]
)
def test_an_invalid_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a pattern"):
        Pattern.parse(text)


STORED = {
    "openai": [
        {"previous_response_id": "resp_1"}, {"background": True}, {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}}, {"input": [{"content": [{"type": "input_file", "file_id": "f"}]}]},
        {"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]},
        {"tools": [{"type": "code_interpreter", "container": "cntr_1"}]},
        {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f"]}}]},
        {"input": [{"type": "code_interpreter_call", "container_id": "cntr_1"}]},
        {"tools": [{"type": "shell", "environment": {"skills": [{"type": "skill_reference", "skill_id": "s"}]}}]},
        {"input": [{"type": "item_reference", "id": "msg_1"}]}, {"input": [{"id": "msg_1"}]},
        {"prompt": {"id": "pmpt_1"}}, {"voice": {"id": "voice_1"}},
        {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]},
        # In another case or spelling.
        {"Previous_Response_Id": "resp_1"}, {"previousResponseId": "resp_1"}, {"bac\u212aground": True},
        {"input": [{"FILE_ID": "f"}]},
    ],
    "openrouter": [{"preset": "dear"}, {"model": "a/b@preset/dear"}, {"models": ["a/b", "@preset/dear"]}],
    "anthropic": [
        {"container": "container_1"}, {"container": {"id": "c"}}, {"container": {"skills": [{"skill_id": "s"}]}},
        {"messages": [{"content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}]}]},
    ],
    "gemini": [
        {"cachedContent": "cachedContents/1"}, {"cached_content": "cachedContents/1"},
        {"tools": [{"fileSearch": {"fileSearchStoreNames": ["s"]}}]},
        {"tools": [{"file_search": {"file_search_store_names": ["s"]}}]},
        *(
            {"contents": [{"parts": [{name: {inner: uri}}]}]}
            for name, inner in (("fileData", "fileUri"), ("file_data", "file_uri"))
            for uri in (
                "https://generativelanguage.googleapis.com/files/1", "https://generativelanguag%65.googleapis.com/f",
                "https://GenerativeLanguage.googleapis.com/f", "https://generative\tlanguage.googleapis.com/f",
                "https://\uff47enerativelanguage.googleapis.com/f", "files/1",
            )
        ),
    ],
}  # fmt: skip
PLAIN = {
    "openai": [
        {"previous_response_id": None, "background": False, "store": True, "user": "u", "metadata": {"file_id": "x"}},
        {"background": "transparent"}, {"voice": "alloy"},
        {"modalities": ["audio"], "audio": {"voice": "a", "format": "wav"}},
        {"tools": [{"type": "function", "function": {"parameters": {"properties": {"file_id": {"type": "string"}}}}}]},
        {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
        {"input": [{"type": "message", "id": "msg_1", "role": "user", "content": "Hello"}]},
        {"prompt": "a cat"},
        {"input": [{"type": "input_file", "file_url": "https://a.example/x.pdf", "file_id": None}]},
    ],
    "anthropic": [
        {"messages": [{"content": [{"type": "tool_use", "input": {"file_id": "mine"}}]}]}, {"container": None},
    ],
    "gemini": [{"contents": [{"parts": [{"fileData": {"fileUri": "HTTPS://www.youtube.com/watch?v=1"}}]}]}],
    "exa": [
        {"numResults": 10}, {"urls": ["a"] * 10}, {"contents": {"subpages": 0}}, {"numResults": None}, {"text": True},
    ],
}  # fmt: skip


def fields(slug: str, parsed: Any) -> None:
    row = table().find(slug)
    request_rules.check_fields(row.refused_fields, row.limits, parsed)


@pytest.mark.parametrize(("slug", "body"), cases(STORED))  # type: ignore[arg-type]
def test_a_reference_to_a_stored_object_is_refused(slug: str, body: Any) -> None:
    with pytest.raises(RouteNotAllowed) as refused:
        fields(slug, body)
    assert refused.value.details["fields"]


@pytest.mark.parametrize(("slug", "body"), cases(PLAIN))  # type: ignore[arg-type]
def test_plain_settings_and_client_defined_names_are_allowed(slug: str, body: Any) -> None:
    fields(slug, body)


@pytest.mark.parametrize(
    "body",
    [
        {"numResults": 101}, {"numResults": "100"}, {"numResults": True}, {"num_results": 101}, {"NUMRESULTS": 101},
        {"numResults": -1}, {"numResults": [1] * 101}, {"urls": ["https://a.example"] * 101}, {"ids": ["a"] * 101},
        {"contents": {"subpages": 5}}, {"additionalQueries": ["x"]},
    ],
)  # fmt: skip
def test_a_field_beyond_the_priced_limit_is_refused(body: Any) -> None:
    with pytest.raises(InvalidInput, match="must be at most"):
        fields("exa", body)


@pytest.mark.parametrize(
    "body",
    [
        {"METHOD": "debug_traceBlockByNumber"}, {"method": "eth_blockNumber", "Method": "debug_traceBlockByNumber"},
        [{"method": "eth_call"}, {"method": "eth_call", "mEthod": "x"}], {"model": "cheap", "Model": "dear"},
        {"max_tokens": 1, "MAX_TOKENS": 100000}, {"\u017ftream": True}, {"generationConfig": {"maxoutputtokens": 1}},
    ],
)  # fmt: skip
def test_priced_fields_have_one_spelling(body: Any) -> None:
    with pytest.raises(InvalidInput, match="must be written"):
        fields("alchemy", body)


@pytest.mark.parametrize(
    "method",
    [
        "eth_call", "eth_getBalance", "eth_getBlockByNumber", "eth_getBlockReceipts", "eth_getTransactionByHash",
        "eth_getRawTransactionByHash", "eth_sendRawTransaction", "eth_getLogs", "eth_newFilter", "net_version",
        "web3_clientVersion", "alchemy_getTokenBalances", "alchemy_getAssetTransfers", "eth_sendUserOperation",
        "getBalance", "getLatestBlockhash", "sendTransaction", "isBlockhashValid", "simulateTransaction", "getBlock",
        "getBlocks", "getTokenAccountsByOwner", "getProgramAccounts", "getAsset", "getAssetsByOwner", "searchAssets",
    ],
)  # fmt: skip
def test_reads_and_signed_transactions_of_a_chain_are_priced(method: str) -> None:
    assert rpc_price(method) > 0


@pytest.mark.parametrize(
    "method",
    [
        "anvil_setBalance", "hardhat_impersonateAccount", "evm_mine", "eth_sendTransaction", "eth_sign",
        "eth_signTypedData_v4", "eth_accounts", "eth_submitWork", "personal_sign", "wallet_addEthereumChain",
        "wallet_prepareCalls", "debug_traceTransaction", "trace_block", "trace_filter", "sandbox_setBalance",
        "requestAirdrop", "ots_getBlockDetails", "", "ETH_CALL", "eth_call\n", "getBalance ", "rpc_modules", "get",
        "admin_peers", "pm_sponsor", "alchemy_updateNotifyAddresses", "alchemy_requestGasAndPaymasterAndData",
        "alchemy_getWebhooks", "txpool_content", "getAMethodOfTomorrow", "getAssetBatch_v2", "getassets",
    ],
)  # fmt: skip
def test_administrative_and_account_methods_are_refused(method: str) -> None:
    with pytest.raises(RouteNotAllowed):
        rpc_price(method)


def test_digital_asset_queries_cost_more_than_their_compute_units() -> None:
    # Alchemy's page on compute units: 480 for getAssetsByOwner; 0.45 dollars per million.
    assert rpc_price("getAssetsByOwner") - rpc_price("eth_call") // 2 > 480 * 450


def rpc_price(method: str) -> int:
    (route,) = table().find("alchemy").routes.values()
    parsed = [{"method": "eth_call"}, {"method": method}]
    return route.rule.quote(
        PricedRequest(at=datetime.now(UTC), methods=tuple(rpc_methods(parsed)))
    ).worst_case.cost_nanos


@pytest.mark.parametrize(
    "raw",
    [
        b'{"numResults":100,"x":' + b"9" * 5_000 + b"}", b'{"numResults":100,"x":' + b"[" * 2_000 + b"]" * 2_000 + b"}",
        b'{"numResults":100,"x":"\xff"}', b'{"numResults":1,"numResults":100}', b"{'numResults':100}",
        b'{"numResults":100}'.decode().encode("utf-16"), b'{"numResults":100} trailing', b'\x00{"numResults":100}',
        b'{"numResults":NaN}', b"\n\x0b\x14\x08", b"a=1&numResults=100",
    ],
)  # fmt: skip
def test_a_body_that_is_not_strict_json_is_refused(raw: bytes) -> None:
    for content_type in (None, "application/json", "application/x-protobuf", FORM):
        with pytest.raises(InvalidInput):
            request_body.parse_body(BodyKind.JSON, raw, content_type)


def test_a_body_is_refused_on_a_route_without_one() -> None:
    assert request_body.parse_body(BodyKind.NONE, b"", None).parsed is None
    with pytest.raises(InvalidInput, match="accepts no request body"):
        request_body.parse_body(BodyKind.NONE, b"{}", None)


def test_a_form_is_parsed_where_a_route_accepts_one() -> None:
    raw = form_of(("model", b"whisper-1"), ('file; filename="a b.mp3"', bytes(range(256))), ("include[]", b"logprobs"))
    read = request_body.parse_body(BodyKind.FORM, raw, FORM)
    assert (read.is_form, read.parsed) == (True, {"model": "whisper-1", "include": ["logprobs"]})
    typed = form_of(MODEL).replace(b"\r\n\r\n", b'\r\nContent-Type: text/plain; charset="UTF-8"\r\n\r\n')
    assert request_body.parse_body(BodyKind.FORM, typed, FORM).parsed == {"model": "whisper-1"}
    assert request_body.parse_body(BodyKind.EITHER, b'{"model":"m"}', "application/json").parsed == {"model": "m"}
    with pytest.raises(InvalidInput):
        request_body.parse_body(BodyKind.JSON, raw, FORM)
    with pytest.raises(InvalidInput, match="multipart/form-data"):
        request_body.parse_body(BodyKind.FORM, b'{"model":"m"}', "application/json")


MODEL = ("model", b"whisper-1")


@pytest.mark.parametrize(
    "raw",
    [
        form_of(MODEL, ("model", b"dear")), form_of(MODEL, ('model; filename="x"', b"dear")),
        form_of(('model; filename=""', b"dear")), form_of(('x"; name="model', b"dear")),
        form_of(("model; name=x", b"dear")), form_of(("model", b"\xff")), form_of(MODEL)[:-4], b"x" + form_of(MODEL),
        form_of(MODEL)[:-2] + b"x", form_of(MODEL).replace(b"\r\n", b"\n"), form_of(("model", b"a\n-------limit\n\nb")),
        form_of(("model", b'a\n-------limit\r\nContent-Disposition: form-data; name="n"\r\n\r\nb')),
        form_of(MODEL).replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n"),
        form_of(MODEL).replace(b"Content-Disposition: form-data; name=", b"Content-Disposition: form-data; name*="),
        form_of(MODEL).replace(b"\r\n\r\n", b"\r\nContent-Type: text/plain; charset=utf-16\r\n\r\n"),
        form_of(("_charset_", b"utf-16"), MODEL), form_of(MODEL, ('n; filename="n"', b"10")),
        form_of(*[("x[]", b"1")] * 300), form_of(("model", b"a" * 300_000)), b"", form_of(MODEL, ("model[]", b"dear")),
    ],
)  # fmt: skip
def test_an_ambiguous_form_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput):
        request_body.parse_body(BodyKind.FORM, raw or b"x", FORM)
