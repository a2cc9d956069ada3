"""`POST /v1/agents/register` and `/v1/agents/claim-code`."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import func, select, text

from app.agents.claims import ClaimCode
from app.db.unit_of_work import read_only_unit
from app.identity.models import Agent, ApiKey
from tests.support.applications import change_settings
from tests.support.ledger import statements

Register = Callable[..., dict[str, Any]]

_TABLES = ("agents", "api_keys", "wallets", "claim_codes")


def _rows() -> dict[str, int]:
    with read_only_unit() as session:
        return {table: session.scalar(text(f"select count(*) from {table}")) or 0 for table in _TABLES}  # noqa: S608


def test_an_empty_registration_returns_key_wallet_and_code(app: Flask, client: FlaskClient) -> None:
    answer = client.post("/v1/agents/register")
    body = answer.get_json()
    assert answer.status_code == 201
    assert answer.headers["Cache-Control"] == "no-store"
    assert set(body) == {"agentId", "apiKey", "claimCode", "verificationUri", "expiresIn", "wallet"}
    assert re.fullmatch(r"ak_[A-Za-z0-9_-]{43}", body["apiKey"])
    assert re.fullmatch(r"[A-HJ-NP-Z]{4}-[0-9]{4}", body["claimCode"])
    public_url = app.state.settings.public_url
    assert body["verificationUri"] == f"{public_url}/device?code={body['claimCode']}"
    assert body["expiresIn"] == 315_360_000
    assert set(body["wallet"]) == {"id", "name", "addresses"}
    addresses = body["wallet"]["addresses"]
    assert addresses["ethereum"] == addresses["base"]
    assert re.fullmatch(r"0x[0-9a-fA-F]{40}", addresses["ethereum"])
    assert re.fullmatch(r"[1-9A-HJ-NP-Za-km-z]{32,44}", addresses["solana"])
    assert _rows() == dict.fromkeys(_TABLES, 1)
    with read_only_unit() as session:
        agent = session.scalars(select(Agent)).one()
        assert (agent.id, agent.name, agent.email) == (body["agentId"], "unnamed-agent", None)


@pytest.mark.parametrize(
    ("sent", "name", "email"),
    [
        ({}, "unnamed-agent", None),
        ({"name": None, "email": None}, "unnamed-agent", None),
        ({"name": "  ", "email": " "}, "unnamed-agent", None),
        ({"name": "  Ada ", "email": " Ada@Example.ORG "}, "Ada", "ada@example.org"),
        ({"name": "x" * 100, "unknown": [1]}, "x" * 100, None),
    ],
)
def test_names_and_addresses_are_normalised(
    register: Register, sent: dict[str, Any], name: str, email: str | None
) -> None:
    agent_id = register(**sent)["agentId"]
    with read_only_unit() as session:
        agent = session.get_one(Agent, agent_id)
        assert (agent.name, agent.email) == (name, email)


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"name": "x" * 101}, "name"),
        ({"name": 5}, "name"),
        ({"name": ["a"]}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"email": "not-an-address"}, "email"),
        ({"email": "a@b@c.org"}, "email"),
        ({"email": True}, "email"),
        ({"email": "a@" + "b" * 260 + ".org"}, "email"),
    ],
)
def test_an_invalid_field_is_named_and_creates_nothing(client: FlaskClient, sent: dict[str, Any], field: str) -> None:
    answer = client.post("/v1/agents/register", json=sent)
    assert answer.status_code == 400
    assert answer.get_json()["code"] == "INVALID_INPUT"
    assert list(answer.get_json()["details"]["fields"]) == [field]
    assert _rows() == dict.fromkeys(_TABLES, 0)


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b'{"name": NaN}', b"\xff", b"null"])
def test_a_body_that_is_not_an_object_creates_nothing(client: FlaskClient, body: bytes) -> None:
    answer = client.post("/v1/agents/register", data=body, content_type="application/json")
    assert answer.status_code == 400
    assert answer.get_json()["code"] == "INVALID_INPUT"
    assert _rows() == dict.fromkeys(_TABLES, 0)


def test_neither_key_nor_code_is_stored_or_logged_in_plain_text(
    register: Register, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        made = register()
    secrets = (made["apiKey"], made["claimCode"], made["claimCode"].replace("-", ""))
    with read_only_unit() as session:
        key, code = session.scalars(select(ApiKey)).one(), session.scalars(select(ClaimCode)).one()
        stored = [str(getattr(row, column.key)) for row in (key, code) for column in row.__table__.columns]
    for secret in secrets:
        assert not any(secret in value for value in stored)
        assert secret not in caplog.text


def test_an_exhausted_grant_budget_refuses_registrations_entirely(app: Flask, client: FlaskClient) -> None:
    change_settings(app, grant_budget_usd_per_day=25)
    answers = [client.post("/v1/agents/register").status_code for _ in range(3)]
    assert answers == [201, 201, 429]
    assert _rows() == dict.fromkeys(_TABLES, 2)
    last = client.post("/v1/keys")
    assert (last.status_code, last.get_json()["code"]) == (429, "RATE_LIMITED")
    assert int(last.headers["Retry-After"]) > 0
    assert _rows()["api_keys"] == 2


def test_registrations_from_one_address_are_limited(app: Flask, client: FlaskClient) -> None:
    change_settings(app, registration_rate_limit="2 per minute")

    def status(path: str, address: str) -> int:
        return client.post(path, environ_overrides={"REMOTE_ADDR": address}).status_code

    assert [status("/v1/agents/register", "203.0.113.1"), status("/v1/keys", "203.0.113.1")] == [201, 201]
    answer = client.post("/v1/agents/register", environ_overrides={"REMOTE_ADDR": "203.0.113.1"})
    assert (answer.status_code, answer.get_json()["code"]) == (429, "RATE_LIMITED")
    assert int(answer.headers["Retry-After"]) > 0
    assert status("/v1/agents/register", "203.0.113.2") == 201
    one_house = ["2001:db8:0:1::1", "2001:db8:0:1:ffff::2", "2001:db8:0:1::3"]
    assert [status("/v1/keys", address) for address in one_house] == [201, 201, 429]
    assert status("/v1/keys", "2001:db8:0:2::1") == 201


def test_a_registration_is_counted_before_its_body_is_read(app: Flask, client: FlaskClient) -> None:
    change_settings(app, registration_rate_limit="1 per minute")
    large = {"name": "a" * 256 * 1024}
    answer = client.post("/v1/agents/register", json=large)
    assert (answer.status_code, answer.get_json()["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert client.post("/v1/keys", data=b"{").status_code == 429


def test_a_replaced_claim_code_is_invalid(client: FlaskClient, register: Register) -> None:
    made = register()
    answer = client.post("/v1/agents/claim-code", headers={"X-API-Key": made["apiKey"]})
    body = answer.get_json()
    assert answer.status_code == 201
    assert answer.headers["Cache-Control"] == "no-store"
    assert (body["agentId"], body["expiresIn"]) == (made["agentId"], 315_360_000)
    assert body["claimCode"] != made["claimCode"]
    assert body["verificationUri"].endswith(f"/device?code={body['claimCode']}")
    assert client.get("/v1/device/info", query_string={"code": made["claimCode"]}).status_code == 404
    assert client.get("/v1/device/info", query_string={"code": body["claimCode"]}).status_code == 200


def test_a_claimed_agent_gets_no_new_code(client: FlaskClient, register: Register) -> None:
    made = register()
    assert client.post("/v1/device/claim", json={"code": made["claimCode"]}).status_code == 200
    answer = client.post("/v1/agents/claim-code", headers={"X-API-Key": made["apiKey"]})
    assert (answer.status_code, answer.get_json()["code"]) == (409, "ALREADY_CLAIMED")
    assert _rows()["claim_codes"] == 1


def test_the_same_idempotency_key_returns_the_same_code(client: FlaskClient, register: Register) -> None:
    headers = {"X-API-Key": register()["apiKey"], "Idempotency-Key": "once"}
    first, again = (client.post("/v1/agents/claim-code", headers=headers).get_json() for _ in range(2))
    assert first == again
    assert _rows()["claim_codes"] == 2


def test_a_code_under_an_older_pepper_is_still_valid(app: Flask, client: FlaskClient, register: Register) -> None:
    made = register()
    settings = app.state.settings
    old = settings.code_peppers.get_secret_value()
    fresh = "next:" + base64.b64encode(b"n" * 32).decode()
    change_settings(app, code_peppers=type(settings.code_peppers)(f"{fresh},{old}"))
    assert client.get("/v1/device/info", query_string={"code": made["claimCode"]}).status_code == 200
    newer = register()
    with read_only_unit() as session:
        peppers = session.scalars(select(ClaimCode.pepper_id).order_by(ClaimCode.created_at)).all()
    assert peppers[-1] == "next"
    assert client.get("/v1/device/info", query_string={"code": newer["claimCode"]}).status_code == 200
    change_settings(app, code_peppers=type(settings.code_peppers)(fresh))
    assert client.get("/v1/device/info", query_string={"code": made["claimCode"]}).status_code == 404


def test_two_agents_never_share_a_code(
    client: FlaskClient, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter(["ABCD-0001", "ABCD-0001", "ABCD-0001", "ABCD-0002"])
    letters = iter("".join(code.replace("-", "") for code in drawn))
    monkeypatch.setattr("secrets.choice", lambda _alphabet: next(letters))
    assert [register()["claimCode"], register()["claimCode"]] == ["ABCD-0001", "ABCD-0002"]
    with read_only_unit() as session:
        assert session.scalar(select(func.count(ClaimCode.code_hmac.distinct()))) == 2
    assert client.get("/v1/device/info", query_string={"code": "abcd0002"}).status_code == 200


def test_a_code_that_exists_under_an_older_pepper_is_not_issued_again(
    app: Flask, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter("ABCD0001" + "ABCD0001" + "ABCD0002")
    monkeypatch.setattr("secrets.choice", lambda _alphabet: next(drawn))
    first = register()["claimCode"]
    peppers = app.state.settings.code_peppers
    fresh = "next:" + base64.b64encode(b"n" * 32).decode()
    change_settings(app, code_peppers=type(peppers)(f"{fresh},{peppers.get_secret_value()}"))
    assert (first, register()["claimCode"]) == ("ABCD-0001", "ABCD-0002")


def test_registration_needs_few_statements(app: Flask, client: FlaskClient) -> None:
    change_settings(app, grant_budget_usd_per_day=1000)
    client.post("/v1/agents/register")
    with statements() as seen:
        client.post("/v1/agents/register")
    assert len(seen) <= 14, "\n".join(seen)
