"""Request ids in the logs of sweeps and workers that continue the work of a request later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask

from app.core import clock
from app.core.chains import ETH, USDC, ChainName
from app.db import leases
from app.db.leases import ProcessKind
from app.shopping import maintenance
from app.wallets.deposits import funding, scanner
from app.wallets.transactions import confirmation
from tests.support.agents import Agent, register
from tests.support.machines import Ground, ground_for
from workers.context import job


class Lines(logging.Handler):
    """Collects log entries of structlog."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, dict):
            self.kept.append(dict(record.msg))

    def about(self, request_id: str) -> list[tuple[str, str]]:
        return [(line["event"], line["status"]) for line in self.kept if line.get("caused_by") == request_id]


@pytest.fixture
def ground(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Ground]:
    ground = ground_for(build_app, sqlite_url)
    with ground.app.app_context():
        yield ground


@pytest.fixture
def lines(ground: Ground) -> Iterator[Lines]:
    assert ground
    lines = Lines()
    logging.getLogger().addHandler(lines)
    yield lines
    logging.getLogger().removeHandler(lines)


@pytest.fixture
def agent(ground: Ground) -> Agent:
    made = register(ground.app.test_client())
    ground.chain.give(made.address, USDC, 100 * 10**6)
    ground.chain.give(made.address, ETH, 10**18)
    return made


@job
def look() -> None:
    """Run a worker pass with its own request id."""
    scanner.scan(ChainName.BASE)
    confirmation.confirm(ChainName.BASE)


@job
def sweep(days: int) -> None:
    """Run the sweep some days later."""
    later = clock.now() + timedelta(days=days)
    funding.fail_expired(later)
    maintenance.sweep(later)


def test_logs_of_a_deposit_carry_the_request_id_of_its_funding_request(
    ground: Ground, agent: Agent, lines: Lines
) -> None:
    body = {"amount": "5", "currency": "USDC", "chain": "base"}
    asked = agent.post(f"{agent.wallet_url}/fund", body)
    ground.chain.pay(agent.address, USDC, 5 * 10**6)
    ground.chain.mine(3)
    look()
    assert lines.about(asked.headers["X-Request-Id"]) == [("transaction_status_changed", "confirmed")]


def test_logs_of_the_sweep_carry_the_request_ids_of_expired_requests(agent: Agent, lines: Lines) -> None:
    leases.record(ProcessKind.SHOPPER)
    body = {"amount": "5", "currency": "USDC", "chain": "base"}
    asked = agent.post(f"{agent.wallet_url}/fund", body)
    wanted = {"url": "https://shop.example/p/1", "shippingAddress": {"name": "Ann", "zip": "12345"}}
    bought = agent.post("/v1/gateway/shopping/buy", wanted)
    assert (asked.status_code, bought.status_code) == (200, 202), bought.get_json()
    sweep(8)
    assert lines.about(asked.headers["X-Request-Id"]) == [("transaction_status_changed", "failed")]
    assert lines.about(bought.headers["X-Request-Id"]) == [("purchase_status_changed", "failed")]
