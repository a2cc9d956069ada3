"""Catalog search over many services and statistics over many calls, on both databases."""

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from flask import Flask
from flask_migrate import upgrade
from sqlalchemy import insert, select, text

from app.catalog import statistics
from app.catalog.models import Service, ServiceCaller, ServiceLatency, ServiceMinute, ServiceSearchText, ServiceTotal
from app.catalog.services import search_index
from app.catalog.services import service as services
from app.config import Settings
from app.core import clock
from app.core.identifiers import new_id
from app.core.pagination import PageRequest
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.factory import create_app
from app.status import migrations
from benchmarks import stack, thresholds
from benchmarks.stack import Infrastructure
from benchmarks.thresholds import Threshold

_CALLS = 1_000_000
_BATCH = 5_000
_MAX_SEARCH_MS = 250
_MAX_STATISTICS_MS = 50
_SYLLABLES = (
    *("ka", "to", "mi", "ra", "ne", "lo", "wea", "ther", "pay", "ment", "ge", "o", "co", "de", "tra", "ns", "la"),
    *("te", "sen", "ti", "ana", "ly", "sis", "im", "age", "vo", "ice", "sto", "ck", "map", "ro", "ute"),
)
_PIECES = ("a", "zz", "ka", "ment", "weather", "zebra", "nothing like it")


def measure(infrastructure: Infrastructure, *, service_count: int, rounds: int) -> list[Threshold]:
    """Time searches and statistics on PostgreSQL and on SQLite."""
    thresholds.print_heading(
        f"A catalog of {service_count:,} services; a service with {_CALLS:,} calls ({rounds} rounds)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = infrastructure.migrated("catalog", LOG_LEVEL="WARNING")
        on_sqlite = {**environment, "DATABASE_URL": f"sqlite:///{Path(folder)}/catalog.sqlite"}
        promises: list[Threshold] = []
        for name, chosen in (("PostgreSQL", environment), ("SQLite", on_sqlite)):
            with _application(chosen) as app, app.app_context():
                migrations.bind(app)
                upgrade()
                _fill(service_count)
                service_id = _insert_calls()
                db.session.remove()
                with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    connection.execute(text("VACUUM ANALYZE" if name == "PostgreSQL" else "ANALYZE"))
                promises += _measured(name, service_id, rounds)
        return promises


def _measured(name: str, service_id: str, rounds: int) -> Iterator[Threshold]:
    page = PageRequest(limit=50, offset=0)
    worst = 0.0
    for piece in ("", *_PIECES):
        found = search_index.search(page, text=piece).total
        spent = _median(lambda piece=piece: search_index.search(page, text=piece), rounds)  # type: ignore[misc]
        thresholds.print_note(f"{name:10} {piece or '(no text)':16} {found:7,} found {spent:8.1f} ms")
        worst = max(worst, spent)
    with read_only_unit() as session:
        service = services.find(session, service_id)
    stats = _median(lambda: services.owner_statistics(service), rounds)
    thresholds.print_note(f"{name:10} statistics                        {stats:8.1f} ms")
    yield thresholds.at_most(f"{name}: the slowest search", worst, _MAX_SEARCH_MS, "ms")
    yield thresholds.at_most(f"{name}: statistics", stats, _MAX_STATISTICS_MS, "ms")


@contextmanager
def _application(environment: dict[str, str]) -> Iterator[Flask]:
    app = create_app(Settings(**stack.settings_of(environment)))
    yield app
    with app.app_context():
        db.engine.dispose()


def _fill(service_count: int) -> None:
    draw = random.Random(7)
    vocabulary = ["".join(draw.choices(_SYLLABLES, k=draw.randint(2, 4))) for _ in range(5_000)]
    vocabulary += ["weather"] * 2 + ["zebra"]
    now = clock.now()
    for _ in range(0, service_count, _BATCH):
        rows, texts = [], []
        for _ in range(min(_BATCH, service_count)):
            name, words = " ".join(draw.choices(vocabulary, k=3)), " ".join(draw.choices(vocabulary, k=25))
            calls = int(draw.paretovariate(0.5)) % 10**9
            rows.append(
                {
                    "id": new_id(), "agent_id": new_id(), "name": name, "description": words,
                    "base_url": "https://api.example.com", "pricing_model": "per_call", "price_nanos": 1,
                    "category": "data", "status": "active", "secret_sealed": "x", "total_calls": calls,
                    "total_revenue_nanos": calls, "created_at": now, "updated_at": now,
                }
            )  # fmt: skip
            texts.append({"service_id": rows[-1]["id"], "category": "data", "text": f"{name}\x1f{words}"})
        with unit_of_work() as session:
            session.execute(insert(Service), rows)
            session.execute(insert(ServiceSearchText), texts)


def _insert_calls() -> str:
    """Insert the statistics of a million calls a day from a thousand wallets: every stripe of every minute."""
    with read_only_unit() as session:
        service_id: str = session.scalars(select(Service.id).limit(1)).one()
    draw, now = random.Random(7), clock.now().replace(second=0, microsecond=0)
    hour = now.replace(minute=0)
    stripes = range(statistics.STRIPES if db.engine.dialect.name == "postgresql" else 1)
    minutes = [
        {
            "service_id": service_id, "minute": now - timedelta(minutes=ago), "stripe": stripe,
            "calls": 694 // len(stripes), "revenue_nanos": 87, "failures": 1,
        }
        for ago in range(24 * 60)
        for stripe in stripes
    ]  # fmt: skip
    latencies = [
        {
            "service_id": service_id, "hour": hour - timedelta(hours=ago), "bar": bar, "stripe": stripe,
            "calls": 1_040 // len(stripes),
        }
        for ago in range(24)
        for bar in range(40)
        for stripe in stripes
    ]  # fmt: skip
    callers = [
        {"service_id": service_id, "wallet_id": new_id(), "calls": draw.randint(1, 2_000), "spent_nanos": 1}
        for _ in range(1_000)
    ]
    totals = [
        {"service_id": service_id, "stripe": stripe, "calls": _CALLS // len(stripes), "revenue_nanos": _CALLS}
        for stripe in stripes
    ]
    with unit_of_work() as session:
        for table, rows in (
            (ServiceMinute, minutes),
            (ServiceLatency, latencies),
            (ServiceCaller, callers),
            (ServiceTotal, totals),
        ):
            session.execute(insert(table), rows)
    return service_id


def _median(step: Callable[[], object], rounds: int) -> float:
    spent = []
    for _ in range(rounds):
        started = time.perf_counter()
        step()
        spent.append((time.perf_counter() - started) * 1000)
    return thresholds.median(spent)
