"""Races around services on PostgreSQL: charges, counters and subscriptions under concurrency."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import func, select, update

from app.adapters.openapi_reader.reader import OpenApiReader
from app.catalog import statistics, subscriptions
from app.catalog.models import Service
from app.catalog.services import service as services
from app.catalog.services.service import MAX_SERVICES_PER_AGENT
from app.core.identifiers import new_id
from app.credits import accounts as credit_accounts
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import NotFound, ServiceError
from app.idempotency.service import Claim
from app.ports.specifications import Specification
from app.wallets.core import wallets
from tests.support.agents import register
from tests.support.ledger import race
from tests.support.market import SPEC, Market, market, offer

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


def test_concurrent_calls_are_each_charged_and_counted_once(stage: Market) -> None:
    keys = [stage.buyer.key, stage.seller.key] * (CALLS // 2)
    answers: list[Any] = race(stage.app, [partial(call, stage, key) for key in keys])
    assert answers == [200] * CALLS
    with read_only_unit() as session:
        spent = [credit_accounts.balance(session, agent.id).spent_nanos for agent in (stage.buyer, stage.seller)]
    assert spent == [CALLS // 2 * 250_000_000] * 2
    stats = stage.stats()
    assert (stats["total_calls"], stats["total_revenue_usd"]) == (CALLS, CALLS * 0.25)
    assert stats["last_24h"]["calls"] == CALLS
    assert [row["total_calls"] for row in stats["top_agents"]] == [CALLS // 2] * 2


def test_concurrent_callers_never_overdraw_their_credits(stage: Market) -> None:
    stage.change(price_per_call_usd=3)
    answers: list[Any] = race(stage.app, [partial(call, stage, stage.buyer.key) for _ in range(12)])
    assert sorted(answers) == [200] * 3 + [402] * 9
    assert stage.stats()["total_revenue_usd"] == 9


def test_a_call_does_not_wait_for_another_call_of_the_same_service(stage: Market) -> None:
    """While one unit locks the service's row and a stripe of each counter, others proceed."""
    with unit_of_work() as session:
        session.execute(update(Service).where(Service.id == stage.id).values(name="held"))
        done: list[Any] = race(stage.app, [partial(_count, stage.id) for _ in range(4)])
    assert done == [None] * 4
    with unit_of_work() as session:
        # These counts have no charges, which the audit would report.
        session.connection().exec_driver_sql("DELETE FROM service_totals")


def _count(service_id: str) -> None:
    with unit_of_work() as session:
        session.connection().exec_driver_sql("SET LOCAL lock_timeout = '2s'")
        statistics.record_answered_call(session, service_id, wallet_id=None, charged_nanos=1, microseconds=1)


class ConcurrencyRecorder:
    """Reads a document slowly, and records the number of concurrent reads."""

    def __init__(self) -> None:
        self._real = OpenApiReader()
        self._changed = threading.Condition()
        self._present: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def read(self, document: str) -> Specification:
        title = json.loads(document)["info"]["title"]
        with self._changed:
            self._present[title] += 1
            self.most[title] = max(self.most[title], self._present[title])
            self.most["all"] = max(self.most["all"], self._present.total())
            self._changed.notify_all()
            others = "many" if title == "one" else title
            self._changed.wait_for(lambda: self._present[others] - (others == title) > 0, timeout=0.5)
            self._present[title] -= 1
        return self._real.read(document)


def test_specifications_are_read_one_at_a_time_per_agent(postgres_url: str, build_app: Callable[..., Flask]) -> None:
    reader = ConcurrencyRecorder()
    app = build_app(postgres_url, specifications=reader)
    many, one = register(app.test_client()), register(app.test_client())

    def offered(key: str, title: str) -> int:
        spec = {**SPEC, "info": {"title": title, "version": "1"}}
        with app.test_client() as client:
            return client.post("/v1/services", json=offer(openapi_spec=spec), headers={"X-API-Key": key}).status_code

    calls = [partial(offered, *who) for who in ((many.key, "many"), (many.key, "many"), (one.key, "one"))]
    answers: list[Any] = race(app, calls)
    assert answers == [201] * 3
    assert (reader.most["many"], reader.most["all"]) == (1, 2)


def test_of_concurrent_subscriptions_one_succeeds(stage: Market) -> None:
    subscribe = partial(
        subscriptions.subscribe, stage.id, wallet_id=stage.buyer.wallet_id, agent_id=stage.buyer.id, claim=Claim.none()
    )
    answers = race(stage.app, [subscribe for _ in range(8)])
    refused = [each for each in answers if isinstance(each, ServiceError)]
    assert (len(refused), {each.code for each in refused}) == (7, {"ALREADY_SUBSCRIBED"})
    assert stage.stats()["active_subscribers"] == 1


def test_retiring_a_service_concurrently_leaves_no_subscription(stage: Market) -> None:
    for _ in range(4):
        made = services.register(
            stage.seller.id,
            {
                "name": "n", "description": "", "base_url": "http://127.0.0.1:9", "pricing_model": "per_call",
                "price_nanos": 1, "category": "c",
            },
            document=None, claim=Claim.none(),
        )  # fmt: skip
        subscribe = partial(
            subscriptions.subscribe,
            made.id,
            wallet_id=stage.buyer.wallet_id,
            agent_id=stage.buyer.id,
            claim=Claim.none(),
        )
        retire = partial(services.retire, made.id, agent_id=stage.seller.id)
        race(stage.app, [subscribe, retire])
        with read_only_unit() as session:
            assert subscriptions.count_active(session, made.id) == 0


def test_a_concurrently_deleted_wallet_is_not_subscribed(stage: Market) -> None:
    """The wallet exists when the request is checked, and is deleted before it subscribes."""
    for meanwhile in (False, True):
        wallet_id = stage.buyer.post("/v1/wallets", {}).get_json()["id"]
        subscribe = partial(
            subscriptions.subscribe, stage.id, wallet_id=wallet_id, agent_id=stage.buyer.id, claim=Claim.none()
        )
        remove = partial(wallets.delete_wallet, wallet_id, agent_id=stage.buyer.id)
        if meanwhile:
            race(stage.app, [subscribe, remove])
        else:
            remove()
            with pytest.raises(NotFound):
                subscribe()
        with read_only_unit() as session:
            assert subscriptions.count_active(session, stage.id) == 0


def test_concurrent_registrations_do_not_exceed_the_limit(stage: Market) -> None:
    agent = register(stage.buyer.client)
    values = {
        "name": "n", "description": "", "base_url": "http://127.0.0.1:9", "pricing_model": "per_call",
        "price_nanos": 1, "category": "c",
    }  # fmt: skip
    services.register(agent.id, values, document=None, claim=Claim.none())
    with unit_of_work() as session:
        row = session.execute(
            select(Service.__table__).where(Service.agent_id == agent.id)
        ).mappings().one()  # fmt: skip
        session.execute(
            Service.__table__.insert(),  # type: ignore[attr-defined]
            [{**row, "id": new_id()} for _ in range(MAX_SERVICES_PER_AGENT - 3)],
        )
    answers = race(
        stage.app, [partial(services.register, agent.id, values, document=None, claim=Claim.none()) for _ in range(6)]
    )
    assert len([each for each in answers if isinstance(each, ServiceError)]) == 4
    with read_only_unit() as session:
        counted = select(func.count()).select_from(Service).where(Service.agent_id == agent.id)
        assert session.scalar(counted) == MAX_SERVICES_PER_AGENT
