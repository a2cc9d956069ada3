"""`GET /metrics` for Prometheus: the counters of all processes, and gauges of the database and the queues.

Every web process returns the figures of the whole service, because a scrape behind a router cannot choose a process.
"""

import hmac
import ipaddress
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any

from flask import Blueprint, Response, request
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.approvals import service as approvals
from app.catalog.payouts import earnings
from app.core import clock
from app.core.chains import USDC
from app.core.money import NANOS_PER_USD
from app.credits import accounts as credit_accounts
from app.db import leases
from app.db.replica import report_engine
from app.db.unit_of_work import read_only_unit
from app.errors import NotFound, Unauthorized
from app.events import deliveries
from app.observability import counters
from app.payments import claimed_payments, settlement_capacity, settlement_risks
from app.ports.services import CounterStore
from app.shopping import service as purchases
from app.state import Ports, app_state
from app.version import VERSION
from app.wallets.views import balances

metrics = Blueprint("metrics", __name__)


@metrics.get("/metrics")
def get_metrics() -> Response:
    _require_access(app_state().settings.metrics_token.get_secret_value())
    return Response(generate_latest(_ServiceCollector()), content_type=CONTENT_TYPE_PLAIN_0_0_4)


def _require_access(token: str) -> None:
    """Require the token; if none is set, a client on this machine. Raises: Unauthorized, NotFound."""
    if token:
        scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(presented.encode(), token.encode()):
            raise Unauthorized
        return
    # Behind a proxy on the same machine all clients have a loopback address.
    forwarded = any(name in request.headers for name in ("X-Forwarded-For", "Forwarded"))
    if forwarded or not ipaddress.ip_address(request.remote_addr or "0.0.0.0").is_loopback:  # noqa: S104 - matches no client
        raise NotFound


class _ServiceCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        ports = app_state().ports
        yield from _counter_metrics(ports.counters)
        yield from _gauge_metrics(ports)
        build = (VERSION, platform.python_version())
        yield _gauge("build_info", "1, with the version of the service and of Python.", {build: 1}, "version", "python")


def _counter_metrics(store: CounterStore) -> Iterator[Metric]:
    """Yield counters and histograms; none while Redis is down, since zero would be wrong."""
    counters.flush(store)
    totals = counters.totals(store)
    yield _gauge("redis_up", "Whether Redis responds.", {(): int(totals is not None)})
    if totals is None:
        return
    for metric in counters.collect():
        names = {f"{metric.name}{suffix}" for suffix in ("_total", "_bucket", "_count", "_sum")}
        metric.samples = sorted((sample for sample in totals if sample.name in names), key=_exposition_order)
        if metric.samples:
            yield metric


def _exposition_order(sample: Sample) -> tuple[list[str], str, Decimal]:
    labels = [value for label, value in sorted(sample.labels.items()) if label != "le"]
    return labels, sample.name, Decimal(sample.labels.get("le", "inf"))


def _gauge_metrics(ports: Ports) -> Iterator[Metric]:
    depths = {name.value: depth for name, depth in ports.queue.depths().items()}
    yield _gauge("queue_jobs", "Jobs waiting.", depths, "queue")
    refusals = ports.signer.refusals() if ports.signer else None
    refused = {} if refusals is None else {(): refusals}
    yield _gauge("signer_refusals", "Requests that signer processes have refused.", refused)
    yield _gauge("signer_up", "Whether the signer process responds.", {(): len(refused)} if ports.signer else {})
    gauges: list[Metric] = []
    with suppress(SQLAlchemyError):
        with read_only_unit() as session:
            # Of the database itself: a replica's are older.
            ages, text = leases.ages(session), "Seconds since the last heartbeat of a process of this kind."
        due = deliveries.count_due()
        gauges.append(_gauge("heartbeat_age_seconds", text, ages, "process"))
        gauges.append(_gauge("deliveries_due", "Webhooks, mailboxes and browsers with something to send.", {(): due}))
    yield _gauge("database_up", "Whether the database responds.", {(): int(bool(gauges))})
    # A replica that has just disappeared says nothing about the database.
    with suppress(SQLAlchemyError), read_only_unit(report_engine()) as session:
        gauges += _database_gauges(session)
    yield from gauges


def _database_gauges(session: Session) -> Iterator[Metric]:
    found = credit_accounts.totals(session)
    credit = {"available": found.available_nanos, "held": found.held_nanos, "spent": found.spent_nanos}
    pending = balances.pending(session)
    reserves, now = settlement_capacity.reserves(session), clock.now()
    chains, failed = [row.chain for row in reserves], settlement_risks.failed_by_chain(session)
    treasury = {"owed": Decimal(earnings.owed_nanos(session)) / NANOS_PER_USD}
    treasury_units = [row.treasury_units for row in reserves if row.treasury_units is not None]
    if treasury_units and app_state().settings.payouts_enabled:
        treasury["balance"] = Decimal(sum(treasury_units)) / 10**USDC.decimals
    gauges: tuple[tuple[str, str, Mapping[Any, int | Decimal], tuple[str, ...]], ...] = (
        ("credits_usd", "Credits of all accounts by state.",
         {state: Decimal(nanos) / NANOS_PER_USD for state, nanos in credit.items()}, ("bucket",)),
        ("pending_transactions", "Pending transactions at least this many seconds old.",
         {(each.type, each.chain, str(age)): number for each in pending for age, number in each.by_age.items()},
         ("type", "chain", "older_than")),
        ("pending_oldest_seconds", "Age of the oldest pending transaction.",
         {(each.type, each.chain): each.oldest_seconds for each in pending}, ("type", "chain")),
        ("settlement_capacity",
         "Signed payments that the settlement key could still submit, by its gas when last read.",
         {row.chain: row.submissions_left for row in reserves}, ("chain",)),
        ("treasury_usd", "USDC of the treasury, when last read, and what sellers are owed.", treasury, ("which",)),
        ("settlement_capacity_age_seconds", "Seconds since the settlement key's gas was last read.",
         {row.chain: max(0, int((now - row.read_at).total_seconds())) for row in reserves}, ("chain",)),
        ("settlement_failed_usd",
         "Network fees of the last 24 hours for signed payments that failed on the chain, in dollars.",
         {chain: Decimal(failed[chain]) / NANOS_PER_USD for chain in {*chains, *failed}}, ("chain",)),
        ("payments_reversed", "Signed payments that were served, and that a reorg permanently reversed.",
         dict.fromkeys(chains, 0) | claimed_payments.reversed_by_chain(session), ("chain",)),
        ("approvals_awaiting",
         "Payments that wait for an owner: all, and those whose owner no notice has reached after a minute.",
         approvals.count_unnoticed(session, now), ("which",)),
        ("open_purchases", "Purchases in progress.", purchases.count_open_by_status(session), ("status",)),
    )  # fmt: skip
    return (_gauge(name, text, values, *labels) for name, text, values, labels in gauges)


def _gauge(name: str, text: str, values: Mapping[Any, int | Decimal], *labels: str) -> Metric:
    """Return a gauge; the keys of `values` are tuples of labels, or the only label."""
    family = GaugeMetricFamily(f"purser_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key if isinstance(key, tuple) else (key,), value)  # type: ignore[arg-type] # written with its own digits
    return family
