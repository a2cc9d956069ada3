"""The setup of the catalog's tests: a seller with a service on loopback, a buyer with credits, the service between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from flask import Flask
from sqlalchemy import select
from werkzeug.test import TestResponse

from app.adapters.upstream_http.exchange import HttpUpstream
from app.core.chains import ChainName
from app.credits import accounts as credit_accounts
from app.credits.models import CreditHold
from app.db.unit_of_work import read_only_unit
from app.ports.chain import Chain
from tests.support.agents import Agent, register
from tests.support.payments import facilitator_of
from tests.support.upstreams import Behaviour, MisbehavingUpstream, misbehaving_upstream

SPEC: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Weather", "version": "1"},
    "paths": {
        "/weather/{city}": {
            "parameters": [{"$ref": "#/components/parameters/City"}],
            "get": {
                "summary": "Current weather of a city",
                "operationId": "weather",
                "parameters": [{"name": "units", "in": "query", "schema": {"type": "string", "enum": ["c", "f"]}}],
                "responses": {"200": {"description": "The weather."}},
            },
        },
        "/reports": {
            "post": {
                "description": "Send a report.\nMore of it.",
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Report"}}}},
                "responses": {"201": {"description": "Taken."}},
            }
        },
    },
    "components": {
        "parameters": {
            "City": {
                "name": "city",
                "in": "path",
                "required": True,
                "schema": {"type": "string"},
                "example": "São Paulo",
            }
        },
        "schemas": {
            "Report": {
                "type": "object",
                "required": ["city"],
                "properties": {"city": {"type": "string"}, "next": {"$ref": "#/components/schemas/Report"}},
            }
        },
    },
}
PRICE_NANOS = 250_000_000


def offer(**changes: Any) -> dict[str, Any]:
    """Return the body of a registration."""
    return {
        "name": "City weather",
        "description": "Current weather of any city.",
        "base_url": "http://127.0.0.1:9/api",
        "price_per_call_usd": 0.25,
        "category": "weather",
        **changes,
    }


@dataclass(frozen=True, slots=True)
class Market:
    """All parties of a proxied call."""

    upstream: MisbehavingUpstream
    app: Flask
    seller: Agent
    buyer: Agent
    service: dict[str, Any]

    @property
    def id(self) -> str:
        service_id: str = self.service["id"]
        return service_id

    @property
    def secret(self) -> str:
        secret: str = self.service["signing_secret"]
        return secret

    def behave(self, behaviour: Behaviour) -> None:
        self.upstream.behave = behaviour

    def call(self, path: str = "/weather/Berlin", method: str = "GET", **request: Any) -> TestResponse:
        headers = {"X-API-Key": self.buyer.key, **request.pop("headers", {})}
        return self.buyer.client.open(f"/v1/proxy/{self.id}{path}", method=method, headers=headers, **request)

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self.seller.get(f"/v1/services/{self.id}/stats").get_json()
        return stats

    def change(self, **changes: Any) -> None:
        answer = self.seller.put(f"/v1/services/{self.id}", changes)
        assert answer.status_code == 200, answer.get_data(as_text=True)

    def spent_nanos(self) -> int:
        with read_only_unit() as session:
            return credit_accounts.balance(session, self.buyer.id).spent_nanos

    def assert_charged(self, calls: int) -> None:
        """Check that credits, usage and the seller's statistics show this many calls, and that nothing is held."""
        with read_only_unit() as session:
            assert session.scalars(select(CreditHold.id).where(CreditHold.state == "held")).all() == []
        assert self.spent_nanos() == calls * PRICE_NANOS
        logs = [row for row in self.buyer.get("/v1/usage").get_json()["logs"] if row["cost_usd"]]
        assert [row["provider"] for row in logs] == [f"service:{self.id}"] * calls
        stats = self.stats()
        assert (stats["total_calls"], stats["total_revenue_usd"]) == (calls, calls * 0.25)
        assert (stats["last_24h"]["calls"], stats["last_24h"]["revenue_usd"]) == (calls, calls * 0.25)


def sell(seller: Agent, **changes: Any) -> dict[str, Any]:
    """Register a service and return the answer."""
    answer = seller.post("/v1/services", offer(**changes))
    assert answer.status_code == 201, answer.get_data(as_text=True)
    service: dict[str, Any] = answer.get_json()
    return service


@contextmanager
def market(
    build_app: Callable[..., Flask],
    database_url: str,
    *,
    base_path: str = "/api",
    read_seconds: Decimal = Decimal(60),
    chains: Mapping[ChainName, Chain] | None = None,
    **settings: Any,
) -> Iterator[Market]:
    """Set everything up, in its application's context; services may be on loopback, payments come on `chains`."""
    paid = (
        {"chains": dict(chains), "facilitators": {name: facilitator_of(each) for name, each in chains.items()}}
        if chains
        else {}
    )
    with misbehaving_upstream() as upstream:
        app = build_app(
            database_url,
            settings=settings,
            public_upstream=HttpUpstream(connect_seconds=Decimal(20), read_seconds=read_seconds),
            **paid,
        )
        with app.app_context():
            client = app.test_client()
            seller, buyer = register(client), register(client)
            service = sell(seller, base_url=upstream.url + base_path)
            yield Market(upstream, app, seller, buyer, service)
