"""Steps of calls that are committed in groups write the same rows as the functions that define them."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import time_machine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from app.core import clock
from app.core.identifiers import new_id
from app.credits import accounts
from app.credits.accounts import Balance
from app.credits.holds import HoldResult, expired_holds
from app.credits.models import CreditAccount, CreditHold, CreditLedgerEntry
from app.credits.retention import carry_forward
from app.db.group_commit import KeptConnection
from app.db.unit_of_work import CommitUnknownError, UnitError, read_only_unit, unit_of_work
from app.errors import InsufficientCredits, Unauthorized
from app.extensions import db
from app.identity import budgets
from app.identity.models import ApiKey, Budget, BudgetCounter, BudgetMember, KeyLimit
from app.identity.principal import KeyKind, Principal
from app.payments.paid_call import PaidCall
from app.ports.upstream import RelayOutcome, UpstreamRequest
from app.state import Application, app_state
from app.usage import grouped
from app.usage.grouped import Hold, Settlement, Step, StepGroups
from app.usage.models import UsageByProvider, UsageLog
from app.usage.service import MeteredUsage, UsageCall
from tests.support.servers import Postgres
from tests.support.tiers import is_first_tier
from tests.support.waiting import wait_until

_NOW = "2026-03-04T05:06:07.891011Z"
_TODAY = datetime(2026, 3, 4, tzinfo=UTC)
_LEASE = timedelta(seconds=90)
_NOT_COMPARED = {CreditLedgerEntry: {"id"}}
_MODELS = (CreditAccount, CreditHold, CreditLedgerEntry, UsageLog, UsageByProvider)


_LIMIT_NANOS = 40
_KEYS = ("valid", "valid until later", "revoked", "expired", "of the other", "unknown")


def key_id(account_id: str, name: str) -> str:
    """Return the id of an account's key of some kind."""
    return str(uuid.uuid5(uuid.UUID(account_id), name))


def call_of(account_id: str) -> UsageCall:
    """Return a call with a valid key."""
    return UsageCall(key_id(account_id, "valid"), "exa", "m")


