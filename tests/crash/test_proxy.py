"""A process that dies in the middle of a proxied call: its price is charged with its settlement, or given back."""

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
from tests.support.processes import COMMIT, Point, Service, Story, Tripwire, ask, points, run
from workers import sweeps

CALL = points(COMMIT, COMMIT)
"""The price is held before the service is asked, and charged after its answer."""
LEASE = timedelta(minutes=12)


class _WithServices(Service):
    """Processes that reach the services of others, on loopback."""

    def parts(self, wire: Tripwire) -> dict[str, Any]:
        upstream = HttpUpstream(connect_seconds=Decimal(1), read_seconds=Decimal(5))
        return {**super().parts(wire), "public_upstream": upstream}


@pytest.fixture
def stage(database_url: str, build_app: Callable[..., Flask]) -> Iterator[Market]:
    with market(build_app, database_url) as made:
        yield made


def _call(stage: Market) -> Story:
    return partial(ask, method="GET", path=f"/v1/proxy/{stage.id}/x", headers=stage.buyer.headers())


@pytest.mark.parametrize("point", CALL, ids=str)
def test_a_call_whose_process_is_killed_is_charged_once_or_not_at_all(
    stage: Market, database_url: str, point: Point
) -> None:
    assert run(_WithServices(database_url, ()), _call(stage), point).killed
    asked = 1 if point.nth == 2 else 0
    charged = 1 if point == CALL[-1] else 0
    assert len(stage.upstream.asked) == asked
    with time_machine.travel(clock.now() + LEASE, tick=True):
        sweeps.sweep()
        stage.assert_charged(charged)
        # What was held is there again, to the last digit.
        assert stage.buyer.get("/v1/balance").get_json()["credits_usd"] == 10 - 0.25 * charged
        assert stage.call().status_code == 200
        stage.assert_charged(charged + 1)


def test_the_points_of_a_call_are_all_that_it_passes(stage: Market, database_url: str) -> None:
    end = run(_WithServices(database_url, ()), _call(stage))
    assert (end.answer, list(end.passed)) == ((200, {}), CALL)
    stage.assert_charged(1)
