"""Agents that buy from web services by x402, on the chain of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flask import Flask
from werkzeug.test import TestResponse

from app.adapters.upstream_http.exchange import HttpUpstream
from tests.support.agents import Agent, register
from tests.support.drivers import ChainDriver, SolanaDriver
from tests.support.sellers import ScriptedSeller, scripted_seller
from tests.support.solana_sellers import solana_seller
from tests.support.upstreams import Exchange


@dataclass(frozen=True, slots=True)
class Buyer:
    """An agent with a dollar of USDC and no native token, which buys from a seller."""

    app: Flask
    agent: Agent
    driver: ChainDriver

    @property
    def node(self) -> Any:
        return self.driver.node

    def fetch(self, url: str, *, key: str | None = None, wait: int | None = None, **body: Any) -> TestResponse:
        """Buy; `wait` is for a payment that stays pending, because all others are awaited for seconds."""
        headers = {} if key is None else {"Idempotency_Key": key}
        headers |= {} if wait is None else {"Prefer": f"wait={wait}"}
        order = {"url": url, "max_amount_usd": 0.05, **body}
        return self.agent.post(f"{self.agent.wallet_url}/x402/fetch", order, **headers)

    def payment(self, url: str, **how: Any) -> dict[str, Any]:
        """Fetch, and return the payment of the answer."""
        body = self.fetch(url, **how).get_json()
        assert "payment" in body, body
        found: dict[str, Any] = body["payment"]
        return found

    def get(self, path: str) -> Any:
        answer = self.agent.get(self.agent.wallet_url + path)
        assert answer.status_code == 200, answer.get_json()
        return answer.get_json()

    def row(self) -> Mapping[str, Any]:
        """Return the only transaction."""
        [found] = self.agent.history()
        return found

    def spent(self) -> float:
        return self.agent.spent_this_month()

    def dollars(self) -> int:
        return self.driver.dollars(self.driver.address(self.agent))

    def run_workers(self, *, minutes: int = 1) -> None:
        self.driver.run_workers(minutes=minutes)

    def expire(self) -> None:
        self.driver.expire()


@contextmanager
def buyer_on(build_app: Callable[..., Flask], database_url: str, driver: ChainDriver) -> Iterator[Buyer]:
    app = build_app(
        database_url,
        settings={"allow_private_upstreams": True, "confirmation_wait_seconds": "5"},
        chains={driver.name: driver.real},
        public_upstream=HttpUpstream(connect_seconds=5, read_seconds=30),
    )
    with app.app_context():
        agent = register(app.test_client())
        driver.fund(driver.address(agent), native=0, dollars=1)
        yield Buyer(app, agent, driver)


@contextmanager
def seller_on(driver: ChainDriver) -> Iterator[ScriptedSeller]:
    opened: Any = solana_seller if isinstance(driver, SolanaDriver) else scripted_seller
    with opened(driver.node) as made:
        yield made


def refused(answer: TestResponse, code: str) -> Mapping[str, Any]:
    body: dict[str, Any] = answer.get_json()
    assert body["code"] == code, body
    return body


def keep(kept: list[Mapping[str, Any]]) -> Callable[[ScriptedSeller, Exchange, Mapping[str, Any]], None]:
    """Return the behaviour of a seller that keeps a payment and does not use it."""

    def behave(_shop: ScriptedSeller, exchange: Exchange, payment: Mapping[str, Any]) -> None:
        kept.append(payment)
        exchange.json({"error": "later"}, 503)

    return behave


def settle_and_hang_up(shop: ScriptedSeller, exchange: Exchange, payment: Mapping[str, Any]) -> None:
    shop.settle(payment)
    exchange.hang_up()
