"""Support for tests of the gateway: a misbehaving upstream, the service in front of it, an agent with credits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flask import Flask
from sqlalchemy import select
from werkzeug.test import EnvironBuilder, TestResponse

from app.credits import accounts as credit_accounts
from app.credits.accounts import Balance
from app.credits.models import CreditHold
from app.db.unit_of_work import read_only_unit
from tests.support.agents import Agent, register
from tests.support.upstreams import Behaviour, MisbehavingUpstream, misbehaving_upstream

KEYS = {
    "openai": "sk-operator-openai", "anthropic": "sk-operator-anthropic", "gemini": "operator-gemini",
    "openrouter": "sk-operator-openrouter", "alchemy": "operator-alchemy", "coingecko": "operator-coingecko",
    "brave": "operator-brave", "exa": "operator-exa", "tavily": "operator-tavily", "groq": "sk-operator-groq",
}  # fmt: skip
# The path of each base URL, as at the real provider.
BASES = {
    "openai": "/v1", "anthropic": "", "gemini": "", "openrouter": "/api/v1", "groq": "/openai/v1",
    "alchemy": "/v2/{network}/{key}", "coingecko": "/api/v3", "brave": "/res/v1", "exa": "", "tavily": "",
}  # fmt: skip
QUESTION = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1000}
CHAT = "/v1/gateway/openai/chat/completions"
SEARCH = "/v1/gateway/brave/web/search?q=agents"
SEARCH_NANOS = 5_000_000


@dataclass(frozen=True, slots=True)
class Stage:
    """The upstream, the service and the agent of a test."""

    upstream: MisbehavingUpstream
    app: Flask
    agent: Agent

    def behave(self, behaviour: Behaviour) -> None:
        self.upstream.behave = behaviour

    def call(self, path: str, method: str = "GET", **request: Any) -> TestResponse:
        headers = {"X-API-Key": self.agent.key, **request.pop("headers", {})}
        return self.agent.client.open(path, method=method, headers=headers, **request)

    def chat(self, headers: dict[str, str] | None = None, **more: Any) -> TestResponse:
        return self.call(CHAT, "POST", json={**QUESTION, **more}, headers=headers or {})

    @contextmanager
    def stream(self, path: str = CHAT, **more: Any) -> Iterator[Iterator[bytes]]:
        """Make a streaming call as a server does; yield its chunks. Leaving the block disconnects the client."""
        builder = EnvironBuilder(path, method="POST", json={**QUESTION, "stream": True, **more})
        environ = {**builder.get_environ(), "HTTP_X_API_KEY": self.agent.key}
        started: list[str] = []

        def start_response(status: str, *_rest: object) -> Any:
            started.append(status)

        pieces = self.app.wsgi_app(environ, start_response)
        try:
            assert started == ["200 OK"]
            yield iter(pieces)
        finally:
            pieces.close()  # type: ignore[attr-defined]

    def search(self, **request: Any) -> TestResponse:
        return self.call(SEARCH, **request)

    def spent_nanos(self) -> int:
        return self._balance().spent_nanos

    def held_nanos(self) -> int:
        return self._balance().held_nanos

    def open_holds(self) -> int:
        with read_only_unit() as session:
            return len(session.scalars(select(CreditHold.id).where(CreditHold.state == "held")).all())

    def usage(self) -> list[dict[str, Any]]:
        logs: list[dict[str, Any]] = self.agent.get("/v1/usage").get_json()["logs"]
        return logs

    def assert_nothing_held(self) -> None:
        assert (self.held_nanos(), self.open_holds()) == (0, 0)

    def assert_all_agree(self) -> None:
        """Check that balance, usage and ledger agree to the last digit."""
        self.assert_nothing_held()
        balance = self.agent.get("/v1/balance").get_json()
        usage = self.agent.get("/v1/usage").get_json()
        logged = round(sum(round(entry["cost_usd"] * 10**9) for entry in usage["logs"]))
        summed = sum(round(totals["total_cost"] * 10**9) for totals in usage["summary"]["by_provider"].values())
        assert self.spent_nanos() == logged == summed == round(balance["total_spent"] * 10**9)
        assert round(balance["credits_usd"] * 10**9) == 10 * 10**9 - logged

    def _balance(self) -> Balance:
        with read_only_unit() as session:
            return credit_accounts.balance(session, self.agent.id)


def provider_settings(url: str, **more: Any) -> dict[str, Any]:
    """Return settings that direct every provider to one host, under the paths of the real base URLs."""
    settings: dict[str, Any] = {f"{name}_api_key": key for name, key in KEYS.items()}
    settings |= {f"{name}_base_url": f"{url}{base}" for name, base in BASES.items()}
    return {**settings, "upstream_connect_timeout_seconds": "20", "upstream_read_timeout_seconds": "60", **more}


@contextmanager
def gateway_stage(build_app: Callable[..., Flask], database_url: str, **settings: Any) -> Iterator[Stage]:
    """Set the stage, in its application's context."""
    with misbehaving_upstream() as upstream:
        app = build_app(database_url, settings=provider_settings(upstream.url, **settings))
        with app.app_context():
            yield Stage(upstream, app, register(app.test_client()))
