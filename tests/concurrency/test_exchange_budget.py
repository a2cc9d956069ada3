"""The rate budget of the exchange is shared by all processes: never exceeded, and exact under concurrency."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from flask import Flask
from redis import Redis

from app.errors import PerpdexError
from app.trading import exchange_client
from tests.support.agents import register
from tests.support.exchange import adapter_for, running_exchange

ALL, OF_WALLET = (int(limit.split()[0]) for limit in (exchange_client.LIMIT, exchange_client.WALLET_LIMIT))


@pytest.fixture
def empty_redis_url(redis_url: str) -> str:
    Redis.from_url(redis_url).flushdb()
    return redis_url


def test_two_processes_never_exceed_the_budget(
    sqlite_url: str, empty_redis_url: str, build_app: Callable[..., Flask]
) -> None:
    apps = [build_app(sqlite_url, settings={"redis_url": empty_redis_url}) for _ in range(2)]

    def take(number: int) -> bool:
        with apps[number % 2].app_context():
            try:
                exchange_client.acquire(20)
            except PerpdexError:
                return False
            return True

    with ThreadPoolExecutor(16) as threads:
        assert sum(threads.map(take, range(80))) == ALL // 20


def test_a_refused_wallet_share_is_not_charged_to_the_budget(sqlite_url: str, build_app: Callable[..., Flask]) -> None:
    with build_app(sqlite_url).app_context():
        exchange_client.acquire(OF_WALLET, wallet_id="a")
        for _ in range(ALL // 20):
            with pytest.raises(PerpdexError, match="share"):
                exchange_client.acquire(20, wallet_id="a")
        for name in "bcde":
            exchange_client.acquire(OF_WALLET, wallet_id=name)
        with pytest.raises(PerpdexError, match="The request budget") as refused:
            exchange_client.acquire(20, wallet_id="f")
        assert 1 <= (refused.value.retry_after_seconds or 0) <= 60


def test_a_large_response_is_charged_as_far_as_the_budget_has_room(
    sqlite_url: str, build_app: Callable[..., Flask]
) -> None:
    with build_app(sqlite_url).app_context():
        exchange_client.acquire(OF_WALLET - 30, wallet_id="a")
        exchange_client.charge_surplus(100, wallet_id="a")
        with pytest.raises(PerpdexError, match="share"):
            exchange_client.acquire(20, wallet_id="a")
        # All of it counts for the others.
        exchange_client.acquire(ALL - (OF_WALLET - 30) - 100)
        with pytest.raises(PerpdexError, match="The request budget"):
            exchange_client.acquire(1)


@pytest.mark.postgres
def test_two_services_together_stay_below_the_limit_of_the_exchange(
    each_database_url: str, empty_redis_url: str, build_app: Callable[..., Flask]
) -> None:
    with running_exchange() as server:
        shared = {"redis_url": empty_redis_url}
        apps = [build_app(each_database_url, settings=shared, perpdex=adapter_for(server.url)) for _ in range(2)]
        agents = []
        for app in apps:
            with app.app_context():
                agents += [register(app.test_client()) for _ in range(3)]

        def ask(number: int) -> int:
            agent = agents[number % 6]
            with apps[number % 6 // 3].app_context():
                body = {"walletId": agent.wallet_id, "action": "orders"}
                return agent.post("/v1/trading/perpdex", body).status_code

        with ThreadPoolExecutor(12) as threads:
            statuses = list(threads.map(ask, range(120)))
        assert server.refused == 0
        assert set(statuses) == {200, 502}
        assert statuses.count(200) == len(server.queries) <= 60
