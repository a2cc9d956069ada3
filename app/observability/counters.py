"""Counters and histograms of this process. Their increases are added up for all processes every few seconds.

Labels are routes, chains and services, never ids: a client must not be able to create series. They are passed in the
declared order, which is faster than by name. The result of `labels()` must not be kept: a fork resets the metrics.
"""

import atexit
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import TypeVar

from prometheus_client import Counter, Histogram, Metric, disable_created_metrics
from prometheus_client.samples import Sample

from app.ports.services import CounterStore

_MAX_SERIES = 10_000
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

M = TypeVar("M", Counter, Histogram)

disable_created_metrics()  # type: ignore[no-untyped-call]
_declared: list[Counter | Histogram] = []
_lock = threading.Lock()
_flushed: dict[tuple[str, ...], list[Sample]] = {}


def _declare(kind: type[M], name: str, text: str, *labels: str, buckets: Sequence[float] = _BUCKETS) -> M:
    initialise = partial(kind, f"purser_{name}", text, labels, registry=None)
    if kind is Histogram:
        initialise.keywords["buckets"] = buckets
    metric: M = initialise()
    _declared.append(metric)
    # The parent flushes its counts, and a lock that another of its threads holds is never released in the child.
    os.register_at_fork(after_in_child=lambda: vars(metric).update(vars(initialise())))
    return metric


REQUESTS = _declare(
    Counter, "requests", "Requests answered, by route, status and code of the error.", "method", "route", "status",
    "code",
)  # fmt: skip
REQUEST_SECONDS = _declare(
    Histogram, "request_seconds", "Time until a response is ready; of a stream, its head.", "method", "route"
)
UPSTREAM_SECONDS = _declare(
    Histogram, "upstream_seconds", "Time until the head of an upstream's response.", "outcome", "upstream"
)
RPC_SECONDS = _declare(Histogram, "rpc_seconds", "Time of a call to a chain's endpoint.", "chain", "endpoint")
RPC_FAILURES = _declare(
    Counter, "rpc_failures", "Calls to a chain's endpoint without a usable response.", "chain", "endpoint", "reason"
)
KEY_SECONDS = _declare(Histogram, "key_seconds", "Time of each use of a KMS or HSM.", "key", "operation", "outcome")
CONNECTIONS_SHED = _declare(Counter, "connections_shed", "Connections shed or evicted, by reason.", "reason")
JOBS_REJECTED = _declare(
    Counter, "jobs_rejected", "Queue entries that are not jobs of this service: another program writes to its Redis."
)
AUDIT_VIOLATIONS = _declare(
    Counter, "audit_violations", "Violations that audits found: sums that differ, changed rows, a changed audit log."
)
LOCKOUTS = _declare(Counter, "lockouts", "Networks locked out for wrong keys or codes.")
REVENUE_USD = _declare(Counter, "revenue_usd", "What calls were charged when they ended, in dollars.", "provider")
UNPAID_USD = _declare(Counter, "unpaid_usd", "What calls cost above what their accounts held, in dollars.")
PROCESS_USE = _declare(
    Histogram, "process_use", "Shares in use of what a web process has, every five seconds.", "resource",
    buckets=(0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1),
)  # fmt: skip
PROCESS_MEMORY = _declare(
    Histogram, "process_memory_bytes", "Resident memory of a web process, every five seconds.",
    buckets=tuple(number * 10**8 for number in (1, 2, 4, 8, 16, 32)),
)  # fmt: skip
UNTRUSTED_FORWARDED_HEADERS = _declare(
    Counter, "untrusted_forwarded_headers", "Requests with proxy headers while TRUSTED_PROXY_HOPS is 0."
)


def flush(store: CounterStore) -> None:
    """Store the increases since the last flush; keep them for the next one if that fails."""
    with _lock:
        current: dict[tuple[str, ...], list[Sample]] = {}
        for sample in (sample for metric in collect() for sample in metric.samples):
            labels = [value for label, value in sample.labels.items() if label != "le"]
            if "le" in sample.labels:
                # Written without ".0": another spelling would be another series.
                sample.labels["le"] = sample.labels["le"].removesuffix(".0")
            current.setdefault((sample.name.removesuffix("_bucket"), *labels), []).append(sample)
        increases = {
            json.dumps([sample.name, sample.labels]): sample.value - (before.value if before else 0)
            for child, samples in current.items()
            if samples != _flushed.get(child)
            # All buckets of a histogram, so that none is missing in a store that was emptied.
            for sample, before in zip_longest(samples, _flushed.get(child, ()))
        }
        if increases and store.add(increases):
            _flushed.update(current)
        if len(current) > _MAX_SERIES:
            for metric in _declared:
                metric.clear()
            for name, *labels in current:
                if labels:
                    _flushed.pop((name, *labels), None)


def totals(store: CounterStore) -> list[Sample] | None:
    """Return the counts of all processes, or None while the store cannot be read."""
    sums = store.totals()
    if sums is None:
        return None
    return [Sample(name, labels, sums[series]) for series in sums for name, labels in [json.loads(series)]]


def collect() -> Iterator[Metric]:
    for metric in _declared:
        yield from metric.collect()


def start(store: CounterStore, measure: Callable[[], None]) -> None:
    """Measure and flush every five seconds from now on; flush when the process ends. For long-running processes."""

    def run() -> None:
        while not stopped.wait(5):
            measure()
            flush(store)

    stopped = threading.Event()
    threading.Thread(target=run, name="counters", daemon=True).start()
    atexit.register(flush, store)


def _reset_after_fork() -> None:
    global _lock, _flushed
    _lock, _flushed = threading.Lock(), {}


os.register_at_fork(after_in_child=_reset_after_fork)
