"""Races around claim codes on PostgreSQL: claims, guesses and replacements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import func, select
from werkzeug.test import TestResponse

from app.agents.claims import ClaimCode
from app.audit_log import actors
from app.db.unit_of_work import read_only_unit
from app.device.guess_limits import GuessCounter
from app.identity.models import Agent, ApiKey, MasterKey, OwnerKey
from app.owner.session import sessions
from app.platform import keys as platform_keys
from tests.support.applications import change_settings
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.postgres

_CONCURRENT = 12


@pytest.fixture
def postgres_app(postgres_url: str, build_app: Callable[..., Flask]) -> Flask:
    """Build an application with a connection for each thread."""
    return build_app(postgres_url, settings={"database_pool_size": _CONCURRENT})


def _concurrently(app: Flask, ask: Callable[[int], TestResponse | bool]) -> list[Any]:
    start = Barrier(_CONCURRENT)

    def one(number: int) -> TestResponse | bool:
        start.wait(PATIENCE_SECONDS)
        with app.test_request_context():
            return ask(number)

    with ThreadPoolExecutor(_CONCURRENT) as threads:
        return list(threads.map(one, range(_CONCURRENT)))


def _register(app: Flask, **body: str) -> dict[str, Any]:
    answer = app.test_client().post("/v1/agents/register", json=body)
    assert answer.status_code == 201
    made: dict[str, Any] = answer.get_json()
    return made


def _count(app: Flask, *conditions: Any) -> int:
    with app.app_context(), read_only_unit() as session:
        return session.scalar(select(func.count()).where(*conditions)) or 0


def test_concurrent_claims_of_one_code_make_exactly_one_owner(postgres_app: Flask) -> None:
    code = _register(postgres_app)["claimCode"]

    def claim(number: int) -> TestResponse:
        body = {"code": code, "email": f"person{number}@example.org"}
        return postgres_app.test_client().post("/v1/device/claim", json=body)

    answers = _concurrently(postgres_app, claim)
    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: _CONCURRENT - 1}
    winner = next(answer.get_json() for answer in answers if answer.status_code == 200)
    with postgres_app.app_context(), read_only_unit() as session:
        assert session.scalars(select(Agent.claimed_email)).one() == winner["email"]
        assert session.scalars(select(OwnerKey.owner_email)).one() == winner["email"]
        assert session.scalars(select(ClaimCode.claim_email)).one() == winner["email"]


def test_concurrent_claims_with_one_receipt_return_the_same_owner_key(postgres_app: Flask) -> None:
    code = _register(postgres_app, email="ada@example.org")["claimCode"]

    def claim(_number: int) -> TestResponse:
        body = {"code": code, "email": "ada@example.org", "claimReceipt": "r" * 43}
        return postgres_app.test_client().post("/v1/device/claim", json=body)

    answers = _concurrently(postgres_app, claim)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.get_json()["ownerKey"] for answer in answers}) == 1
    assert _count(postgres_app, OwnerKey.id.is_not(None)) == 1


def test_concurrent_claims_without_a_receipt_return_the_owner_key_once(postgres_app: Flask) -> None:
    code = _register(postgres_app, email="ada@example.org")["claimCode"]

    def claim(_number: int) -> TestResponse:
        body = {"code": code, "email": "ada@example.org"}
        return postgres_app.test_client().post("/v1/device/claim", json=body)

    answers = _concurrently(postgres_app, claim)
    assert {answer.status_code for answer in answers} == {200}
    assert sum("ownerKey" in answer.get_json() for answer in answers) == 1
    assert _count(postgres_app, OwnerKey.id.is_not(None)) == 1


def test_no_claim_is_repeated_after_a_concurrent_action_of_the_owner(postgres_app: Flask) -> None:
    made = _register(postgres_app)
    body = {"code": made["claimCode"], "claimReceipt": "r" * 43}
    key = postgres_app.test_client().post("/v1/device/claim", json=body).get_json()["ownerKey"]
    acted = Event()

    def race(number: int) -> TestResponse | bool:
        if number == 0:
            sessions.enter_key(key, network="192.0.2.1", previous_token=None)
            acted.set()
            return True
        was_over = acted.is_set()
        answer = postgres_app.test_client().post("/v1/device/claim", json=body)
        assert answer.status_code in (200, 409)
        assert not (was_over and answer.status_code == 200)
        return True

    assert all(_concurrently(postgres_app, race))
    assert postgres_app.test_client().post("/v1/device/claim", json=body).status_code == 409


def test_concurrent_guesses_are_limited_like_sequential_ones(postgres_app: Flask) -> None:
    change_settings(postgres_app, device_miss_limit="5 per hour")
    _register(postgres_app)

    def guess(number: int) -> TestResponse:
        return postgres_app.test_client().get("/v1/device/info", query_string={"code": f"ZZZZ-{number:04}"})

    statuses = Counter(answer.status_code for answer in _concurrently(postgres_app, guess))
    assert statuses == {404: 5, 429: _CONCURRENT - 5}
    with postgres_app.app_context(), read_only_unit() as session:
        assert session.scalar(select(GuessCounter.misses).where(GuessCounter.scope == "all")) == 5


def test_replacing_a_code_during_its_claim_leaves_no_open_code(postgres_app: Flask) -> None:
    for _ in range(4):
        made = _register(postgres_app)

        def race(number: int, made: dict[str, Any] = made) -> TestResponse:
            client = postgres_app.test_client()
            if number % 2:
                return client.post("/v1/device/claim", json={"code": made["claimCode"]})
            return client.post("/v1/agents/claim-code", headers={"X-API-Key": made["apiKey"]})

        statuses = {answer.status_code for answer in _concurrently(postgres_app, race)}
        assert statuses <= {200, 201, 404, 409}
        claimed = _count(postgres_app, Agent.id == made["agentId"], Agent.claimed_at.is_not(None))
        still_open = _count(
            postgres_app,
            ClaimCode.agent_id == made["agentId"],
            ClaimCode.claimed_at.is_(None),
            ClaimCode.revoked_at.is_(None),
        )
        assert claimed + still_open == 1


def test_concurrent_registrations_never_exceed_the_daily_budget(postgres_app: Flask) -> None:
    change_settings(postgres_app, grant_budget_usd_per_day=55)

    def register(_number: int) -> TestResponse:
        return postgres_app.test_client().post("/v1/agents/register")

    statuses = Counter(answer.status_code for answer in _concurrently(postgres_app, register))
    assert statuses == {201: 5, 429: _CONCURRENT - 5}
    assert _count(postgres_app, Agent.id.is_not(None)) == 5
    assert _count(postgres_app, ApiKey.id.is_not(None)) == 5


def test_processes_that_start_concurrently_create_one_master_key(postgres_app: Flask) -> None:
    key = "mk_" + "m" * 43
    made = _concurrently(
        postgres_app, lambda _number: platform_keys.bootstrap_master_key(actors.system_actor("bootstrap"), key)
    )
    assert Counter(made) == {True: 1, False: _CONCURRENT - 1}
    assert _count(postgres_app, MasterKey.id.is_not(None)) == 1
