"""What an owner has approved stays reserved while the payment waits for a signer process."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine

from app.core import clock
from app.errors import KeyServiceUnavailable
from tests.api.test_approvals import THRESHOLD, ask, decide, read
from tests.signer.test_deaths import Paying, held, open_intents, paying
from workers import approvals as worker

pytestmark = pytest.mark.chain
__all__ = ["paying"]
APPROVED = 12_500_000_000


def test_an_approved_payment_that_is_not_signed_keeps_its_amount_and_is_paid_once(paying: Paying) -> None:
    agent = paying.agent
    agent.controls(approval_threshold_usd=THRESHOLD, daily_limit_usd=20)
    approval = ask(agent)
    decide(approval)
    paying.server.dies = "before"
    worker.execute()
    assert (read(agent, approval)["status"], held(), open_intents()) == ("approved", [APPROVED], 0)
    paying.server.dies = ""
    assert agent.move("9", "USDC").get_json()["code"] == "DAILY_LIMIT_EXCEEDED"
    with time_machine.travel(clock.now() + timedelta(seconds=11), tick=True):
        worker.execute()
    assert read(agent, approval)["status"] == "executed"
    assert (agent.spent_this_month(), [row["amount"] for row in agent.history()]) == (12.5, ["12.5"])


def test_an_approved_payment_that_is_never_signed_is_released(paying: Paying) -> None:
    agent = paying.agent
    agent.controls(approval_threshold_usd=THRESHOLD)
    approval = ask(agent)
    decide(approval)
    paying.server.dies = "before"
    worker.execute()
    with time_machine.travel(clock.now() + timedelta(minutes=16), tick=True):
        worker.execute()
    assert (read(agent, approval)["status"], held(), agent.history()) == ("failed", [], [])


def test_an_approval_that_another_worker_has_taken_over_gets_no_second_hold(
    paying: Paying, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = paying.agent
    agent.controls(approval_threshold_usd=THRESHOLD)
    approval = ask(agent)
    decide(approval)
    client = paying.app.state.ports.signer

    def slow(*_: object, **__: object) -> None:
        monkeypatch.undo()
        with time_machine.travel(clock.now() + timedelta(minutes=3), tick=True):
            worker.execute()
        raise KeyServiceUnavailable(retry_after_seconds=1)

    monkeypatch.setattr(type(client), "assert_reachable", slow)
    worker.execute()
    assert read(agent, approval)["status"] == "executed"
    assert (agent.spent_this_month(), len(agent.history())) == (12.5, 1)
