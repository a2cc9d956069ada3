"""The usual steps of metered calls, committed in groups: hold and settle.

The functions of `app.usage.service` define what a step writes. Here, the steps of a batch are statements that write the
same rows in the usual case. In any other case (too few credits, a key that was revoked, a hold that lapsed or has
ended) a step has no result here, and the caller runs the function.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import product
from typing import Any, ClassVar, Generic, TypeVar

import structlog
from psycopg.errors import LockNotAvailable
from sqlalchemy.orm import Session

from app.core import clock
from app.credits import holds as credit_holds
from app.credits.holds import CreditHoldState, HoldResult
from app.db.group_commit import GroupCommit, KeptConnection, NotStartedError
from app.db.unit_of_work import CommitUnknownError, assert_no_unit
from app.identity import service as identity
from app.usage import service as usage
from app.usage import step_statements
from app.usage.service import MeteredUsage, UsageCall

_log = structlog.get_logger(__name__)
ResultT = TypeVar("ResultT")
_JSON = json.JSONEncoder(default=str)


@dataclass(slots=True)
class Step(ABC, Generic[ResultT]):
    """One step of a call; its id is that of the hold."""

    statements: ClassVar[tuple[str, str]]
    """For all steps of a batch, on PostgreSQL (`step_statements`): counted in no budget, and perhaps in some."""
    on_sqlite: ClassVar[tuple[str, ...]]
    """For one step that no budget counts."""

    id: str
    account_id: str
    call: UsageCall

    @abstractmethod
    def run(self, session: Session) -> ResultT:
        """Run the function that defines the step."""

    @abstractmethod
    def parameters(self, now: datetime) -> Mapping[str, Any]:
        """Return the parameters of the statement."""

    @abstractmethod
    def result(self, credits_nanos: int, budget_nanos: int | None = None) -> ResultT:
        """Return what `run` returns in the usual case, for an account and a budget with so much afterwards."""


@dataclass(slots=True)
class Hold(Step[int]):
    """Hold credits for a call; returns how many. One that costs nothing requires some credits, too."""

    statements, on_sqlite = step_statements.HOLD, step_statements.SQLITE_HOLD

    nanos: int
    estimate: MeteredUsage
    lease: timedelta

    def run(self, session: Session, *, minimum_nanos: int | None = None) -> int:
        """Hold the credits, or at least `minimum_nanos`, as `usage.begin` does.

        A step that was done before, with an outcome that was unknown then, is found by that function.

        Raises: Unauthorized, InsufficientCredits.
        """
        if not credit_holds.exists(session, self.id):
            identity.assert_valid_key(session, self.call.api_key_id, self.account_id)
            if not (self.nanos if minimum_nanos is None else minimum_nanos):
                usage.assert_has_credits(session, self.account_id)
        return usage.begin(
            session, self.account_id, self.call, hold_id=self.id, nanos=self.nanos, minimum_nanos=minimum_nanos,
            estimate=self.estimate, lease=self.lease,
        )  # fmt: skip

    def parameters(self, now: datetime) -> Mapping[str, Any]:
        return {
            "id": self.id, "account_id": self.account_id, "api_key_id": self.call.api_key_id,
            "nanos": self.nanos, "memo": usage.memo_of(self.call, self.estimate), "lease_until": now + self.lease,
        }  # fmt: skip

    def result(self, credits_nanos: int, budget_nanos: int | None = None) -> int:  # noqa: ARG002 - no part of a hold
        return self.nanos


@dataclass(slots=True)
class Settlement(Step[HoldResult]):
    """Settle a hold at a cost that it covers."""

    statements, on_sqlite = step_statements.SETTLEMENT, step_statements.SQLITE_SETTLEMENT

    metered: MeteredUsage

    def run(self, session: Session) -> HoldResult:
        return usage.settle(session, self.id, self.metered)

    def parameters(self, now: datetime) -> Mapping[str, Any]:  # noqa: ARG002 - it has the time of the statement
        metered = self.metered._asdict()
        return {"id": self.id, "account_id": self.account_id, "cost": metered.pop("cost_nanos"), **metered}

    def result(self, credits_nanos: int, budget_nanos: int | None = None) -> HoldResult:
        """Return the outcome: everything was charged. The memo was read for the log only, and is left out."""
        return HoldResult(
            self.id, self.account_id, CreditHoldState.HELD, CreditHoldState.SETTLED, self.metered.cost_nanos, 0, {},
            credits_nanos, budget_nanos,
        )  # fmt: skip


class StepGroups:
    """Runs the steps of this process's threads in shared units of work."""

    _groups: Mapping[tuple[type[Step[Any]], bool], GroupCommit[Step[Any], Any]]

    def __init__(self, *, is_postgresql: bool) -> None:
        def group() -> GroupCommit[Step[Any], Any]:
            run = _run_statement if is_postgresql else _run_on_sqlite
            return GroupCommit(partial(_run, partial(run, KeptConnection())))

        # One kind each, so that units lock holds, accounts, budgets and sums in this order. SQLite has one lock.
        kinds: tuple[type[Step[Any]], ...] = (Hold, Settlement)
        shared = None if is_postgresql else group()
        self._groups = {each: shared or group() for each in product(kinds, (False, True))}

    def run(self, step: Step[ResultT]) -> ResultT | None:
        """Run a step; return its result, None if nothing was done: then `step.run` decides, in a unit of its own.

        Raises: CommitUnknownError: the step was done, or not at all; UnitError inside a unit, which would hold row
        locks while waiting.
        """
        assert_no_unit()
        try:
            result: ResultT | None = self._groups[type(step), step.call.has_budgets].run(step)
        except NotStartedError:
            return None
        return result


def _run(execute: Callable[[Sequence[Step[Any]]], Sequence[Any]], steps: Sequence[Step[Any]]) -> Sequence[Any]:
    try:
        return execute(steps)
    except CommitUnknownError:
        raise
    except Exception as error:
        # A step must not fail for another's sake: each runs alone.
        reason, sqlstate = type(error).__name__, getattr(error, "sqlstate", None)
        _log.warning("step_group_failed", steps=len(steps), reason=reason, sqlstate=sqlstate)
        return [None] * len(steps)


def _run_on_sqlite(kept: KeptConnection, steps: Sequence[Step[Any]]) -> Sequence[Any]:
    now = clock.now()
    with kept.sqlite_unit() as connection:
        # What budgets count is left to the functions.
        found = [
            None
            if step.call.has_budgets
            else step_statements.run_on_sqlite(connection, step.on_sqlite, step.parameters(now), now)
            for step in steps
        ]
    results = zip(steps, found, strict=True)
    return [None if credits_nanos is None else step.result(credits_nanos) for step, credits_nanos in results]


def _run_statement(kept: KeptConnection, steps: Sequence[Step[Any]]) -> Sequence[Any]:
    now, statement = clock.now(), steps[0].statements[steps[0].call.has_budgets]
    parameters = (_JSON.encode([step.parameters(now) for step in steps]).encode(), now.isoformat().encode())
    types = step_statements.PARAMETER_TYPES
    try:
        rows = kept.execute(statement, types, parameters)
    except LockNotAvailable:
        # The steps of a locked account are left to wait alone.
        without_waiting = statement.replace("FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED")
        rows = kept.execute(without_waiting, types, parameters)
    done = {step_id.decode(): (int(nanos), *(each and int(each) for each in left)) for step_id, nanos, *left in rows}
    return [step.result(*done[step.id]) if step.id in done else None for step in steps]
