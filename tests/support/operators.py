"""An operator that calls the API with a master key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app.audit_log import actors, trail
from app.audit_log.trail import AuditEntryRow
from app.core.pagination import PageRequest
from app.db.unit_of_work import read_only_unit
from app.idempotency.service import Claim
from app.identity.principal import MasterKeyRole
from app.platform import keys
from tests.support.agents import Agent


@dataclass(frozen=True, slots=True)
class Operator:
    """The holder of a master key."""

    client: FlaskClient
    id: str
    key: str

    def headers(self, **more: str) -> dict[str, str]:
        return {"X-Master-Key": self.key, **{name.replace("_", "-"): value for name, value in more.items()}}

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> TestResponse:
        return self.client.open(f"/v1/platform{path}", method=method, json=body, headers=self.headers(**headers))

    def get(self, path: str) -> TestResponse:
        return self.ask("GET", path)

    def post(self, path: str, body: object = None, **headers: str) -> TestResponse:
        return self.ask("POST", path, body, **headers)

    def put(self, path: str, body: object = None) -> TestResponse:
        return self.ask("PUT", path, body)

    def patch(self, path: str, body: object = None) -> TestResponse:
        return self.ask("PATCH", path, body)

    def delete(self, path: str) -> TestResponse:
        return self.ask("DELETE", path)

    def make_agent(self, **body: Any) -> Agent:
        """Create an agent."""
        answer = self.post("/agents", body)
        assert answer.status_code == 201, answer.get_data(as_text=True)
        made = answer.get_json()
        addresses = made["wallet"]["addresses"]
        return Agent(
            self.client, made["agentId"], made["apiKey"], made["wallet"]["id"], addresses["base"],
            addresses["solana"],
        )  # fmt: skip

    def with_client(self, app: Flask) -> Operator:
        """Return the same operator with a new client: clients are not thread-safe."""
        return Operator(app.test_client(), self.id, self.key)


def operator(client: FlaskClient, name: str = "ops", *, role: MasterKeyRole = MasterKeyRole.ADMIN) -> Operator:
    """Create a master key as the command line does."""
    made = keys.create_master_key(actors.shell_actor(), name=name, role=role, owner_email=None, claim=Claim.none())
    return Operator(client, made.id, made.key)


def entries(*, action: str | None = None, subject_id: str | None = None) -> list[AuditEntryRow]:
    """Return the trail, the oldest entry first."""
    with read_only_unit() as session:
        page, _ = trail.list_entries(session, PageRequest(10_000, 0), action=action, subject_id=subject_id)
        return list(reversed(page.items))
