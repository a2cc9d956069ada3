"""The reference at `/docs`: every page, its links, the samples, the search, the errors. tests/browser looks at it."""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
import shlex
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import httpx
import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.core import clock
from app.core.chains import ChainName
from app.errors import STATUS
from app.gateway.providers.table import ProviderTable
from app.web.openapi import reference_texts
from app.web.reference import Reference, ReferenceOperation
from purser import PurserError
from tests.support.agents import Agent, register
from tests.support.operators import Operator, operator
from tests.support.samples import samples_of
from tests.support.simulated_chain import SimulatedChain

_VOID = {"meta", "link", "input", "br", "img", "path", "rect"}
# The request of a sample is not what is wrong.
_OF_CLIENTS = {"INVALID_INPUT", "INVALID_SPEC", "UNAUTHORIZED", "METHOD_NOT_ALLOWED", "ROUTE_NOT_ALLOWED"}
_SUCCEEDING = {
    "register", "create_gateway_key", "replace_claim_code", "list_wallets", "create_wallet", "get_wallet",
    "list_transactions", "get_controls", "set_controls", "open_session", "list_sessions", "list_approvals",
    "list_events", "create_webhook", "change_webhook", "list_webhooks", "get_balance", "get_usage", "list_providers",
    "list_catalog", "register_service", "update_service", "create_agent", "list_agents", "get_agent", "change_agent",
    "set_agent_controls", "set_fleet_controls", "grant_credits", "create_master_key", "list_audit_entries",
    "list_platform_events", "create_platform_webhook", "get_health", "get_liveness",
}  # fmt: skip


@pytest.fixture
def app(build_app: Callable[..., Flask], sqlite_url: str) -> Flask:
    """An application with two chains, so that requests to move money are complete."""
    chains = {name: SimulatedChain(name) for name in (ChainName.BASE, ChainName.ETHEREUM)}
    return build_app(sqlite_url, chains=chains)


@pytest.fixture
def operations(app: Flask) -> dict[str, ReferenceOperation]:
    return dict(app.state.part(Reference).operations)


