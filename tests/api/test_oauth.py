"""OAuth: an owner connects an application, and what its tokens can do."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import select, update
from werkzeug.test import TestResponse

from app.adapters.upstream_http.exchange import HttpUpstream
from app.agents import claims
from app.core import clock
from app.db.tables import count
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.identity import grants
from app.identity.models import OwnerGrant
from app.identity.principal import Grant
from app.oauth.clients import OAuthClient
from app.oauth.tokens import OAuthToken
from app.platform import personal_data
from tests.support import status_writes
from tests.support.applications import change_settings
from tests.support.oauth import Application, code_of, consent, consent_page, query_of
from tests.support.operators import entries
from tests.support.owners import CODE, OWNER_KEY, Owner, forms_of, person
from tests.support.upstreams import Exchange, MisbehavingUpstream, misbehaving_upstream


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator[Flask]:
    url = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    made: Flask = request.getfixturevalue("build_app")(url)
    with made.app_context():
        yield made


on_each_database = pytest.mark.parametrize(
    "app", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


def grants_of(made: dict[str, Any]) -> Sequence[Grant]:
    with read_only_unit() as session:
        return grants.list_live(session, made["agentId"])


def private_upstream() -> dict[str, Any]:
    return {"public_upstream": HttpUpstream(connect_seconds=Decimal(1), read_seconds=Decimal(5))}


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
    assert metadata["issuer"] == "http://purser.test"
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


def refused(answer: TestResponse) -> tuple[int, str]:
    return answer.status_code, answer.get_json()["error"]


# --- What a token can do


def test_a_token_can_do_what_its_scopes_say_and_nothing_else(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    """Also with all scopes: no route that shows a key, changes limits or opens a budget is in the table."""
    application.connect(owner, made)
    wallet_id, done = made["wallet"]["id"], []
    for rule in app.url_map.iter_rules():
        if not rule.rule.startswith("/v1/") or "<rest:" in rule.rule:
            continue
        path = re.sub("<[^>]*wallet_id>", wallet_id, rule.rule)
        path = re.sub("<[^>]*>", "00000000-0000-4000-8000-000000000000", path)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            answer = app.test_client().open(path, method=method, json={}, headers=application.bearer())
            if (answer.get_json() or {}).get("code") != "INSUFFICIENT_SCOPE":
                done.append((method, rule.rule, answer.status_code))
    reached = {rule for method, rule, status in done if status != 401 or "platform" not in rule}
    for path in ("controls", "sessions", "claim-code", "webhooks", "services", "/v1/wallets"):
        changed = [each for each in done if each[1].endswith(path) and each[0] != "GET" and each[2] < 400]
        assert changed == [], changed
    assert "/v1/wallets/<string:wallet_id>/transfer" in reached
    assert not [each for each in done if each[0] in ("PUT", "DELETE", "PATCH") and each[2] < 400]
    assert not [each for each in done if "/agents/claim-code" in each[1] or each[1].startswith("/v1/webhooks")]


@pytest.mark.parametrize("scope", ["wallet:read", "wallet:pay", "gateway", "catalog"])
def test_each_scope_permits_only_its_operations(
    made: dict[str, Any], owner: Owner, application: Application, scope: str
) -> None:
    application.connect(owner, made, scope=[scope])
    wallet = f"/v1/wallets/{made['wallet']['id']}"
    permitted = {
        "wallet:read": application.get(f"{wallet}/controls"),
        "wallet:pay": application.post(f"{wallet}/transfer", {}),
        "gateway": application.post("/v1/gateway/openai/chat/completions", {}),
        "catalog": application.get("/v1/proxy/00000000-0000-4000-8000-000000000000/x"),
    }
    for name, answer in permitted.items():
        is_refused = (answer.get_json() or {}).get("code") == "INSUFFICIENT_SCOPE"
        assert is_refused is (name != scope), (name, answer.text)
        if is_refused:
            assert answer.status_code == 403
            assert f'error="insufficient_scope", scope="{name}"' in answer.headers["WWW-Authenticate"]
    called = application.call_tool("get_controls", wallet_id=made["wallet"]["id"])
    if scope != "wallet:read":
        # The status of HTTP, at which clients ask for more scopes.
        assert called.status_code == 403
        assert "resource_metadata=" in called.headers["WWW-Authenticate"]
    else:
        assert not called.get_json()["result"]["isError"]


def test_a_token_reaches_only_the_wallet_that_the_owner_chose(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    second = app.test_client().post("/v1/wallets", json={}, headers={"X-API-Key": made["apiKey"]}).get_json()["id"]
    application.connect(owner, made, account=f"{made['agentId']} {second}")
    assert [each["id"] for each in application.get("/v1/wallets").get_json()["wallets"]] == [second]
    assert application.get(f"/v1/wallets/{second}").status_code == 200
    assert application.get(f"/v1/wallets/{made['wallet']['id']}").status_code == 404
    perpdex = {"walletId": made["wallet"]["id"], "action": "status"}
    assert application.post("/v1/trading/perpdex", perpdex).status_code == 404
    bought = {"url": "https://shop.example.com/1", "max_total_usd": 5, "shipping": {}}
    assert application.post("/v1/gateway/shopping/buy", bought).status_code in (400, 404, 503)


def test_a_wallet_of_another_owner_cannot_be_chosen(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.register()
    other = register(app)
    for account in (f"{other['agentId']} {other['wallet']['id']}", f"{made['agentId']} {other['wallet']['id']}"):
        assert consent(owner, application.authorization(), made, account=account).status_code == 404
    assert grants_of(made) == []


def test_payments_count_against_the_budget_and_what_none_counts_is_refused(
    made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.connect(owner, made, budget_usd="0.50")
    [grant] = grants_of(made)
    wallet = f"/v1/wallets/{made['wallet']['id']}"
    [session] = application.get(f"{wallet}/sessions").get_json()["sessions"]
    assert (session["id"], session["max_usd"]) == (grant.session_id, 0.5)
    order = {"chain": "base", "to": "0x52908400098527886E0F7030069857D2E4169EE7", "amount": "1", "currency": "USDC"}
    other = application.post(f"{wallet}/transfer", {**order, "session_id": "5f0f6c1e-3b9c-4f0e-9a55-0d6a6a3c8a10"})
    assert (other.status_code, other.get_json()["code"]) == (403, "INSUFFICIENT_SCOPE")
    top_up = {"wallet_id": made["wallet"]["id"], "chain": "base", "amount": "5"}
    swap = {"chain": "base", "input_token": "ETH", "output_token": "USDC", "amount": "1"}
    for path, body in ((f"{wallet}/swap", swap), ("/v1/credits/topup", top_up)):
        answer = application.post(path, body)
        assert (answer.status_code, answer.get_json()["code"]) == (403, "INSUFFICIENT_SCOPE"), answer.text


def test_uses_and_the_end_of_a_connection_are_attributed(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.connect(owner, made)
    [grant] = grants_of(made)
    page = owner.get(f"/owner/agents/{made['agentId']}/connections")
    assert "app.example.com" in page.text
    assert "Research helper" in page.text
    ended = owner.send(page, f"/owner/agents/{made['agentId']}/connections/end", connection_id=grant.id)
    assert ended.status_code == 303
    assert application.get("/v1/wallets").status_code == 401
    assert refused(application.refresh()) == (400, "invalid_grant")
    kinds = [(entry.action, entry.actor_kind) for entry in entries()]
    assert kinds[-2:] == [("agent.connection_opened", "owner"), ("agent.connection_ended", "owner")]
    feed = app.test_client().get("/v1/events?types=connection.*", headers={"X-API-Key": made["apiKey"]}).get_json()
    assert [each["type"] for each in feed["events"]] == ["connection.opened", "connection.ended"]
    assert feed["events"][1]["data"]["reason"] == "ended_by_owner"
    assert feed["events"][1]["data"]["client_host"] == "app.example.com"
    again = owner.send(page, f"/owner/agents/{made['agentId']}/connections/end", connection_id=grant.id)
    assert again.status_code == 404


@pytest.mark.parametrize("reason", ["handover", "personal_data_erased"])
def test_a_connection_that_ends_with_its_owner_has_an_event_and_no_name_that_was_erased(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application, reason: str
) -> None:
    application.connect(owner, made)
    [grant] = grants_of(made)
    page = f"/owner/agents/{made['agentId']}"
    if reason == "handover":
        fields = {**forms_of(owner.get(f"{page}/keys"))[f"{page}/keys/codes"], "kind": reason, "owner_key": owner.key}
        [code] = CODE.findall(owner.client.post(f"{page}/keys/codes", data=fields).text)
        successor = person(app)
        shown = successor.send(successor.get("/owner/recover"), "/owner/recover", code=code)
        assert successor.send(shown, "/owner/recover/use").status_code == 200
    else:
        owner.send(owner.get(f"{page}/personal-data"), f"{page}/personal-data/erase", owner_key=owner.key)
    assert application.get("/v1/wallets").status_code == 401
    feed = app.test_client().get("/v1/events?types=connection.ended", headers={"X-API-Key": made["apiKey"]}).get_json()
    [ended] = feed["events"]
    host = "app.example.com" if reason == "handover" else ""
    assert {name: ended["data"][name] for name in ("connection_id", "reason", "client_host")} == {
        "connection_id": grant.id, "reason": reason, "client_host": host
    }  # fmt: skip


def test_a_connection_that_another_unit_has_ended_has_one_event(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.connect(owner, made)
    read_before = grants_of(made)
    monkeypatch.setattr(grants, "list_live", lambda *_: read_before)
    for _ in range(2):
        with app.app_context(), unit_of_work() as session:
            claims.end_connections(session, made["agentId"], reason="handover")
    feed = app.test_client().get("/v1/events?types=connection.ended", headers={"X-API-Key": made["apiKey"]}).get_json()
    assert [each["object_id"] for each in feed["events"]] == [read_before[0].id]


def test_the_end_of_the_agents_keys_ends_its_connections(
    made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.connect(owner, made)
    page = owner.get(f"/owner/agents/{made['agentId']}")
    owner.send(page, f"/owner/agents/{made['agentId']}/freeze", block_keys="on")
    assert application.get("/v1/wallets").status_code == 401
    assert refused(application.refresh()) == (400, "invalid_grant")


@on_each_database
def test_a_grant_that_was_changed_in_the_database_is_refused(
    made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.connect(owner, made, scope=["catalog"])
    status_writes.by_tests.add("oauth_grants")
    with unit_of_work() as session:
        session.execute(update(OwnerGrant).values(scopes=["wallet:read", "wallet:pay"]))
    assert application.get("/v1/wallets").status_code == 401
    assert refused(application.refresh())[1] == "invalid_grant"


def test_a_token_of_another_service_is_refused(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.redirect_uri = "http://127.0.0.1:3000/callback"
    application.register()
    for resource in ("https://other.example.com/mcp", "http://purser.test/v1", "http://purser.test.evil.example"):
        answer = owner.get(application.authorization(resource=resource))
        assert query_of(answer)["error"] == "invalid_target"
    code = code_of(consent(owner, application.authorization(), made))
    assert refused(application.exchange(code, resource="https://other.example.com/mcp"))[1] == "invalid_target"
    assert application.exchange(code, resource="http://purser.test/mcp").status_code == 200
    change_settings(app, base_url="http://other.test")
    assert application.get("/v1/wallets").status_code == 401


# --- Codes and tokens that somebody else has


@on_each_database
def test_a_code_that_is_used_twice_ends_what_it_gave(
    made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.register()
    code = code_of(consent(owner, application.authorization(), made))
    assert application.exchange(code).status_code == 200
    assert application.get("/v1/wallets").status_code == 200
    assert refused(application.exchange(code)) == (400, "invalid_grant")
    assert application.get("/v1/wallets").status_code == 401
    assert refused(application.refresh()) == (400, "invalid_grant")
    assert entries()[-1].after == {"reason": "token_reused"}


@on_each_database
def test_a_refresh_token_that_is_used_twice_ends_the_connection(
    made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.connect(owner, made)
    stolen = application.tokens
    assert application.refresh().status_code == 200
    assert application.get("/v1/wallets").status_code == 200
    assert application.get("/v1/wallets", stolen["access_token"]).status_code == 401
    assert refused(application.refresh(stolen["refresh_token"])) == (400, "invalid_grant")
    assert application.get("/v1/wallets").status_code == 401
    assert refused(application.refresh()) == (400, "invalid_grant")


def test_codes_and_refresh_tokens_are_bound_to_client_redirect_and_verifier(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.register()
    other = Application(app, redirect_uri="https://evil.example/cb")
    other.register()
    for change in (
        {"client_id": other.client_id}, {"redirect_uri": "https://app.example.com/other"}, {"code_verifier": "w" * 64},
        {"code_verifier": ""},
    ):  # fmt: skip
        code = code_of(consent(owner, application.authorization(), made))
        status, error = refused(application.exchange(code, **change))
        assert (status, error in {"invalid_grant", "invalid_request"}) == (400, True), change
        assert application.tokens == {}
    application.connect(owner, made)
    assert refused(application.refresh(client_id=other.client_id))[1] == "invalid_grant"
    assert application.refresh().status_code == 200


def test_codes_and_tokens_expire(made: dict[str, Any], owner: Owner, application: Application) -> None:
    application.register()
    code = code_of(consent(owner, application.authorization(), made, days="1"))
    with time_machine.travel(clock.now() + timedelta(seconds=61), tick=False):
        assert refused(application.exchange(code)) == (400, "invalid_grant")
    application.connect(owner, made, days="1")
    assert application.tokens["expires_in"] == 3600
    with time_machine.travel(clock.now() + timedelta(minutes=61), tick=False):
        assert application.get("/v1/wallets").status_code == 401
        assert application.refresh().status_code == 200
    with time_machine.travel(clock.now() + timedelta(hours=23, minutes=50), tick=False):
        assert application.refresh().status_code == 200
        assert 0 < application.tokens["expires_in"] <= 600
    with time_machine.travel(clock.now() + timedelta(days=1, minutes=1), tick=False):
        assert application.get("/v1/wallets").status_code == 401
        assert refused(application.refresh()) == (400, "invalid_grant")


def test_only_digests_are_stored_and_nothing_is_logged(
    made: dict[str, Any], owner: Owner, application: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    application.register()
    code = code_of(consent(owner, application.authorization(), made))
    application.exchange(code)
    secrets = [code, application.tokens["access_token"], application.tokens["refresh_token"]]
    with read_only_unit() as session:
        rows = [str(row) for table in db.metadata.sorted_tables for row in session.execute(table.select())]
    assert [each for each in secrets if any(each in row for row in rows)] == []
    logged = capsys.readouterr().out
    assert [each for each in secrets if each in logged] == []


def test_an_application_revokes_its_connection(made: dict[str, Any], owner: Owner, application: Application) -> None:
    for name in ("refresh_token", "access_token"):
        application.connect(owner, made)
        data = {"client_id": application.client_id, "token": application.tokens[name]}
        client = application.app.test_client()
        assert client.post("/oauth/revoke", data={**data, "client_id": "oc_other"}).status_code == 400
        assert application.get("/v1/wallets").status_code == 200
        assert client.post("/oauth/revoke", data=data).status_code == 200
        assert client.post("/oauth/revoke", data=data).status_code == 200
        assert application.get("/v1/wallets").status_code == 401
        assert (entries()[-1].action, entries()[-1].actor_name) == (
            "agent.connection_ended", "application app.example.com",
        )  # fmt: skip


# --- The request of an application


def test_a_request_without_pkce_or_with_plain_is_refused(app: Flask, owner: Owner) -> None:
    application = Application(app, redirect_uri="http://127.0.0.1:3000/callback")
    application.register()
    for change in ({"code_challenge": None}, {"code_challenge_method": None}, {"code_challenge_method": "plain"}):
        answer = owner.get(application.authorization(**change))
        assert answer.status_code == 303, change
        found = query_of(answer)
        assert (found["error"], found["state"], found["iss"]) == ("invalid_request", "s1", "http://purser.test")
    assert query_of(owner.get(application.authorization(response_type="token")))["error"] == "unsupported_response_type"


@pytest.mark.parametrize(
    ("registered", "asked", "accepted"),
    [
        ("https://app.example.com/cb", "https://app.example.com/cb", True),
        ("https://app.example.com/cb", "https://app.example.com/cb/", False),
        ("https://app.example.com/cb", "https://app.example.com/cb?x=1", False),
        ("https://app.example.com/cb", "https://app.example.com.evil.example/cb", False),
        ("https://app.example.com/cb", "https://app.example.com:444/cb", False),
        ("https://app.example.com/cb", "http://app.example.com/cb", False),
        ("https://app.example.com/cb", "https://app.example.com/CB", False),
        ("http://127.0.0.1:3000/cb", "http://127.0.0.1:51234/cb", True),
        ("http://localhost/cb", "http://localhost:51234/cb", True),
        ("http://127.0.0.1/cb", "http://localhost/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:1/other", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:1@evil.example/cb", False),
        ("http://127.0.0.1/cb", "https://127.0.0.1/cb", False),
        ("cursor://anysphere.cursor-retrieval/oauth/cb", "cursor://anysphere.cursor-retrieval/oauth/cb", True),
        ("cursor://anysphere.cursor-retrieval/oauth/cb", "cursor://other/oauth/cb", False),
    ],
)  # fmt: skip
def test_a_redirect_must_be_exactly_a_registered_one(
    app: Flask, registered: str, asked: str, *, accepted: bool
) -> None:
    application = Application(app, redirect_uri=registered)
    assert application.register().status_code == 201
    answer = person(app).get(application.authorization(redirect_uri=asked))
    # A refusal is shown, and never redirected.
    assert answer.status_code == (200 if accepted else 400)


@pytest.mark.parametrize(
    "redirect",
    ["http://app.example.com/cb", "javascript:alert(1)", "data:text/html,x", "https://a.example/#x", "/cb", "x",
     "https://u@a.example/", "https://a.example/ b", "file:///etc/passwd", "https://", "http://evil.example:80/127.0.0.1",
     "https://a.example;script-src/x"],
)  # fmt: skip
def test_a_redirect_that_leads_elsewhere_is_not_registered(app: Flask, redirect: str) -> None:
    answer = Application(app, redirect_uri=redirect).register()
    assert refused(answer) == (400, "invalid_redirect_uri")


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        (["authorization_code", "refresh_token", "implicit"], ["authorization_code", "refresh_token"]),
        (["urn:ietf:params:oauth:grant-type:device_code"], ["urn:ietf:params:oauth:grant-type:device_code"]),
        (None, ["authorization_code", "refresh_token"]),
        ("implicit", ["authorization_code", "refresh_token"]),
        ([["x"], {}, None], ["authorization_code", "refresh_token"]),
    ],
)
def test_an_application_is_given_no_grant_that_it_does_not_know(
    application: Application, asked: Any, granted: list[str]
) -> None:
    """PyPI's `mcp` 1.9 refuses an answer with a grant type other than these two."""
    assert application.register(grant_types=asked).get_json()["grant_types"] == granted


