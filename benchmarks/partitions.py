"""`python -m benchmarks.partitions`: what depends on the number of past calls, in plain tables and by month.

Two databases get the same generated calls of 14 months: one has the tables of before migration 0054, with random ids,
the other is migrated. Ten million calls take 12 GB each. At the end, the former is migrated, too.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from flask import Flask
from flask_migrate import upgrade

from app.core import clock
from app.core.identifiers import new_id, new_ordered_id
from app.core.pagination import PageRequest
from app.credits import audit as credits_audit
from app.db import partitions
from app.db.partitions import Month
from app.db.unit_of_work import read_only_unit, snapshot
from app.extensions import db
from app.status import migrations
from app.usage import audit as usage_audit
from app.usage import retention, service, step_statements
from benchmarks import thresholds
from benchmarks.postgres import Server, durable_server
from tests.support.agents import Agent, register
from tests.support.applications import make_app, settings_for

_MONTHS, _ACCOUNTS, _AGENTS = 14, 10_000, 20
_PAGE, _DELETED, _LARGE = 50, 20_000, 1_000_000
_SETTINGS = {"max_wal_size": "8GB", "maintenance_work_mem": "1GB", "checkpoint_timeout": "30min"}
_ACCOUNTS_SQL = """
    INSERT INTO credit_accounts (id, available_nanos, held_nanos, granted_nanos, spent_nanos, created_at)
    SELECT gen_random_uuid(), 0, 0, 0, 0, now() FROM generate_series(1, {accounts});
    UPDATE credit_accounts SET available_nanos = available_nanos + 1000000000000,
        granted_nanos = granted_nanos + 1000000000000;
    INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
    SELECT 'grant:more:' || id, 'grant', id, 'issuance', 'available', 1000000000000, now() FROM credit_accounts;
    CREATE UNLOGGED TABLE numbered AS SELECT row_number() OVER () AS number, id FROM credit_accounts;
"""
_ORDERED = """(lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(random, 1, 3) || '8'
    || substr(random, 4, 15))::uuid"""
# The calls of one month, in the order of their times.
_CALLS_SQL = """
    CREATE UNLOGGED TABLE calls AS SELECT {new_id} AS id, a.id AS account_id, at
    FROM (SELECT n, timestamptz '{start}' + n * (interval '{seconds} s' / {count}) AS at, md5(n::text) AS random
        FROM generate_series(0, {count} - 1) n) c JOIN numbered a ON a.number = 1 + n::bigint * 7919 % {accounts};
    INSERT INTO credit_holds (id, account_id, amount_nanos, unpaid_nanos, memo, created_at, state, settled_nanos,
        lease_until)
    SELECT id, account_id, 5000, 0, json_build_object('api_key_id', account_id, 'provider', 'openai', 'model',
        'gpt-4o-mini', 'cost_nanos', 4000, 'tokens_in', 10, 'tokens_out', 10, 'price_version', '2026-11-01'), at,
        'settled', 4000, at FROM calls;
    INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
    SELECT {reference}, kind, account_id, debit, credit, amount, at FROM calls CROSS JOIN (VALUES
        ('hold', 'available', 'held', 5000), ('release', 'held', 'available', 1000), ('settle', 'held', 'revenue', 4000)
    ) e(kind, debit, credit, amount);
    INSERT INTO usage_logs (id, account_id, api_key_id, provider, model, tokens_in, tokens_out, cost_nanos, created_at)
    SELECT id, account_id, account_id, 'openai', 'gpt-4o-mini', 10, 10, 4000, at FROM calls;
    DROP TABLE calls
"""
_SUMS_SQL = """
    INSERT INTO usage_by_provider (account_id, provider, calls, cost_nanos, tokens_in, tokens_out)
    SELECT account_id, provider, count(*), sum(cost_nanos), sum(tokens_in), sum(tokens_out)
    FROM usage_logs GROUP BY 1, 2;
    UPDATE credit_accounts a SET available_nanos = available_nanos - s.cost_nanos, spent_nanos = s.cost_nanos
    FROM usage_by_provider s WHERE s.account_id = a.id;