@dataclass
class Ledger:
    """Two accounts with credits and keys in the database of one application."""

    app: Application
    ids: tuple[str, str]
    is_grouped: bool
    kept: KeptConnection = field(default_factory=KeptConnection)

    def open(self, nanos: int) -> None:
        now = clock.now()
        with self.app.app_context(), unit_of_work() as session:
            for account_id, other_id in (self.ids, self.ids[::-1]):
                accounts.open_account(session, account_id)
                accounts.grant(session, account_id, nanos, reference=account_id)
                for name in (*_KEYS[:-1], "limited"):
                    key = ApiKey(id=key_id(account_id, name), kind="gw", digest=new_id(), sealed="", created_at=now)
                    key.account_id = other_id if name == "of the other" else account_id
                    key.revoked_at = now if name == "revoked" else None
                    key.expires_at = {"expired": now, "valid until later": now + _LEASE}.get(name)
                    session.add(key)
                session.flush()
                # What was used counts if the window is today's.
                session.add(
                    KeyLimit(
                        id=key_id(account_id, "limited"), account_id=account_id, limit_nanos=_LIMIT_NANOS, period="day",
                        tags=[], models=[], created_at=now,
                    )
                )  # fmt: skip
                begun = _TODAY if account_id == self.ids[0] else _TODAY - timedelta(days=1)
                self._count(session, key_id(account_id, "limited"), _LIMIT_NANOS, used=5, begun=begun)
                own = key_id(account_id, "limited")
                session.add(BudgetMember(budget_id=own, member_id=own))

    @staticmethod
    def _count(session: Session, budget_id: str, limit: int, *, used: int, begun: datetime) -> None:
        session.add(
            BudgetCounter(
                id=budget_id, limit_nanos=limit, period="day", used_nanos=used, window_start=begun, announced_percent=50
            )
        )  # fmt: skip

    def share_budgets(self) -> None:
        """Give both accounts a budget, the valid key of one another, and an outer one to that."""
        with self.app.app_context(), unit_of_work() as session:
            valid, yesterday = key_id(self.ids[0], "valid"), _TODAY - timedelta(days=1)
            for name, limit, used, begun in (
                ("both", 70, 5, yesterday),
                ("key", 45, 6, _TODAY),
                ("outer", 55, 7, _TODAY),
            ):
                session.add(
                    Budget(
                        id=key_id(self.ids[0], name), name=name, limit_nanos=limit, period="day", members={},
                        created_at=clock.now(),
                    )
                )  # fmt: skip
                self._count(session, key_id(self.ids[0], name), limit, used=used, begun=begun)
                members = self.ids if name == "both" else [valid]
                session.add_all(BudgetMember(budget_id=key_id(self.ids[0], name), member_id=each) for each in members)
            accounts.mark_with_budgets(session, self.ids)

    def run(self, steps: Sequence[Step[Any]]) -> list[Any]:
        """Run steps of one kind: what its batch left undone, or each without a group, by its function."""
        with self.app.app_context():
            done = self._batch(steps) if self.is_grouped and steps else [None] * len(steps)
            return [self._alone(step) if result is None else result for step, result in zip(steps, done, strict=True)]

    def _batch(self, steps: Sequence[Step[Any]]) -> Sequence[Any]:
        is_sqlite = db.engine.dialect.name == "sqlite"
        run = grouped._run_on_sqlite if is_sqlite else grouped._run_statement
        return run(self.kept, steps)

    def _alone(self, step: Step[Any]) -> Any:
        try:
            with unit_of_work() as session:
                return step.run(session)
        except (InsufficientCredits, Unauthorized) as refusal:
            return refusal.details or {"code": refusal.code}

    def rows(self) -> dict[str, list[Any]]:
        with self.app.app_context(), read_only_unit() as session:
            found = {model.__tablename__: sorted(self._rows_of(session, model), key=repr) for model in _MODELS}
            # What is left: a batch that leaves a step undone may have begun a window anew, or taken returns back.
            ids = [key_id(self.ids[0], name) for name in ("both", "key", "outer", "limited")]
            ids.append(key_id(self.ids[1], "limited"))
            found["budgets"] = sorted((each.id, each.used_nanos) for each in budgets.read(session, ids))
            return found

    def _rows_of(self, session: Any, model: Any) -> list[Any]:
        owner = model.id if model is CreditAccount else model.account_id
        columns = [column for column in model.__table__.c if column.name not in _NOT_COMPARED.get(model, ())]
        return [tuple(row) for row in session.execute(select(*columns).where(owner.in_(self.ids)))]


_amounts = st.integers(0, 60)
_metered = st.builds(
    MeteredUsage, _amounts, st.integers(0, 2**40), st.integers(0, 9), st.sampled_from([None, "prices 1"]),
    st.integers(0, 9), st.integers(0, 9),
)  # fmt: skip
# By the name of its key, the valid ones more often.
_calls = st.builds(
    UsageCall,
    st.sampled_from((*["valid"] * 9, *_KEYS)),
    st.sampled_from(["openai", "exa"]),
    st.sampled_from(["m", "mö\0\ud800'%s"]),
)
_batches = st.lists(
    st.tuples(
        st.sampled_from([Hold, Settlement]),
        st.lists(st.tuples(st.integers(0, 1), _calls, _metered, st.integers(0, 9)), min_size=1, max_size=4),
        st.booleans(),
    ),
    max_size=8,
)


@pytest.mark.postgres
def test_a_batch_writes_the_rows_of_its_steps_one_by_one(
    sqlite_url: str, postgres_url: str, tmp_path: Path, build_app: Callable[..., Application]
) -> None:
    copy = tmp_path / "copy.sqlite"
    shutil.copy(str(make_url(sqlite_url).database), copy)
    alone, *in_batches = (build_app(url) for url in (sqlite_url, postgres_url, f"sqlite:///{copy}"))
    kept_by_app = [KeptConnection() for _ in in_batches]

    @settings(max_examples=20 if is_first_tier() else 60, suppress_health_check=list(HealthCheck))
    @given(_batches, st.booleans())
    @time_machine.travel(_NOW, tick=False)
    def compare(batches: list[Any], has_budgets: bool) -> None:  # noqa: FBT001 - from hypothesis
        ids = new_id(), new_id()
        functions = Ledger(alone, ids, is_grouped=False)
        groups = [
            Ledger(app, ids, is_grouped=True, kept=kept) for app, kept in zip(in_batches, kept_by_app, strict=True)
        ]
        for ledger in (functions, *groups):
            ledger.open(100)
            if has_budgets:
                ledger.share_budgets()
        held: list[Hold] = []
        limited = [key_id(each, "limited") for each in ids]
        for kind, members, is_limited in batches:
            alike = [step for step in held if (step.call.api_key_id in limited) is is_limited]
            # A key that is remembered from before it joined does not know of its budgets.
            steps = _steps(kind, members, ids, alike, is_limited=is_limited, has_budgets=has_budgets)
            held = [step for step in held if step.id not in {each.id for each in steps}]
            expected = functions.run(steps)
            for ledger in groups:
                assert _summaries(ledger.run(steps)) == _summaries(expected)
            held += [
                step
                for step, result in zip(steps, expected, strict=True)
                if isinstance(step, Hold) and not isinstance(result, dict)
            ]
        for ledger in groups:
            rows, expected_rows = ledger.rows(), functions.rows()
            assert {name: (rows[name], each) for name, each in expected_rows.items() if rows[name] != each} == {}

    compare()