def test_the_host_is_shown_because_anybody_can_choose_a_name(app: Flask, owner: Owner) -> None:
    fake = Application(app, redirect_uri="https://evil.example/cb")
    fake.register(client_name="Claude by Anthropic (claude.ai) <b>\u202e verified")
    for page in (owner.get(fake.authorization()), consent_page(owner, fake.authorization())):
        assert "<strong><code>evil.example</code></strong>" in page.text
        assert "<bdi>Claude by Anthropic (claude.ai) &lt;b&gt; verified</bdi>" in page.text
    local = Application(app, redirect_uri="http://127.0.0.1:3000/cb")
    local.register()
    assert "a program on this computer" in owner.get(local.authorization()).text


def prune() -> None:
    for name in ("oauth_tokens", "oauth_clients"):
        personal_data.prune(name, clock.now())
    with unit_of_work() as session:
        grants.prune(session, clock.now() - timedelta(days=30))


def test_registrations_are_limited_and_deleted_if_nobody_uses_them(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.connect(owner, made)
    statuses = [Application(app).register().status_code for _ in range(20)]
    assert statuses == [201] * 19 + [429]
    assert Application(app).register(client_name="x" * 20_000).status_code in (413, 429)
    with time_machine.travel(clock.now() + timedelta(days=2), tick=False):
        prune()
        with read_only_unit() as session:
            assert [each.id for each in session.scalars(select(OAuthClient))] == [application.client_id]
    with time_machine.travel(clock.now() + timedelta(days=400), tick=False):
        prune()
        with read_only_unit() as session:
            for model in (OAuthClient, OAuthToken, OwnerGrant):
                assert count(session, model) == 0


# --- The owner's consent


def test_the_consent_form_is_bound_to_the_owners_browser_and_cannot_be_framed(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.register()
    page = consent_page(owner, application.authorization())
    start = owner.get(application.authorization())
    for shown in (page, start, owner.get("/oauth/device")):
        assert shown.headers["X-Frame-Options"] == "DENY"
        assert "frame-ancestors 'none'" in shown.headers["Content-Security-Policy"]
        assert shown.headers["Cache-Control"] == "no-store"
    [path] = [each for each in forms_of(page) if "/owner/connect/" in each]
    account = f"{made['agentId']} {made['wallet']['id']}"
    chosen = {"account": account, "scope": "gateway", "days": "1", "decision": "allow"}
    assert owner.client.post(path, data=chosen).status_code == 403
    forged = {**forms_of(page)[path], **chosen}
    other_site = owner.client.post(path, data=forged, headers={"Sec-Fetch-Site": "cross-site"})
    assert other_site.status_code == 403
    stranger = person(app)
    stranger.claim(register(app))
    assert stranger.client.post(path, data=forged).status_code == 403
    assert grants_of(made) == []
    assert owner.client.post(path, data=forged).status_code == 303


def test_a_request_that_was_changed_after_it_was_checked_is_refused(owner: Owner, application: Application) -> None:
    application.register()
    page = consent_page(owner, application.authorization())
    [path] = [each for each in forms_of(page) if "/owner/connect/" in each]
    assert owner.get(path[:-2] + "xx").status_code == 404
    with time_machine.travel(clock.now() + timedelta(minutes=31), tick=False):
        assert owner.get(path).status_code == 404


def test_an_old_session_must_show_the_owner_key_again(
    made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.register()
    with time_machine.travel(clock.now() + timedelta(minutes=11), tick=False):
        page = consent_page(owner, application.authorization())
        assert 'name="owner_key"' in page.text
        assert consent(owner, "", made, form=page).status_code == 403
        assert consent(owner, "", made, form=page, owner_key="ok_" + "x" * 43).status_code == 403
        assert grants_of(made) == []
        assert consent(owner, "", made, form=page, owner_key=owner.key).status_code == 303


def test_an_owner_denies(made: dict[str, Any], owner: Owner, application: Application) -> None:
    application.register()
    answer = consent(owner, application.authorization(), made, decision="deny")
    found = query_of(answer)
    assert (found["error"], found["state"], found["iss"]) == ("access_denied", "s1", "http://purser.test")
    assert grants_of(made) == []


@pytest.mark.parametrize("wrong", [{"scope": []}, {"budget_usd": "lots"}, {"days": "9999"}, {"budget_usd": "-5"}])
def test_a_form_that_is_not_complete_is_shown_again(
    made: dict[str, Any], owner: Owner, application: Application, wrong: dict[str, Any]
) -> None:
    application.register()
    page = consent(owner, application.authorization(), made, **wrong)
    assert (page.status_code, 'role="alert"' in page.text) == (400, True)
    assert "form-action 'self' https://app.example.com;" in page.headers["Content-Security-Policy"]
    assert grants_of(made) == []


def test_an_owner_signs_in_during_the_flow(
    app: Flask, made: dict[str, Any], owner: Owner, application: Application
) -> None:
    application.register()
    elsewhere = person(app)
    start = elsewhere.get(application.authorization())
    [signed] = [part.split('"')[0] for part in start.text.split('href="/owner/connect/')[1:]]
    asked = elsewhere.get(f"/owner/connect/{signed}")
    assert asked.status_code == 303
    form = elsewhere.client.get(asked.headers["Location"])
    signed_in = elsewhere.send(form, "/owner/sign-in", owner_key=owner.key)
    assert signed_in.headers["Location"] == f"/owner/connect/{signed}"
    # A window that the application has opened keeps its opener.
    assert {each.headers["Cross-Origin-Opener-Policy"] for each in (start, form, signed_in)} == {"unsafe-none"}
    page = elsewhere.get(f"/owner/connect/{signed}")
    assert application.exchange(code_of(consent(elsewhere, "", made, form=page))).status_code == 200


def test_a_person_without_an_agent_makes_one(app: Flask, application: Application) -> None:
    application.register()
    newcomer = person(app)
    start = newcomer.get(application.authorization())
    assert newcomer.client.post("/oauth/agent", data={"request": "x"}).status_code == 404
    ready = newcomer.send(start, "/oauth/agent")
    assert ready.status_code == 200, ready.text
    assert OWNER_KEY.search(ready.text)
    [signed] = [part.split('"')[0] for part in ready.text.split('href="/owner/connect/')[1:]]
    page = newcomer.get(f"/owner/connect/{signed}")
    account = html.unescape(page.text.split('name="account" value="')[1].split('"')[0])
    agent_id, wallet_id = account.split(" ")
    made = {"agentId": agent_id, "wallet": {"id": wallet_id}}
    assert application.exchange(code_of(consent(newcomer, "", made, form=page))).status_code == 200
    assert application.get(f"/v1/wallets/{wallet_id}/controls").status_code == 200


# --- Programs without a browser


def device_codes(application: Application, scope: str = "wallet:read") -> dict[str, Any]:
    answer = application.app.test_client().post(
        "/oauth/device_authorization", data={"client_id": application.client_id, "scope": scope}
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


def poll(application: Application, codes: dict[str, Any]) -> TestResponse:
    kind = "urn:ietf:params:oauth:grant-type:device_code"
    return application.token(grant_type=kind, device_code=codes["device_code"])


@on_each_database
@pytest.mark.parametrize("decision", ["allow", "deny"])
def test_an_owner_connects_a_program_by_its_code(
    made: dict[str, Any], owner: Owner, application: Application, decision: str
) -> None:
    application.register()
    codes = device_codes(application)
    assert codes["verification_uri"] == "http://purser.test/oauth/device"
    assert refused(poll(application, codes)) == (400, "authorization_pending")
    assert refused(poll(application, codes)) == (400, "slow_down")
    form = owner.get("/oauth/device", user_code=codes["user_code"])
    assert codes["user_code"] in form.text
    assert owner.send(form, "/oauth/device", user_code="BCDF-BCDF").status_code == 400
    start = owner.send(form, "/oauth/device", user_code=codes["user_code"].lower().replace("-", " "))
    [signed] = [part.split('"')[0] for part in start.text.split('href="/owner/connect/')[1:]]
    page = owner.get(f"/owner/connect/{signed}")
    answered = consent(owner, "", made, form=page, scope=["wallet:read"], decision=decision)
    assert (answered.status_code, "Connected" in answered.text) == (200, decision == "allow")
    polled = poll(application, codes)
    if decision == "deny":
        assert refused(polled) == (400, "access_denied")
        return
    assert polled.get_json()["scope"] == "wallet:read"
    assert application.get("/v1/wallets").status_code == 200
    assert owner.get(f"/owner/connect/{signed}").status_code == 404
    # A device code that is used again ends what it gave.
    assert poll(application, codes).status_code == 400
    assert application.get("/v1/wallets").status_code == 401


def test_a_device_code_expires(owner: Owner, application: Application) -> None:
    application.register()
    codes = device_codes(application)
    with time_machine.travel(clock.now() + timedelta(minutes=16), tick=False):
        assert refused(poll(application, codes)) == (400, "expired_token")
        form = owner.get("/oauth/device")
        assert owner.send(form, "/oauth/device", user_code=codes["user_code"]).status_code == 400


# --- Client metadata documents


def document_of(upstream: MisbehavingUpstream, **changes: Any) -> dict[str, Any]:
    own = {"client_id": f"{upstream.url}/client.json", "redirect_uris": ["http://127.0.0.1/cb"]}
    return {"client_name": "Documented", **own, **changes}


@pytest.mark.parametrize("kind", ["good", "other id", "large", "redirect", "no json", "list", "bad", "missing"])
def test_a_client_metadata_document_is_read_with_care(build_app: Any, sqlite_url: str, kind: str) -> None:
    with misbehaving_upstream() as upstream:
        document = document_of(upstream)
        changes = {"other id": {"client_id": "https://claude.ai/client.json"}, "large": {"x": "y" * 6000},
                   "bad": {"redirect_uris": ["http://evil.example/"]}}  # fmt: skip

        def behave(exchange: Exchange) -> None:
            if kind == "redirect":
                exchange.answer(b"", 302, ("Location", f"{upstream.url}/other.json"))
            elif kind == "missing":
                exchange.json(document, 404)
            elif kind == "no json":
                exchange.answer(b"<html>")
            else:
                exchange.json([document] if kind == "list" else {**document, **changes.get(kind, {})})

        upstream.behave = behave
        app = build_app(sqlite_url, settings={"allow_private_upstreams": "1"}, **private_upstream())
        with app.app_context():
            application = Application(app, redirect_uri="http://127.0.0.1:7777/cb", client_id=document["client_id"])
            answer = person(app).get(application.authorization())
        assert answer.status_code == (200 if kind == "good" else 400), answer.text
        assert [each.target for each in upstream.asked] == ["/client.json"]
        if kind == "good":
            assert "Documented" in answer.text
            assert "<strong><code>127.0.0.1</code></strong>" in answer.text


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:{port}/client.json", "https://127.0.0.1/client.json", "https://localhost/c", "https://10.0.0.1/c",
     "https://[::1]/c", "https://169.254.169.254/latest/meta-data", "https://internal/c", "https://purser.test/c",
     "https://a.example.com/", "https://u:p@a.example.com/c", "https://a.example.com/c#x", "https://0x7f000001/c"],
)  # fmt: skip
def test_a_client_id_cannot_make_the_service_ask_internal_addresses(app: Flask, address: str) -> None:
    with misbehaving_upstream() as upstream:
        client_id = address.format(port=upstream.url.rpartition(":")[2])
        application = Application(app, client_id=client_id)
        assert person(app).get(application.authorization()).status_code == 400
        assert upstream.asked == []


def test_strangers_can_make_the_service_read_few_documents(app: Flask) -> None:
    statuses = [
        person(app).get(Application(app, client_id=f"https://127.0.0.{number}/c").authorization()).status_code
        for number in range(1, 40)
    ]
    assert statuses == [400] * 30 + [429] * 9
