"""Retention with ten million rows: how long a step takes, whom it keeps waiting, and that no sum changes by a digit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import text

from app.config import Settings
from app.core.unit_of_work import snapshot
from app.credits import audit as credits_audit
from app.extensions import db
from app.factory import create_app
from app.spending import audit as spending_audit
from app.usage import audit as usage_audit
from benchmarks import figures, gateway, load, stack, waits
from benchmarks.figures import Promise
from benchmarks.load import Request, Result
from benchmarks.retention_rows import Amounts, fill
from benchmarks.stack import ROOT, Parts, Service

MANY = Amounts(calls=2_000_000, spending_holds=200_000, queries=200_000, answers=200_000)
# For SQLite, which is for one machine, and prunes more in hours only.
FEWER = Amounts(calls=200_000, spending_holds=20_000, queries=20_000, answers=20_000)
FEW = Amounts(calls=12_000, spending_holds=2_000, queries=2_000, answers=2_000)
_MOST_UNIT_MS = 1000
_TABLES = (
    "credit_holds",
    "credit_postings",
    "usage_logs",
    "spending_holds",
    "transactions",
    "idempotency_keys",
)
_SUMS = (
    "SELECT id, available_nanos, held_nanos, granted_nanos, spent_nanos FROM credit_accounts WHERE id <> :own",
    (
        "SELECT account_id, provider, calls, cost_nanos, tokens_in, tokens_out FROM usage_by_provider"
        " WHERE account_id <> :own"
    ),
    "SELECT wallet_id, day_nanos, week_nanos, month_nanos FROM spending_accounts",
)
_AUDITS: Mapping[str, Callable[[], list[str]]] = {
    "credits": credits_audit.check, "usage": usage_audit.check, "spending": spending_audit.check,
}  # fmt: skip


@dataclass(slots=True)
class _Pruner:
    """The pruning process and what it has told so far."""

    process: subprocess.Popen[bytes]
    units: list[dict[str, Any]] = field(default_factory=list)
    thread: threading.Thread | None = None

    @property
    def rows(self) -> int:
        return sum(unit["rows"] for unit in self.units)

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.units.append(json.loads(line))


def measure(made: Parts, *, amounts: Amounts, seconds: float) -> list[Promise]:
    """Prune on PostgreSQL and on SQLite."""
    promises: list[Promise] = []
    with gateway.upstream() as upstream:
        settings = {
            "OPENAI_API_KEY": "sk-benchmark", "OPENAI_BASE_URL": f"http://127.0.0.1:{upstream.port}/v1",
            "INITIAL_CREDITS_USD": "100000", "LOG_LEVEL": "WARNING", "RETENTION_DAYS": "400",
        }  # fmt: skip
        for name, make, rows in (
            ("PostgreSQL", made.migrated, amounts), ("SQLite", made.migrated_sqlite, min(amounts, FEWER)),
        ):  # fmt: skip
            environment = make("retention", **settings)
            promises += _on(made, name, environment, rows, seconds)
    return promises


def _on(
    made: Parts, name: str, environment: Mapping[str, str], amounts: Amounts, seconds: float
) -> list[Promise]:
    figures.heading(f"Retention on {name}: {amounts.rows:,} rows, half of the calls past their days")
    app = create_app(Settings(**stack.settings_of(environment)))
    on_postgresql = name == "PostgreSQL"
    # Only the web: nobody else prunes meanwhile.
    with stack.running(made, environment, workers=0, schedulers=0) as service, app.app_context():
        key, account = _caller(service)
        began = time.monotonic()
        with db.engine.connect() as connection:
            fill(connection, amounts, first_account=account)
        _analyze(on_postgresql=on_postgresql)
        figures.note(f"filled in {time.monotonic() - began:.0f} s; {_size(made, environment)}")
        own = account if on_postgresql else account.replace("-", "")
        before, wrong_before, audit_seconds = _sums(own), _audited(), dict(_audit_seconds)
        alone = _beside(service, key, seconds)
        waiting = waits.watched(made.database, "retention") if on_postgresql else contextlib.nullcontext(None)
        with waiting as seen:
            units, beside = _pruned(service, key, environment, seconds, amounts)
        after, wrong_after = _sums(own), _audited()
        left = _left_over()
        _print(units, alone, beside)
        if seen is not None:
            figures.note(
                f"sessions meanwhile: {seen.shares()}; statements that waited for locks: {seen.locks()}"
            )
            _bloat(made)
        figures.note(f"an audit of all took, in s: before {audit_seconds}, after {_audit_seconds}")
        figures.note(f"{_size(made, environment)} after it")
        db.engine.dispose()
    longest = max(unit["ms"] for unit in units)
    failures = sum(sum(each.failures.values()) for pair in beside for each in pair)
    return [
        figures.at_most(f"{name}: sums that changed", int(before != after), 0, ""),
        figures.at_most(f"{name}: audits' findings before and after", len(wrong_before + wrong_after), 0, ""),
        figures.at_most(f"{name}: rows that are too old and left", left, 0, ""),
        figures.at_most(f"{name}: the longest unit", longest, _MOST_UNIT_MS, "ms"),
        figures.at_most(f"{name}: requests that failed meanwhile", failures, 0, ""),
    ]


def _caller(service: Service) -> tuple[str, str]:
    """Register somebody who calls and reads all the while; return key and account."""
    status, body = service.call("POST", "/v1/agents/register", b"{}")
    assert status == 201, body  # noqa: PLR2004 - created
    answer = json.loads(body)
    return answer["apiKey"], answer["agentId"]


def _beside(service: Service, key: str, seconds: float) -> tuple[Result, Result]:
    """Let one read and one be charged for a while; return both."""
    headers = {"X-API-Key": key}
    reading = [Request("GET", "/v1/usage?limit=10", headers), Request("GET", "/v1/balance", headers)]
    charging = [Request("POST", "/v1/gateway/openai/chat/completions", headers, gateway.CHAT)]
    found: dict[str, Result] = {}
    threads = [
        threading.Thread(
            target=lambda n=name, r=lane: found.update({n: load.run(service.port, [r], seconds=seconds)})
        )
        for name, lane in (("reading", reading), ("charging", charging))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found["reading"], found["charging"]


def _pruned(
    service: Service, key: str, environment: Mapping[str, str], seconds: float, amounts: Amounts
) -> tuple[list[dict[str, Any]], list[tuple[Result, Result]]]:
    """Prune until nothing is left, killed outright once in the middle; return units, and what clients saw."""
    beside: list[tuple[Result, Result]] = []
    first = _started(environment)
    while first.rows < amounts.calls // 4 and first.process.poll() is None:
        beside.append(_beside(service, key, seconds))
    first.process.kill()
    first.process.wait()
    _end(first)
    figures.note(f"killed after {first.rows:,} rows; then on to the end")
    assert _audited() == [], "a killed process left something undone"
    second = _started(environment)
    while second.process.poll() is None:
        beside.append(_beside(service, key, seconds))
    _end(second)
    assert second.process.returncode == 0, "the pruning process failed"
    return [*first.units, *second.units], beside


def _started(environment: Mapping[str, str]) -> _Pruner:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.pruning"], cwd=ROOT, env=dict(environment), stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    pruner = _Pruner(process)
    pruner.thread = threading.Thread(target=pruner.listen, daemon=True)
    pruner.thread.start()
    return pruner


def _end(pruner: _Pruner) -> None:
    assert pruner.thread is not None
    assert pruner.process.stdout is not None
    pruner.thread.join()
    pruner.process.stdout.close()


_audit_seconds: dict[str, int] = {}


def _audited() -> list[str]:
    """Return what the audits find wrong, and note how long each took."""
    wrong = []
    for name, check in _AUDITS.items():
        began = time.monotonic()
        with snapshot():
            wrong += check()
        _audit_seconds[name] = round(time.monotonic() - began)
    return wrong


def _is_postgresql() -> bool:
    return db.engine.dialect.name == "postgresql"


def _sums(own: str) -> str:
    """Return a digest of every sum that an owner sees, but for those of the one who is charged meanwhile."""
    digest = hashlib.sha256()
    with db.engine.connect() as connection:
        for statement in _SUMS:
            wanted = text(statement + " ORDER BY 1, 2")
            for row in connection.execute(wanted, {"own": own} if ":own" in statement else {}):
                digest.update(repr([str(value) for value in row]).encode())
    return digest.hexdigest()


def _left_over() -> int:
    """Count what is older than the retention and still there."""
    past = "now() - interval '401 days'" if _is_postgresql() else "datetime('now', '-401 days')"
    count = 0
    with db.engine.connect() as connection:
        for table, more in (
            ("credit_holds", ""), ("usage_logs", ""), ("transactions", ""),
            ("credit_postings", "AND kind <> 'grant'"),
        ):  # fmt: skip
            statement = f"SELECT count(*) FROM {table} WHERE created_at < {past} {more}"  # noqa: S608 - our own words
            count += connection.execute(text(statement)).scalar_one()
    return count


def _analyze(*, on_postgresql: bool) -> None:
    with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE" if on_postgresql else "ANALYZE"))


def _size(made: Parts, environment: Mapping[str, str]) -> str:
    url = environment["DATABASE_URL"]
    if url.startswith("sqlite"):
        return f"{Path(url.removeprefix('sqlite:///')).stat().st_size / 1e9:.2f} GB"
    with made.database.connect("retention") as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return f"{row[0] / 1e9:.2f} GB"


def _print(
    units: Sequence[Mapping[str, Any]], alone: tuple[Result, Result], beside: Sequence[tuple[Result, Result]]
) -> None:
    by_step: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for unit in units:
        by_step[unit["step"]].append(unit)
    for step, found in by_step.items():
        full = sorted(unit["ms"] for unit in found if unit["rows"])
        if not full:
            continue
        third = max(1, len(found) // 3)
        early, late = (
            [unit["ms"] for unit in part if unit["rows"]] for part in (found[:third], found[-third:])
        )
        figures.note(
            f"{step:9} {len(full):6} units, {sum(unit['rows'] for unit in found):9,} deleted:"
            f" median {figures.median(full):6.1f} ms, 99th {full[len(full) * 99 // 100]:7.1f}, longest {full[-1]:7.1f};"
            f" first third {figures.median(early or full):.1f}, last third {figures.median(late or full):.1f}"
        )
    for place, name in enumerate(("who reads", "who is charged")):
        ours, by_itself = [pair[place] for pair in beside], alone[place]
        rate, p50, p99 = (
            figures.median([getattr(each, figure) for each in ours])
            for figure in ("per_second", "p50_ms", "p99_ms")
        )
        worst = max(each.p99_ms for each in ours)
        figures.note(
            f"{name:15} alone {by_itself.per_second:5.0f}/s, p50 / p99 {by_itself.p50_ms:.0f} /"
            f" {by_itself.p99_ms:.0f} ms; beside it {rate:5.0f}/s, {p50:.0f} / {p99:.0f} ms (worst p99 {worst:.0f})"
        )


def _bloat(made: Parts) -> None:
    """Say what autovacuum did by itself, and what a vacuum leaves."""
    statement = """
        SELECT relname, n_live_tup, n_dead_tup, autovacuum_count, pg_total_relation_size(relid)
        FROM pg_stat_user_tables
        WHERE relname = ANY(%s) ORDER BY relname"""
    with made.database.connect("retention") as connection:
        for relation, live, dead, vacuums, size in connection.execute(statement, [list(_TABLES)]).fetchall():
            figures.note(
                f"{relation:17} {live:9,} live, {dead:9,} dead, {vacuums} autovacuums,"
                f" {size / 1e6:7.0f} MB with indexes"
            )
        began = time.monotonic()
        connection.execute("VACUUM ANALYZE")
        figures.note(
            f"VACUUM took {time.monotonic() - began:.0f} s; tables keep their files, and fill the space again"
        )
