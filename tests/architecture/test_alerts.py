"""The alerts of `deploy/prometheus`, checked and run by promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deployed import ROOT
from tests.support.programs import installed

RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
CONNECTIONS = 'purser_process_use_bucket{resource="database_connections", le='
CASES: list[tuple[str, dict[str, str], list[dict[str, Any]]]] = [
    (
        "PurserProcessFull",
        {f'{CONNECTIONS}"0.9"}}': "0+1x60", f'{CONNECTIONS}"1"}}': "0+12x60", f'{CONNECTIONS}"+Inf"}}': "0+12x60"},
        [{"severity": "warning", "resource": "database_connections"}],
    ),
    (
        "PurserProcessFull",
        {f'{CONNECTIONS}"0.9"}}': "0+12x60", f'{CONNECTIONS}"1"}}': "0+12x60", f'{CONNECTIONS}"+Inf"}}': "0+12x60"},
        [],
    ),
    ("PurserDeliveriesGrow", {"purser_deliveries_due": "101x60"}, [{"severity": "warning"}]),
    ("PurserDeliveriesGrow", {"purser_deliveries_due": "500x50 0 500x8"}, []),
    ("PurserCallsUnpaid", {"purser_unpaid_usd_total": "0+0.03x60"}, [{"severity": "warning"}]),
    ("PurserCallsUnpaid", {"purser_unpaid_usd_total": "0+0.01x60"}, []),
    ("PurserLockouts", {"purser_lockouts_total": "0+1x60"}, [{"severity": "warning"}]),
    ("PurserDefect", {'purser_requests_total{code="TRANSFER_FAILED", route="/r"}': "0+1x60"}, []),
    (
        "PurserDefect",
        {'purser_requests_total{code="INTERNAL_ERROR", route="/r"}': "0+1x60"},
        [{"severity": "critical", "route": "/r"}],
    ),
    (
        "PurserTreasuryShort",
        {'purser_treasury_usd{which="balance"}': "5x60", 'purser_treasury_usd{which="owed"}': "6x60"},
        [{"severity": "warning"}],
    ),
]  # fmt: skip


def promtool(*arguments: object) -> str:
    """Run it; return its output if it succeeds."""
    command = [installed("promtool", package="prometheus"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    assert f"SUCCESS: {len(group['rules'])} rules found" in promtool("check", "rules", RULES)
    promtool("check", "config", "--syntax-only", RULES.with_name("prometheus.yml"))


@pytest.mark.parametrize(("name", "series", "alerts"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_an_alert_fires_when_it_says_so_and_not_otherwise(
    tmp_path: Path, name: str, series: dict[str, str], alerts: list[dict[str, Any]]
) -> None:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    # Prometheus compares the texts too, which are not what this test is about.
    rules = [{**rule, "annotations": {}} for rule in group["rules"]]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{**group, "rules": rules}]}))
    test = {
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "alert_rule_test": [
            {"eval_time": "60m", "alertname": name, "exp_alerts": [{"exp_labels": labels} for labels in alerts]}
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [test]}))
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "test.yml")
