"""`POST /v1/keys`, and authentication by keys: every failure looks the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask, g
from flask.testing import FlaskClient
from sqlalchemy import func, select, update
from werkzeug.test import TestResponse

from app.audit_log import actors
from app.authenticated import change
from app.core import clock, identifiers
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import Unauthorized
from app.identity import guards, service
from app.identity.guards import AGENT_KEY, ANY_KEY, MASTER_KEY
from app.identity.models import ApiKey, MasterKey
from app.identity.principal import KeyKind, Principal
from app.platform import keys as platform_keys
from app.web.blueprint import Guard
from app.web.client_request import current_request
from tests.support.applications import change_settings

Register = Callable[..., dict[str, Any]]

_UNKNOWN = "ak_" + "A" * 43
_STARTING = actors.system_actor("bootstrap")
_MASTER = "mk_" + "m" * 43


def _authenticate(app: Flask, guard: Guard, **headers: str) -> Principal | None:
    """Apply a guard to a request with these headers; return the principal."""
    with app.test_request_context(headers={name.replace("_", "-"): value for name, value in headers.items()}):
        guard.check(current_request())
        found: Principal | None = g.get("caller")
        return found


def _keys_stored() -> int:
    with read_only_unit() as session:
        return session.scalar(select(func.count(ApiKey.id))) or 0


def test_a_gateway_only_key_is_issued_with_credits(client: FlaskClient) -> None:
    answer = client.post("/v1/keys", json={"email": " Ada@Example.org "})
    body = answer.get_json()
    assert answer.status_code == 201
    assert answer.headers["Cache-Control"] == "no-store"
    assert set(body) == {"id", "api_key", "email", "credits_usd", "created_at"}
    assert re.fullmatch(r"gw_[A-Za-z0-9_-]{43}", body["api_key"])
    assert (body["email"], body["credits_usd"]) == ("ada@example.org", 10.0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", body["created_at"])
    assert client.post("/v1/keys").get_json()["email"] is None
    assert _keys_stored() == 2


@pytest.mark.parametrize("sent", [{"email": "not-an-address"}, {"email": 1}, {"email": "a@b"}])
def test_an_invalid_address_gets_no_key(client: FlaskClient, sent: dict[str, Any]) -> None:
    answer = client.post("/v1/keys", json=sent)
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert list(answer.get_json()["details"]["fields"]) == ["email"]
    assert _keys_stored() == 0


def test_each_key_authenticates_its_own_account(app: Flask, client: FlaskClient, register: Register) -> None:
    made, gateway = register(), client.post("/v1/keys").get_json()
    agent = _authenticate(app, ANY_KEY, X_API_Key=made["apiKey"])
    assert agent is not None
    assert (agent.kind, agent.agent_id, agent.account_id) == (KeyKind.AGENT, made["agentId"], made["agentId"])
    other = _authenticate(app, ANY_KEY, X_API_Key=gateway["api_key"])
    assert other == Principal(KeyKind.GATEWAY, gateway["id"], gateway["id"], None)


def test_the_401_of_a_gateway_only_key_names_the_agent_key(client: FlaskClient) -> None:
    key = client.post("/v1/keys").get_json()["api_key"]
    answer = client.post("/v1/agents/claim-code", headers={"X-API-Key": key})
    assert (answer.status_code, answer.get_json()["code"]) == (401, "UNAUTHORIZED")
    assert "agent key" in answer.get_json()["error"]


def _revoke(digest: str) -> None:
    with unit_of_work() as session:
        session.execute(update(ApiKey).where(ApiKey.digest == digest).values(revoked_at=clock.now()))


def _expire(digest: str) -> None:
    with unit_of_work() as session:
        past = clock.now() - timedelta(seconds=1)
        session.execute(update(ApiKey).where(ApiKey.digest == digest).values(expires_at=past))


def test_missing_malformed_unknown_expired_and_revoked_keys_are_indistinguishable(
    client: FlaskClient, register: Register
) -> None:
    revoked, expired = register()["apiKey"], register()["apiKey"]
    _revoke(identifiers.digest(revoked))
    _expire(identifiers.digest(expired))
    sent = [None, "", "nonsense", _UNKNOWN, _MASTER, "ak_é" + "A" * 42, revoked, expired, f" {revoked}x"]
    answers = [client.post("/v1/agents/claim-code", headers={} if key is None else {"X-API-Key": key}) for key in sent]
    assert {answer.status_code for answer in answers} == {401}
    bodies = [{**answer.get_json(), "request_id": ""} for answer in answers]
    assert all(body == bodies[0] for body in bodies)
    assert bodies[0]["code"] == "UNAUTHORIZED"


def test_a_key_in_its_grace_period_is_valid(app: Flask, register: Register) -> None:
    key = register()["apiKey"]
    with unit_of_work() as session:
        change(session, ApiKey, expires_at=clock.now() + timedelta(minutes=1))
    assert _authenticate(app, AGENT_KEY, X_API_Key=key) is not None


def test_401_wins_over_a_bad_body(client: FlaskClient) -> None:
    answer = client.post("/v1/agents/claim-code", data=b"{", headers={"X-API-Key": _UNKNOWN})
    assert answer.status_code == 401


@pytest.mark.usefixtures("client")
def test_without_a_guard_there_is_no_principal(app: Flask) -> None:
    with app.test_request_context():
        with pytest.raises(Unauthorized):
            guards.current_principal()
        with pytest.raises(Unauthorized):
            guards.current_master_key()


def test_the_rate_limit_of_one_key_does_not_affect_others(app: Flask, client: FlaskClient, register: Register) -> None:
    change_settings(app, rate_limit_per_key="3 per minute")
    flooding, other = register()["apiKey"], register()["apiKey"]

    def ask(key: str) -> TestResponse:
        return client.post("/v1/agents/claim-code", headers={"X-API-Key": key})

    answers = [ask(flooding) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 429]
    assert answers[-1].get_json()["code"] == "RATE_LIMITED"
    assert 0 < int(answers[-1].headers["Retry-After"]) <= 60
    assert ask(other).status_code == 201


@pytest.mark.usefixtures("client")
def test_the_first_master_key_is_created_once_and_never_replaced(app: Flask) -> None:
    assert platform_keys.bootstrap_master_key(_STARTING, _MASTER) is True
    assert platform_keys.bootstrap_master_key(_STARTING, _MASTER) is False
    assert platform_keys.bootstrap_master_key(_STARTING, "mk_" + "x" * 43) is False
    with read_only_unit() as session:
        row = session.scalars(select(MasterKey)).one()
        assert (row.active, row.digest) == (True, identifiers.digest(_MASTER))
        assert _MASTER not in row.sealed
    with app.test_request_context(headers={"X-Master-Key": _MASTER}):
        MASTER_KEY.check(current_request())
        assert guards.current_master_key().name == "bootstrap"


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("key", ["", "secret", "mk_short", "ak_" + "a" * 43])
def test_a_weak_bootstrap_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="BOOTSTRAP_MASTER_KEY") as refused:
        platform_keys.bootstrap_master_key(_STARTING, key)
    assert not key or key not in str(refused.value)
    with read_only_unit() as session:
        assert session.scalar(select(func.count(MasterKey.id))) == 0


@pytest.mark.usefixtures("client")
def test_a_revoked_master_key_is_refused(app: Flask) -> None:
    platform_keys.bootstrap_master_key(_STARTING, _MASTER)
    with unit_of_work() as session:
        session.execute(update(MasterKey).values(active=False, revoked_at=clock.now()))
    for headers in ({"X_Master_Key": _MASTER}, {"X_Master_Key": "mk_" + "y" * 43}, {}, {"X_API_Key": _MASTER}):
        with pytest.raises(Unauthorized):
            _authenticate(app, MASTER_KEY, **headers)


def test_a_key_is_sealed_to_its_row_and_not_in_any_repr(register: Register) -> None:
    made = register()
    with read_only_unit() as session:
        assert service.newest_keys_of(session, [made["agentId"]]) == {made["agentId"]: made["apiKey"]}
    minted = service.mint_api_key(KeyKind.AGENT)
    assert minted.key not in repr(minted)
