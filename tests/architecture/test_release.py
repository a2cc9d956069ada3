"""One version everywhere, and the files of a release."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from flask.testing import FlaskClient

from app.version import VERSION
from clients import generate

ROOT = Path(__file__).resolve().parents[2]


def test_the_service_its_document_and_its_clients_have_one_version(client: FlaskClient) -> None:
    package = json.loads((ROOT / "clients/typescript/package.json").read_text())
    lock = json.loads((ROOT / "clients/typescript/package-lock.json").read_text())
    [python] = re.findall(r'^VERSION = "(.+)"$', (generate.PACKAGE / "version.py").read_text(), re.MULTILINE)
    chart = yaml.safe_load((ROOT / "deploy/helm/purser/Chart.yaml").read_text())
    versions = {
        "chart": chart["version"],
        "image of the chart": chart["appVersion"],
        "document": client.get("/openapi.json").get_json()["info"]["version"],
        "health": client.get("/v1/health").get_json()["version"],
        "TypeScript": package["version"],
        "its lock": lock["version"],
        "Python": python,
    }
    assert {name: found for name, found in versions.items() if found != VERSION} == {}


def test_the_changelog_begins_with_the_release() -> None:
    released = re.findall(r"^## \[(.+?)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == VERSION
    assert released[-1] == "1.0.0"


def test_comparison_and_policy_are_short() -> None:
    assert len((ROOT / "docs/versioning.md").read_bytes()) <= 3000
    assert len((ROOT / "docs/comparison.md").read_bytes()) <= 8000
