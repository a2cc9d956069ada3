"""Renamed log events and metrics are also published under their former names, for one release."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from app.observability import former_names, logs
from app.status.metrics import _former_metrics
from server.hooks import ShedReason
from tests.support.logs import written_logs

ROOT = Path(__file__).resolve().parents[2]


def test_a_renamed_event_is_logged_with_its_former_name() -> None:
    logs.configure("INFO")
    with written_logs() as lines:
        log = structlog.get_logger("app.test")
        log.warning("queue_recovered")
        log.warning("never_renamed")
        renamed, other = lines()
    assert (renamed["event"], renamed["former_event"]) == ("queue_recovered", "queue_reachable_again")
    assert "former_event" not in other


def test_a_renamed_metric_is_copied_under_its_former_name() -> None:
    reversed_payments = GaugeMetricFamily("purser_payments_reversed", "Reversed.", labels=["chain"])
    reversed_payments.add_metric(["base"], 3)
    unchanged = GaugeMetricFamily("purser_redis_up", "Up.")
    (copy,) = (*_former_metrics(reversed_payments), *_former_metrics(unchanged))
    (sample,) = copy.samples
    assert (copy.name, sample.name) == ("purser_payments_lost", "purser_payments_lost")
    assert (sample.labels, sample.value) == ({"chain": "base"}, 3)


@pytest.mark.parametrize(
    ("reason", "former"), [(ShedReason.IDLE, "rested"), (ShedReason.STREAM_TOO_LONG, "stream_too_long")]
)
def test_shed_connections_keep_their_former_label(reason: ShedReason, former: str) -> None:
    shed = CounterMetricFamily("purser_connections_shed", "Shed.", labels=["reason"])
    shed.add_metric([reason.value], 2)
    (copy,) = _former_metrics(shed)
    (sample,) = copy.samples
    assert (sample.name, sample.labels, sample.value) == ("purser_callers_let_go_total", {"why": former}, 2)


def test_each_name_in_the_table_is_used_and_each_former_name_is_free() -> None:
    listed = subprocess.check_output(
        ["git", "grep", "-hoE", '"[a-z_0-9]+"', "app", "server", "workers"], cwd=ROOT, text=True
    )
    used = set(listed.replace('"', "").split())
    for names in (former_names.EVENTS, former_names.METRICS):
        assert not set(names) - used
        assert not set(names) & set(names.values())
        assert len(set(names.values())) == len(names)
