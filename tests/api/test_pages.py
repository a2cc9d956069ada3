"""The pages for whoever knows only the address."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app.status import reference
from app.status.pages import inline
from app.status.reference import Operation
from tests.support.agents import register as register_agent
from tests.support.applications import key_of
from tests.support.exchange import adapter_for, running_exchange
from tests.support.market import sell

Register = Callable[..., dict[str, Any]]

_PAGES = ("/", "/docs", "/llms.txt", "/openapi.json")
_PASTED = (
    "register_agent",
    "create_gateway_key",
    "create_wallet",
    "get_wallet",
    "put_controls",
    "list_transactions",
    "subscribe",
    "unsubscribe",
    "call_perpdex",
    "register_service",
    "update_service",
)
_MAIN_JOB = (
    "register_agent",
    "fund",
    "get_transaction",
    "get_balances",
    "get_controls",
    "transfer",
    "withdraw",
)


def _operations(client: FlaskClient) -> dict[str, Operation]:
    document = client.get("/openapi.json").get_json()
    return {
        operation.id: operation for room in reference.read(document).rooms for operation in room.operations
    }


@pytest.mark.parametrize("page", _PAGES)
def test_nobody_can_run_a_script_in_these_pages_or_frame_them(client: FlaskClient, page: str) -> None:
    answer = client.get(page)
    assert answer.status_code == 200
    policy = answer.headers["Content-Security-Policy"]
    for rule in ("default-src 'none'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert rule in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert "<script" not in answer.text
    assert " style=" not in answer.text
    assert "https://" not in answer.text.replace("https://api.", "").replace("https://shop.example/", "")


@pytest.mark.parametrize("page", ["/", "/docs"])
def test_every_link_of_a_page_leads_somewhere(client: FlaskClient, page: str) -> None:
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


def test_the_front_page_gives_a_registration_that_works_as_it_stands(client: FlaskClient) -> None:
    found = re.search(r"curl -X POST http://purser\.test(\S+) .*?-d '(.*?)'", client.get("/").text, re.DOTALL)
    assert found
    assert client.post(found[1], data=found[2]).status_code == 201


def test_the_documentation_holds_every_operation_field_and_code(client: FlaskClient) -> None:
    text = client.get("/docs").text
    operations = _operations(client)
    assert len(operations) > 15
    for operation in operations.values():
        article = re.search(rf'<article class="operation" id="{operation.id}">.*?</article>', text, re.DOTALL)
        assert article, operation.id
        assert operation.path in article[0]
        for field in (*operation.parameters, *(field for body in operation.bodies for field in body.fields)):
            assert f'<code class="name">{field.name}</code>' in article[0], field
        for failure in operation.failures:
            assert f"<code>{failure.code}</code>" in article[0], failure
        for answer in operation.answers:
            assert f'<span class="status">{answer.status}</span>' in article[0], answer


def test_nested_answers_are_shown_to_their_last_field(client: FlaskClient) -> None:
    fields = {field.name: field for field in _operations(client)["get_wallet"].answers[0].shapes[0].fields}
    assert [inner.name for inner in fields["addresses"].fields] == ["ethereum", "base", "solana"]
    assert fields["spending_controls"].type == "object or null"
    assert "per_tx_limit_usd" in [inner.name for inner in fields["spending_controls"].fields]


def _paste(client: FlaskClient, example: str, variables: dict[str, str]) -> TestResponse:
    """Let a real shell read an example, and send what it hands to curl."""
    line = f"""curl() {{ printf '%s\\0' "$@"; }}\n{example}"""
    read = subprocess.run(["/bin/sh", "-uc", line], env=variables, capture_output=True, check=True, text=True)
    words = iter(read.stdout.split("\0")[:-1])
    asked: dict[str, Any] = {"method": "GET", "headers": []}
    for word in words:
        if word == "-X":
            asked["method"] = next(words)
        elif word == "-H":
            asked["headers"].append(tuple(next(words).split(": ", 1)))
        elif word == "-d":
            asked["data"] = next(words)
        else:
            asked["path"] = word.removeprefix("http://purser.test")
    return client.open(**asked)


def test_the_examples_of_the_documentation_do_as_they_say_when_they_are_pasted(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    with running_exchange() as exchange:
        app = build_app(sqlite_url, perpdex=adapter_for(exchange.url))
        with app.app_context():
            client = app.test_client()
            agent = register_agent(client)
            service = sell(agent)
            variables = {"KEY": agent.key, "WALLET": agent.wallet_id, "SERVICE": service["id"]}
            operations = _operations(client)
            for name in _PASTED:
                answer = _paste(client, operations[name].example, variables)
                assert answer.status_code in {200, 201}, (name, operations[name].example, answer.text)
            # Of a service that moves no tokens; the wallet is found all the same.
            assert "wallet" not in _paste(client, operations["top_up"].example, variables).text


def test_no_example_uses_a_variable_that_means_something_else(client: FlaskClient) -> None:
    """`$PATH` is every shell's own, and `$KEY` a secret, which is no part of an address."""
    for operation in _operations(client).values():
        first = operation.example.splitlines()[0]
        assert not re.search(r"\$(PATH|KEY|MASTER_KEY)\b", first), (operation.id, first)


