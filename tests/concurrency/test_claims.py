"""Races around claim codes on PostgreSQL: every claim, guess and replacement at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import func, select
from werkzeug.test import TestResponse

from app.agents.models import ClaimCode
from app.core.unit_of_work import reading
from app.device.models import GuessCounter
from app.identity.models import Agent, ApiKey, MasterKey, OwnerKey
from app.platform import actors
from app.platform import keys as platform_keys

pytestmark = pytest.mark.postgres

_AT_ONCE = 12


@pytest.fixture
def postgres_app(postgres_url: str, build_app: Callable[..., Flask]) -> Flask:
    """Make an application with a connection for everybody who races."""
    return build_app(postgres_url, settings={"database_pool_size": _AT_ONCE})


def _at_once(app: Flask, ask: Callable[[int], TestResponse | bool]) -> list[Any]:
    start = Barrier(_AT_ONCE)

    def one(number: int) -> TestResponse | bool:
        start.wait(timeout=30)
        with app.app_context():
            return ask(number)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(one, range(_AT_ONCE)))


def _register(app: Flask, **body: str) -> dict[str, Any]:
    answer = app.test_client().post("/v1/agents/register", json=body)
    assert answer.status_code == 201
    made: dict[str, Any] = answer.get_json()
    return made


def _count(app: Flask, *conditions: Any) -> int:
    with app.app_context(), reading() as session:
        return session.scalar(select(func.count()).where(*conditions)) or 0


def test_of_many_people_with_one_code_exactly_one_becomes_the_owner(postgres_app: Flask) -> None:
    code = _register(postgres_app)["claimCode"]

    def claim(number: int) -> TestResponse:
        body = {"code": code, "email": f"person{number}@example.org"}
        return postgres_app.test_client().post("/v1/device/claim", json=body)

    answers = _at_once(postgres_app, claim)
    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: _AT_ONCE - 1}
    winner = next(answer.get_json() for answer in answers if answer.status_code == 200)
    with postgres_app.app_context(), reading() as session:
        assert session.scalars(select(Agent.claimed_email)).one() == winner["email"]
        assert session.scalars(select(OwnerKey.owner_email)).one() == winner["email"]
        assert session.scalars(select(ClaimCode.claim_email)).one() == winner["email"]


def test_one_person_s_impatient_clicks_all_get_the_one_owner_key(postgres_app: Flask) -> None:
    code = _register(postgres_app, email="ada@example.org")["claimCode"]

    def claim(_number: int) -> TestResponse:
        body = {"code": code, "email": "ada@example.org"}
        return postgres_app.test_client().post("/v1/device/claim", json=body)

    answers = _at_once(postgres_app, claim)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.get_json()["ownerKey"] for answer in answers}) == 1
    assert _count(postgres_app, OwnerKey.id.is_not(None)) == 1


def test_guesses_made_at_once_get_no_further_than_guesses_in_a_row(postgres_app: Flask) -> None:
    settings = postgres_app.extensions["settings"]
    postgres_app.extensions["settings"] = settings.model_copy(update={"device_miss_limit": "5 per hour"})
    _register(postgres_app)

    def guess(number: int) -> TestResponse:
        return postgres_app.test_client().get("/v1/device/info", query_string={"code": f"ZZZZ-{number:04}"})

    statuses = Counter(answer.status_code for answer in _at_once(postgres_app, guess))
    assert statuses == {404: 5, 429: _AT_ONCE - 5}
    with postgres_app.app_context(), reading() as session:
        assert session.scalar(select(GuessCounter.misses).where(GuessCounter.scope == "all")) == 5


def test_a_code_replaced_while_it_is_claimed_leaves_no_open_code_of_a_claimed_agent(
    postgres_app: Flask,
) -> None:
    for _ in range(4):
        made = _register(postgres_app)

        def race(number: int, made: dict[str, Any] = made) -> TestResponse:
            client = postgres_app.test_client()
            if number % 2:
                return client.post("/v1/device/claim", json={"code": made["claimCode"]})
            return client.post("/v1/agents/claim-code", headers={"X-API-Key": made["apiKey"]})

        statuses = {answer.status_code for answer in _at_once(postgres_app, race)}
        assert statuses <= {200, 201, 404, 409}
        claimed = _count(postgres_app, Agent.id == made["agentId"], Agent.claimed_at.is_not(None))
        still_open = _count(
            postgres_app,
            ClaimCode.agent_id == made["agentId"],
            ClaimCode.claimed_at.is_(None),
            ClaimCode.revoked_at.is_(None),
        )
        assert claimed + still_open == 1


def test_registrations_at_once_never_pass_the_day_s_budget(postgres_app: Flask) -> None:
    settings = postgres_app.extensions["settings"]
    postgres_app.extensions["settings"] = settings.model_copy(update={"grant_budget_usd_per_day": 55})

    def register(_number: int) -> TestResponse:
        return postgres_app.test_client().post("/v1/agents/register")

    statuses = Counter(answer.status_code for answer in _at_once(postgres_app, register))
    assert statuses == {201: 5, 429: _AT_ONCE - 5}
    assert _count(postgres_app, Agent.id.is_not(None)) == 5
    assert _count(postgres_app, ApiKey.id.is_not(None)) == 5


def test_processes_that_start_together_make_one_master_key(postgres_app: Flask) -> None:
    key = "mk_" + "m" * 43
    made = _at_once(
        postgres_app, lambda _number: platform_keys.bootstrap_master_key(actors.the_service("bootstrap"), key)
    )
    assert Counter(made) == {True: 1, False: _AT_ONCE - 1}
    assert _count(postgres_app, MasterKey.id.is_not(None)) == 1
