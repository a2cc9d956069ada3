"""Events that a sweep finds: low credits, and services of which most calls fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import time_machine
from flask import Flask

from app.catalog import statistics
from app.core import clock
from app.credits import accounts
from app.db.unit_of_work import unit_of_work
from tests.support.agents import Agent
from tests.support.market import Market, market
from tests.support.operators import operator
from tests.support.webhooks import feed

USD = 10**9


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Market]:
    with market(build_app, sqlite_url) as made:
        yield made


def called(stage: Market, *, answered: int, failed: int) -> None:
    with unit_of_work() as session:
        for _ in range(answered):
            statistics.record_answered_call(session, stage.id, wallet_id=None, charged_nanos=0, microseconds=1000)
        for _ in range(failed):
            statistics.record_failed_call(session, stage.id)


def unhealthy(agent: Agent) -> list[tuple[int, int]]:
    return [(event["data"]["calls"], event["data"]["failures"]) for event in feed(agent, types="service.unhealthy")]


@pytest.mark.parametrize(
    ("answered", "failed", "expected"), [(0, 10, [(10, 10)]), (5, 5, [(10, 5)]), (6, 5, []), (0, 9, []), (20, 0, [])]
)
def test_the_seller_of_a_failing_service_is_notified(
    stage: Market, answered: int, failed: int, expected: list[tuple[int, int]]
) -> None:
    called(stage, answered=answered, failed=failed)
    statistics.announce_unhealthy(clock.now())
    assert unhealthy(stage.seller) == expected
    assert unhealthy(stage.buyer) == []


def test_a_failing_service_is_announced_once_an_hour_and_only_for_recent_calls(stage: Market) -> None:
    hour = clock.now().replace(minute=30)
    with time_machine.travel(hour, tick=False):
        called(stage, answered=0, failed=10)
        for minutes in (0, 5, 11):
            statistics.announce_unhealthy(hour + timedelta(minutes=minutes))
        assert len(unhealthy(stage.seller)) == 1
    later = hour + timedelta(hours=1)
    with time_machine.travel(later, tick=False):
        statistics.announce_unhealthy(later)
        assert len(unhealthy(stage.seller)) == 1
        called(stage, answered=0, failed=10)
        statistics.announce_unhealthy(later)
        assert len(unhealthy(stage.seller)) == 2


def low(agent: Agent) -> list[str]:
    return [event["data"]["credits_usd"] for event in feed(agent, types="credits.low")]


def test_low_credits_are_announced_once_after_each_grant(stage: Market) -> None:
    agent, now = stage.buyer, clock.now()

    def look(minutes: int, below: int) -> None:
        with time_machine.travel(now + timedelta(minutes=minutes), tick=False):
            accounts.announce_low(below * USD)

    look(2, below=10)
    assert low(agent) == []
    for minutes in (4, 6):
        look(minutes, below=11)
    assert low(agent) == ["10"]
    grant = operator(agent.client).post(f"/agents/{agent.id}/credits", {"credits_usd": 5})
    assert grant.status_code < 300, grant.text
    look(8, below=11)
    assert low(agent) == ["10"]
    look(10, below=16)
    assert low(agent) == ["10", "15"]
