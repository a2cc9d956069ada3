"""The OpenAPI document: valid, complete, and consistent with the service."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate
from werkzeug.test import TestResponse

from app.core.request_target import parse_target
from app.errors import STATUS
from app.gateway.providers.table import ProviderTable
from app.gateway.validation.body import BodyKind
from app.identity.guards import PAYMENT_SCHEME
from app.web.openapi import texts
from tests.support.market import SPEC, offer
from tests.support.operators import operator

Register = Callable[..., dict[str, Any]]
Document = dict[str, Any]

WITHOUT_EXAMPLE = {
    ("buy", "200"),
    ("call_perpdex", "200"),
    ("create_chat_completion", "200"),
    ("create_list_of_embeddings", "200"),
    ("create_message", "200"),
    ("create_response", "200"),
    ("get_purchase_evidence", "200"),
    ("get_service_purchase", "200"),
    ("subscribe", "200"),
}
"""Responses that are no JSON, or that no request of `test_any_request` gets: there is no exchange and no model."""
_METHODS = ("get", "post", "put", "patch", "delete")


@pytest.fixture
def document(client: FlaskClient) -> Document:
    answer: Document = client.get("/openapi.json").get_json()
    return answer


def _operations(document: Document) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                operation = methods[method]
                yield method, path, {**operation, "responses": _responses(document, operation)}


def _responses(document: Document, operation: dict[str, Any]) -> dict[str, Any]:
    """Return the responses of an operation; those that it shares with others are resolved, but for the default."""
    shared = document["components"]["responses"]
    return {
        status: shared[each["$ref"].rpartition("/")[2]] if "$ref" in each and status != "default" else each
        for status, each in operation["responses"].items()
    }


def _is_provider_route(app: Flask, path: str) -> bool:
    names = [row.slug for row in app.state.part(ProviderTable).rows]
    return path.startswith(tuple(f"/v1/gateway/{name}/" for name in names))


def test_generators_can_read_the_document(document: Document) -> None:
    assert document["openapi"].startswith("3.1")
    validate(document)


def test_generators_require_no_property_because_of_its_default(document: Document) -> None:
    for name, schema in document["components"]["schemas"].items():
        for member, definition in schema.get("properties", {}).items():
            assert "default" not in definition, (name, member)


def test_the_document_names_the_license_of_the_repository(document: Document) -> None:
    license_text = (Path(__file__).parents[2] / "LICENSE").read_text()
    assert license_text.startswith(f"{document['info']['license']['identifier']} License\n")


def test_clients_in_other_languages_can_compile_the_patterns(document: Document) -> None:
    # ECMA-262, which JSON Schema uses, has neither \\A nor \\Z nor Python's named groups.
    patterns = re.findall(r'"pattern": "((?:[^"\\\\]|\\\\.)*)"', json.dumps(document))
    assert len(patterns) >= 2
    for pattern in patterns:
        assert pattern.startswith("^")
        assert pattern.endswith("$")
        assert not re.search(r"\\\\[AZ]|\(\?P", pattern)


def test_every_route_is_documented(app: Flask, document: Document) -> None:
    documented = {(method, path) for method, path, _ in _operations(document) if not _is_provider_route(app, path)}
    served = {
        (method.lower(), re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set())
        # A service's route without a path is the same operation as with one.
        if rule.rule.startswith(("/v1/", "/discovery/"))
        and rule.rule not in {"/v1/proxy/<service_id>", "/v1/x402/services/<service_id>"}
        and method.lower() in _METHODS
    }
    assert documented == served


def test_each_route_of_a_provider_is_an_operation_and_is_forwarded(app: Flask, document: Document) -> None:
    content = {
        BodyKind.NONE: set(),
        BodyKind.JSON: {"application/json"},
        BodyKind.FORM: {"multipart/form-data"},
        BodyKind.EITHER: {"application/json", "multipart/form-data"},
    }
    documented = set()
    for method, path, operation in _operations(document):
        if not _is_provider_route(app, path):
            continue
        concrete = path
        for each in operation["parameters"]:
            concrete = concrete.replace(f"{{{each['name']}}}", each["schema"].get("enum", ["a"])[0])
        slug = concrete.split("/")[3]
        target = parse_target(concrete, "", "v1", "gateway", slug)
        route = app.state.part(ProviderTable).find(slug).locate(method.upper(), target).match.route
        assert set(operation.get("requestBody", {}).get("content", {})) == content[route.body], path
        documented.add((slug, route.text))
    rows = app.state.part(ProviderTable).rows
    assert documented == {(row.slug, route.text) for row in rows for route in row.routes.values()}


def test_each_success_has_an_example_that_conforms(app: Flask, document: Document) -> None:
    lacking = set()
    for method, path, operation in _operations(document):
        if path.startswith(("/v1/proxy/", "/v1/x402/", "/v1/gateway/{provider}/")) or _is_provider_route(app, path):
            continue
        for status in operation["responses"]:
            for content in operation["responses"][status].get("content", {}).values():
                if "example" not in content:
                    lacking |= {(operation["operationId"], status)} if status.startswith("2") else set()
                    continue
                whole = {**content["schema"], "components": document["components"]}
                problems = [
                    f"{each.json_path}: {each.message}"
                    for each in OAS31Validator(whole).iter_errors(content["example"])
                ]
                assert problems == [], (method, path, status)
                assert _undocumented(content["example"], content["schema"], document) == set(), (method, path)
    assert lacking == WITHOUT_EXAMPLE


def test_error_examples_conform(document: Document) -> None:
    body = {"$ref": "#/components/schemas/ErrorBody", "components": document["components"]}
    for code, example in document["components"]["examples"].items():
        assert example["value"]["code"] == code
        assert not list(OAS31Validator(body).iter_errors(example["value"])), code


def test_operations_are_named_as_methods(document: Document) -> None:
    for _, path, operation in _operations(document):
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", operation["operationId"]), path


def test_no_two_operations_share_an_id(document: Document) -> None:
    ids = [operation["operationId"] for _, _, operation in _operations(document)]
    assert len(ids) == len(set(ids))


def test_every_operation_documents_its_responses_and_errors(document: Document) -> None:
    for method, path, operation in _operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["responses"]["default"], where
        successes = [status for status in operation["responses"] if status.startswith("2")]
        assert successes, where
        for status in successes:
            assert all(content["schema"] for content in operation["responses"][status]["content"].values()), where
        assert {"429", "500"} <= operation["responses"].keys(), where
        if operation["security"]:
            assert "401" in operation["responses"], where
        if "{" in path:
            assert "404" in operation["responses"], where
        places = {parameter["in"] for parameter in operation.get("parameters", [])}
        if "requestBody" in operation:
            assert {"400", "413"} <= operation["responses"].keys(), where
        elif not places & {"query", "header"}:
            assert "400" not in operation["responses"], where


def test_everything_has_a_description(document: Document) -> None:
    for name, schema in document["components"]["schemas"].items():
        assert schema.get("description"), name
        for member, definition in schema.get("properties", {}).items():
            assert definition.get("description"), (name, member)
    for method, path, operation in _operations(document):
        assert operation.get("description"), (method, path)
        for parameter in [*document["paths"][path].get("parameters", []), *operation.get("parameters", [])]:
            assert parameter.get("description"), (method, path, parameter["name"])
    for tag in document["tags"]:
        assert tag.get("description"), tag["name"]


def test_every_stored_description_is_used(document: Document) -> None:
    members = {
        f"{name}.{member}": definition
        for name, schema in document["components"]["schemas"].items()
        for member, definition in schema.get("properties", {}).items()
    }
    operations = {operation["operationId"]: operation for _, _, operation in _operations(document)}
    parameters = [
        parameter
        for item in document["paths"].values()
        for parameter in [
            *item.get("parameters", []),
            *(p for m in _METHODS for p in item.get(m, {}).get("parameters", [])),
        ]
    ]
    for name, text in texts()["properties"].items():
        places = [members.get(name, {})] if "." in name else [v for k, v in members.items() if k.endswith(f".{name}")]
        assert any(place.get("description", "").startswith(text) for place in places), name
    for name, text in texts()["operations"].items():
        assert operations[name]["description"] == text, name
    for name, text in texts()["parameters"].items():
        assert any(each["name"] == name and each["description"] == text for each in parameters), name


def test_no_description_only_repeats_a_name() -> None:
    for kind in ("properties", "parameters", "operations"):
        for name, text in texts()[kind].items():
            said = set(re.findall(r"[a-z]+", text.lower())) - {"the", "a", "an", "of", "is"}
            assert said - set(name.lower().replace(".", "_").split("_")), name
            assert text.endswith("."), name


def test_lists_of_values_are_shared(document: Document) -> None:
    shared = [document["components"]["schemas"][name]["enum"] for name in texts()["values"]]
    assert len(shared) == len({tuple(values) for values in shared})
    rest = {name: each for name, each in document["components"]["schemas"].items() if name not in texts()["values"]}
    for values in shared:
        assert str(values) not in str([document["paths"], rest]), values


def test_documented_codes_match_their_status(document: Document) -> None:
    found = 0
    for method, path, operation in _operations(document):
        for status, response in operation["responses"].items():
            for code in re.findall(r"^`([A-Z_]+)`:", response.get("description", ""), re.MULTILINE):
                found += 1
                assert str(STATUS[code]) == status, (method, path, code)
    assert found > 50


def test_headers_that_clients_act_on_are_documented(document: Document) -> None:
    for method, path, operation in _operations(document):
        names = {parameter["name"] for parameter in operation.get("parameters", [])}
        for status, response in operation["responses"].items():
            if "$ref" in response:
                continue
            headers = response["headers"]
            assert "X-Request-Id" in headers, (method, path, status)
            assert ("Retry-After" in headers) == (status in {"409", "429", "503"}), (method, path, status)
            if "Idempotency-Key" in names and status.startswith("2"):
                assert "Idempotent-Replayed" in headers, (method, path)
        if path.startswith(("/v1/gateway/{provider}/", "/v1/proxy/", "/v1/x402/services/")):
            assert {"X-Cost-Usd", "X-Credits-Remaining"} <= operation["responses"]["200"]["headers"].keys()
            assert "400" in operation["responses"], (method, path)


def test_a_key_is_required_exactly_where_documented(client: FlaskClient, document: Document) -> None:
    for method, path, operation in _operations(document):
        concrete = re.sub(r"{\w+}", "0", path.replace("{provider}", "openai"))
        answer = client.open(concrete, method=method.upper())
        # Where a payment may replace a key, neither is required alone.
        pays = {PAYMENT_SCHEME: []} in operation["security"]
        # A route that is not forwarded, or a service that does not exist, is refused before a payment is requested.
        asked = {402, 403, 404} if pays else {401}
        assert (answer.status_code in asked) == bool(operation["security"]), (method, path, answer.text)


def test_every_definition_is_used_by_an_operation(document: Document) -> None:
    text = str(document)
    for name in document["components"]["schemas"]:
        assert f"'#/components/schemas/{name}'" in text, name


def test_a_parameter_is_never_documented_as_null(document: Document) -> None:
    for method, path, operation in _operations(document):
        for parameter in operation.get("parameters", []):
            assert "null" not in str(parameter["schema"]), (method, path, parameter["name"])
            assert None not in parameter["schema"].get("enum", []), (method, path, parameter["name"])


def test_responses_match_the_document(client: FlaskClient, document: Document, register: Register) -> None:
    registered = register(name="ada", email="ada@example.org")
    wallet = f"/v1/wallets/{registered['wallet']['id']}"
    key = {"X-API-Key": registered["apiKey"]}
    unlimited = client.post("/v1/wallets", json={}, headers=key).get_json()["id"]
    code = registered["claimCode"]

    check = partial(_check, client, document)
    one = "/v1/wallets/{wallet_id}"
    check("post", "/v1/agents/register", json={})
    check("post", "/v1/agents/register", json={"name": 1})
    check("post", "/v1/keys", json={})
    check("get", "/v1/device/info", query_string={"code": code})
    check("get", "/v1/device/info", query_string={"code": "ZZZZ-0000"})
    check("get", "/v1/wallets", headers=key)
    check("get", "/v1/wallets")
    check("post", "/v1/wallets", headers=key, json={"name": "savings"})
    check("get", wallet, one, headers=key)
    check("get", "/v1/wallets/0", one, headers=key)
    check("get", f"{wallet}/controls", f"{one}/controls", headers=key)
    check("get", f"/v1/wallets/{unlimited}/controls", f"{one}/controls", headers=key)
    check("put", f"{wallet}/controls", f"{one}/controls", headers=key, json={"daily_limit_usd": 5})
    check("put", f"{wallet}/controls", f"{one}/controls", headers=key, json={"daily_limit_usd": -5})
    check("get", f"{wallet}/transactions", f"{one}/transactions", headers=key)
    check("get", f"{wallet}/transactions?status=no", f"{one}/transactions", headers=key)
    check("get", f"{wallet}/balances", f"{one}/balances", headers=key)
    check("post", f"{wallet}/transfer", f"{one}/transfer", headers=key, json={})
    check("post", f"{wallet}/fund", f"{one}/fund", headers=key, json={})
    trading = {"walletId": registered["wallet"]["id"], "symbol": "ETH"}
    order = {**trading, "action": "order", "side": "buy", "price": "3000.55", "amount": "0.0012345", "reduceOnly": True}
    payment = {"walletId": trading["walletId"], "amount": "1", "destination": "0x" + "11" * 20}
    for body, status in (
        (order, 501),
        ({**trading, "action": "cancel", "orderId": 1}, 501),
        ({**trading, "action": "cancel_all"}, 501),
        ({**trading, "action": "set_leverage", "leverage": 2}, 501),
        ({**payment, "action": "withdraw"}, 501),
        ({**payment, "action": "transfer"}, 501),
        ({**order, "amount": "1"}, 403),
        ({**order, "side": "up"}, 400),
        ({**order, "walletId": "0"}, 404),
        ({**trading, "action": "ticker"}, 502),  # there is no exchange
    ):
        answer = check("post", "/v1/trading/perpdex", headers=key, json=body)
        assert answer.status_code == status, answer.text
    check("get", "/v1/balance", headers=key)
    check("get", "/v1/usage", headers=key)
    check("get", "/v1/health")
    check("post", "/v1/agents/claim-code", headers=key)
    check("post", "/v1/device/claim", json={"code": code})
    fresh = client.post("/v1/agents/register", json={}).get_json()["claimCode"]
    check("post", "/v1/device/claim", json={"code": fresh, "email": "ada@example.org"})
    _check_catalog(check, registered["wallet"]["id"], key)
    check("delete", f"/v1/wallets/{unlimited}", one, headers=key)


def test_responses_to_operators_match_the_document(client: FlaskClient, document: Document, register: Register) -> None:
    registered, check = register(), partial(_check, client, document)
    client.post("/v1/keys", json={})
    master, platform = operator(client).headers(), "/v1/platform"
    agent, agents = f"{platform}/agents/{registered['agentId']}", f"{platform}/agents/{{agent_id}}"
    check("post", f"{platform}/agents", headers=master, json={"credits_usd": 1})
    check("post", f"{platform}/agents", headers=master, json={"credits_usd": -1})
    check("get", f"{platform}/agents", headers=master)
    check("get", f"{platform}/agents")
    check("get", agent, agents, headers=master)
    check("get", f"{platform}/agents/0", agents, headers=master)
    check("patch", agent, agents, headers=master, json={"email": None})
    check("post", f"{agent}/rotate-key", f"{agents}/rotate-key", headers=master, json={"grace_seconds": 9})
    check("put", f"{agent}/controls", f"{agents}/controls", headers=master, json={"locked": True})
    fleet = {"agent_ids": [registered["agentId"], "0"], "per_tx_limit_usd": 1}
    check("put", f"{platform}/controls", headers=master, json=fleet)
    check("put", f"{platform}/controls", headers=master, json={"per_tx_limit_usd": 1})
    check("post", f"{agent}/credits", f"{agents}/credits", headers=master, json={"credits_usd": 1})
    check("post", f"{agent}/freeze", f"{agents}/freeze", headers=master)
    check("delete", agent, agents, headers=master)
    check("post", f"{agent}/unfreeze", f"{agents}/unfreeze", headers=master)
    check("delete", f"{agent}/claim-code", f"{agents}/claim-code", headers=master)
    check("delete", agent, agents, headers=master)
    gateway = check("get", f"{platform}/keys", headers=master).get_json()["keys"][0]["id"]
    check("delete", f"{platform}/keys/{gateway}", f"{platform}/keys/{{key_id}}", headers=master)
    made = check("post", f"{platform}/master-keys", headers=master, json={"name": "other"}).get_json()["id"]
    check("delete", f"{platform}/master-keys/{made}", f"{platform}/master-keys/{{key_id}}", headers=master)
    check("get", f"{platform}/master-keys", headers=master)
    check("get", f"{platform}/audit", headers=master)


def _check(
    client: FlaskClient, document: Document, method: str, path: str, template: str | None = None, **request: Any
) -> TestResponse:
    """Make a request and validate its response against the document."""
    answer = client.open(path, method=method.upper(), **request)
    responses = document["paths"][template or path][method]["responses"]
    documented = responses[str(answer.status_code)]
    schema = documented["content"]["application/json"]["schema"]
    whole = {**schema, "components": document["components"]}
    problems = [f"{error.json_path}: {error.message}" for error in OAS31Validator(whole).iter_errors(answer.json)]
    assert problems == [], (method, path, answer.text)
    assert _undocumented(answer.json, schema, document) == set(), (method, path)
    return answer


def _check_catalog(check: Callable[..., TestResponse], wallet_id: str, key: dict[str, str]) -> None:
    offered = check("post", "/v1/services", headers=key, json=offer(openapi_spec=SPEC)).get_json()["id"]
    check("post", "/v1/services", headers=key, json=offer(openapi_spec={}))
    check("get", "/v1/services", headers=key)
    check("get", f"/v1/services/{offered}", "/v1/services/{service_id}", headers=key)
    check("get", f"/v1/services/{offered}/stats", "/v1/services/{service_id}/stats", headers=key)
    check("put", f"/v1/services/{offered}", "/v1/services/{service_id}", headers=key, json={"name": "n"})
    check("get", "/v1/catalog", headers=key, query_string={"q": "n"})
    check("get", f"/v1/catalog/{offered}", "/v1/catalog/{service_id}", headers=key)
    subscription = f"/v1/catalog/{offered}/subscribe", "/v1/catalog/{service_id}/subscribe"
    for method in ("post", "post", "delete", "post"):
        check(method, *subscription, headers=key, json={"wallet_id": wallet_id})
    check("get", "/v1/subscriptions", headers=key)
    proxied = f"/v1/proxy/{offered}/x", "/v1/proxy/{service_id}/{path}"
    check("get", *proxied, headers={**key, "X-Max-Price-Usd": "0"})
    check("delete", f"/v1/services/{offered}", "/v1/services/{service_id}", headers=key)
    check("get", *proxied, headers=key)


def _undocumented(value: Any, schema: dict[str, Any], document: Document) -> set[str]:
    """Return the members of a response that its schema does not contain."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for choice in schema.get("anyOf", []):
        if "$ref" in choice and value is not None:
            return _undocumented(value, choice, document)
    if isinstance(value, list):
        return set().union(*(_undocumented(item, schema["items"], document) for item in value))
    if not isinstance(value, dict) or "properties" not in schema:
        return set()
    members = schema["properties"]
    inner = (_undocumented(value[name], members[name], document) for name in value if name in members)
    return set(value.keys() - members.keys()).union(*inner)
