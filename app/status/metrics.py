"""`GET /metrics` for Prometheus: what all processes counted, and what the database and the queues hold right now.

Whichever web process is asked tells about the whole service: behind a host's router nobody can choose one.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

import structlog
from flask import Blueprint, Response, request
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from sqlalchemy.exc import SQLAlchemyError

from app.core import heartbeats
from app.core.money import NANOS_PER_USD
from app.core.tallies import BOUNDS_MICROSECONDS, SUM
from app.core.unit_of_work import reading
from app.credits import service as credits_
from app.errors import NotFound, Unauthorized
from app.extensions import limiter
from app.payments import claims, readiness
from app.ports import provider
from app.shopping import service as purchases
from app.status import handover
from app.wallets import backlog

metrics = Blueprint("metrics", __name__)
_log = structlog.get_logger(__name__)

_MICRO = 1_000_000
_COUNTERS = {
    "requests": "Requests answered, by route and status.",
    "rpc_failures": "Exchanges with a chain's endpoint that gave no usable answer.",
    "forwarded_unbelieved": "Requests that name a proxy before us while TRUSTED_PROXY_HOPS is 0.",
}
_HISTOGRAMS = {
    "request_seconds": "Time until an answer is ready; of a stream, its head.",
    "upstream_seconds": "Time until the head of an upstream's answer.",
    "rpc_seconds": "Time of an exchange with a chain's endpoint.",
}


@metrics.get("/metrics")
@limiter.exempt
def get_metrics() -> Response:
    """Answer with Prometheus' text format."""
    _check_door()
    registry = CollectorRegistry()
    registry.register(_Families([*_counted(), *_standing()]))
    return Response(generate_latest(registry), content_type=CONTENT_TYPE_PLAIN_0_0_4)


def _check_door() -> None:
    """Let in who knows METRICS_TOKEN; where none is set, whoever asks from this very machine.

    Raises: Unauthorized, NotFound.
    """
    token = provider.settings().metrics_token.get_secret_value()
    if token:
        kind, _, shown = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(shown.encode(), token.encode()):
            raise Unauthorized
        return
    # Behind a proxy on the same machine everybody comes from loopback.
    forwarded = any(name in request.headers for name in ("X-Forwarded-For", "Forwarded"))
    if forwarded or not ipaddress.ip_address(request.remote_addr or "0.0.0.0").is_loopback:  # noqa: S104 - nobody
        raise NotFound


class _Families:
    """What the registry asks for its metrics."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


@dataclass(frozen=True, slots=True)
class _Series:
    name: str
    labels: Mapping[str, str]
    rest: str | None


def _counted() -> Iterator[Metric]:
    """Yield counters and histograms; none while they cannot be read, so that they do not seem to be zero."""
    sums = provider.current().tallies
    handover.hand_over(sums)
    totals = sums.totals()
    yield _gauge("redis_up", "Whether Redis answers.", {(): int(totals is not None)})
    if totals is None:
        return
    read = [(_parsed(series), amount) for series, amount in sorted(totals.items())]
    for name, text in _COUNTERS.items():
        of_name = [(series, amount) for series, amount in read if series.name == name]
        if of_name:
            names = tuple(of_name[0][0].labels)
            counter = CounterMetricFamily(f"purser_{name}", text, labels=names)
            for series, amount in of_name:
                counter.add_metric([series.labels.get(label, "") for label in names], amount)
            yield counter
    for name, text in _HISTOGRAMS.items():
        if histogram := _histogram(name, text, read):
            yield histogram


def _histogram(name: str, text: str, read: list[tuple[_Series, int]]) -> Metric | None:
    by_labels: dict[tuple[tuple[str, str], ...], dict[str, int]] = {}
    for series, amount in read:
        if series.name == name and series.rest is not None:
            by_labels.setdefault(tuple(series.labels.items()), {})[series.rest] = amount
    if not by_labels:
        return None
    names = tuple(label for label, _ in next(iter(by_labels)))
    family = HistogramMetricFamily(name=f"purser_{name}", documentation=text, labels=names)
    bounds = [str(Decimal(bound) / _MICRO) for bound in BOUNDS_MICROSECONDS] + ["+Inf"]
    for labels, counts in by_labels.items():
        below, buckets = 0, []
        for place, bound in enumerate(bounds):
            below += counts.get(str(place), 0)
            buckets.append((bound, below))
        family.add_metric([value for _, value in labels], buckets, Decimal(counts.get(SUM, 0)) / _MICRO)  # type: ignore[arg-type] # written with str()
    return family


def _parsed(series: str) -> _Series:
    name, *parts = series.split("\t")
    labels = dict(part.split("=", 1) for part in parts if "=" in part)
    rest = parts[-1] if parts and "=" not in parts[-1] else None
    return _Series(name, labels, rest)


def _standing() -> Iterator[Metric]:
    """Yield what is true right now."""
    depths = provider.current().queue.depths()
    yield _gauge(
        "queue_jobs", "Jobs that wait.", {(name.value,): depth for name, depth in depths.items()}, "queue"
    )
    try:
        with reading():
            found = list(_stored())
    except SQLAlchemyError:
        found = []
    yield _gauge("database_up", "Whether the database answers.", {(): int(bool(found))})
    yield from found


def _stored() -> Iterator[Metric]:
    """Yield what the database says, in the current unit."""
    sums = credits_.totals()
    yield _gauge(
        "credits_usd",
        "Credits of all accounts by where they are.",
        {
            (bucket,): Decimal(nanos) / NANOS_PER_USD
            for bucket, nanos in (
                ("available", sums.available_nanos), ("held", sums.held_nanos), ("spent", sums.spent_nanos)
            )
        },
        "bucket",
    )  # fmt: skip
    pending = backlog.pending()
    yield _gauge(
        "pending_transactions",
        "Transactions at status pending that are at least so many seconds old.",
        {
            (each.type, each.chain, str(age)): number
            for each in pending
            for age, number in each.by_age.items()
        },
        "type", "chain", "older_than",
    )  # fmt: skip
    yield _gauge(
        "pending_oldest_seconds",
        "Age of the oldest transaction at status pending.",
        {(each.type, each.chain): each.oldest_seconds for each in pending},
        "type", "chain",
    )  # fmt: skip
    supplies = readiness.noted()
    yield _gauge(
        "settlements_left",
        "Signed payments that the settlement key could still submit, by the gas that it held when last looked at.",
        {(chain,): number for chain, (number, _) in supplies.items()},
        "chain",
    )
    yield _gauge(
        "settlements_left_age_seconds",
        "Seconds since the settlement key's gas was looked at.",
        {(chain,): age for chain, (_, age) in supplies.items()},
        "chain",
    )
    yield _gauge(
        "payments_lost",
        "Signed payments that were served, and that a reorganisation undid for good.",
        _keyed({**dict.fromkeys(supplies, 0), **claims.lost_by_chain()}),
        "chain",
    )
    yield _gauge("open_purchases", "Purchases under way.", _keyed(purchases.open_by_status()), "status")
    yield _gauge(
        "heartbeat_age_seconds",
        "Seconds since a process of this kind was last alive.",
        _keyed(heartbeats.ages()),
        "process",
    )


def _keyed(values: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(key,): value for key, value in values.items()}


def _gauge(name: str, text: str, values: Mapping[tuple[str, ...], int | Decimal], *labels: str) -> Metric:
    family = GaugeMetricFamily(f"purser_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)  # type: ignore[arg-type] # written with its own digits
    return family
