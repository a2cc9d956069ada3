"""The public pages: front page, API reference, llms.txt. tests/browser opens the reference in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.web.request_bodies import MAX_KEYLESS_BYTES
from tests.support.applications import key_of

Register = Callable[..., dict[str, Any]]

_PAGES = ("/", "/docs", "/docs/errors", "/docs/wallets/transfer", "/llms.txt", "/skill.md", "/openapi.json")
_MAIN_JOB = ("register", "fund", "get_transaction", "get_balances", "get_controls", "transfer", "withdraw")


def _resolve(document: Any, node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    found = document
    for part in node["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return _resolve(document, found)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the OpenAPI document."""

    id: str
    queries: set[str]
    body_fields: set[str]
    codes: set[str]


def _operations(client: FlaskClient) -> dict[tuple[str, str], Operation]:
    document = client.get("/openapi.json").get_json()

    def operation(raw: dict[str, Any]) -> Operation:
        parameters = [_resolve(document, each) for each in raw.get("parameters", ())]
        body = raw.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        schemas = [_resolve(document, choice) for choice in body.get("oneOf", [body])]
        descriptions = [_resolve(document, each).get("description", "") for each in raw["responses"].values()]
        return Operation(
            raw["operationId"],
            {each["name"] for each in parameters if each["in"] == "query"},
            {name for schema in schemas for name in schema.get("properties", ())},
            set(re.findall(r"^`([A-Z_]+)`:", "\n".join(descriptions), re.MULTILINE)),
        )

    return {
        (method.upper(), path): operation(raw)
        for path, methods in document["paths"].items()
        for method, raw in methods.items()
        if method != "parameters"
    }


@pytest.mark.parametrize("page", _PAGES)
def test_pages_allow_no_foreign_script_and_no_framing(client: FlaskClient, page: str) -> None:
    answer = client.get(page)
    assert answer.status_code == 200
    policy = answer.headers["Content-Security-Policy"]
    for rule in ("default-src 'none'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert rule in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    scripts = re.findall(r"<script[^>]*>", answer.text)
    if page.startswith("/docs"):
        assert "script-src 'self'" in policy
        assert scripts == ['<script src="/static/docs.js" defer>']
    else:
        assert "script-src" not in policy
        assert scripts == []
    assert " style=" not in answer.text
    # Of providers' examples, and of the reserved names in ours.
    assert "https://" not in re.sub(r"https://(api\.|(shop|hooks)\.example)", "", answer.text)


@pytest.mark.parametrize("page", _PAGES)
def test_an_error_provoked_by_an_attacker_is_not_cached(client: FlaskClient, page: str) -> None:
    poisoned = client.get(page, headers={"X-Gateway-Signature": "v1=00"})
    assert poisoned.status_code == 400
    assert poisoned.headers["Cache-Control"] == "no-store"
    assert client.get(page).headers["Cache-Control"] == "public, max-age=300"


@pytest.mark.parametrize("page", ["/", "/docs"])
def test_every_link_of_a_page_resolves(client: FlaskClient, page: str) -> None:
    text = client.get(page).text
    anchors = set(re.findall(r'id="([^"]+)"', text))
    links = set(re.findall(r'href="([^"]+)"', text))
    assert {"/docs", "/llms.txt", "/openapi.json", "/device", "/v1/health"} <= links
    for link in links:
        if link.startswith("#"):
            assert link[1:] in anchors, link
        else:
            assert client.get(link, buffered=True).status_code == 200, link


def test_programs_find_the_document_from_the_front_page(client: FlaskClient) -> None:
    assert '</openapi.json>; rel="service-desc"' in client.get("/").headers["Link"]


def test_the_registration_command_of_the_front_page_works(client: FlaskClient) -> None:
    found = re.search(r"curl -X POST http://purser\.test(\S+) .*?-d '(.*?)'", client.get("/").text, re.DOTALL)
    assert found
    assert client.post(found[1], data=found[2]).status_code == 201


@pytest.mark.parametrize("name", ["docs.js", "docs.css"])
def test_static_files_are_revalidated_by_their_etag(client: FlaskClient, name: str) -> None:
    first = client.get(f"/static/{name}", buffered=True)
    assert first.status_code == 200
    assert "public" in first.headers["Cache-Control"]
    again = client.get(f"/static/{name}", headers={"If-None-Match": first.headers["ETag"]}, buffered=True)
    assert (again.status_code, again.data) == (304, b"")


def test_llms_txt_covers_the_main_job_briefly(client: FlaskClient) -> None:
    answer = client.get("/llms.txt")
    assert answer.mimetype == "text/plain"
    assert len(answer.data) < 13_500
    assert "http://purser.test/v1/agents/register" in answer.text
    operations = {each.id: each for each in _operations(client).values()}
    codes = {code for name in _MAIN_JOB for code in operations[name].codes}
    assert "DAILY_LIMIT_EXCEEDED" in codes
    assert sorted(code for code in codes if code not in answer.text) == []
    assert f"{MAX_KEYLESS_BYTES // 1024} KiB without a key" in answer.text


def test_the_skill_names_the_address_of_this_service(client: FlaskClient) -> None:
    answer = client.get("/skill.md")
    assert answer.mimetype == "text/markdown"
    assert answer.text.startswith("---\nname: purser\n")
    assert "http://purser.test/llms.txt" in answer.text
    assert "127.0.0.1" not in answer.text


def test_llms_txt_names_only_existing_paths_and_filters(client: FlaskClient) -> None:
    text = client.get("/llms.txt").text
    operations = _operations(client)
    documented = re.findall(r"(GET|POST|PUT) http://purser\.test(/v1/[\w/{}.-]+[\w}])(?:\?(\S+))?", text)
    assert len(documented) >= 8
    for method, path_shown, query in documented:
        path = path_shown.replace("{wallet.id}", "{wallet_id}").replace("{funding_request_id}", "{transaction_id}")
        operation = operations[method, path]
        assert {pair.partition("=")[0] for pair in filter(None, query.split("&"))} <= operation.queries


def test_llms_txt_names_only_existing_body_fields(client: FlaskClient) -> None:
    text = client.get("/llms.txt").text
    operations = _operations(client)
    requests = re.findall(r"POST http://purser\.test(\S+)\n(?:[\w-]+: \S+\n)?(\{.*\})\n", text)
    assert len(requests) == 5
    for path, body in requests:
        operation = operations["POST", path.replace("{wallet.id}", "{wallet_id}")]
        assert json.loads(body).keys() <= operation.body_fields


def test_automatic_funding_is_documented_in_the_sandbox_only(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    texts = {}
    for network in ("sandbox", "mainnet"):
        application = build_app(sqlite_url, settings={"network": network, "encryption_keys": key_of(network)})
        client = application.test_client()
        texts[network] = client.get("/llms.txt").text + client.get("/").text
    assert "sandbox" in texts["sandbox"]
    assert "sandbox" not in texts["mainnet"]
    assert "deposit_address" in texts["mainnet"]
