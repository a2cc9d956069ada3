"""Claiming an agent: `GET /v1/device/info`, `POST /v1/device/claim`, and the page `/device`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import func, select, update
from werkzeug.test import TestResponse

from app.agents import claims
from app.agents.claims import ClaimCode
from app.authenticated import change
from app.core import clock, identifiers
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.device.guess_limits import SERVICE_WIDE_MISSES, GuessCounter
from app.identity.models import Agent, OwnerKey
from app.observability import counters
from app.platform import personal_data
from tests.support.applications import change_settings
from tests.support.counted import growth_of
from tests.support.operators import entries, operator

Register = Callable[..., dict[str, Any]]

_EMAIL = "ada@example.org"
_WRONG = "ZZZZ-0000"


def _claim(client: FlaskClient, code: object, *, address: str = "203.0.113.1", **body: object) -> TestResponse:
    return client.post("/v1/device/claim", json={"code": code, **body}, environ_overrides={"REMOTE_ADDR": address})


def _info(client: FlaskClient, code: str, *, address: str = "203.0.113.1") -> TestResponse:
    return client.get("/v1/device/info", query_string={"code": code}, environ_overrides={"REMOTE_ADDR": address})


def _failure(answer: TestResponse) -> tuple[int, str]:
    return answer.status_code, answer.get_json()["code"]


def _limit_guesses(app: Flask, limit: str = "5 per hour") -> None:
    change_settings(app, device_miss_limit=limit)


def _nothing_claimed() -> bool:
    with read_only_unit() as session:
        claimed = session.scalar(select(func.count(Agent.id)).where(Agent.claimed_at.is_not(None)))
        spent = session.scalar(select(func.count(ClaimCode.id)).where(ClaimCode.claimed_at.is_not(None)))
        return (claimed, spent, session.scalar(select(func.count(OwnerKey.id)))) == (0, 0, 0)


def _misses() -> dict[str, int]:
    with read_only_unit() as session:
        return {row.scope: row.misses for row in session.scalars(select(GuessCounter))}


def _owner_key_count() -> int:
    with read_only_unit() as session:
        return session.scalar(select(func.count(OwnerKey.id))) or 0


def _age_claims(by: timedelta) -> None:
    with unit_of_work() as session:
        change(session, ClaimCode, claimed_at=clock.now() - by)


def test_a_code_identifies_its_agent(client: FlaskClient, register: Register) -> None:
    made = register(name="Ada", email=_EMAIL)
    answer = _info(client, made["claimCode"].lower().replace("-", " "))
    body = answer.get_json()
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "no-store"
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]+Z", body.pop("expiresAt"))
    assert body == {"agentId": made["agentId"], "agentName": "Ada", "emailRequired": True, "claimed": False}
    assert _info(client, register()["claimCode"]).get_json()["emailRequired"] is False
    assert _nothing_claimed()


def test_a_claim_returns_the_whole_agent(client: FlaskClient, register: Register) -> None:
    made = register(name="Ada", email=_EMAIL)
    answer = _claim(client, made["claimCode"], email=" ADA@example.org ")
    body = answer.get_json()
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "no-store"
    assert set(body) == {
        "agentId", "name", "email", "apiKey", "credits_usd", "created_at", "claimed_at", "ownerKey", "claimReceipt",
        "wallet",
    }  # fmt: skip
    assert (body["agentId"], body["name"], body["email"]) == (made["agentId"], "Ada", _EMAIL)
    assert (body["apiKey"], body["credits_usd"]) == (made["apiKey"], 10.0)
    assert re.fullmatch(r"ok_[A-Za-z0-9_-]{43}", body["ownerKey"])
    controls = body["wallet"].pop("spending_controls")
    assert body["wallet"] == made["wallet"]
    assert controls.pop("updated_at")
    assert controls == {
        "daily_limit_usd": 100.0, "weekly_limit_usd": 500.0, "monthly_limit_usd": 1000.0,
        "per_tx_limit_usd": 50.0, "allowed_addresses": [], "allowed_domains": [],
    }  # fmt: skip
    assert _info(client, made["claimCode"]).get_json()["claimed"] is True
    with read_only_unit() as session:
        agent, owner = session.scalars(select(Agent)).one(), session.scalars(select(OwnerKey)).one()
        assert (agent.claimed_email, owner.owner_email, owner.agent_id) == (_EMAIL, _EMAIL, agent.id)
        assert owner.digest == identifiers.digest(body["ownerKey"])
        sealed = session.scalars(select(ClaimCode.answer_sealed)).one()
        assert body["ownerKey"] not in (sealed or "")


def test_an_e_mail_sent_for_an_agent_without_one_is_recorded(client: FlaskClient, register: Register) -> None:
    body = _claim(client, register()["claimCode"], email=_EMAIL).get_json()
    assert body["email"] == _EMAIL
    assert _claim(client, register()["claimCode"]).get_json()["email"] is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "code"),
        ({"code": None}, "code"),
        ({"code": ""}, "code"),
        ({"code": "  "}, "code"),
        ({"code": 12345678}, "code"),
        ({"code": _WRONG, "email": "not-an-address"}, "email"),
        ({"code": _WRONG, "email": 7}, "email"),
    ],
)
def test_a_missing_code_or_an_invalid_address_is_not_counted_as_a_guess(
    app: Flask, client: FlaskClient, register: Register, body: dict[str, Any], field: str
) -> None:
    _limit_guesses(app)
    register()
    answer = client.post("/v1/device/claim", json=body)
    assert _failure(answer) == (400, "INVALID_INPUT")
    assert list(answer.get_json()["details"]["fields"]) == [field]
    assert _misses() == {}
    assert _nothing_claimed()


@pytest.mark.parametrize("query", ["", "?code=", "?code=%20"])
def test_a_missing_code_is_named_as_the_problem(client: FlaskClient, query: str) -> None:
    answer = client.get(f"/v1/device/info{query}")
    assert _failure(answer) == (400, "INVALID_INPUT")
    assert list(answer.get_json()["details"]["fields"]) == ["code"]


def test_unknown_malformed_expired_and_revoked_codes_are_indistinguishable(
    client: FlaskClient, register: Register
) -> None:
    expired, revoked = register()["claimCode"], register()
    with unit_of_work() as session:
        change(session, ClaimCode, expires_at=clock.now() - timedelta(seconds=1))
    replaced = register()
    client.post("/v1/agents/claim-code", headers={"X-API-Key": replaced["apiKey"]})
    with unit_of_work() as session:
        claims.revoke(session, revoked["agentId"])
    codes = [_WRONG, "hello", "A" * 500, "\u0000", "١٢٣٤", expired, revoked["claimCode"], replaced["claimCode"]]
    answers = [ask(client, code) for ask in (_info, _claim) for code in codes]
    assert {_failure(answer) for answer in answers} == {(404, "NOT_FOUND")}
    assert len({answer.get_json()["error"] for answer in answers}) == 1
    assert _nothing_claimed()


def test_an_agent_with_an_e_mail_address_is_claimed_with_that_one_only(
    app: Flask, client: FlaskClient, register: Register
) -> None:
    _limit_guesses(app)
    code = register(email=_EMAIL)["claimCode"]
    without = _claim(client, code)
    assert _failure(without) == (400, "INVALID_INPUT")
    assert list(without.get_json()["details"]["fields"]) == ["email"]
    assert _misses().get("all", 0) == 0
    assert _failure(_claim(client, code, email="eve@example.org")) == (403, "EMAIL_MISMATCH")
    assert _misses()["all"] == 1
    assert _nothing_claimed()
    assert _claim(client, code, email=_EMAIL).status_code == 200


@pytest.mark.parametrize("email", [_EMAIL, None])
def test_an_agent_that_repeats_the_claim_of_its_owner_gets_no_owner_key(
    client: FlaskClient, register: Register, email: str | None
) -> None:
    code = register()["claimCode"]
    first = _claim(client, code, email=email).get_json()
    for guess in (None, "cr_" + "A" * 43, first["claimReceipt"].upper()):
        answer = _claim(client, code, email=email, claimReceipt=guess)
        assert answer.status_code == 200
        assert answer.get_json() == {
            name: value for name, value in first.items() if name not in ("ownerKey", "claimReceipt")
        }
        assert first["ownerKey"] not in answer.text
    assert _owner_key_count() == 1


@pytest.mark.parametrize("chosen", [None, "a receipt of my own, 32 letters long".replace(" ", "-")])
def test_the_receipt_returns_the_claim_s_response_again(
    client: FlaskClient, register: Register, chosen: str | None
) -> None:
    code = register()["claimCode"]
    first = _claim(client, code, email=_EMAIL, claimReceipt=chosen).get_json()
    assert chosen in (None, first["claimReceipt"])
    again = _claim(client, code, email=_EMAIL, claimReceipt=first["claimReceipt"])
    assert (again.status_code, again.get_json()) == (200, first)
    assert _failure(_claim(client, code, claimReceipt=first["claimReceipt"])) == (409, "ALREADY_CLAIMED")
    assert _owner_key_count() == 1
    with read_only_unit() as session:
        stored = session.scalars(select(ClaimCode)).one()
        assert first["claimReceipt"] not in repr(vars(stored))


@pytest.mark.parametrize("receipt", ["", "short", "x" * 201, "é" * 40, "\ud800" * 40, "a b" * 20, 7, ["x" * 40]])
def test_a_receipt_that_could_be_guessed_is_refused_before_anything_is_claimed(
    client: FlaskClient, register: Register, receipt: object
) -> None:
    answer = _claim(client, register()["claimCode"], claimReceipt=receipt)
    assert _failure(answer) == (400, "INVALID_INPUT")
    assert list(answer.get_json()["details"]["fields"]) == ["claimReceipt"]
    assert _nothing_claimed()


def test_a_claim_from_before_receipts_returns_no_owner_key_again(client: FlaskClient, register: Register) -> None:
    code = register()["claimCode"]
    receipt = _claim(client, code).get_json()["claimReceipt"]
    with unit_of_work() as session:
        change(session, ClaimCode, receipt_digest=None)
    assert "ownerKey" not in _claim(client, code, claimReceipt=receipt).get_json()


def test_each_repetition_is_in_the_audit_trail(client: FlaskClient, register: Register) -> None:
    made = register()
    receipt = _claim(client, made["claimCode"], email=_EMAIL).get_json()["claimReceipt"]
    _claim(client, made["claimCode"], email=_EMAIL, address="2001:db8:0:1:ffff::9")
    _claim(client, made["claimCode"], email=_EMAIL, claimReceipt=receipt, address="203.0.113.9")
    _claim(client, made["claimCode"], email="eve@example.org")
    noted = entries(action="claim.repeated", subject_id=made["agentId"])
    assert [(entry.actor_kind, entry.actor_id, entry.client_address, entry.after) for entry in noted] == [
        ("anonymous", None, "2001:db8:0:1::/64", {"owner_key_shown": False}),
        ("anonymous", None, "203.0.113.9", {"owner_key_shown": True}),
    ]
    assert receipt not in str(noted)


def test_replays_are_limited_and_some_are_reserved_for_the_receipt(client: FlaskClient, register: Register) -> None:
    code = register()["claimCode"]
    first = _claim(client, code).get_json()
    answers = [_claim(client, code).status_code for _ in range(claims.MAX_REPLAYS + 5)]
    assert answers == [200] * claims.MAX_REPLAYS + [409] * 5
    with_receipt = [
        _claim(client, code, claimReceipt=first["claimReceipt"]).status_code for _ in range(claims.MAX_REPLAYS + 5)
    ]
    assert with_receipt == [200] * claims.MAX_REPLAYS + [409] * 5
    assert len(entries(action="claim.repeated")) == 2 * claims.MAX_REPLAYS


def test_a_rotated_api_key_is_not_revealed_by_a_repeated_claim(client: FlaskClient, register: Register) -> None:
    made = register()
    receipt = _claim(client, made["claimCode"]).get_json()["claimReceipt"]
    rotated = operator(client).post(f"/agents/{made['agentId']}/rotate-key", {})
    assert rotated.status_code == 200
    for answer in (_claim(client, made["claimCode"]), _claim(client, made["claimCode"], claimReceipt=receipt)):
        assert _failure(answer) == (409, "ALREADY_CLAIMED")


def test_a_redeemed_code_is_invalid_after_a_day(client: FlaskClient, register: Register) -> None:
    code = register()["claimCode"]
    receipt = _claim(client, code, email=_EMAIL).get_json()["claimReceipt"]
    _age_claims(timedelta(hours=23, minutes=59))
    assert _claim(client, code, email=_EMAIL, claimReceipt=receipt).status_code == 200
    _age_claims(timedelta(hours=24))
    late = _claim(client, code, email=_EMAIL, claimReceipt=receipt)
    assert _failure(late) == (409, "ALREADY_CLAIMED")
    assert personal_data.prune("claim_codes", clock.now() + timedelta(seconds=1)) == 1
    with read_only_unit() as session:
        assert session.execute(select(ClaimCode.answer_sealed, ClaimCode.receipt_digest)).one() == (None, None)
    assert _failure(_claim(client, code, email=_EMAIL)) == (409, "ALREADY_CLAIMED")


def test_a_redeemed_code_with_another_e_mail_address_reveals_nothing_and_is_counted(
    app: Flask, client: FlaskClient, register: Register
) -> None:
    _limit_guesses(app)
    code = register()["claimCode"]
    assert _claim(client, code, email=_EMAIL).status_code == 200
    for email in (None, "eve@example.org"):
        answer = _claim(client, code, email=email)
        assert _failure(answer) == (409, "ALREADY_CLAIMED")
        assert "_" not in answer.get_json()["error"]
    assert _misses()["all"] == 2


def test_an_agent_without_wallets_can_be_claimed(client: FlaskClient, register: Register) -> None:
    made = register()
    deleted = client.delete(f"/v1/wallets/{made['wallet']['id']}", headers={"X-API-Key": made["apiKey"]})
    assert deleted.status_code == 200
    answer = _claim(client, made["claimCode"])
    assert (answer.status_code, answer.get_json()["wallet"]) == (200, None)


def test_five_wrong_codes_lock_the_address_even_for_a_valid_one(
    app: Flask, client: FlaskClient, register: Register
) -> None:
    _limit_guesses(app)
    code, lockouts = register()["claimCode"], growth_of(counters.LOCKOUTS)
    answers = [ask(client, wrong) for ask, wrong in zip([_info, _claim] * 3, [_WRONG, "hello"] * 3, strict=True)]
    assert [answer.status_code for answer in answers] == [404] * 5 + [429]
    assert _failure(answers[-1]) == (429, "RATE_LIMITED")
    assert 3590 <= int(answers[-1].headers["Retry-After"]) <= 3600
    for ask in (_info, _claim):
        assert ask(client, code).status_code == 429
    assert _nothing_claimed()
    assert (_misses()["all"], lockouts()) == (5, 1)
    assert _claim(client, code, address="203.0.113.2").status_code == 200


def test_a_lock_ends_and_the_next_one_is_twice_as_long(app: Flask, client: FlaskClient) -> None:
    _limit_guesses(app, "2 per hour")
    for _ in range(2):
        _info(client, _WRONG)
    with unit_of_work() as session:
        past = clock.now() - timedelta(seconds=1)
        session.execute(update(GuessCounter).where(GuessCounter.scope != "all").values(locked_until=past))
    assert [_info(client, _WRONG).status_code for _ in range(3)] == [404, 404, 429]
    assert 7190 <= int(_info(client, _WRONG).headers["Retry-After"]) <= 7200


def test_addresses_of_guessers_cannot_be_read_from_the_table(app: Flask, client: FlaskClient) -> None:
    _limit_guesses(app)
    _info(client, _WRONG, address="2001:db8:0:1::1")
    _info(client, _WRONG, address="2001:db8:0:1:ffff::9")
    scopes = _misses()
    assert sorted(scopes.values()) == [2, 2]
    assert all(scope == "all" or re.fullmatch(r"[0-9a-f]{64}", scope) for scope in scopes)


def _guess_out_the_service(client: FlaskClient) -> None:
    _info(client, _WRONG, address="198.51.100.1")
    with unit_of_work() as session:
        session.execute(update(GuessCounter).where(GuessCounter.scope == "all").values(misses=SERVICE_WIDE_MISSES))


def test_guessing_from_many_addresses_exceeds_the_service_wide_limit(
    app: Flask, client: FlaskClient, register: Register
) -> None:
    _limit_guesses(app)
    plain, locked = register()["claimCode"], register(email=_EMAIL)["claimCode"]
    _guess_out_the_service(client)
    refused = [
        _info(client, plain),
        _info(client, _WRONG),
        _claim(client, plain),
        _claim(client, plain, email=_EMAIL),
        _claim(client, _WRONG, email=_EMAIL),
        _claim(client, locked, email="eve@example.org"),
    ]
    assert {_failure(answer) for answer in refused} == {(429, "RATE_LIMITED")}
    assert len({answer.get_json()["error"] for answer in refused}) == 1
    assert all(0 < int(answer.headers["Retry-After"]) <= 3600 for answer in refused)
    assert _nothing_claimed()
    assert _claim(client, locked, email=_EMAIL).status_code == 200


def test_the_exception_for_registered_e_mail_addresses_cannot_be_guessed(
    app: Flask, client: FlaskClient, register: Register
) -> None:
    _limit_guesses(app)
    locked = register(email=_EMAIL)["claimCode"]
    _guess_out_the_service(client)
    for number in range(5):
        assert _claim(client, locked, email=f"eve{number}@example.org").status_code == 429
    assert _claim(client, locked, email=_EMAIL).status_code == 429
    assert _nothing_claimed()


def test_the_service_wide_limit_ends_after_an_hour(app: Flask, client: FlaskClient, register: Register) -> None:
    _limit_guesses(app)
    code = register()["claimCode"]
    _guess_out_the_service(client)
    # A refused request is not counted: no code was looked up.
    assert {_claim(client, code).status_code for _ in range(6)} == {429}
    with unit_of_work() as session:
        an_hour_ago = clock.now() - timedelta(hours=1)
        session.execute(update(GuessCounter).where(GuessCounter.scope == "all").values(window_start=an_hour_ago))
    assert _info(client, _WRONG).status_code == 404
    assert _misses()["all"] == 1
    assert _claim(client, code).status_code == 200


def test_without_a_limit_nothing_is_counted(client: FlaskClient) -> None:
    assert {_info(client, _WRONG).status_code for _ in range(8)} == {404}
    assert _misses() == {}


def test_counters_of_inactive_addresses_are_pruned(app: Flask, client: FlaskClient) -> None:
    _limit_guesses(app)
    _info(client, _WRONG)
    assert personal_data.prune("guess_counters", clock.now()) == 0
    assert personal_data.prune("guess_counters", clock.now() + timedelta(days=3)) == 2