@pytest.mark.postgres
@time_machine.travel(_NOW, tick=False)
def test_a_step_that_its_key_does_not_cover_takes_nothing_from_shared_budgets(
    sqlite_url: str, postgres_url: str, build_app: Callable[..., Application]
) -> None:
    ids = new_id(), new_id()
    ledgers = [Ledger(build_app(url), ids, is_grouped=True) for url in (sqlite_url, postgres_url)]
    call = UsageCall(key_id(ids[0], "limited"), "exa", "m", has_budgets=True)
    for ledger in ledgers:
        ledger.open(100)
        ledger.share_budgets()
        [refused] = ledger.run([Hold(new_id(), ids[0], call, _LIMIT_NANOS - 4, MeteredUsage(1), _LEASE)])
        assert refused["required_usd"] > refused["credits_usd"]
        assert sorted(used for _, used in ledger.rows()["budgets"]) == [0, 0, 5, 6, 7]


def _steps(
    kind: type[Step[Any]],
    members: list[Any],
    ids: Sequence[str],
    held: list[Hold],
    *,
    is_limited: bool,
    has_budgets: bool = False,
) -> list[Step[Any]]:
    """Return steps of one kind, the cheap ones first: a batch does what is possible for all before the rest."""
    steps: list[Step[Any]] = []
    for account, made, metered, place in sorted(members, key=lambda member: member[2].cost_nanos):
        name = "limited" if is_limited and made.api_key_id.startswith("valid") else made.api_key_id
        knows = is_limited or (has_budgets and place % 2 == 0)
        call = made._replace(api_key_id=key_id(ids[account], name), has_budgets=knows)
        if kind is Hold:
            steps.append(Hold(new_id(), ids[account], call, metered.cost_nanos, metered, _LEASE))
        elif held:
            hold = held.pop(place % len(held))
            steps.append(Settlement(hold.id, hold.account_id, hold.call, metered))
    return steps


def _summaries(results: list[Any]) -> list[Any]:
    """Return what steps returned, but for what functions need, and what other steps of the batch change, too."""
    changed: dict[str, Any] = {"memo": {}, "set_aside_nanos": 0, "held_at": None}
    if len(results) > 1:
        changed |= {"credits_nanos": 0, "budget_nanos": None}
    return [each._replace(**changed) if isinstance(each, HoldResult) else each for each in results]


def test_a_failing_batch_leaves_each_step_to_run_alone(app: Application) -> None:
    step = Hold(new_id(), new_id(), UsageCall(new_id(), "exa", "m"), 1, MeteredUsage(1), _LEASE)
    with app.app_context():
        # There is no such account.
        assert app_state().part(StepGroups).run(step) is None


def test_a_commit_of_unknown_outcome_is_unknown_to_the_whole_batch() -> None:
    def lost(_steps: object) -> Any:
        raise CommitUnknownError

    with pytest.raises(CommitUnknownError):
        grouped._run(lost, [])
    assert grouped._run(lambda _steps: 1 / 0, [None, None]) == [None, None]  # type: ignore[list-item, arg-type, return-value]


