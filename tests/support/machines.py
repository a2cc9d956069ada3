"""The base of state-machine tests: an empty database, a clock, and all audits.

After each step the state must match the machine's model, and the audits must find no violation. The script of a machine
must reach every state that it lists; random walks go further.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import time_machine
from flask import Flask
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.unit_of_work import read_only_unit, snapshot
from app.extensions import db
from app.payments.treasury import ServiceWallets
from app.wallets.core.lifecycle import AttemptPurpose
from app.wallets.core.models import SignedAttempt, Transaction, TransactionEvent
from tests.support.applications import RecordingQueue
from tests.support.fake_shopper import FakeShopper
from tests.support.simulated_chain import SimulatedChain, SimulatedFacilitator
from workers import sweeps

# A Friday before midnight, before a leap day: day, week, month and year end within a few steps.
START = datetime(2028, 2, 25, 23, 59, tzinfo=UTC)
HOURS = (1, 7, 24, 24 * 3, 24 * 8)
# `HYPOTHESIS_HUNT=1` runs more, longer and different walks.
HUNTS = "HYPOTHESIS_HUNT" in os.environ
_HUNTED_WALKS, _HUNTED_STEPS = 12, 2


@dataclass(frozen=True, slots=True)
class Ground:
    """An application on a real database, with a simulated chain, facilitator and shopper.

    `reached` counts the states that walks reached.
    """

    app: Flask
    chain: SimulatedChain
    facilitator: SimulatedFacilitator
    queue: RecordingQueue
    shopper: FakeShopper
    reached: Counter[str] = field(default_factory=Counter)


def ground_for(
    build_app: Callable[..., Flask],
    database_url: str,
    *,
    kind: Callable[..., Ground] = Ground,
    chain: SimulatedChain | None = None,
    settings: dict[str, Any] | None = None,
    parts: dict[str, Any] | None = None,
) -> Ground:
    """Create the ground on a migrated database; `parts` replace the default ports."""
    chain, queue, shopper = chain or SimulatedChain(), RecordingQueue(), FakeShopper()
    facilitator = SimulatedFacilitator(chain)
    app = build_app(
        database_url,
        settings={"confirmation_wait_seconds": "0", "base_stuck_blocks": 3, **(settings or {})},
        **{
            "chains": {chain.name: chain},
            "facilitators": {chain.name: facilitator},
            "queue": queue,
            "shopper": shopper,
            **(parts or {}),
        },
    )
    return kind(app, chain, facilitator, queue, shopper)


class Machine(RuleBasedStateMachine):
    """A state machine that starts with an empty database at `START`; only steps advance the clock."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self.ground = ground
        self.context = ground.app.app_context()
        self.context.push()
        self.clock = time_machine.travel(START, tick=False)
        self.traveller = self.clock.start()
        # Not in a unit of work: it would lock the tables in another order than the service.
        with db.engine.begin() as connection:
            for table in reversed(db.metadata.sorted_tables):
                connection.execute(table.delete())
        ground.app.state.part(ServiceWallets).clear()
        ground.chain.reset()
        ground.queue.put_jobs.clear()
        self.begin()

    def begin(self) -> None:
        """Prepare a walk."""

    def teardown(self) -> None:
        try:
            self.come_to_rest()
            self.ground.reached.update(self.reached())
            # All audits, as in the hourly job.
            assert sweeps.audit() == []
        finally:
            self.leave()

    def come_to_rest(self) -> None:
        """Check at the end of a walk that everything pending is completed."""

    # The states that the script must reach.
    reaches: frozenset[str] = frozenset()

    def script(self) -> Iterator[None]:
        """Run the scripted walk, which reaches every required state; yield after each step."""
        yield

    def note(self, what: str) -> None:
        """Count a state that is not in the database."""
        self.ground.reached[what] += 1

    def reached(self) -> Counter[str]:
        """Count the states in the database: `<type>: <status>, <reason>`, or `replaced`."""
        kind = func.coalesce(Transaction.kind, Transaction.type)
        with read_only_unit() as session:
            moves = session.execute(
                select(kind, TransactionEvent.status, TransactionEvent.reason, func.count())
                .join(Transaction, Transaction.id == TransactionEvent.transaction_id)
                .group_by(kind, TransactionEvent.status, TransactionEvent.reason)
            ).all()
            signed = session.execute(
                select(kind, SignedAttempt.purpose, func.count() - func.count(Transaction.id.distinct()))
                .join(Transaction, Transaction.id == SignedAttempt.transaction_id)
                .group_by(kind, SignedAttempt.purpose)
            ).all()
        found: Counter[str] = Counter()
        for what, status, reason, times in moves:
            found[f"{what}: {status}" + (f", {reason}" if reason else "")] += times
        for what, purpose, again in signed:
            if purpose == AttemptPurpose.PAYMENT.value and again:
                found[f"{what}: replaced"] += again
        return found

    def leave(self) -> None:
        self.clock.stop()
        self.context.pop()

    def let_pass(self, **time: int) -> None:
        """Advance the clock."""
        self.traveller.shift(timedelta(**time))

    # The audits that run after each step.
    audits: tuple[Callable[[Session], list[str]], ...] = ()

    @invariant()
    def the_audits_find_no_violation(self) -> None:
        with snapshot() as session:
            broken = [each for audit in self.audits for each in audit(session)]
        assert not broken, broken


def walk_by_script(machine: type[Machine], ground: Ground, **_random: int) -> None:
    """Run the script of a machine with its invariants after each step, and check the states it reached."""
    walker = machine(ground)
    try:
        for _ in walker.script():
            for each in walker.invariants:
                each.function(walker)
    except BaseException:
        walker.leave()
        raise
    walker.teardown()
    missed = machine.reaches - ground.reached.keys()
    assert not missed, f"the script has not reached: {sorted(missed)}"


class Walk(Protocol):
    """How a test runs a machine: by its script, or by random walks."""

    def __call__(self, machine: type[Machine], ground: Ground, *, walks: int, steps: int) -> None: ...


def walk_at_random(machine: type[Machine], ground: Ground, *, walks: int, steps: int) -> None:
    """Run random walks; fewer on PostgreSQL, where a step costs more, and there in a hunt alone.

    Failures are not shrunk, because that takes minutes.
    """
    if HUNTS:
        walks, steps = walks * _HUNTED_WALKS, steps * _HUNTED_STEPS
    if not ground.app.state.settings.database_url.get_secret_value().startswith("sqlite"):
        walks = max(1, walks // 3)
    run_state_machine_as_test(
        lambda: machine(ground),
        settings=settings(
            max_examples=walks,
            stateful_step_count=steps,
            deadline=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )
