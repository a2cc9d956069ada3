"""Which request it was: what sweeps and workers do for somebody's row, minutes or days later, says so in the logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask

from app.core import clock, heartbeats
from app.core.chains import ETH, USDC, ChainName
from app.core.heartbeats import Heart
from app.shopping import sweeping
from app.wallets import deposits, funding, tracking
from tests.support.agents import Agent, register
from tests.support.machines import Ground, ground_for
from workers.context import job


class Lines(logging.Handler):
    """Keeps what is logged, as structlog hands it over."""

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
    """Do what a worker does for a chain, under an id of its own."""
    deposits.find(ChainName.BASE)
    tracking.confirm(ChainName.BASE)


@job
def sweep(days: int) -> None:
    """Do what the sweep does, some days later."""
    later = clock.now() + timedelta(days=days)
    funding.fail_expired(later)
    sweeping.sweep(later)


def test_a_deposit_found_by_a_worker_names_the_request_that_it_fulfils(
    ground: Ground, agent: Agent, lines: Lines
) -> None:
    body = {"amount": "5", "currency": "USDC", "chain": "base"}
    asked = agent.post(f"{agent.wallet_url}/fund", body)
    ground.chain.pay(agent.address, USDC, 5 * 10**6)
    ground.chain.mine(3)
    look()
    assert lines.about(asked.headers["X-Request-Id"]) == [("transaction_moved", "confirmed")]


def test_what_the_sweep_ends_names_the_requests_that_began_it(agent: Agent, lines: Lines) -> None:
    heartbeats.beat(Heart.SHOPPER)
    body = {"amount": "5", "currency": "USDC", "chain": "base"}
    asked = agent.post(f"{agent.wallet_url}/fund", body)
    wanted = {"url": "https://shop.example/p/1", "shippingAddress": {"name": "Ann", "zip": "12345"}}
    bought = agent.post("/v1/gateway/shopping/buy", wanted)
    assert (asked.status_code, bought.status_code) == (200, 202), bought.get_json()
    sweep(8)
    assert lines.about(asked.headers["X-Request-Id"]) == [("transaction_moved", "failed")]
    assert lines.about(bought.headers["X-Request-Id"]) == [("purchase_moved", "failed")]