@pytest.mark.postgres
@time_machine.travel(_NOW, tick=False)
def test_a_batch_returns_what_it_did_and_nothing_for_steps_left_undone(
    postgres_url: str, build_app: Callable[..., Application]
) -> None:
    app = build_app(postgres_url)
    ledger = Ledger(app, (new_id(), new_id()), is_grouped=True)
    ledger.open(100)
    affordable, excessive = (
        Hold(new_id(), account_id, call_of(account_id), nanos, MeteredUsage(60), _LEASE)
        for account_id, nanos in zip(ledger.ids, (60, 101), strict=True)
    )
    with app.app_context():
        done = grouped._run_statement(ledger.kept, [excessive, affordable])
        with read_only_unit() as session:
            [stored] = expired_holds(session, clock.now() + _LEASE, 9)
    assert done == [None, 60]
    assert (stored.id, stored.amount_nanos) == (affordable.id, 60)


@pytest.mark.postgres
@time_machine.travel(_NOW, tick=False)
def test_a_hold_that_a_batch_settles_twice_is_settled_once(
    postgres_url: str, build_app: Callable[..., Application]
) -> None:
    ledger = Ledger(build_app(postgres_url), (new_id(), new_id()), is_grouped=True)
    ledger.open(100)
    account_id = ledger.ids[0]
    hold = Hold(new_id(), account_id, call_of(account_id), 60, MeteredUsage(60), _LEASE)
    assert ledger.run([hold]) == [60]
    ledger.run([Settlement(hold.id, account_id, hold.call, MeteredUsage(10))] * 2)
    with ledger.app.app_context(), read_only_unit() as session:
        account = session.get(CreditAccount, account_id)
        assert account is not None
        assert (account.available_nanos, account.held_nanos, account.spent_nanos) == (90, 0, 10)


@contextmanager
def locked_account(url: str, account_id: str) -> Iterator[psycopg.Connection[Any]]:
    """Keep the row of an account locked by another session."""
    with psycopg.connect(url.replace("+psycopg", "")) as other:
        other.execute("SELECT 1 FROM credit_accounts WHERE id = %s FOR NO KEY UPDATE", [account_id])
        yield other
        other.rollback()


def _waiting_backends(url: str, *, of: str) -> list[int]:
    """Return the backends that wait for a lock with a statement that contains a text."""
    with psycopg.connect(url.replace("+psycopg", "")) as session:
        found = session.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            " AND position(%s IN query) > 0",
            [of],
        )
        return [pid for (pid,) in found]


@pytest.mark.postgres
def test_a_batch_leaves_the_steps_of_a_locked_account_to_wait_alone(
    postgres_url: str, build_app: Callable[..., Application]
) -> None:
    app = build_app(postgres_url)
    ledger = Ledger(app, (new_id(), new_id()), is_grouped=True)
    ledger.open(100)
    calls = [(each, call_of(each)) for each in ledger.ids]
    holds = [Hold(new_id(), each, call, 9, MeteredUsage(9), _LEASE) for each, call in calls]
    more_holds = [Hold(new_id(), each, call, 9, MeteredUsage(9), _LEASE) for each, call in calls]
    settlements = [Settlement(hold.id, hold.account_id, hold.call, MeteredUsage(5)) for hold in holds]
    ledger.run(holds)
    last_hold = Hold(new_id(), ledger.ids[0], call_of(ledger.ids[0]), 1, MeteredUsage(1), _LEASE)
    alone = threading.Thread(target=replace(ledger, is_grouped=False).run, args=[[last_hold]])
    with locked_account(postgres_url, ledger.ids[0]), app.app_context():
        alone.start()
        wait_until(lambda: _waiting_backends(postgres_url, of="UPDATE credit_accounts"))
        for steps in (more_holds, settlements):
            [locked, free] = grouped._run_statement(ledger.kept, steps)
            assert (locked, free is None) == (None, False)
        assert alone.is_alive()
        with unit_of_work() as session:
            # Only for the statements of the batch.
            assert session.scalar(text("SHOW lock_timeout")) == "10s"
    alone.join()
    # Nothing of the locked account was done by halves.
    ledger.run(settlements)
    ledger.run(more_holds[:1])
    with app.app_context(), read_only_unit() as session:
        expected = [Balance(85, 10, 100, 5), Balance(86, 9, 100, 5)]
        assert [accounts.balance(session, account_id) for account_id in ledger.ids] == expected


