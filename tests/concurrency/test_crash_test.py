"""The crash test that anyone can run against their own gateway: here, its race and its retries against this service."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks.crash.__main__ import main, table
from benchmarks.crash.scenarios import Row
from tests.support.gateway import provider_settings
from tests.support.servers import free_port
from tests.support.services import web_service

_AFFORDABLE = 8
_PRICE_NANOS = 12 * 150 + 100 * 600
_NEW_KEY = """
import json, sys, urllib.request
made = urllib.request.Request(sys.argv[1] + "/v1/keys", b"{}", {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(made))["api_key"])
"""
_SPENT = """
import json, os, sys, urllib.request
asked = urllib.request.Request(sys.argv[1] + "/v1/balance", headers={"X-API-Key": os.environ["CRASH_TEST_KEY"]})
print(json.load(urllib.request.urlopen(asked))["total_spent"])
"""


def test_a_race_and_a_retry_storm_at_the_limit_of_a_budget_overspend_nothing(sqlite_url: str, tmp_path: Path) -> None:
    upstream, report = free_port(), tmp_path / "report.json"
    credits_usd = f"{_AFFORDABLE * _PRICE_NANOS / 10**9:.9f}"
    settings = provider_settings(f"http://127.0.0.1:{upstream}", initial_credits_usd=credits_usd)
    with web_service(sqlite_url, settings) as service:

        def command(program: str) -> str:
            return shlex.join([sys.executable, "-c", program, service.url])

        status = main(
            [
                "--base-url", f"{service.url}/v1/gateway/openai", "--upstream-port", str(upstream), "--short",
                "--key-command", command(_NEW_KEY), "--spend-command", command(_SPENT), "--delay", "0.3",
                "--affordable", str(_AFFORDABLE), "--settle-seconds", "3", "--json", str(report),
            ]
        )  # fmt: skip
    rows = [Row(**row) for row in json.loads(report.read_text())]
    assert status == 0
    assert [row.scenario for row in rows] == ["race at the limit", "retry storm"]
    for row in rows:
        assert 0 < row.billed <= _AFFORDABLE
        assert row.overspent == 0
        assert row.unrecorded == 0
        assert row.answered + row.refused + row.unknown > _AFFORDABLE
    assert rows[0].answered == rows[0].billed
    assert rows[1].answered < rows[1].billed


@pytest.mark.parametrize(
    ("billed", "recorded", "overspent", "unrecorded"), [(48, 48.0, 0, 0), (60, 47.2, 12, 12.8), (40, 41.0, 0, -1)]
)
def test_the_table_compares_budget_bill_and_books(
    billed: int, recorded: float, overspent: int, unrecorded: float
) -> None:
    row = Row("a", "kill -9", 48, 40, 9, 3, billed=billed, repeated=0, recorded=recorded)
    assert (row.overspent, row.unrecorded) == (overspent, unrecorded)
    assert table([row]).splitlines()[-1] == (
        f"| a | kill -9 | 48 | 40 | 9 | 3 | {billed} | {overspent} | {unrecorded:g} |"
    )
