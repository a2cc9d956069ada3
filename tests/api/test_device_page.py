"""The page `/device`, as a browser without scripts uses it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import func, select
from werkzeug.test import TestResponse

from app.core.unit_of_work import reading
from app.identity.models import OwnerKey

Register = Callable[..., dict[str, Any]]

_WRONG = "ZZZZ-0000"


def _field(page: TestResponse, name: str) -> str:
    found = re.search(rf'name="{name}"[^>]*?value="([^"]*)"', page.text)
    assert found
    return html.unescape(found[1])


def _send(client: FlaskClient, code: str, email: str = "") -> TestResponse:
    token = _field(client.get("/device"), "csrf_token")
    return client.post("/device", data={"code": code, "email": email, "csrf_token": token})


def _owners() -> int:
    with reading() as session:
        return session.scalar(select(func.count(OwnerKey.id))) or 0


def test_opening_the_link_fills_the_code_in_and_claims_nothing(
    client: FlaskClient, register: Register
) -> None:
    code = register()["claimCode"]
    page = client.get("/device", query_string={"code": code})
    assert page.status_code == 200
    assert page.mimetype == "text/html"
    assert _field(page, "code") == code
    assert "<script" not in page.text
    assert _owners() == 0


def test_the_page_is_kept_out_of_caches_frames_search_engines_and_referrers(
    client: FlaskClient, register: Register
) -> None:
    for page in (client.get("/device"), _send(client, register()["claimCode"]), _send(client, _WRONG)):
        policy = page.headers["Content-Security-Policy"]
        for rule in (
            "default-src 'none'",
            "style-src 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        ):
            assert rule in policy
        assert page.headers["Cache-Control"] == "no-store"
        assert page.headers["Referrer-Policy"] == "no-referrer"
        assert "noindex" in page.headers["X-Robots-Tag"]
        assert page.headers["X-Content-Type-Options"] == "nosniff"


def test_sending_the_form_shows_the_agent_and_the_owner_key(client: FlaskClient, register: Register) -> None:
    made = register(name="<b>Ada</b>", email="ada@example.org")
    page = _send(client, made["claimCode"].lower(), "Ada@Example.org")
    assert page.status_code == 200
    assert "&lt;b&gt;Ada&lt;/b&gt; is yours" in page.text
    assert "<b>Ada" not in page.text
    assert re.search(r"ok_[A-Za-z0-9_-]{43}", page.text)
    for address in made["wallet"]["addresses"].values():
        assert address in page.text
    details = re.search(r"<details>(.*?)</details>", page.text, re.DOTALL)
    assert details
    assert made["apiKey"] in details[1]
    assert page.text.count(made["apiKey"]) == 1
    assert _owners() == 1


def test_each_refusal_says_what_to_do_next_and_keeps_what_was_typed(
    app: Flask, client: FlaskClient, register: Register
) -> None:
    code = register(email="ada@example.org")["claimCode"]
    spent = register()["claimCode"]
    client.post("/v1/device/claim", json={"code": spent, "email": "first@example.org"})
    refused = [
        (_send(client, _WRONG), 404, "ask the agent for another code"),
        (_send(client, code, "eve@example.org"), 403, "e-mail address that the agent was registered with"),
        (_send(client, code), 400, "is required"),
        (_send(client, code, "nobody"), 400, "not an e-mail address"),
        (_send(client, " "), 400, "code is missing"),
        (_send(client, spent), 409, "sign in with the owner key"),
    ]
    for page, status, advice in refused:
        assert page.status_code == status
        assert page.mimetype == "text/html"
        assert advice in html.unescape(page.text)
        assert 'role="alert"' in page.text
    assert _field(refused[1][0], "code") == code
    assert _field(refused[1][0], "email") == "eve@example.org"
    assert _owners() == 1
    app.extensions["settings"] = app.extensions["settings"].model_copy(
        update={"device_miss_limit": "1 per hour"}
    )
    assert _send(client, _WRONG).status_code == 404
    locked = _send(client, code, "ada@example.org")
    assert locked.status_code == 429
    assert int(locked.headers["Retry-After"]) > 0
    assert "Wait before you try again" in locked.text
    assert _owners() == 1


def test_a_form_from_elsewhere_claims_nothing(app: Flask, client: FlaskClient, register: Register) -> None:
    code = register()["claimCode"]
    own = _field(client.get("/device"), "csrf_token")
    foreign = _field(app.test_client().get("/device"), "csrf_token")
    sent_without_cookie = app.test_client().post("/device", data={"code": code, "csrf_token": own})
    answers = [
        client.post("/device", data={"code": code}),
        client.post("/device", data={"code": code, "csrf_token": ""}),
        client.post("/device", data={"code": code, "csrf_token": foreign}),
        client.post("/device", data={"code": code, "csrf_token": own + "x"}),
        sent_without_cookie,
    ]
    assert {answer.status_code for answer in answers} == {400}
    assert all("Nothing was claimed" in answer.text for answer in answers)
    assert _owners() == 0
    again = client.post("/device", data={"code": code, "csrf_token": _field(answers[0], "csrf_token")})
    assert again.status_code == 200


def test_the_form_s_cookie_is_out_of_reach_of_scripts_and_other_sites(client: FlaskClient) -> None:
    cookie = client.get("/device").headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/device" in cookie


def test_what_is_typed_never_becomes_markup(client: FlaskClient) -> None:
    hostile = '"><script>alert(1)</script>'
    page = client.get("/device", query_string={"code": hostile})
    assert "<script" not in page.text
    assert "<script" not in _send(client, hostile, hostile).text


def test_the_stylesheet_is_served(client: FlaskClient) -> None:
    address = re.search(r'href="(/static/[^"]+)"', client.get("/device").text)
    assert address
    with client.get(address[1]) as sheet:
        assert (sheet.status_code, sheet.mimetype) == (200, "text/css")