class _Call(PaidCall):
    """A call that costs 1."""

    def begin(self, outgoing: UpstreamRequest) -> UpstreamRequest:
        self._run(Hold(self.id, self._account_id, self._call, 1, MeteredUsage(1), _LEASE))
        self._settle(Settlement(self.id, self._account_id, self._call, MeteredUsage(1)))
        return outgoing

    def _on_no_response(self, *, is_upstream_failure: bool) -> None:
        raise NotImplementedError

    def _end(self, ending: RelayOutcome) -> None:
        raise NotImplementedError


_REQUEST = UpstreamRequest("GET", "http://127.0.0.1", "/", ())


@pytest.mark.postgres
@pytest.mark.parametrize("is_away", [False, True])
def test_a_step_with_a_lost_connection_is_done_once_or_of_unknown_outcome(
    postgres: Postgres, postgres_url: str, build_app: Callable[..., Application], *, is_away: bool
) -> None:
    app = build_app(postgres_url)
    ledger = Ledger(app, (new_id(), new_id()), is_grouped=True)
    ledger.open(100)
    outcomes: list[Any] = []

    def begin() -> None:
        with app.app_context():
            call = _Call(Principal(KeyKind.AGENT, key_id(ledger.ids[0], "valid"), ledger.ids[0], None), "exa", "m")
            try:
                call.begin(_REQUEST)
            except CommitUnknownError as error:
                outcomes.append(type(error))
            outcomes.extend(value for _name, value in call.headers())

    thread = threading.Thread(target=begin)
    with locked_account(postgres_url, ledger.ids[0]):
        thread.start()
        [backend] = wait_until(lambda: _waiting_backends(postgres_url, of="json_to_recordset"))
        allow = f'ALTER DATABASE "{make_url(postgres_url).database}" ALLOW_CONNECTIONS'
        with postgres._connect() as maintenance:
            if is_away:
                maintenance.execute(f"{allow} false")
            maintenance.execute("SELECT pg_terminate_backend(%s)", [backend])
            if is_away:
                thread.join()
            maintenance.execute(f"{allow} true")
    thread.join()
    assert outcomes == ([CommitUnknownError] if is_away else ["0.000000001", "0.000000099"])


@pytest.mark.postgres
def test_carrying_forward_locks_accounts_in_the_order_of_batches(
    postgres_url: str, build_app: Callable[..., Application]
) -> None:
    app = build_app(postgres_url)
    first, last = sorted((new_id(), new_id()))
    # In the table, the last one comes first.
    Ledger(app, (last, first), is_grouped=True).open(100)

    def carry() -> None:
        with app.app_context(), unit_of_work() as session:
            # The plan for many accounts.
            session.execute(text("SET LOCAL enable_nestloop = off"))
            carry_forward(session, {first: 0, last: 0})

    thread = threading.Thread(target=carry)
    with locked_account(postgres_url, first) as other:
        thread.start()
        wait_until(lambda: _waiting_backends(postgres_url, of="credit_accounts"))
        other.execute("SELECT 1 FROM credit_accounts WHERE id = %s FOR NO KEY UPDATE NOWAIT", [last])
    thread.join()


def test_a_step_inside_a_unit_is_refused(app: Application) -> None:
    step = Hold(new_id(), new_id(), UsageCall(new_id(), "exa", "m"), 1, MeteredUsage(1), _LEASE)
    with app.app_context(), unit_of_work(), pytest.raises(UnitError):
        app_state().part(StepGroups).run(step)


def test_a_step_runs_alone_if_the_batches_before_it_do_not_end(app: Application) -> None:
    step = Hold(new_id(), new_id(), UsageCall(new_id(), "exa", "m"), 1, MeteredUsage(1), _LEASE)
    with app.app_context():
        groups = app_state().part(StepGroups)
        group = groups._groups[Hold, False]
        group._is_busy, group._max_wait = True, timedelta(milliseconds=10)
        assert groups.run(step) is None
        assert not group._waiting


def test_a_failed_batch_is_logged_with_its_sqlstate() -> None:
    def fail(_steps: object) -> Any:
        raise psycopg.errors.CheckViolation("a sum is negative")

    with capture_logs() as logged:
        assert grouped._run(fail, [None]) == [None]  # type: ignore[list-item]
    assert [(line["event"], line["reason"], line["sqlstate"]) for line in logged] == [
        ("step_group_failed", "CheckViolation", "23514")
    ]
