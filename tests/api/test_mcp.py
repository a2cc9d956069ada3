"""`/mcp`: the tools of the Model Context Protocol, its versions, and hostile messages."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app.mcp.tools import TOOLS
from tests.support.agents import Agent, register
from tests.support.mcp import call, request_of, send

_NEW = "2026-07-28"
_META = {"io.modelcontextprotocol/protocolVersion": _NEW, "io.modelcontextprotocol/clientCapabilities": {}}


def tools(client: FlaskClient) -> dict[str, dict[str, Any]]:
    listed = client.post("/mcp?output_schemas=true", json=request_of("tools/list")).get_json()["result"]["tools"]
    return {tool["name"]: tool for tool in listed}


def new_headers(method: str, **more: str) -> dict[str, str]:
    return {"MCP_Protocol_Version": _NEW, "Mcp_Method": method, **more}


def assert_error(answer: TestResponse, status: int, code: int) -> None:
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (status, code)


def test_every_tool_has_valid_schemas_and_an_object_as_root(client: FlaskClient) -> None:
    found = tools(client)
    assert set(found) == set(TOOLS)
    assert len(found) <= 15
    for tool in found.values():
        for name in ("inputSchema", "outputSchema"):
            assert tool[name]["type"] == "object"
            assert "#/components" not in str(tool[name])
            jsonschema.Draft202012Validator.check_schema(tool[name])
    transfer = found["transfer"]["inputSchema"]
    assert set(transfer["required"]) == {"wallet_id", "chain", "to", "amount", "currency"}
    assert "same for every retry" in transfer["properties"]["request_id"]["description"]
    # The token of a purchase is a credential.
    assert list(found["get_purchase"]["inputSchema"]["properties"]) == ["purchase_id"]


def test_an_agent_registers_without_a_key_and_then_reads_its_wallet_with_the_one_it_got(client: FlaskClient) -> None:
    made = call(client, "register", name="model")
    assert made["isError"] is False
    key = made["structuredContent"]["apiKey"]
    listed = call(client, "get_balances", key)["structuredContent"]
    assert [each["id"] for each in listed["wallets"]] == [made["structuredContent"]["wallet"]["id"]]


@pytest.mark.parametrize("tool", ["get_balances", "get_transactions", "get_controls", "search_catalog", "get_usage"])
def test_results_match_the_schemas_that_are_listed(agent: Agent, tool: str) -> None:
    described = tools(agent.client)[tool]
    arguments = {"wallet_id": agent.wallet_id} if "wallet_id" in described["inputSchema"].get("required", []) else {}
    result = call(agent.client, tool, agent.key, **arguments)
    assert result["isError"] is False, result
    jsonschema.validate(result["structuredContent"], described["outputSchema"])


def test_a_tool_refuses_with_the_body_of_the_api(agent: Agent) -> None:
    body = {"chain": "base", "currency": "USDC", "amount": "-1", "to": "nonsense"}
    api = agent.post(f"{agent.wallet_url}/transfer", body).get_json()
    result = call(agent.client, "transfer", agent.key, wallet_id=agent.wallet_id, **body)
    assert result["isError"] is True
    assert {**result["structuredContent"], "request_id": ""} == {**api, "request_id": ""}


def test_a_misspelt_argument_does_not_move_money(agent: Agent) -> None:
    result = call(agent.client, "transfer", agent.key, wallet_id=agent.wallet_id, dryrun=True)
    assert (result["isError"], result["structuredContent"]["code"]) == (True, "INVALID_INPUT")
    assert "dryrun" in result["structuredContent"]["details"]["fields"]


@pytest.mark.parametrize(
    "wallet_id", ["../platform", "x/../../agents", "%2e%2e", "", "a" * 70, None, 7, ["a"], "\ud800"]
)
def test_an_id_in_arguments_never_leads_to_another_route(agent: Agent, wallet_id: object) -> None:
    result = call(agent.client, "get_controls", agent.key, wallet_id=wallet_id)
    assert result["isError"] is True
    assert result["structuredContent"]["code"] in {"NOT_FOUND", "INVALID_INPUT"}


def test_the_wallet_of_another_agent_is_not_found(agent: Agent, client: FlaskClient) -> None:
    other = register(client)
    for tool in ("get_controls", "get_balances", "get_transactions"):
        result = call(client, tool, agent.key, wallet_id=other.wallet_id)
        assert result["structuredContent"]["code"] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("message", "key"),
    [
        *((request_of("tools/call", name=name, arguments={}), None) for name in ("get_balances", "transfer", "buy")),
        (request_of("tools/list"), "ak_wrong"),
    ],
)
def test_what_needs_a_key_is_401_with_the_place_of_the_metadata(
    client: FlaskClient, message: object, key: str | None
) -> None:
    refused = send(client, message, key=key)
    assert (refused.status_code, refused.get_json()["code"]) == (401, "UNAUTHORIZED")
    url, _, scope = refused.headers["WWW-Authenticate"].partition('resource_metadata="')[2].partition('", ')
    assert scope == 'scope="wallet:read wallet:pay gateway catalog"'
    metadata = client.get("/.well-known/oauth-protected-resource/mcp").get_json()
    assert metadata == client.get("/.well-known/oauth-protected-resource").get_json()
    assert url.endswith("/.well-known/oauth-protected-resource/mcp")
    assert metadata["resource"].endswith("/mcp")


def test_a_key_in_the_query_authenticates_no_one(agent: Agent) -> None:
    path = f"/mcp?api_key={agent.key}&X-API-Key={agent.key}&access_token={agent.key}"
    message = request_of("tools/call", name="get_balances", arguments={})
    assert agent.client.post(path, json=message).status_code == 401


def test_messages_of_web_pages_are_refused(agent: Agent) -> None:
    message = request_of("tools/list")
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
        assert send(agent.client, message, key=agent.key, Origin=origin).status_code == 403


def test_there_is_no_stream_and_no_session(client: FlaskClient) -> None:
    for method in (client.get, client.delete):
        assert method("/mcp").status_code == 405
    answer = send(client, request_of("initialize", protocolVersion="2025-06-18", capabilities={}))
    assert answer.get_json()["result"]["protocolVersion"] == "2025-06-18"
    assert "Mcp-Session-Id" not in answer.headers
    done = send(client, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (done.status_code, done.data) == (202, b"")


@pytest.mark.parametrize("asked", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
def test_all_versions_with_a_handshake_are_answered(client: FlaskClient, asked: str) -> None:
    answer = send(client, request_of("initialize", protocolVersion=asked, capabilities={}))
    assert answer.get_json()["result"]["protocolVersion"] == asked
    assert send(client, request_of("ping"), MCP_Protocol_Version=asked).get_json()["result"] == {}


def test_an_unknown_version_is_answered_with_one_that_is_served(client: FlaskClient) -> None:
    answer = send(client, request_of("initialize", protocolVersion="1999-01-01", capabilities={}))
    assert answer.get_json()["result"]["protocolVersion"] == "2025-11-25"
    assert_error(send(client, request_of("ping"), MCP_Protocol_Version="1999-01-01"), 400, -32022)


def test_the_stateless_version_is_discovered(client: FlaskClient) -> None:
    message = request_of("server/discover", _meta=_META)
    result = send(client, message, **new_headers("server/discover")).get_json()["result"]
    assert result["supportedVersions"] == [_NEW, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
    assert result["resultType"] == "complete"
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "purser"


@pytest.mark.parametrize(
    ("headers", "meta", "code"),
    [
        ({"MCP_Protocol_Version": _NEW}, _META, -32020),
        ({"MCP_Protocol_Version": _NEW, "Mcp_Method": "tools/call"}, _META, -32020),
        ({"Mcp_Method": "tools/list"}, _META, -32020),
        (new_headers("tools/list"), {}, -32602),
        (new_headers("tools/list"), [], -32602),
        (new_headers("tools/list"), {**_META, "io.modelcontextprotocol/clientCapabilities": 1}, -32602),
        (
            {"MCP_Protocol_Version": "2030-01-01", "Mcp_Method": "tools/list"},
            {**_META, "io.modelcontextprotocol/protocolVersion": "2030-01-01"},
            -32022,
        ),
    ],
)
def test_headers_that_contradict_the_message_are_refused(
    client: FlaskClient, headers: dict[str, str], meta: object, code: int
) -> None:
    assert_error(send(client, request_of("tools/list", _meta=meta), **headers), 400, code)


def test_the_name_in_the_header_is_the_name_of_the_tool(client: FlaskClient) -> None:
    message = request_of("tools/call", name="transfer", arguments={}, _meta=_META)
    assert_error(send(client, message, **new_headers("tools/call", Mcp_Name="get_usage")), 400, -32020)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ([], -32600),
        ([request_of("ping")], -32600),
        ("text", -32600),
        (7, -32600),
        ({}, -32600),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": {}}, -32600),
        ({"jsonrpc": "2.0", "id": {}, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": "x" * 10_000, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": 10**400, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}, -32602),
    ],
)
def test_malformed_messages_are_refused(client: FlaskClient, message: object, code: int) -> None:
    assert_error(send(client, message), 400, code)


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"name": "__proto__"}, -32602),
        ({"name": "constructor", "arguments": {}}, -32602),
        ({"name": ["transfer"]}, -32602),
        ({"name": {"toString": "transfer"}}, -32602),
        ({}, -32602),
        ({"name": "transfer", "arguments": []}, -32602),
        ({"name": "transfer", "arguments": "x"}, -32602),
    ],
)
def test_calls_of_no_tool_are_refused(agent: Agent, params: dict[str, Any], code: int) -> None:
    answer = send(agent.client, request_of("tools/call", **params), key=agent.key)
    assert_error(answer, 400, code)


_WRONG: list[object] = [None, True, 7, 1.5, "x", "\ud800", [], [None], {}, {"a": None}]
_MEMBERS = {
    "initialize": ("protocolVersion", "capabilities", "clientInfo"),
    "ping": ("x",),
    "tools/list": ("cursor",),
    "tools/call": ("name", "arguments"),
    "resources/list": ("cursor",),
    "resources/read": ("uri",),
    "server/discover": ("x",),
}
_META_MEMBERS = (*_META, "progressToken", "x402/payment", "io.modelcontextprotocol/clientInfo")


@pytest.mark.parametrize("method", _MEMBERS)
@pytest.mark.parametrize("meta", [{}, _META], ids=["handshake", "stateless"])
def test_no_member_of_any_type_ends_in_an_internal_error(
    client: FlaskClient, method: str, meta: dict[str, object]
) -> None:
    name = "call_service" if method == "tools/call" else "uri"
    params: dict[str, Any] = {"name": name, "uri": name, "arguments": {"service": "brave"}, "_meta": meta}
    # They are read before the method, and by that one.
    meta_members = _META_MEMBERS if method in {"ping", "tools/call"} else ()
    for wrong in _WRONG:
        for headers in (new_headers(method, Mcp_Name=name) if meta else {}, {"Mcp_Method": method}):
            for changed in (
                *({**params, member: wrong} for member in (*_MEMBERS[method], "_meta")),
                *({**params, "_meta": {**meta, member: wrong}} for member in meta_members),
            ):
                answer = send(client, request_of(method, **changed), **headers)
                assert answer.status_code < 500, (changed, headers)
                assert answer.status_code == 401 or answer.get_json()["id"] == 1, (changed, headers)
            answer = send(client, {**request_of(method), "params": wrong}, **headers)
            assert (answer.status_code < 500, answer.get_json()["id"]) == (True, 1), (wrong, headers)


def test_null_is_absent_and_another_type_is_named_under_the_id(client: FlaskClient) -> None:
    for message in ({**request_of("tools/list"), "params": None}, request_of("tools/list", _meta=None, cursor=None)):
        assert "tools" in send(client, message).get_json()["result"]
    assert call(client, "call_service", service="brave", request_id=None, body=None)
    wrongs: list[object] = [[], "", 0, False]
    for wrong in wrongs:
        for message in ({**request_of("ping"), "params": wrong}, request_of("ping", _meta=wrong)):
            answer = send(client, message)
            assert_error(answer, 400, -32602)
            assert answer.get_json()["id"] == 1


def test_a_header_that_is_no_base64_is_refused(client: FlaskClient) -> None:
    message = request_of("tools/call", name="transfer", arguments={}, _meta=_META)
    for header in ("=?base64?é?=", "=?base64?a?=", "=?base64?/w==?="):
        assert_error(send(client, message, **new_headers("tools/call", Mcp_Name=header)), 400, -32020)


def test_unknown_methods_and_deep_or_broken_json_are_refused(client: FlaskClient) -> None:
    assert_error(send(client, request_of("tools/__class__")), 200, -32601)
    message = request_of("subscriptions/listen", _meta=_META)
    assert_error(send(client, message, **new_headers("subscriptions/listen")), 404, -32601)
    assert_error(client.post("/mcp", data=b"{"), 400, -32700)
    assert_error(client.post("/mcp", data=b"[" * 5000), 400, -32700)


def test_a_large_message_without_a_key_is_refused(client: FlaskClient) -> None:
    answer = send(client, request_of("ping", text="x" * 300_000))
    assert (answer.status_code, answer.get_json()["code"]) == (413, "PAYLOAD_TOO_LARGE")


def test_resources_are_read_with_the_rights_of_the_key(agent: Agent) -> None:
    listed = send(agent.client, request_of("resources/list")).get_json()["result"]["resources"]
    texts = {}
    for each in listed:
        answer = send(agent.client, request_of("resources/read", uri=each["uri"]), key=agent.key)
        texts[each["name"]] = answer.get_json()["result"]["contents"][0]["text"]
    assert texts["instructions"].startswith("# Purser")
    assert agent.wallet_id in texts["wallets"]
    [wallets] = [each["uri"] for each in listed if each["name"] == "wallets"]
    refused = send(agent.client, request_of("resources/read", uri=wallets))
    assert (refused.status_code, "resource_metadata" in refused.headers["WWW-Authenticate"]) == (401, True)
    for uri in ("file:///etc/passwd", wallets + "/../agents", 7, None):
        assert "error" in send(agent.client, request_of("resources/read", uri=uri), key=agent.key).get_json()
