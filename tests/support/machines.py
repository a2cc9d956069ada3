"""The ground of machines that walk at random through a room's verbs: an empty database, a clock, and all audits.

A machine's model says what must be; after each step the product's own audits must find nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import time_machine
from flask import Flask
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from app.core.unit_of_work import snapshot, unit_of_work
from app.extensions import db
from tests.support.applications import RecordingQueue
from tests.support.fake_shopper import FakeShopper
from tests.support.simulated_chain import SimulatedChain, SimulatedTill
from workers import sweeps

# A Friday before midnight, before a leap day: day, week, month and year end within steps of some hours or days.
START = datetime(2028, 2, 25, 23, 59, tzinfo=UTC)
HOURS = (1, 7, 24, 24 * 3, 24 * 8)


@dataclass(frozen=True, slots=True)
class Ground:
    """An application on a real database, with a chain, a till and a shopper that do as they are told."""

    app: Flask
    chain: SimulatedChain
    till: SimulatedTill
    queue: RecordingQueue
    shopper: FakeShopper


def ground_for(build_app: Callable[..., Flask], database_url: str) -> Ground:
    """Make the ground on a migrated database."""
    chain, queue, shopper = SimulatedChain(), RecordingQueue(), FakeShopper()
    till = SimulatedTill(chain)
    app = build_app(
        database_url,
        chains={chain.name: chain},
        tills={chain.name: till},
        queue=queue,
        shopper=shopper,
        settings={"confirmation_wait_seconds": "0", "base_stuck_blocks": 3},
    )
    return Ground(app, chain, till, queue, shopper)


class Machine(RuleBasedStateMachine):
    """Begins on an empty database at `START`; the clock stands still unless a step moves it."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self.ground = ground
        self.context = ground.app.app_context()
        self.context.push()
        self.clock = time_machine.travel(START, tick=False)
        self.traveller = self.clock.start()
        with unit_of_work() as session:
            for table in reversed(db.metadata.sorted_tables):
                session.execute(table.delete())
        ground.app.extensions.pop("payment_wallets", None)
        ground.chain.reset()
        ground.queue.put_jobs.clear()
        self.begin()

    def begin(self) -> None:
        """Set the stage of a walk."""

    def teardown(self) -> None:
        try:
            # And all of them, as the hourly job runs them.
            assert sweeps.audit() == []
        finally:
            self.leave()

    def leave(self) -> None:
        self.clock.stop()
        self.context.pop()

    def let_pass(self, **time: int) -> None:
        """Move the clock."""
        self.traveller.shift(timedelta(**time))

    # What a machine's steps may break, proven after each of them.
    audits: tuple[Callable[[], list[str]], ...] = ()

    @invariant()
    def the_audits_are_green(self) -> None:
        with snapshot():
            assert [broken for audit in self.audits for broken in audit()] == []


def walk(
    machine: Callable[[Ground], RuleBasedStateMachine], ground: Ground, *, walks: int, steps: int
) -> None:
    """Let a machine walk; on PostgreSQL, where each step costs several times as much, less often.

    Shrinking a failure takes minutes: its steps as found are shown instead.
    """
    if not ground.app.extensions["settings"].database_url.get_secret_value().startswith("sqlite"):
        walks = max(1, walks // 3)
    run_state_machine_as_test(
        lambda: machine(ground),
        settings=settings(
            max_examples=walks,
            stateful_step_count=steps,
            deadline=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.filter_too_much,
                HealthCheck.data_too_large,
            ],
        ),
    )
