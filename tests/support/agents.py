"""An agent that calls the API, with shortcuts for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app.core.chains import ChainName
from tests.support.chains import RECIPIENT


@dataclass(frozen=True, slots=True)
class Agent:
    """A registered agent with its first wallet."""

    client: FlaskClient
    id: str
    key: str
    wallet_id: str
    address: str
    solana_address: str

    @property
    def wallet_url(self) -> str:
        return f"/v1/wallets/{self.wallet_id}"

    def headers(self, **more: str) -> dict[str, str]:
        return {"X-API-Key": self.key, **{name.replace("_", "-"): value for name, value in more.items()}}

    def get(self, path: str, **query: Any) -> TestResponse:
        return self.client.get(path, headers=self.headers(), query_string=query)

    def post(self, path: str, body: object = None, **headers: str) -> TestResponse:
        return self.client.post(path, json=body, headers=self.headers(**headers))

    def put(self, path: str, body: object = None) -> TestResponse:
        return self.client.put(path, json=body, headers=self.headers())

    def delete(self, path: str) -> TestResponse:
        return self.client.delete(path, headers=self.headers())

    def move(
        self,
        amount: object,
        currency: str,
        *,
        how: str = "transfer",
        chain: str = "base",
        to: str = RECIPIENT,
        options: Mapping[str, object] | None = None,
        **headers: str,
    ) -> TestResponse:
        body = {"amount": amount, "currency": currency, "chain": chain, "to": to, **(options or {})}
        return self.post(f"{self.wallet_url}/{how}", body, **headers)

    def controls(self, **limits: Any) -> None:
        answer = self.put(f"{self.wallet_url}/controls", limits)
        assert answer.status_code == 200, answer.get_data(as_text=True)

    def unlimited(self) -> None:
        """Remove every limit."""
        self.controls(daily_limit_usd=0, weekly_limit_usd=0, monthly_limit_usd=0, per_tx_limit_usd=0)

    def spent_this_month(self) -> float:
        """Return what counts against the monthly limit: a test may pass midnight, or travel past it."""
        spent: float = self.get(f"{self.wallet_url}/controls").get_json()["usage_month"]["spent_usd"]
        return spent

    def history(self, **query: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.get(f"{self.wallet_url}/transactions", **query).get_json()["transactions"]
        return rows

    def transaction(self, transaction_id: str) -> dict[str, Any]:
        row: dict[str, Any] = self.get(f"{self.wallet_url}/transactions/{transaction_id}").get_json()
        return row


def register(client: FlaskClient, **body: Any) -> Agent:
    """Register an agent."""
    answer = client.post("/v1/agents/register", json=body)
    assert answer.status_code == 201, answer.get_data(as_text=True)
    made = answer.get_json()
    addresses = made["wallet"]["addresses"]
    return Agent(
        client,
        made["agentId"],
        made["apiKey"],
        made["wallet"]["id"],
        addresses[ChainName.BASE],
        addresses[ChainName.SOLANA],
    )
