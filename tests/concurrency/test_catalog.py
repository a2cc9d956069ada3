"""Races around services, on PostgreSQL: what is charged, counted and subscribed when many come at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import func, select, update

from app.catalog import services, statistics, subscriptions
from app.catalog.models import Service
from app.catalog.services import MAX_SERVICES_PER_AGENT
from app.core.identifiers import new_id
from app.core.unit_of_work import reading, unit_of_work
from app.credits import service as credits_service
from app.errors import NotFound, ServiceError
from app.wallets import service as wallets
from tests.support.agents import register
from tests.support.ledger import race
from tests.support.market import Market, market

pytestmark = pytest.mark.postgres
CALLS = 24


@pytest.fixture
def stage(postgres_url: str, build_app: Callable[..., Flask]) -> Iterator[Market]:
    with market(build_app, postgres_url) as made:
        yield made


def call(stage: Market, key: str) -> int:
    with stage.app.test_client() as client:
        answer = client.get(f"/v1/proxy/{stage.id}/x", headers={"X-API-Key": key})
        answer.get_data()
        return answer.status_code


def test_calls_at_once_are_each_charged_and_counted_once(stage: Market) -> None:
    keys = [stage.buyer.key, stage.seller.key] * (CALLS // 2)
    answers: list[Any] = race(stage.app, [partial(call, stage, key) for key in keys])
    assert answers == [200] * CALLS
    with reading():
        spent = [credits_service.balance(agent.id).spent_nanos for agent in (stage.buyer, stage.seller)]
    assert spent == [CALLS // 2 * 250_000_000] * 2
    stats = stage.stats()
    assert (stats["total_calls"], stats["total_revenue_usd"]) == (CALLS, CALLS * 0.25)
    assert stats["last_24h"]["calls"] == CALLS
    assert [row["total_calls"] for row in stats["top_agents"]] == [CALLS // 2] * 2


def test_callers_at_once_never_spend_more_than_they_have(stage: Market) -> None:
    stage.change(price_per_call_usd=3)
    answers: list[Any] = race(stage.app, [partial(call, stage, stage.buyer.key) for _ in range(12)])
    assert sorted(answers) == [200] * 3 + [402] * 9
    assert stage.stats()["total_revenue_usd"] == 9


def test_a_call_does_not_wait_for_another_call_of_the_same_service(stage: Market) -> None:
    """One unit holds the service's row and a stripe of each counter, and the others go on."""
    with unit_of_work() as session:
        session.execute(update(Service).where(Service.id == stage.id).values(name="held"))
        done: list[Any] = race(stage.app, [partial(_count, stage.id) for _ in range(4)])
    assert done == [None] * 4
    with unit_of_work() as session:
        # What was counted here was charged to nobody, which the audit would find.
        session.connection().exec_driver_sql("DELETE FROM service_totals")


def _count(service_id: str) -> None:
    with unit_of_work() as session:
        session.connection().exec_driver_sql("SET LOCAL lock_timeout = '2s'")
        statistics.count_answered(service_id, wallet_id=None, charged_nanos=1, microseconds=1)


def test_of_subscriptions_at_once_one_is_made(stage: Market) -> None:
    subscribe = partial(
        subscriptions.subscribe, stage.id, "x", wallet_id=stage.buyer.wallet_id, agent_id=stage.buyer.id
    )
    answers = race(stage.app, [subscribe for _ in range(8)])
    refused = [each for each in answers if isinstance(each, ServiceError)]
    assert (len(refused), {each.code.value for each in refused}) == (7, {"ALREADY_SUBSCRIBED"})
    assert stage.stats()["active_subscribers"] == 1


def test_nobody_is_left_subscribed_to_a_service_that_is_retired_meanwhile(stage: Market) -> None:
    for _ in range(4):
        made = services.register(
            stage.seller.id,
            {
                "name": "n", "description": "", "base_url": "http://127.0.0.1:9", "pricing_model": "per_call",
                "price_nanos": 1, "category": "c",
            },
            document=None,
        ).service  # fmt: skip
        subscribe = partial(
            subscriptions.subscribe, made.id, "n", wallet_id=stage.buyer.wallet_id, agent_id=stage.buyer.id
        )
        retire = partial(services.retire, made.id, agent_id=stage.seller.id)
        race(stage.app, [subscribe, retire])
        with reading():
            assert subscriptions.count_active(made.id) == 0


def test_no_deleted_wallet_is_left_subscribed(stage: Market) -> None:
    """The wallet was there when the request was checked, and is deleted before it subscribes."""
    for meanwhile in (False, True):
        wallet_id = stage.buyer.post("/v1/wallets", {}).get_json()["id"]
        subscribe = partial(
            subscriptions.subscribe, stage.id, "x", wallet_id=wallet_id, agent_id=stage.buyer.id
        )
        remove = partial(wallets.remove, wallet_id, agent_id=stage.buyer.id)
        if meanwhile:
            race(stage.app, [subscribe, remove])
        else:
            remove()
            with pytest.raises(NotFound):
                subscribe()
        with reading():
            assert subscriptions.count_active(stage.id) == 0


def test_registrations_at_once_do_not_pass_the_bound(stage: Market) -> None:
    agent = register(stage.buyer.client)
    values = {
        "name": "n", "description": "", "base_url": "http://127.0.0.1:9", "pricing_model": "per_call",
        "price_nanos": 1, "category": "c",
    }  # fmt: skip
    services.register(agent.id, values, document=None)
    with unit_of_work() as session:
        row = session.execute(
            select(Service.__table__).where(Service.agent_id == agent.id)
        ).mappings().one()  # fmt: skip
        session.execute(
            Service.__table__.insert(),  # type: ignore[attr-defined]
            [{**row, "id": new_id()} for _ in range(MAX_SERVICES_PER_AGENT - 3)],
        )
    answers = race(stage.app, [partial(services.register, agent.id, values, document=None) for _ in range(6)])
    assert len([each for each in answers if isinstance(each, ServiceError)]) == 4
    with reading() as session:
        counted = select(func.count()).select_from(Service).where(Service.agent_id == agent.id)
        assert session.scalar(counted) == MAX_SERVICES_PER_AGENT
