"""The files of `deploy`, as tests read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
# Grafana's variable for a range that fits the zoom.
_RANGE = "$__rate_interval"


def compose_services() -> dict[str, dict[str, Any]]:
    """Return the services of compose.yaml by name."""
    services: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return services


def queries() -> Iterator[tuple[str, str]]:
    """Yield each query of the alerts and dashboards, and the texts in which Prometheus or Grafana insert its labels."""
    [group] = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())["groups"]
    for rule in group["rules"]:
        yield rule["expr"], str(rule["annotations"]).replace("$labels.", "")
    for path in (ROOT / "deploy/grafana/dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield target["expr"].replace(_RANGE, "5m"), target["legendFormat"]
