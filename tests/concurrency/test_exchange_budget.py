"""The rate budget of the exchange is shared by all processes: never exceeded, and exact under concurrency."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from flask import Flask
from sqlalchemy import select, update

from app.core import clock
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import PerpdexError
from app.trading import exchange_client
from app.trading.exchange_client import ExchangeBudget
from tests.support.agents import register
from tests.support.exchange import adapter_for, running_exchange

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.postgres
def test_two_processes_never_exceed_the_budget(each_database_url: str, build_app: Callable[..., Flask]) -> None:
    apps = [build_app(each_database_url), build_app(each_database_url)]

    def take(number: int) -> bool:
        with apps[number % 2].app_context():
            try:
                exchange_client.acquire(20)
            except PerpdexError:
                return False
            return True

    began = time.monotonic()
    with ThreadPoolExecutor(16) as threads:
        taken = sum(threads.map(take, range(60)))
    refilled = (time.monotonic() - began) * 1000 / exchange_client.GLOBAL_ALLOWANCE.ms_per_weight
    assert (
        exchange_client.GLOBAL_ALLOWANCE.burst // 20
        <= taken
        <= (exchange_client.GLOBAL_ALLOWANCE.burst + refilled) // 20
    )


@pytest.mark.postgres
def test_a_refused_wallet_share_is_not_charged_to_the_budget(
    each_database_url: str, build_app: Callable[..., Flask]
) -> None:
    with build_app(each_database_url).app_context():
        exchange_client.acquire(exchange_client.WALLET_ALLOWANCE.burst, wallet_id="a", now=NOW)
        for _ in range(50):
            with pytest.raises(PerpdexError, match="share"):
                exchange_client.acquire(20, wallet_id="a", now=NOW)
        exchange_client.acquire(
            exchange_client.GLOBAL_ALLOWANCE.burst - exchange_client.WALLET_ALLOWANCE.burst, wallet_id="b", now=NOW
        )
        with pytest.raises(PerpdexError, match="The request budget"):
            exchange_client.acquire(20, wallet_id="c", now=NOW)
        later = NOW + timedelta(milliseconds=20 * exchange_client.GLOBAL_ALLOWANCE.ms_per_weight)
        exchange_client.acquire(20, wallet_id="c", now=later)


@pytest.mark.postgres
def test_a_large_response_is_charged_even_beyond_the_budget(
    each_database_url: str, build_app: Callable[..., Flask]
) -> None:
    with build_app(each_database_url).app_context():
        exchange_client.acquire(190, wallet_id="a", now=NOW)
        exchange_client.acquire(100, wallet_id="a", now=NOW, is_bounded=False)
        with pytest.raises(PerpdexError) as refused:
            exchange_client.acquire(20, wallet_id="a", now=NOW)
        # 190 + 100 + 20 are 110 more than fit, at 150 ms each.
        assert refused.value.retry_after_seconds == 17


@pytest.mark.postgres
def test_two_services_together_stay_below_the_limit_of_the_exchange(
    each_database_url: str, build_app: Callable[..., Flask]
) -> None:
    with running_exchange() as server:
        apps = [build_app(each_database_url, perpdex=adapter_for(server.url)) for _ in range(2)]
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


@pytest.mark.postgres
def test_budgets_of_inactive_wallets_are_deleted(each_database_url: str, build_app: Callable[..., Flask]) -> None:
    with build_app(each_database_url).app_context():
        for name in ("a", "b", "c"):
            exchange_client.acquire(20, wallet_id=name)
        with unit_of_work() as session:
            session.execute(update(ExchangeBudget).where(ExchangeBudget.name != "c").values(whole_at_ms=1_000))
        exchange_client.prune(clock.now())
        with read_only_unit() as session:
            assert set(session.scalars(select(ExchangeBudget.name))) == {"all", "c"}
