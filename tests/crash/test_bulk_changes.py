"""Kills during a bulk change: each agent is changed entirely or not at all, and a retry does the rest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from flask import Flask

from app.audit_log import verification
from tests.crash.conftest import on_both
from tests.support.agents import register
from tests.support.ledger import read
from tests.support.operators import entries, operator
from tests.support.processes import COMMIT, Point, Service, ask, points, run

AGENTS = 110


POINTS = points(COMMIT, COMMIT)[2:]


@pytest.mark.parametrize(("database_url", "point"), on_both(POINTS, POINTS[:1]), indirect=["database_url"])
def test_a_bulk_change_of_a_killed_process_is_completed_by_a_retry(
    point: Point, database_url: str, build_app: Callable[..., Flask]
) -> None:
    app = build_app(database_url)
    with app.app_context():
        ops = operator(app.test_client())
        agents = [register(app.test_client()) for _ in range(AGENTS)]
        agents[0].post("/v1/wallets", {})
        body = {"agent_ids": [agent.id for agent in agents], "daily_limit_usd": 7, "locked": True}
        put = partial(ask, method="PUT", path="/v1/platform/controls", body=body, headers=ops.headers())
        assert run(Service(database_url, ()), put, point).killed
        done = {entry.subject_id for entry in entries(action="agent.controls_set")}
        # Units of fifty: the first is committed, the second only if its commit was reached.
        assert len(done) == (50 if point.when == "before" else 100)
        for agent in agents:
            shown = [row["spending_controls"] for row in agent.get("/v1/wallets").get_json()["wallets"]]
            assert {bool(controls and controls["locked"]) for controls in shown} == {agent.id in done}
        answer = ops.put("/controls", body).get_json()
        assert (set(answer["unchanged"]), answer["failed"]) == (done, [])
        assert len(answer["changed"]) == AGENTS - len(done)
        assert len(entries(action="agent.controls_set")) == AGENTS
        assert read(verification.find_problems) == []
