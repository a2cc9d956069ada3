"""Kills during a proxied call: its price is charged at settlement, or released."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
import time_machine
from flask import Flask

from app.adapters.upstream_http.exchange import HttpUpstream
from app.core import clock
from tests.support.market import Market, market
from tests.support.processes import COMMIT, Point, Scenario, Service, Tripwire, ask, points, run
from workers import sweeps

CALL = points(COMMIT, COMMIT)
"""The price is held before the call, and charged after its response."""
LEASE = timedelta(minutes=12)


class _WithServices(Service):
    """A process that may call services on loopback."""

    def parts(self, wire: Tripwire) -> dict[str, Any]:
        upstream = HttpUpstream(connect_seconds=Decimal(1), read_seconds=Decimal(5))
        return {**super().parts(wire), "public_upstream": upstream}


@pytest.fixture
def stage(database_url: str, build_app: Callable[..., Flask]) -> Iterator[Market]:
    with market(build_app, database_url) as made:
        yield made


def _call(stage: Market) -> Scenario:
    return partial(ask, method="GET", path=f"/v1/proxy/{stage.id}/x", headers=stage.buyer.headers())


@pytest.mark.parametrize("point", CALL, ids=str)
def test_a_call_of_a_killed_process_is_charged_at_most_once(stage: Market, database_url: str, point: Point) -> None:
    assert run(_WithServices(database_url, ()), _call(stage), point).killed
    asked = 1 if point.nth == 2 else 0
    charged = 1 if point == CALL[-1] else 0
    assert len(stage.upstream.asked) == asked
    with time_machine.travel(clock.now() + LEASE, tick=True):
        sweeps.sweep()
        stage.assert_charged(charged)
        # The hold was released exactly.
        assert stage.buyer.get("/v1/balance").get_json()["credits_usd"] == 10 - 0.25 * charged
        assert stage.call().status_code == 200
        stage.assert_charged(charged + 1)


def test_every_step_of_a_call_is_a_kill_point(stage: Market, database_url: str) -> None:
    end = run(_WithServices(database_url, ()), _call(stage))
    assert (end.answer, list(end.passed)) == ((200, {}), CALL)
    stage.assert_charged(1)
