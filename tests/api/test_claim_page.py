"""The page `/device` in a browser without scripts."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import func, select
from werkzeug.test import TestResponse

from app.db.unit_of_work import read_only_unit
from app.identity.models import OwnerKey
from tests.support.applications import change_settings
from tests.support.owners import OWNER_KEY, Owner, forms_of, person

Register = Callable[..., dict[str, Any]]

_WRONG = "ZZZZ-0000"


def _field(page: TestResponse, name: str) -> str:
    found = re.search(rf'name="{name}"[^>]*?value="([^"]*)"', page.text)
    assert found
    return html.unescape(found[1])


def _look(client: FlaskClient, code: str) -> TestResponse:
    someone = Owner(client)
    return someone.send(someone.get("/device"), "/device", code=code)


def _claim(client: FlaskClient, code: str, email: str = "") -> TestResponse:
    """Send the last form directly, with an arbitrary code."""
    token = forms_of(client.get("/device"))["/device"]["csrf_token"]
    return client.post("/device/claim", data={"code": code, "email": email, "csrf_token": token})


def _owners() -> int:
    with read_only_unit() as session:
        return session.scalar(select(func.count(OwnerKey.id))) or 0


def test_neither_the_link_nor_the_code_form_claims_the_agent(client: FlaskClient, register: Register) -> None:
    code = register(name="Ada's agent")["claimCode"]
    page = client.get("/device", query_string={"code": code.lower().replace("-", " ")})
    assert page.status_code == 200
    assert page.mimetype == "text/html"
    assert _field(page, "code") == code
    looked = _look(client, code)
    assert looked.status_code == 200
    assert "Ada&#39;s agent" in looked.text
    assert "only if you started it" in looked.text
    assert "ak_" not in looked.text
    assert _owners() == 0


def test_links_lead_to_the_code_form_and_the_address_of_the_last_form_takes_no_code(client: FlaskClient) -> None:
    for page in (client.get("/device"), client.get("/owner/sign-in")):
        assert 'href="/device"' in page.text
        assert 'href="/device/claim"' not in page.text
    again = client.get("/device/claim", query_string={"code": "ABCD-1234"})
    assert again.status_code == 200
    assert "ABCD-1234" not in again.text


def test_the_pages_forbid_caching_framing_indexing_and_referrers(client: FlaskClient, register: Register) -> None:
    code = register()["claimCode"]
    for page in (
        client.get("/device"), _look(client, code), _look(client, _WRONG), _claim(client, code), client.get("/owner"),
        client.get("/owner/sign-in"), client.get("/owner/agents/unknown"), client.post("/owner/sign-out"),
    ):  # fmt: skip
        policy = page.headers["Content-Security-Policy"]
        for rule in (
            "default-src 'none'", "style-src 'self'", "script-src 'self'", "form-action 'self'",
            "frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'",
        ):  # fmt: skip
            assert rule in policy
        assert "unsafe" not in policy
        assert page.headers["Cache-Control"] == "no-store"
        assert page.headers["Referrer-Policy"] == "no-referrer"
        assert "noindex" in page.headers["X-Robots-Tag"]
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert page.headers["X-Frame-Options"] == "DENY"
        assert not re.search(r"(?:src|href|action)=\"(?:https?:)?//", page.text)
        assert " style=" not in page.text


def test_claiming_shows_the_agent_and_the_owner_key_once(client: FlaskClient, register: Register) -> None:
    made = register(name="<b>Ada</b>", email="ada@example.org")
    looked = _look(client, made["claimCode"].lower())
    page = Owner(client).send(looked, "/device/claim", email="Ada@Example.org")
    assert page.status_code == 200
    assert "&lt;b&gt;Ada&lt;/b&gt;" in page.text
    assert "<b>Ada" not in page.text
    assert len(OWNER_KEY.findall(page.text)) == 1
    for address in made["wallet"]["addresses"].values():
        assert address in page.text
    assert page.text.count('class="qr"') == 2
    hidden = re.search(r"<details>\s*<summary>Show API key(.*?)</details>", page.text, re.DOTALL)
    assert hidden
    assert made["apiKey"] in hidden[1]
    assert page.text.count(made["apiKey"]) == 1
    assert _owners() == 1


def test_each_refusal_shows_a_remedy_and_keeps_the_form_values(
    app: Flask, client: FlaskClient, register: Register
) -> None:
    code = register(email="ada@example.org")["claimCode"]
    spent = register()["claimCode"]
    client.post("/v1/device/claim", json={"code": spent, "email": "first@example.org"})
    refused = [
        (_look(client, _WRONG), 404, "ask the agent for another one"),
        (_look(client, " "), 400, "Enter the claim code"),
        (_claim(client, _WRONG), 404, "ask the agent for another one"),
        (_claim(client, code, "eve@example.org"), 403, "email address that the agent was registered with"),
        (_claim(client, code), 400, "only with its email address"),
        (_claim(client, code, "not-an-address"), 400, "not an email address"),
        (_claim(client, spent), 409, "sign in with your owner key"),
    ]
    for page, status, advice in refused:
        assert page.status_code == status
        assert page.mimetype == "text/html"
        assert advice in html.unescape(page.text)
        assert 'role="alert"' in page.text
        assert "<title>Error: " in page.text
    assert _field(refused[3][0], "code") == code
    assert _field(refused[3][0], "email") == "eve@example.org"
    assert _owners() == 1
    change_settings(app, device_miss_limit="1 per hour")
    assert _look(client, _WRONG).status_code == 404
    for locked in (_look(client, code), _claim(client, code, "ada@example.org")):
        assert locked.status_code == 429
        assert int(locked.headers["Retry-After"]) > 0
        assert "Wait before you try again" in locked.text
    assert _owners() == 1


def test_the_owner_key_is_shown_again_only_in_the_browser_that_claimed(app: Flask, register: Register) -> None:
    made = register()
    ada, agent = person(app), person(app)
    ada.claim(made, email="ada@example.org")
    looked = _look(agent.client, made["claimCode"])
    assert "already been claimed" in looked.text
    assert "Leave empty if you did not enter one." in looked.text
    refused = agent.send(looked, "/device/claim", email="ada@example.org")
    assert refused.status_code == 409
    assert "in which you claimed the agent" in html.unescape(refused.text)
    assert not re.search(r"(?:ok|ak)_[A-Za-z0-9_-]{43}", refused.text)
    assert agent.get("/owner").status_code == 303
    key = ada.key
    again = ada.claim(made, email="ada@example.org")
    assert key in again.text
    assert _claim(ada.client, made["claimCode"], "eve@example.org").status_code == 409
    assert _owners() == 1


def test_a_browser_can_repeat_a_claim_after_a_lost_response(app: Flask, register: Register) -> None:
    made = register()
    ada = person(app)
    looked = _look(ada.client, made["claimCode"])
    before = ada.client.get_cookie("purser_claim")
    assert before
    ada.send(looked, "/device/claim")
    # The state before the response: nothing of it has arrived.
    ada.client.delete_cookie("purser_owner")
    ada.client.set_cookie("purser_claim", before.value)
    assert OWNER_KEY.search(ada.send(looked, "/device/claim").text)
    assert _owners() == 1


def test_a_browser_can_repeat_several_claims(app: Flask, register: Register) -> None:
    first, second, ada = register(), register(), person(app)
    ada.claim(first)
    key = ada.key
    ada.claim(second)
    assert key in ada.claim(first).text


def test_a_cross_site_form_claims_nothing(app: Flask, client: FlaskClient, register: Register) -> None:
    code = register()["claimCode"]
    own = forms_of(client.get("/device"))["/device"]["csrf_token"]
    foreign = forms_of(app.test_client().get("/device"))["/device"]["csrf_token"]
    another_site = {"Sec-Fetch-Site": "cross-site"}
    for path in ("/device/claim", "/device"):
        answers = [
            client.post(path, data={"code": code}),
            client.post(path, data={"code": code, "csrf_token": ""}),
            client.post(path, data={"code": code, "csrf_token": foreign}),
            client.post(path, data={"code": code, "csrf_token": own + "x"}),
            client.post(path, data={"code": code, "csrf_token": own}, headers=another_site),
            app.test_client().post(path, data={"code": code, "csrf_token": own}),
        ]
        assert {answer.status_code for answer in answers} == {400}
        assert all("Nothing was claimed" in answer.text for answer in answers)
    assert _owners() == 0
    again = Owner(client).send(answers[0], path, code=code)
    assert again.status_code == 200


def test_cookies_are_inaccessible_to_scripts_other_sites_and_other_hosts(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    app = build_app(sqlite_url, settings={"base_url": "https://purser.test"})
    with app.app_context():
        client = app.test_client()
        made = client.post("/v1/agents/register", json={}).get_json()
        claimed = person(app).claim(made)
        set_cookies = [client.get("/device").headers["Set-Cookie"], *claimed.headers.getlist("Set-Cookie")]
    assert {cookie.split("=")[0] for cookie in set_cookies} == {
        "__Host-purser_claim", "__Host-purser_form", "__Host-purser_owner",
    }  # fmt: skip
    for cookie in set_cookies:
        for word in ("HttpOnly", "Secure", "SameSite=Strict", "Path=/"):
            assert word in cookie
        assert "Domain" not in cookie


def test_form_values_are_escaped(client: FlaskClient) -> None:
    hostile = '"><script>alert(1)</script>'
    page = client.get("/device", query_string={"code": hostile})
    for answer in (page, _look(client, hostile), _claim(client, hostile, hostile)):
        assert "<script>" not in answer.text


def test_assets_of_the_pages_are_served(client: FlaskClient) -> None:
    kinds = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    addresses = re.findall(r'(?:href|src)="(/static/[^"]+)"', client.get("/device").text)
    assert len(addresses) == 4
    for address in addresses:
        with client.get(address) as file:
            assert (file.status_code, file.mimetype) == (200, kinds[address.rpartition(".")[2]])
