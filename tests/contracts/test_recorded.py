"""Recorded answers of live systems are replayed to the service's own requests: what it could read, it still reads.

`RECORD_UPSTREAMS=tests/contracts/recorded flask --app wsgi doctor --live` adds a file; without any, nothing is checked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import time_machine
from flask import Flask

from app.ports.probes import RECORD
from app.status import live as live_checks
from sandbox.evm import EvmNode
from tests.support.gateway import KEYS, provider_settings
from tests.support.live_systems import World, application, live, running_world
from tests.support.loopback_http import Asked, Reply, serve

RECORDED = sorted(Path(__file__).with_name("recorded").glob("*.json"))


def replay(run: dict[str, Any], build: Callable[[dict[str, Any]], Flask]) -> list[tuple[str, str, str]]:
    """Send the requests of a run again, and return system, capability and the result with its remark."""
    waiting: list[dict[str, Any]] = []

    def answer(asked: Asked) -> Reply:
        recorded = waiting.pop(0)
        assert recorded["request"].startswith(f"{asked.method} ")
        return Reply(json.dumps(recorded["body"]).encode(), recorded["status"], recorded["headers"])

    endpoints = Counter(system.partition(" ")[0] for system in {each["system"] for each in run["probes"]})
    found = []
    with serve(answer) as server:
        app = build(_settings(run["network"], server.url, endpoints))
        with app.app_context():
            probes = {(probe.system, probe.capability): probe for probe in live_checks.all_probes()}
            for recorded in run["probes"]:
                if not recorded["exchanges"]:
                    continue  # it was not run, or nothing is configured
                waiting[:] = recorded["exchanges"]
                probe = probes[recorded["system"], recorded["capability"]]
                with time_machine.travel(recorded["run_at"], tick=True):
                    (row,) = live_checks.run_all([probe], only=(), budget_nanos=10**12, seconds=30)
                found.append((row.system, row.capability, f"{row.result}: {row.remark}"))
    return found


def _settings(network: str, url: str, endpoints: Counter[str]) -> dict[str, Any]:
    chains = {
        f"{chain}_rpc_url": ",".join([url] * max(1, endpoints[chain])) for chain in ("ethereum", "base", "solana")
    }
    services = (
        "jupiter_base_url",
        "perpdex_base_url",
        "cctp_attestation_url",
        "relay_base_url",
        "lifi_base_url",
    )
    unlimited = dict.fromkeys(("jupiter_rate_limit", "relay_rate_limit", "lifi_rate_limit"), "")
    return provider_settings(url, network=network, **chains, **dict.fromkeys(services, url), **unlimited)


@pytest.fixture
def build(build_app: Callable[..., Flask], sqlite_url: str) -> Callable[[dict[str, Any]], Flask]:
    return lambda settings: application(build_app, sqlite_url, settings)


def test_recorded_answers_are_still_read(build: Callable[[dict[str, Any]], Flask]) -> None:
    for path in RECORDED:
        results = replay(json.loads(path.read_text()), build)
        assert [row for row in results if not row[2].startswith("works")] == [], path.name


@pytest.fixture
def world(ethereum_node: EvmNode, base_node: EvmNode) -> Iterator[World]:
    """Stand-ins of all systems."""
    with running_world(ethereum_node, base_node) as running:
        running.reset()
        yield running


@pytest.mark.chain
def test_the_answers_of_a_run_are_recorded_without_secrets_and_replayed(
    world: World, build: Callable[[dict[str, Any]], Flask], tmp_path: Path
) -> None:
    def quote_key(exchange: Any) -> None:
        exchange.json({"data": [{"id": "model-of-canary"}], "owner": "canary", "type": KEYS["openai"]})

    first_answer = world.upstream.behave
    world.upstream.behave = lambda exchange: (
        quote_key(exchange) if exchange.asked.target == "/v1/models" else first_answer(exchange)
    )
    result = live(build({**world.settings, "record_upstreams": str(tmp_path / "new")}), "--spend-up-to", "1")
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "new").iterdir()
    text = path.read_text()
    assert not [secret for secret in (*KEYS.values(), "canary") if secret in text]
    run = json.loads(text)
    replayed = replay(run, build)
    assert [row for row in replayed if not row[2].startswith("works")] == []
    assert len(replayed) == len([each for each in run["probes"] if each["exchanges"]]) > 60

    (quote,) = (each for each in run["probes"] if each["system"] == "lifi")
    del quote["exchanges"][0]["body"]["transactionRequest"]
    differing = [row for row in replay(run, build) if not row[2].startswith("works")]
    assert differing == [
        ("lifi", "ETH from base to ethereum", "differs: quote_unavailable: there is no 'transactionRequest'")
    ]


@pytest.mark.chain
def test_only_the_doctor_records(world: World, build: Callable[[dict[str, Any]], Flask], tmp_path: Path) -> None:
    app = build({**world.settings, "record_upstreams": str(tmp_path / "new")})
    assert RECORD.get(None) is None
    assert app.state.ports.perpdex is not None  # type: ignore[attr-defined]
    live(build(world.settings), "--only", "hyperliquid")
    assert not (tmp_path / "new").exists()
    assert RECORD.get(None) is None