"""
_FORMER_SQL = """UPDATE credit_postings SET reference = substr(reference, 38) || ':' || substr(reference, 1, 36)
    WHERE substr(reference, 37, 1) = ':' AND account_id IN (SELECT account_id FROM api_keys)"""
_SIZE_SQL = """SELECT sum(pg_total_relation_size(oid)) FROM pg_class
    WHERE relkind = 'r' AND relname ~ '^(usage_logs|credit_postings|credit_holds)'"""


class _Site:
    """An application on a database with past calls."""

    def __init__(self, server: Server, name: str, calls: int, *, by_month: bool) -> None:
        self.name, self.server, self.by_month, self.per_month = name, server, by_month, calls // _MONTHS
        self.app: Flask = make_app(
            settings_for(server.create_database(name).replace("postgres:", "postgresql:"), log_level="WARNING")
        )
        self.newest = Month(clock.now().date().replace(day=1))
        self.months = [self.newest]
        while len(self.months) < _MONTHS:
            self.months.insert(0, Month((self.months[0].first - timedelta(days=1)).replace(day=1)))
        migrations.bind(self.app)
        with self.app.app_context():
            if by_month:
                upgrade()
                partitions.make_ahead(self.months[0].start)
                partitions.make_ahead(clock.now())
            else:
                upgrade(revision="0053")
                # What statements of now read.
                db.metadata.tables["usage_by_month"].create(db.engine)
            self.agents: list[Agent] = [register(self.app.test_client()) for _ in range(_AGENTS)]
        self.connection = server.connect(name)
        self._fill()
        for position, statement in enumerate((step_statements.HOLD[0], step_statements.SETTLEMENT[0])):
            self.connection.execute(f"PREPARE step_{position} (json, timestamptz) AS {statement}")

    def _fill(self) -> None:
        run = self.connection.execute
        run("SET synchronous_commit = off")
        run(_ACCOUNTS_SQL.format(accounts=_ACCOUNTS))
        indexes = [] if self.by_month else self._without_indexes()
        for month in self.months:
            seconds = (month.following().first - month.first).days * 86_400
            if month == self.newest:
                seconds = int((clock.now() - month.start).total_seconds())
            run(
                _CALLS_SQL.format(
                    new_id=_ORDERED if self.by_month else "gen_random_uuid()",
                    reference="id || ':' || kind" if self.by_month else "kind || ':' || id",
                    start=month.first, seconds=seconds, count=self.per_month, accounts=_ACCOUNTS,
                )
            )  # fmt: skip
        for statement in [*indexes, _SUMS_SQL, "VACUUM ANALYZE"]:
            run(statement)
        run("SET synchronous_commit = on")

    def _without_indexes(self) -> list[str]:
        """Drop indexes that are faster to build at the end; return the statements that do so."""
        found = self.connection.execute(
            """SELECT conrelid::regclass, conname, pg_get_constraintdef(oid) FROM pg_constraint
            WHERE contype IN ('p', 'u')
            AND conrelid::regclass::text IN ('usage_logs', 'credit_postings', 'credit_holds')"""
        ).fetchall()
        for table, name, _ in found:
            self.connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        return [f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}" for table, name, definition in found]

    def call(self, calls: int) -> None:
        """Hold and settle one call of each of some agents, in two statements."""
        now = datetime.now(UTC).isoformat()
        make_id = new_ordered_id if self.by_month else new_id
        common = [{"id": make_id(), "account_id": each.id} for each in self.agents[:calls]]
        memo = {"provider": "openai", "model": "gpt-4o-mini", "cost_nanos": 4000, "tokens_in": 10, "tokens_out": 10}
        tokens = {"tokens_in": 10, "tokens_out": 10, "cached_tokens": 0, "reasoning_tokens": 0, "price_version": "1"}
        keys = self.key_ids()
        held = [
            {**each, "api_key_id": keys[each["account_id"]], "nanos": 5000, "lease_until": now,
             "memo": {**memo, "api_key_id": keys[each["account_id"]], "price_version": "1"}}
            for each in common
        ]  # fmt: skip
        for position, steps in enumerate((held, [{**each, "cost": 4000, **tokens} for each in common])):
            text = json.dumps(steps).replace("'", "''")
            rows = self.connection.execute(f"EXECUTE step_{position} ('{text}', '{now}')").fetchall()
            if len(rows) != calls:
                raise RuntimeError(f"{len(rows)} of {calls} steps were done")

    def key_ids(self) -> dict[str, str]:
        """Return the ids of the agents' keys."""
        if not hasattr(self, "_keys"):
            rows = self.connection.execute("SELECT account_id::text, id::text FROM api_keys").fetchall()
            self._keys = dict(rows)
        return self._keys

    def page(self, offset: int) -> None:
        """Read a page of an account's usage."""
        with self.app.app_context(), read_only_unit() as session:
            found = service.history(session, self.account, PageRequest(_PAGE, offset), {})
            if len(found.items) != _PAGE:
                raise RuntimeError("the account has too few calls")

    @property
    def account(self) -> str:
        if not hasattr(self, "_account"):
            self._account: str = self.scalar("SELECT account_id::text FROM usage_by_provider ORDER BY calls DESC")
        return self._account

    def audit(self) -> None:
        """Audit the ledger and the log."""
        with self.app.app_context(), snapshot() as session:
            problems = [*credits_audit.check(session), *usage_audit.check(session)]
        if problems:
            raise RuntimeError(f"{len(problems)} violations, the first: {problems[0]}")

    def cpu_seconds(self) -> float:
        """Return the processor time of the session that runs `call`."""
        fields = Path(f"/proc/{self.connection.info.backend_pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def scalar(self, statement: str) -> Any:
        """Return a value."""
        row = self.connection.execute(statement).fetchone()
        return row[0] if row else None


@contextlib.contextmanager
def _timed() -> Iterator[Callable[[], float]]:
    started = time.perf_counter()
    yield lambda: time.perf_counter() - started


def _median_ms(action: Callable[[], None], times: int) -> float:
    spent = []
    for _ in range(times + 1):
        with _timed() as seconds:
            action()
        spent.append(seconds() * 1000)
    return thresholds.median(spent[1:])


def _measure(sites: list[_Site], *, quick: bool) -> None:
    for batch, times in ((1, 1500), (20, 200)):
        for _ in range(1 if quick else 3):
            for site in sites:
                before, calls = site.cpu_seconds(), times // (10 if quick else 1)
                wall = _median_ms(partial(site.call, batch), calls)
                used = (site.cpu_seconds() - before) * 1000 / (calls + 1) / batch
                thresholds.print_note(
                    f"{site.name:8} call, {batch:2} at a time: {used:.3f} ms of the database's processor,"
                    f" {wall:.2f} ms in all"
                )
    for site in sites:
        for offset in (0, 500):
            # Accounts of a small run have few calls.
            if offset + _PAGE < site.scalar("SELECT max(calls) FROM usage_by_provider"):
                spent = _median_ms(partial(site.page, offset), 100)
                thresholds.print_note(f"{site.name:8} page of usage after {offset} calls: {spent:.2f} ms")
        with _timed() as seconds:
            site.audit()
            thresholds.print_note(f"{site.name:8} audit of the ledger and the log: {seconds():.1f} s")


def _prune(site: _Site) -> None:
    """Delete calls of the oldest month one by one, or drop it."""
    end, size = site.months[1].start, site.scalar(_SIZE_SQL)
    lsn, done, what = site.scalar("SELECT pg_current_wal_lsn()"), 0, "deleting calls one by one"
    with site.app.app_context(), _timed() as seconds:
        if site.by_month:
            retention.drop_months(end)
            with read_only_unit() as session:
                if site.months[0] in partitions.find(session):
                    raise RuntimeError("the month was not dropped")
            done, what = site.per_month, "dropping a month"
        while not site.by_month and done < _DELETED and (more := retention.prune(end)):
            done += more
        spent = seconds()
        wal = site.scalar(f"SELECT pg_current_wal_lsn() - '{lsn}'")
        thresholds.print_note(
            f"{site.name:8} {what}: {done:,} calls in {spent:.1f} s, {spent / done * 1e6:.1f} s and"
            f" {float(wal) / done:.0f} MB of WAL a million"
        )
        if site.by_month:
            retention.prune(end, max_batches=1_000)
            thresholds.print_note(f"{site.name:8} carrying its sums forward: {seconds() - spent:.1f} s")
    site.audit()
    freed = float(size - site.scalar(_SIZE_SQL)) / 1e6
    thresholds.print_note(f"{site.name:8} freed {freed:.0f} of {float(size) / 1e6:.0f} MB")


def _migrate(site: _Site) -> None:
    """Migrate the tables of before, and make the first months."""
    size, lsn = site.scalar("SELECT pg_database_size(current_database())"), site.scalar("SELECT pg_current_wal_lsn()")
    site.connection.execute("DROP TABLE usage_by_month")
    site.connection.execute(_FORMER_SQL)
    with site.app.app_context(), _timed() as seconds:
        upgrade()
        migrated = seconds()
        partitions.make_ahead(clock.now())
        made = seconds() - migrated
    wal = float(site.scalar(f"SELECT pg_current_wal_lsn() - '{lsn}'")) / 1e6
    more = float(site.scalar("SELECT pg_database_size(current_database())") - size) / 1e6
    thresholds.print_note(
        f"{site.name:8} migrated in {migrated:.1f} s, months made in {made:.1f} s;"
        f" {more:.0f} MB more, {wal:.0f} MB of WAL"
    )
    site.audit()


def main() -> int:
    """Fill both databases and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partitions", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000_000, help="past calls (%(default)s)")
    parser.add_argument("--only", choices=("plain", "by_month"), help="one of the databases")
    calls, only = (chosen := parser.parse_args()).calls, chosen.only
    with tempfile.TemporaryDirectory() as folder, durable_server(Path(folder)) as server:
        with server.connect("postgres") as connection:
            for name, value in _SETTINGS.items():
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.execute("SELECT pg_reload_conf()")
        sites = []
        for name in ("plain", "by_month"):
            if only in (None, name):
                with _timed() as seconds:
                    sites.append(_Site(server, name, calls, by_month=name == "by_month"))
                    thresholds.print_note(f"{name:8} {calls:,} calls in {seconds():.0f} s")
        _measure(sites, quick=calls < _LARGE)
        for site in sites:
            _prune(site)
            if not site.by_month:
                _migrate(site)
    return 0


if __name__ == "__main__":
    sys.exit(main())
