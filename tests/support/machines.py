"""The ground of machines that walk at random through a room's verbs: an empty database, a clock, and all audits.

A machine's model says what must be; after each step the product's own audits must find nothing. A walk that is
written out goes first, and must reach every state that the machine names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import time_machine
from flask import Flask
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test
from sqlalchemy import func, select

from app.core.unit_of_work import reading, snapshot, unit_of_work
from app.extensions import db
from app.wallets.models import SignedAttempt, Transaction, TransactionEvent
from app.wallets.settlement import Purpose
from tests.support.applications import RecordingQueue
from tests.support.fake_shopper import FakeShopper
from tests.support.simulated_chain import SimulatedChain, SimulatedTill
from workers import sweeps

# A Friday before midnight, before a leap day: day, week, month and year end within steps of some hours or days.
START = datetime(2028, 2, 25, 23, 59, tzinfo=UTC)
HOURS = (1, 7, 24, 24 * 3, 24 * 8)
# `HYPOTHESIS_HUNT=1` looks for more: other walks each time, many times as many, and longer ones.
HUNTS = "HYPOTHESIS_HUNT" in os.environ
_HUNTED_WALKS, _HUNTED_STEPS = 12, 2


@dataclass(frozen=True, slots=True)
class Ground:
    """An application on a real database, with a chain, a till and a shopper that do as they are told.

    `reached` counts what walks came to.
    """

    app: Flask
    chain: SimulatedChain
    till: SimulatedTill
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
    """Make the ground on a migrated database; `parts` replace the usual ones, `kind` may have them besides."""
    chain, queue, shopper = chain or SimulatedChain(), RecordingQueue(), FakeShopper()
    till = SimulatedTill(chain)
    app = build_app(
        database_url,
        settings={"confirmation_wait_seconds": "0", "base_stuck_blocks": 3, **(settings or {})},
        **{
            "chains": {chain.name: chain},
            "tills": {chain.name: till},
            "queue": queue,
            "shopper": shopper,
            **(parts or {}),
        },
    )
    return kind(app, chain, till, queue, shopper)


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
            self.come_to_rest()
            self.ground.reached.update(self.reached())
            # And all of them, as the hourly job runs them.
            assert sweeps.audit() == []
        finally:
            self.leave()

    def come_to_rest(self) -> None:
        """See, where a walk ends, that everything comes to its end once the world keeps quiet."""

    # What the walk that is written out must reach.
    reaches: frozenset[str] = frozenset()

    def script(self) -> Iterator[None]:
        """Go a walk that is written out: whatever must be reached is, also when others are drawn at random.

        It yields after each step.
        """
        yield

    def note(self, what: str) -> None:
        """Note that a walk has come to something that the database does not show."""
        self.ground.reached[what] += 1

    def reached(self) -> Counter[str]:
        """Count what the database shows that this walk has come to: `<type>: <status>, <reason>`, or `replaced`."""
        kind = func.coalesce(Transaction.kind, Transaction.type)
        with reading() as session:
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
            if purpose == Purpose.PAYMENT.value and again:
                found[f"{what}: replaced"] += again
        return found

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
            broken = [each for audit in self.audits for each in audit()]
        assert not broken, broken


def go_as_written(machine: type[Machine], ground: Ground) -> None:
    """Let a machine go the walk that is written out, with its invariants after each step, and see what it reached."""
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
    assert not missed, f"the walk that is written out has not come to: {sorted(missed)}"


def walk(machine: type[Machine], ground: Ground, *, walks: int, steps: int) -> None:
    """Let a machine go as it is written, and then at random; on PostgreSQL, where each step costs more, less often.

    Shrinking a failure takes minutes: its steps as found are shown instead.
    """
    go_as_written(machine, ground)
    if HUNTS:
        walks, steps = walks * _HUNTED_WALKS, steps * _HUNTED_STEPS
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
