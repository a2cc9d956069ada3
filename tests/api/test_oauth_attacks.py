"""Attacks on the connection of applications, by strangers and by applications."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from flask import Flask
from sqlalchemy import insert
from werkzeug.test import TestResponse

from app.adapters.upstream_http.exchange import HttpUpstream
from app.core import clock
from app.db.unit_of_work import unit_of_work
from app.oauth.clients import OAuthClient
from tests.support.ledger import race
from tests.support.oauth import Application, code_of, consent, consent_page, query_of
from tests.support.owners import Owner, person
from tests.support.upstreams import misbehaving_upstream


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator[Flask]:
    url = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    built: Flask = request.getfixturevalue("build_app")(url)
    with built.app_context():
        yield built


on_each_database = pytest.mark.parametrize(
    "app", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


@pytest.fixture
def made(app: Flask) -> dict[str, Any]:
    registered: dict[str, Any] = app.test_client().post("/v1/agents/register", json={"name": "Bot"}).get_json()
    return registered


@pytest.fixture
def owner(app: Flask, made: dict[str, Any]) -> Owner:
    someone = person(app)
    someone.claim(made)
    return someone


@pytest.fixture
def application(app: Flask) -> Application:
    registered = Application(app)
    registered.register()
    return registered


def refused(answer: TestResponse) -> tuple[int, str]:
    return answer.status_code, answer.get_json()["error"]


@on_each_database
def test_texts_that_no_column_takes_are_refused(app: Flask, application: Application) -> None:
    client, known = app.test_client(), application.client_id
    for text in ("\0", f"{known}\0", "x" * 7000, "\ud7ff\u202e\ufffd"):
        for path, data in (
            ("token", {"grant_type": "authorization_code", "client_id": text, "code": "x", "code_verifier": "v" * 64}),
            ("token", {"grant_type": "authorization_code", "client_id": known, "code": text, "redirect_uri": text}),
            ("token", {"grant_type": "refresh_token", "client_id": known, "refresh_token": text, "scope": text}),
            ("token", {"grant_type": text, "client_id": known}),
            ("revoke", {"client_id": known, "token": text}),
            ("device_authorization", {"client_id": text, "scope": text}),
        ):
            status = client.post(f"/oauth/{path}", data=data).status_code
            assert status in ((200,) if path == "revoke" else (400, 401)), (path, data)
        for change in ({"client_id": text}, {"redirect_uri": text}, {"scope": text}, {"code_challenge": text}):
            assert client.get(application.authorization(**change)).status_code in (200, 400), change
    codes = client.post("/oauth/device_authorization", data={"client_id": known, "scope": "gateway catalog " * 300})
    assert codes.status_code == 200, codes.text


@on_each_database
def test_of_two_concurrent_uses_of_a_code_nobody_keeps_a_token(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    code = code_of(consent(owner, application.authorization(), made))
    thieves = [Application(app, client_id=application.client_id) for _ in range(4)]
    answers = race(app, [partial(each.exchange, code) for each in thieves])
    assert sorted(each.status_code for each in answers if isinstance(each, TestResponse)) == [200, 400, 400, 400]
    for each in thieves:
        if each.tokens:
            assert each.get("/v1/wallets").status_code == 401
            assert refused(each.refresh()) == (400, "invalid_grant")


def test_another_application_cannot_spend_a_code_or_end_its_connection(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    other = Application(app, redirect_uri="https://evil.example/cb")
    other.register()
    code = code_of(consent(owner, application.authorization(), made))
    assert refused(other.exchange(code)) == (400, "invalid_grant")
    assert application.exchange(code).status_code == 200
    assert refused(other.exchange(code)) == (400, "invalid_grant")
    assert application.get("/v1/wallets").status_code == 200


def test_a_refresh_or_a_device_code_for_another_service_is_refused(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    asked = {"client_id": application.client_id, "resource": "https://other.example.com/mcp"}
    assert refused(app.test_client().post("/oauth/device_authorization", data=asked)) == (400, "invalid_target")
    application.connect(owner, made)
    assert refused(application.refresh(resource=asked["resource"])) == (400, "invalid_target")
    assert application.refresh(resource="http://purser.test/mcp").status_code == 200


@pytest.mark.parametrize(
    "mistake", [{"code_challenge": None}, {"response_type": "token"}, {"resource": "https://x.example"}]
)
def test_a_faulty_request_is_no_redirect_to_a_site_that_anybody_registered(
    app: Flask, application: Application, mistake: dict[str, str | None]
) -> None:
    """An open redirector (RFC 9700 §4.11.2): the address of this service would lead to any other without a click."""
    page = app.test_client().get(application.authorization(**mistake))
    assert (page.status_code, "Location" in page.headers) == (400, False)
    assert "app.example.com" in page.text
    [link] = [
        html.unescape(part.split('"')[0]) for part in page.text.split('href="')[1:] if part.startswith("https://")
    ]
    found = parse_qs(urlsplit(link).query)
    assert (found["state"], found["iss"]) == (["s1"], ["http://purser.test"])
    local = Application(app, redirect_uri="http://127.0.0.1:3000/cb")
    local.register()
    # A program on the owner's computer waits for the answer.
    assert "error" in query_of(app.test_client().get(local.authorization(**mistake)))


@pytest.mark.parametrize(
    ("redirect", "source"),
    [
        ("https://app.example.com:8443/callback", "https://app.example.com:8443"),
        ("http://localhost:3000/cb", "http://localhost:3000"),
        ("http://[::1]:3000/cb", "http:"),
        ("cursor://anysphere.cursor-retrieval/oauth/cb", "cursor:"),
        ("com.example.app:/callback", "com.example.app:"),
    ],
)
def test_the_form_may_end_only_where_the_code_goes(app: Flask, owner: Owner, redirect: str, source: str) -> None:
    application = Application(app, redirect_uri=redirect)
    assert application.register().status_code == 201
    start = owner.get(application.authorization())
    assert "form-action 'self'; " in start.headers["Content-Security-Policy"]
    page = consent_page(owner, application.authorization())
    assert f"form-action 'self' {source}; " in page.headers["Content-Security-Policy"]


# --- Floods


def test_a_full_table_of_registrations_stops_nobody_who_is_connected(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    now = clock.now()
    application.connect(owner, made)
    row = {"name": "x", "redirect_uris": [], "created_at": now, "expires_at": now + timedelta(days=1)}
    rows = [{"id": f"oc_{number}", **row} for number in range(20_000)]
    with unit_of_work() as session:
        session.execute(insert(OAuthClient), rows)
    full = Application(app).register()
    assert refused(full) == (503, "temporarily_unavailable")
    assert full.headers["Retry-After"] == "3600"
    assert application.refresh().status_code == 200
    application.connect(owner, made)


def test_device_codes_are_limited(app: Flask, application: Application) -> None:
    asked = {"client_id": application.client_id, "scope": "gateway"}
    answers = [app.test_client().post("/oauth/device_authorization", data=asked).status_code for _ in range(21)]
    assert answers == [200] * 20 + [429]


def test_a_network_that_reads_too_many_documents_stops_no_other(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    upstream_port = {"public_upstream": HttpUpstream(connect_seconds=Decimal(1), read_seconds=Decimal(5))}
    with misbehaving_upstream() as upstream:
        built = build_app(sqlite_url, settings={"allow_private_upstreams": "1"}, **upstream_port)

        def ask(number: int, address: str) -> int:
            asked = Application(
                built, client_id=f"{upstream.url}/{number}.json", redirect_uri="https://app.example.com/cb"
            )
            from_there = {"REMOTE_ADDR": address}
            return built.test_client().get(asked.authorization(), environ_base=from_there).status_code

        upstream.behave = lambda exchange: exchange.json(
            {"client_id": f"{upstream.url}{exchange.asked.target}", "redirect_uris": ["https://app.example.com/cb"]}
        )
        with built.app_context():
            assert [ask(number, "203.0.113.7") for number in range(31)] == [200] * 30 + [429]
            assert ask(30, "198.51.100.7") == 200
            assert ask(30, "203.0.113.7") == 200


def test_the_host_of_a_document_is_no_name_for_where_the_code_goes(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    """Anybody can start a flow with the id of a known application."""
    upstream_port = {"public_upstream": HttpUpstream(connect_seconds=Decimal(1), read_seconds=Decimal(5))}
    with misbehaving_upstream() as upstream:
        redirect, document = "https://other.example.com/cb", f"{upstream.url}/client.json"
        upstream.behave = lambda exchange: exchange.json({"client_id": document, "redirect_uris": [redirect]})
        built = build_app(sqlite_url, settings={"allow_private_upstreams": "1"}, **upstream_port)
        with built.app_context():
            page = person(built).get(Application(built, client_id=document, redirect_uri=redirect).authorization())
        assert "<strong><code>127.0.0.1</code></strong>" in page.text
        assert "other.example.com" in page.text


# --- Tokens in what is forwarded


def test_a_token_in_a_request_to_a_seller_is_refused(
    made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.connect(owner, made)
    token = application.tokens["access_token"]
    for change in (
        {"headers": {"Authorization": f"Bearer {token}"}}, {"url": f"https://seller.example.com/?key={token}"},
        {"method": "POST", "body": token},
    ):  # fmt: skip
        order = {"url": "https://seller.example.com/", "max_amount_usd": 1, **change}
        answer = application.post(f"/v1/wallets/{made['wallet']['id']}/x402/fetch", order)
        assert (answer.status_code, "key" in answer.get_json()["error"].lower()) == (400, True), answer.text