def test_an_example_never_holds_an_address_that_could_be_paid(client: FlaskClient) -> None:
    for operation in _operations(client).values():
        assert not re.search(r"0x[0-9a-fA-F]{40}", operation.example), operation.id


def test_an_agent_finds_every_answer_of_the_main_job_in_few_words(client: FlaskClient) -> None:
    answer = client.get("/llms.txt")
    assert answer.mimetype == "text/plain"
    assert len(answer.data) < 11_000
    assert "http://purser.test/v1/agents/register" in answer.text
    operations = _operations(client)
    codes = {failure.code for name in _MAIN_JOB for failure in operations[name].failures}
    assert sorted(code for code in codes if code not in answer.text) == []


def test_an_agent_is_told_of_no_path_and_no_filter_that_does_not_exist(client: FlaskClient) -> None:
    text = client.get("/llms.txt").text
    operations = {(each.method, each.path): each for each in _operations(client).values()}
    told = re.findall(r"(GET|POST|PUT) http://purser\.test(/v1/[\w/{}.-]+[\w}])(?:\?(\S+))?", text)
    assert len(told) >= 8
    for method, shown, query in told:
        path = shown.replace("{wallet.id}", "{wallet_id}").replace("{funding_request_id}", "{transaction_id}")
        operation = operations[method, path]
        known = {field.name for field in operation.parameters if field.place == "query"}
        assert {pair.partition("=")[0] for pair in filter(None, query.split("&"))} <= known


def test_an_agent_is_told_of_no_body_field_that_does_not_exist(client: FlaskClient) -> None:
    text = client.get("/llms.txt").text
    operations = {(each.method, each.path): each for each in _operations(client).values()}
    requests = re.findall(r"POST http://purser\.test(\S+)\n(?:[\w-]+: \S+\n)?(\{.*\})\n", text)
    assert len(requests) == 5
    for path, body in requests:
        operation = operations["POST", path.replace("{wallet.id}", "{wallet_id}")]
        assert operation.bodies
        assert json.loads(body).keys() <= {field.name for each in operation.bodies for field in each.fields}


def test_free_money_is_promised_in_the_sandbox_only(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    texts = {}
    for network in ("sandbox", "mainnet"):
        application = build_app(sqlite_url, settings={"network": network, "encryption_keys": key_of(network)})
        client = application.test_client()
        texts[network] = client.get("/llms.txt").text + client.get("/").text
    assert "sandbox" in texts["sandbox"]
    assert "sandbox" not in texts["mainnet"]
    assert "deposit_address" in texts["mainnet"]


def test_what_a_document_says_is_shown_as_text_and_never_as_markup() -> None:
    assert inline("<b> `a<b` & c") == "&lt;b&gt; <code>a&lt;b</code> &amp; c"
