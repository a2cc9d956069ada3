"""Calls by month on PostgreSQL: months are made ahead, and old ones are dropped with no sum changed."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta

import pytest
import time_machine
from flask import Flask
from flask_migrate import downgrade, upgrade
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError
from structlog.testing import capture_logs

from app.core import clock
from app.core.identifiers import new_id, new_ordered_id
from app.core.pagination import PageRequest
from app.credits import accounts as credit_accounts
from app.credits.accounts import Balance
from app.db import partitions
from app.db.partitions import Month
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.status import migrations
from app.usage import retention, service
from app.usage.service import MeteredUsage, ProviderTotals, UsageCall
from tests.support.ledger import clear, race, read, unit, violations
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres
JANUARY = datetime(2027, 1, 15, 12, tzinfo=UTC)
LATER = datetime(2027, 4, 1, tzinfo=UTC)
COST = 7


@pytest.fixture
def app(postgres_url: str, build_app: Callable[..., Flask]) -> Flask:
    return build_app(postgres_url)


@pytest.fixture
def account(app: Flask) -> Iterator[str]:
    """An account with credits, in a database with partitions from January on."""
    with app.app_context():
        made = new_id()
        unit(credit_accounts.open_account, made)
        unit(credit_accounts.grant, made, 10_000, reference=made)
        partitions.make_ahead(JANUARY)
        yield made


def call_at(account: str, instant: datetime, *, call_id: str | None = None, cost: int = COST) -> str:
    """Make a call that costs less than was held, and return its id."""
    with time_machine.travel(instant, tick=True):
        hold_id = call_id or new_ordered_id()
        call = UsageCall(new_id(), "openai", "m")
        unit(
            service.begin, account, call, hold_id=hold_id, nanos=20, estimate=MeteredUsage(3), lease=timedelta(hours=1)
        )
        unit(service.settle, hold_id, MeteredUsage(cost, tokens_in=2))
    return hold_id


def places(table: str = "credit_postings") -> dict[str, int]:
    """Return how many rows of a table each of its partitions has."""
    with read_only_unit() as session:
        rows = session.execute(text(f"SELECT tableoid::regclass::text, count(*) FROM {table} GROUP BY 1"))  # noqa: S608
        return {name.removeprefix(f"partitions.{table}_"): found for name, found in rows}


def seen_by(account: str) -> tuple[Balance, dict[str, ProviderTotals]]:
    return read(credit_accounts.balance, account), read(service.by_provider, account)


def months() -> list[date]:
    return [month.first for month in read(partitions.find)]


def test_an_id_begins_with_its_time_so_that_its_month_is_known() -> None:
    with time_machine.travel(JANUARY, tick=False):
        first, second = uuid.UUID(new_ordered_id()), uuid.UUID(new_ordered_id())
    assert first != second
    assert {first.version, second.version} == {7}
    assert {first.variant, second.variant} == {uuid.RFC_4122}
    assert first.int >> 80 == second.int >> 80 == int(JANUARY.timestamp() * 1000)
    january = Month(date(2027, 1, 1))
    assert january.keys[0] <= str(first) < january.keys[1]
    assert january.keys[1] == Month(date(2027, 2, 1)).keys[0]


def test_this_month_and_the_next_two_are_made_once(account: str) -> None:
    assert months() == [date(2027, 1, 1), date(2027, 2, 1), date(2027, 3, 1)]
    partitions.make_ahead(JANUARY)
    partitions.make_ahead(JANUARY - timedelta(days=90))
    assert len(months()) == 3
    partitions.make_ahead(datetime(2027, 11, 30, tzinfo=UTC))
    assert months()[-1] == date(2028, 1, 1)
    assert len(months()) == 13
    call_at(account, JANUARY)
    assert places("usage_logs") == {"2027_01": 1}
    assert places() == {"2027_01": 3, "undated": 1}


def test_calls_of_a_month_that_nobody_made_are_charged_and_move_there_when_it_is_made(account: str) -> None:
    late = datetime(2027, 5, 31, 23, 59, 59, tzinfo=UTC)
    hold_id = call_at(account, late)
    call_at(account, JANUARY, call_id=new_id())
    assert places() in ({"other": 3, "undated": 4}, {"other": 6, "undated": 1})
    before = seen_by(account)
    partitions.make_ahead(late)
    assert places("usage_logs")["2027_05"] == 1
    assert places()["2027_05"] == 3
    assert seen_by(account) == before
    assert violations() == []
    unit(service.refund, hold_id)
    assert places()["2027_05"] == 4
    assert violations() == []


def test_a_reference_stays_unique_within_and_across_months(account: str) -> None:
    hold_id = call_at(account, JANUARY)
    for table, key in (("usage_logs", hold_id), ("credit_postings", f"{hold_id}:settle")):
        column = partitions.TABLES[table]
        columns = "reference, kind, account_id, debit, credit, amount_nanos, created_at"
        if table == "usage_logs":
            columns = "id, account_id, api_key_id, provider, model, tokens_in, tokens_out, cost_nanos, created_at"
        repeated = f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} WHERE {column} = :key"  # noqa: S608
        with pytest.raises(IntegrityError), unit_of_work() as session:
            session.execute(text(repeated), {"key": key})
    assert unit(credit_accounts.grant, account, 5, reference=account) is False


def test_an_old_month_is_dropped_and_no_sum_changes(account: str) -> None:
    for day in (0, 3, 17):
        call_at(account, JANUARY + timedelta(days=day))
    refunded = call_at(account, JANUARY)
    unit(service.refund, refunded)
    before = seen_by(account)
    with time_machine.travel(LATER, tick=True):
        partitions.make_ahead(clock.now())
        # The last call was in February.
        end = datetime(2027, 1, 31, tzinfo=UTC)
        assert retention.prune(end) == 0, "they leave with their month"
        retention.drop_months(end)
        assert months()[0] == date(2027, 1, 1), "the month has not ended"
        assert (places(), places("usage_logs")) == (
            {"2027_01": 10, "2027_02": 3, "undated": 1},
            {"2027_01": 2, "2027_02": 1},
        )
        end = datetime(2027, 2, 1, tzinfo=UTC)
        retention.drop_months(end)
        assert months()[0] == date(2027, 2, 1)
    # The grant, and one entry of all that January's calls have charged.
    assert (places(), places("usage_logs")) == ({"2027_02": 3, "undated": 2}, {"2027_02": 1})
    assert seen_by(account) == before
    assert violations() == []
    assert read(service.history, account, PageRequest(10, 0), {}).total == 1
    assert retention.prune(end) == 1
    assert places() == {"2027_02": 3, "undated": 1}
    assert seen_by(account) == before
    assert violations() == []
    with read_only_unit() as session:
        assert session.execute(text("SELECT carried_nanos FROM credit_accounts")).scalar_one() == 2 * COST
        assert session.execute(text("SELECT calls, cost_nanos, tokens_in FROM usage_by_month")).one() == (
            2, 2 * COST, 4,
        )  # fmt: skip


def test_a_month_with_an_open_hold_is_kept(account: str) -> None:
    with time_machine.travel(JANUARY, tick=True):
        hold_id, call = new_ordered_id(), UsageCall(new_id(), "openai", "m")
        unit(
            service.begin, account, call, hold_id=hold_id, nanos=20, estimate=MeteredUsage(3), lease=timedelta(days=999)
        )
    call_at(account, JANUARY)
    with capture_logs() as logs:
        retention.drop_months(LATER)
    assert [entry for entry in logs if entry["event"] == "ledger_not_pruned"] == []
    assert months()[0] == date(2027, 1, 1)
    unit(service.settle, hold_id, MeteredUsage(COST))
    retention.drop_months(LATER)
    assert months() == []
    assert read(credit_accounts.balance, account).spent_nanos == 2 * COST
    assert violations() == []


@pytest.mark.parametrize(
    "tampered",
    [
        "UPDATE credit_postings SET amount_nanos = 1 WHERE kind = 'settle'",
        "UPDATE credit_postings SET debit = 'issuance' WHERE kind = 'hold'",
        "UPDATE credit_holds SET settled_nanos = 1",
        "DELETE FROM credit_holds",
        "DELETE FROM credit_postings WHERE kind <> 'grant'",
    ],
)
def test_a_month_that_does_not_add_up_is_kept_as_evidence(account: str, tampered: str) -> None:
    call_at(account, JANUARY)
    with unit_of_work() as session:
        session.execute(text(tampered))
    reported, before = violations(), places()
    assert reported != []
    with capture_logs() as logs:
        retention.drop_months(LATER)
    assert [entry["accounts"] for entry in logs if entry["event"] == "ledger_not_pruned"] == [[account]]
    assert months()[0] == date(2027, 1, 1)
    assert places() == before
    assert violations() == reported
    clear()


def _let_a_former_host_write(hold_id: str, reason: str) -> None:
    with unit_of_work() as session:
        former = text("UPDATE credit_postings SET reference = :former WHERE reference = :reference")
        session.execute(former, {"former": f"{reason}:{hold_id}", "reference": f"{hold_id}:{reason}"})


def test_entries_that_a_host_of_the_former_version_wrote_leave_with_their_month(account: str) -> None:
    """While hosts are upgraded, one may settle what a newer one holds: a word is before the id then."""
    hold_id = call_at(account, JANUARY)
    _let_a_former_host_write(hold_id, "settle")
    assert places() == {"2027_01": 2, "undated": 2}
    before = seen_by(account)
    retention.drop_months(LATER)
    assert violations() == []
    retention.prune(LATER)
    assert places() == {"undated": 1}
    assert seen_by(account) == before
    assert violations() == []


def test_a_call_that_a_host_of_the_former_version_ended_is_not_charged_or_refunded_again(account: str) -> None:
    for reason in ("settle", "release", "hold"):
        hold_id = call_at(account, JANUARY)
        _let_a_former_host_write(hold_id, reason)
        before = seen_by(account)
        assert unit(service.settle, hold_id, MeteredUsage(COST + 5)).repeated
        call = UsageCall(new_id(), "openai", "m")
        repeated = {"hold_id": hold_id, "nanos": 20, "estimate": MeteredUsage(3), "lease": timedelta(hours=1)}
        assert unit(service.begin, account, call, **repeated) == 20
        assert seen_by(account) == before
        unit(service.refund, hold_id)
        _let_a_former_host_write(hold_id, "refund")
        before = seen_by(account)
        unit(service.refund, hold_id)
        assert seen_by(account) == before
    assert violations() == []


def test_a_call_with_an_entry_in_both_forms_is_kept_with_its_month(account: str) -> None:
    hold_id = call_at(account, JANUARY)
    with unit_of_work() as session:
        columns = "kind, account_id, debit, credit, amount_nanos, created_at"
        twice = (
            f"INSERT INTO credit_postings (reference, {columns}) SELECT 'settle:{hold_id}', {columns}"  # noqa: S608
            f" FROM credit_postings WHERE reference = '{hold_id}:settle'"
        )
        session.execute(text(twice))
    reported = violations()
    assert reported != []
    with capture_logs() as logs:
        retention.drop_months(LATER)
    assert "UniqueViolation" in str(logs) or "duplicate key" in str(logs)
    assert places() == {"2027_01": 3, "undated": 2}
    assert violations() == reported
    clear()


def test_calls_without_a_month_are_deleted_with_their_entries(account: str) -> None:
    call_at(account, JANUARY - timedelta(days=40))
    before = seen_by(account)
    assert places() == {"other": 3, "undated": 1}
    assert retention.prune(LATER) == 1
    assert places() == {"undated": 1}
    assert places("usage_logs") == {}
    assert seen_by(account) == before
    assert violations() == []


def test_a_call_with_a_random_id_is_deleted_once_the_month_in_which_it_was_made_is_dropped(account: str) -> None:
    call_at(account, JANUARY, call_id="ffffffff-0000-4000-8000-000000000000")
    # In March by its first digits.
    march = f"{Month(date(2027, 3, 7)).keys[0][:13]}-4000-8000-000000000000"
    call_at(account, JANUARY, call_id=march)
    assert places() == {"2027_03": 3, "undated": 4}
    before = seen_by(account)
    assert retention.prune(LATER) == 0
    retention.drop_months(datetime(2027, 2, 1, tzinfo=UTC))
    assert retention.prune(LATER) == 2
    assert (places(), places("usage_logs")) == ({"undated": 1}, {})
    assert seen_by(account) == before
    assert violations() == []


def test_a_call_that_a_slow_clock_put_into_a_dropped_month_is_charged_and_deleted(account: str) -> None:
    retention.drop_months(LATER)
    late = call_at(account, JANUARY)
    unit(service.refund, late)
    call_at(account, JANUARY)
    assert places() == {"other": 7, "undated": 1}
    assert violations() == []
    assert retention.prune(LATER) == 2
    assert read(credit_accounts.balance, account).spent_nanos == COST
    assert violations() == []


def test_calls_on_both_sides_of_the_border_of_a_month_are_where_their_ids_say(account: str) -> None:
    """The clocks of hosts differ by minutes: one settles in February what another began in January."""
    border = datetime(2027, 2, 1, tzinfo=UTC)
    for minutes in (-5, 5):
        call_at(account, border + timedelta(minutes=minutes))
    with time_machine.travel(border - timedelta(minutes=1), tick=True):
        hold_id, call = new_ordered_id(), UsageCall(new_id(), "openai", "m")
        unit(
            service.begin, account, call, hold_id=hold_id, nanos=20, estimate=MeteredUsage(3), lease=timedelta(hours=1)
        )
    with time_machine.travel(border + timedelta(minutes=1), tick=True):
        unit(service.settle, hold_id, MeteredUsage(COST))
    assert places() == {"2027_01": 6, "2027_02": 3, "undated": 1}
    before = seen_by(account)
    retention.drop_months(border)
    assert (places(), places("usage_logs")) == ({"2027_02": 3, "undated": 2}, {"2027_02": 1})
    assert seen_by(account) == before
    assert violations() == []


def test_a_reader_of_an_old_month_is_not_disturbed_and_the_drop_is_repeated(account: str) -> None:
    call_at(account, JANUARY)
    with db.engine.connect() as reader, capture_logs() as logs:
        reader.execute(text("SELECT count(*) FROM usage_logs"))
        retention.drop_months(LATER)
        assert [entry["month"] for entry in logs if entry["event"] == "month_not_dropped"] == ["2027-01-01"]
        assert months()[0] == date(2027, 1, 1)
        assert violations() == []
        # It held up nobody.
        call_at(account, JANUARY)
        before = seen_by(account)
    with unit_of_work() as session:
        partitions.lock(session, Month(date(2027, 1, 1)))
        assert session.scalar(text("SELECT current_setting('lock_timeout')")) == "500ms"
    retention.drop_months(LATER)
    assert months() == []
    assert seen_by(account) == before
    assert violations() == []


def test_two_workers_drop_a_month_once(account: str, app: Flask) -> None:
    call_at(account, JANUARY)
    before = seen_by(account)
    race(app, [lambda: retention.drop_months(LATER)] * 2)
    # Each may have waited for the other.
    retention.drop_months(LATER)
    assert months() == []
    assert seen_by(account) == before
    assert violations() == []


@pytest.mark.parametrize(
    "waits_for",
    ["SELECT 1 FROM credit_holds FOR UPDATE", "LOCK TABLE ONLY partitions.credit_postings_by_month IN SHARE MODE"],
    ids=["as it replaces holds", "as it drops"],
)
def test_a_worker_that_dies_while_it_drops_a_month_changes_nothing(account: str, app: Flask, waits_for: str) -> None:
    call_at(account, JANUARY)
    before, at = seen_by(account), places()

    def drop() -> None:
        with app.app_context():
            retention.drop_months(LATER)

    with db.engine.connect() as other:
        other.execute(text(waits_for))
        worker = threading.Thread(target=drop)
        worker.start()
        wait_until(_end_waiting_session, 30, what="the worker to wait")
        worker.join(timeout=60)
    assert places() == at
    assert violations() == []
    retention.drop_months(LATER)
    assert months() == []
    assert seen_by(account) == before
    assert violations() == []


def _end_waiting_session() -> bool:
    ended = "SELECT bool_or(pg_terminate_backend(pid)) FROM pg_locks JOIN pg_stat_activity USING (pid)"
    with read_only_unit() as session:
        return bool(session.execute(text(f"{ended} WHERE NOT granted AND datname = current_database()")).scalar())


def test_months_that_two_workers_make_are_made_once(account: str, app: Flask) -> None:
    november = datetime(2027, 11, 30, tzinfo=UTC)
    race(app, [lambda: make(november)] * 2)
    partitions.make_ahead(november)
    assert months()[-1] == date(2028, 1, 1)
    assert len(months()) == 13
    call_at(account, november)
    assert violations() == []


def make(now: datetime) -> None:
    # The other one may have made the month meanwhile, or hold its lock: the next sweep continues.
    with contextlib.suppress(DBAPIError):
        partitions.make_ahead(now)


def test_calls_add_up_after_a_downgrade_and_another_upgrade(account: str, app: Flask) -> None:
    call_at(account, JANUARY)
    call_at(account, JANUARY + timedelta(days=30))
    # A random id that begins as those of January.
    call_at(account, JANUARY, call_id=f"{Month(date(2027, 1, 7)).keys[0][:13]}-4000-8000-000000000000")
    retention.drop_months(datetime(2027, 2, 1, tzinfo=UTC))
    unit(service.refund, call_at(account, JANUARY + timedelta(days=31)))
    before = seen_by(account)
    migrations.bind(app)
    try:
        downgrade(revision="0053")
        with db.engine.connect() as connection:
            references = set(connection.scalars(text("SELECT reference FROM credit_postings")))
            carried = connection.execute(text("SELECT carried_calls, carried_cost_nanos FROM usage_by_provider")).one()
        assert all(each.split(":")[0].isalpha() for each in references), references
        assert carried == (2, 2 * COST)
        assert read(credit_accounts.balance, account) == before[0]
    finally:
        upgrade()
    assert seen_by(account) == before
    assert violations() == []
    partitions.make_ahead(JANUARY)
    assert seen_by(account) == before
    assert violations() == []
