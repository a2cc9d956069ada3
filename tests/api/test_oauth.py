"""OAuth: an owner connects an application, and what its tokens can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask

from tests.support.oauth import Application, code_of, consent, consent_page, query_of
from tests.support.owners import Owner, person


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator[Flask]:
    url = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    made: Flask = request.getfixturevalue("build_app")(url)
    with made.app_context():
        yield made


on_each_database = pytest.mark.parametrize(
    "app", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


def register(app: Flask) -> dict[str, Any]:
    registered: dict[str, Any] = app.test_client().post("/v1/agents/register", json={"name": "Bot"}).get_json()
    return registered


@pytest.fixture
def made(app: Flask) -> dict[str, Any]:
    return register(app)


@pytest.fixture
def owner(app: Flask, made: dict[str, Any]) -> Owner:
    someone = person(app)
    someone.claim(made)
    return someone


@pytest.fixture
def application(app: Flask) -> Application:
    return Application(app)


@on_each_database
def test_an_owner_connects_an_application_that_then_acts_for_the_agent(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    asked = app.test_client().post(
        "/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "get_usage"}}
    )
    assert asked.status_code == 401
    challenge = asked.headers["WWW-Authenticate"]
    assert 'resource_metadata="http://purser.test/.well-known/oauth-protected-resource/mcp"' in challenge
    assert 'scope="wallet:read wallet:pay gateway catalog"' in challenge
    resource = app.test_client().get("/.well-known/oauth-protected-resource/mcp").get_json()
    assert resource["authorization_servers"] == ["http://purser.test"]
    metadata = app.test_client().get("/.well-known/oauth-authorization-server").get_json()
    assert metadata["code_challenge_methods_supported"] == ["S256"]
    assert application.register().status_code == 201
    page = consent_page(owner, application.authorization())
    assert "app.example.com" in page.text
    assert "form-action 'self' https://app.example.com;" in page.headers["Content-Security-Policy"]
    answered = consent(owner, "", made, form=page)
    assert answered.headers["Location"].startswith("https://app.example.com/callback?")
    assert query_of(answered)["state"] == "s1"
    assert query_of(answered)["iss"] == "http://purser.test"
    tokens = application.exchange(code_of(answered))
    assert tokens.status_code == 200, tokens.text
    assert tokens.headers["Cache-Control"] == "no-store"
    assert tokens.get_json()["scope"] == "wallet:read wallet:pay gateway catalog"
    called = application.call_tool("get_usage")
    assert called.status_code == 200
    assert not called.get_json()["result"]["isError"], called.text
    assert application.get("/v1/wallets").get_json()["pagination"]["total"] == 1
    assert application.get(f"/v1/wallets/{made['wallet']['id']}/controls").status_code == 200