class _Page(HTMLParser):
    """Fails on unbalanced tags, and collects links, identifiers and headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: set[str] = set()
        self.ids: list[str] = []
        self.headings: list[int] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in _VOID:
            self.open.append(tag)
        if "href" in given:
            self.links.add(str(given["href"]))
        if "id" in given:
            self.ids.append(str(given["id"]))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag, self.getpos()


def _paths(app: Flask) -> list[str]:
    reference = app.state.part(Reference)
    operations = [each.href for each in reference.operations.values()]
    return ["/docs", "/docs/errors", "/docs?q=limit", *(f"/docs/{tag}" for tag in reference.tags), *operations]


def test_every_page_is_well_formed_and_its_links_lead_somewhere(app: Flask, client: FlaskClient) -> None:
    pages = {path: client.get(path) for path in _paths(app)}
    assert {path: page.status_code for path, page in pages.items() if page.status_code != 200} == {}
    read = {path: _Page(page.text) for path, page in pages.items()}
    anchors = {path: set(page.ids) for path, page in read.items()}
    for path, page in read.items():
        assert len(page.ids) == len(set(page.ids)), path
        # One title, and no level is left out below the navigation's.
        assert page.headings.count(1) == 1, path
        below = page.headings[page.headings.index(1) :]
        assert all(after <= before + 1 for before, after in pairwise(below)), path
        for link in page.links - {"/", "/llms.txt", "/openapi.json", "/device", "/owner/sign-in", "/v1/health"}:
            target, _, anchor = link.partition("#")
            if not target.startswith(("/static/", "https:")):
                target = target or path
                assert target in anchors or client.get(target).status_code == 200, (path, link)
                assert not anchor or anchor in anchors[target], (path, link)


def test_every_operation_is_in_one_group_and_one_tag(app: Flask) -> None:
    reference = app.state.part(Reference)
    shown = [each.id for tags in reference.groups.values() for tag in tags for each in tag.operations]
    assert sorted(shown) == sorted(reference.operations)
    assert [name for name, tag in reference.tags.items() if not tag.text] == []
    providers = {tag.name for tag in reference.groups["Providers"]}
    assert providers == {row.slug for row in app.state.part(ProviderTable).rows}


@pytest.mark.parametrize("path", ["/docs/nothing", "/docs/wallets/nothing", "/docs/x402/transfer", "/docs/"])
def test_a_page_that_does_not_exist_is_not_found(client: FlaskClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_an_operation_shows_its_parameters_fields_bounds_values_and_errors(client: FlaskClient) -> None:
    page = client.get("/docs/wallets/transfer").text
    text = " ".join(re.sub(r"<[^>]+>", " ", page[page.index("<main") :]).split())
    for shown in (
        "wallet_id string required", "Idempotency-Key string", "chain string required The chain to send on.",
        "One of ethereum , base , solana", "approval_note string or null", "At most 500 characters.",
        "session_id string or null (uuid)", "Authentication: X-API-Key", "DAILY_LIMIT_EXCEEDED 403",
        "200 The movement, or the quote of a dry run. One of these objects: Movement", "TransferQuote",
    ):  # fmt: skip
        assert shown in text
    assert '<a href="/docs/errors#DAILY_LIMIT_EXCEEDED">' in page
    buying = client.get("/docs/shopping/buy").text
    assert re.search(r"<details><summary>9 members of <code>ShippingAddressBody</code></summary>", buying)


def test_every_error_code_has_a_meaning_and_what_to_do(app: Flask, client: FlaskClient) -> None:
    assert set(reference_texts()["advice"]) == set(STATUS)
    page = client.get("/docs/errors").text
    for status, code, meaning, advice in app.state.part(Reference).errors:
        assert status == STATUS[code]
        assert re.search(rf'<h3 id="{code}">', page)
        assert meaning.endswith(".")
        assert " Not for " not in meaning
        assert advice.endswith(".")
        assert len(advice) > 40
    assert '<a href="/docs/services/register_service">' in page[page.index('id="INVALID_SPEC"') :]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("transfer", "/docs/wallets/transfer"),
        ("  Request   DEPOSIT ", "/docs/wallets/fund"),
        ("/v1/credits/topup", "/docs/credits/top_up"),
        ("shippingAddress", "/docs/shopping/buy"),
        ("chat completions groq", "/docs/groq/groq_chat_completions"),
    ],
)
def test_a_search_finds_an_operation_by_words_of_its_title_path_and_fields(
    client: FlaskClient, query: str, first: str
) -> None:
    page = client.get("/docs", query_string={"q": query}).text
    assert re.findall(r'<li><a href="([^"]+)">[^<]*</a> <code class="endpoint">', page)[0] == first


def test_a_search_finds_error_codes_and_shows_foreign_text_as_text(client: FlaskClient) -> None:
    assert 'href="/docs/errors#DAILY_LIMIT_EXCEEDED"' in client.get("/docs?q=daily+limit").text
    nothing = client.get("/docs", query_string={"q": '"><script>alert(1)</script>'})
    assert "Nothing contains all of these words." in nothing.text
    assert "<script>alert" not in nothing.text
    assert client.get("/docs", query_string={"q": "(" * 5000}).status_code == 200


def test_example_requests_name_existing_operations_and_parameters(operations: dict[str, ReferenceOperation]) -> None:
    texts = reference_texts()
    names = {parameter["name"] for each in operations.values() for parameter in each.node["parameters"]}
    assert {name.rpartition(".")[2] for name in texts["parameters"]} <= names
    for kind in ("queries", "files", "bodies"):
        assert set(texts[kind]) <= set(operations), kind
    without = [
        each.id
        for each in operations.values()
        if each.content and each.id.replace("_platform", "") not in texts["bodies"]
    ]
    assert without == []
    unnamed = {each.id for each in operations.values() if re.search(r"/(?:path|group|model|slug)\b", each.url)}
    assert unnamed == set()


@dataclass(frozen=True)
class Reader:
    """Someone who copies samples: the keys and objects that take the place of those of the examples."""

    agent: Agent
    ops: Operator
    ids: dict[str, str]
    webhooks: dict[bool, str]

    def key(self, operation: ReferenceOperation) -> str:
        return self.ops.key if "X-Master-Key" in operation.headers else self.agent.key

    def filled(self, operation: ReferenceOperation, sample: str) -> str:
        webhook = {reference_texts()["parameters"]["webhook_id"]: self.webhooks["X-Master-Key" in operation.headers]}
        for shown, real in (self.ids | webhook).items():
            sample = sample.replace(shown, real)
        return sample


@pytest.fixture
def reader(client: FlaskClient) -> Reader:
    agent, ops, hook = register(client), operator(client), {"url": "https://hooks.example.com/x", "types": ["*"]}
    parameters, bodies = reference_texts()["parameters"], reference_texts()["bodies"]
    spec = bodies["register_service"]
    later = clock.isoformat(clock.now() + timedelta(hours=1))
    made = {
        "wallet_id": agent.wallet_id,
        "agent_id": agent.id,
        "budget_id": ops.post("/budgets", {"name": "team"}).get_json()["id"],
        "service_id": agent.post("/v1/services", spec).get_json()["id"],
        "session_id": agent.post(f"{agent.wallet_url}/sessions", {"max_usd": 1, "expires_at": later}).get_json()["id"],
    }
    ids = {
        **{str(parameters[name]): str(value) for name, value in made.items()},
        str(bodies["open_session"]["expires_at"]): later,
        str(bodies["replay_webhook"]["failed_since"]): clock.isoformat(clock.now()),
        "Weather": "Weather again",
    }
    made_hooks = agent.post("/v1/webhooks", hook), ops.post("/webhooks", hook)
    return Reader(agent, ops, ids, {bool(number): each.get_json()["id"] for number, each in enumerate(made_hooks)})


def _problem(operation: ReferenceOperation, status: int, body: dict[str, Any]) -> list[str]:
    """Return what is wrong with the request of a sample, if something is. Nothing swaps or bridges here."""
    is_unserved = set(body.get("details", {}).get("fields", ())) & {"chain", "source_chain"}
    is_wrong = body.get("code") in _OF_CLIENTS and not (operation.id in {"swap", "bridge"} and is_unserved)
    has_to_succeed = operation.id in _SUCCEEDING and status >= 300
    return [f"{operation.id}: {body}"] if is_wrong or has_to_succeed else []


# Objects and keys that others need are removed last.
_LAST = (("delete", "revoke", "remove", "retire"), ("freeze_agent", "rotate_agent_key"), ("delete_agent",))


def _in_order(operations: dict[str, ReferenceOperation]) -> Iterator[ReferenceOperation]:
    yield from sorted(operations.values(), key=lambda each: [each.id.startswith(names) for names in reversed(_LAST)])


def test_the_samples_in_python_run(
    app: Flask,
    client: FlaskClient,
    operations: dict[str, ReferenceOperation],
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    http, problems = httpx.Client(transport=httpx.WSGITransport(app=app)), []
    for each in _in_order(operations):
        monkeypatch.setenv("PURSER_API_KEY", reader.key(each))
        sample = reader.filled(each, samples_of(client, each)["python"])
        sample = sample.replace("Purser(base_url", "Purser(http_client=http, max_retries=0, base_url")
        program = compile(sample, each.id, "exec")
        if each.files:
            continue  # it sends a file that is not there
        try:
            with contextlib.redirect_stdout(None):
                exec(program, {"http": http})  # noqa: S102 - our own sample
        except PurserError as error:
            problems += _problem(each, error.status, error.body)
    assert not problems, "\n".join(problems)


def test_the_samples_in_curl_are_valid_requests(
    client: FlaskClient, operations: dict[str, ReferenceOperation], reader: Reader
) -> None:
    problems = []
    for each in _in_order(operations):
        command = reader.filled(each, samples_of(client, each)["curl"]).replace("\\\n", "")
        command = command.replace("$PURSER_API_KEY", reader.key(each)).replace("$(uuidgen)", str(uuid.uuid4()))
        sent = _parsed(command)
        assert sent["method"] == each.method
        answer = client.open(**sent)
        problems += _problem(each, answer.status_code, answer.get_json(silent=True) or {})
    assert not problems, "\n".join(problems)


def _parsed(command: str) -> dict[str, Any]:
    """Return what a command sends, as arguments of the test client."""
    words = iter(shlex.split(command)[1:])
    sent: dict[str, Any] = {"method": "GET", "headers": {}}
    form = {}
    for word in words:
        if word == "-X":
            sent["method"] = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            sent["headers"][name] = value
        elif word == "-F":
            name, _, value = next(words).partition("=")
            form[name] = (io.BytesIO(b"file"), value[1:]) if value.startswith("@") else value
        elif word == "-d":
            sent["data"] = next(words)
        else:
            sent["path"] = word.removeprefix("http://purser.test")
    assert sent["path"].startswith(("/v1/", "/discovery/"))
    return sent | ({"data": form} if form else {})


def test_a_value_with_quotes_and_markup_is_a_literal_of_each_language(app: Flask) -> None:
    found = {"a-b": ["it's", '"quoted"', "<b>&", None, True, 1.5], "name": {}}
    with app.app_context():
        template = app.jinja_env.get_template("docs/samples/_value.txt").module
        python = template.value(found, "python")  # type: ignore[attr-defined]
        assert eval(python) == found  # noqa: S307 - our own text
        assert json.loads(template.value(found, "json")) == found  # type: ignore[attr-defined]
        typescript = template.value(found, "typescript")  # type: ignore[attr-defined]
    assert '"a-b": ["it\'s"' in typescript
    assert "name: {}" in typescript


@pytest.mark.parametrize("path", ["/", "/docs", "/docs/errors", "/owner/sign-in"])
def test_links_of_the_operator_are_in_the_footer_if_they_are_set(
    build_app: Callable[..., Flask], sqlite_url: str, path: str
) -> None:
    links = {
        "terms_url": "https://shop.example/terms",
        "privacy_url": "https://shop.example/privacy",
        "support_url": "mailto:help@shop.example",
        "status_url": "https://status.shop.example",
    }
    application = build_app(sqlite_url, settings=links)
    page = application.test_client().get(path).text
    footer = html.unescape(page[page.index("<footer") :])
    assert re.findall(r'<a href="([^"]+)">(\w+)</a>', footer)[-4:] == [
        (link, name.removesuffix("_url").capitalize()) for name, link in links.items()
    ]
    info = application.test_client().get("/openapi.json").get_json()["info"]
    assert info["termsOfService"] == "https://shop.example/terms"
    assert info["contact"]["url"] == "mailto:help@shop.example"
    bare = build_app(sqlite_url).test_client()
    assert "Terms" not in bare.get(path).text
    assert "termsOfService" not in bare.get("/openapi.json").get_json()["info"]
