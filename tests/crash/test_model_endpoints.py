"""Kills during a call with a fallback: its hold is charged once, at most the estimate of the model that was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import time_machine
from flask import Flask

from app.adapters.upstream_http.exchange import HttpUpstream
from app.core import clock
from tests.crash.conftest import on_both
from tests.support.gateway import Stage, gateway_stage, provider_settings
from tests.support.processes import COMMIT, Point, Scenario, Service, Tripwire, ask, points, run
from tests.support.upstreams import Exchange, chat_answer
from workers import sweeps

STEPS = points(COMMIT, COMMIT, COMMIT)
"""Credits are held; the hold is given to the fallback, after the first model has failed; it is settled."""
LEASE = timedelta(minutes=12)
BODY = {
    "model": "openai/gpt-5", "models": ["groq/llama-3.3-70b-versatile"], "max_tokens": 1000,
    "messages": [{"role": "user", "content": "Hello"}],
}  # fmt: skip
ANSWERED_NANOS = 1000 * 590 + 500 * 790


@pytest.fixture
def stage(database_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    def behave(exchange: Exchange) -> None:
        if exchange.asked.target.startswith("/openai/"):
            exchange.json(chat_answer("llama-3.3-70b-versatile"))
        else:
            exchange.json({"error": {"message": "no"}}, 500)

    with gateway_stage(build_app, database_url) as made:
        made.behave(behave)
        yield made


class _Gateway(Service):
    """A process that may call providers."""

    def parts(self, wire: Tripwire) -> dict[str, Any]:
        return {**super().parts(wire), "upstream": HttpUpstream(connect_seconds=1, read_seconds=5)}


def _process(stage: Stage, database_url: str) -> _Gateway:
    return _Gateway(database_url, (), settings=provider_settings(stage.upstream.url))


def _call(stage: Stage) -> Scenario:
    return partial(ask, method="POST", path="/v1/chat/completions", body=BODY, headers={"X-API-Key": stage.agent.key})


# A hold and a charge are statements of their own on PostgreSQL.
@pytest.mark.parametrize(("database_url", "point"), on_both(STEPS, STEPS[::2]), indirect=["database_url"])
def test_a_call_of_a_killed_process_is_charged_at_most_once(stage: Stage, database_url: str, point: Point) -> None:
    assert run(_process(stage, database_url), _call(stage), point).killed
    with time_machine.travel(clock.now() + LEASE, tick=True):
        sweeps.sweep()
        sweeps.sweep()
        stage.assert_all_agree()
        rows = stage.usage()
        if point == STEPS[0]:
            assert rows == []
            return
        [row] = rows
        # Before the hold was given to the fallback, it names the first model.
        assert row["provider"] == ("openai" if point in STEPS[:3] else "groq")
        assert stage.spent_nanos() <= ANSWERED_NANOS
        assert (stage.spent_nanos() == ANSWERED_NANOS) == (point == STEPS[-1])


def test_every_step_of_a_call_is_a_kill_point(stage: Stage, database_url: str) -> None:
    end = run(_process(stage, database_url), _call(stage))
    assert (end.answer[0], list(end.passed)) == (200, STEPS)
    assert stage.spent_nanos() == ANSWERED_NANOS
