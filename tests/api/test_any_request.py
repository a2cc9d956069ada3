"""Requests by the service's own document, right and wrong: the answers are those that it promises, no others."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks

from app.adapters.evm.chain import EvmChain
from app.core import heartbeats
from app.core.chains import ChainName
from app.core.heartbeats import Heart
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.applications import key_of
from tests.support.chains import RECIPIENT
from tests.support.fake_shopper import FakeShopper
from tests.support.gateway import KEYS, provider_settings
from tests.support.logs import written_logs
from tests.support.market import SPEC, offer
from tests.support.operators import Operator, operator
from tests.support.upstreams import misbehaving_upstream

pytestmark = [pytest.mark.chain, pytest.mark.timeout(300)]
SEED = int(os.environ.get("ANY_REQUEST_SEED", "1"))
EXAMPLES = int(os.environ.get("ANY_REQUEST_EXAMPLES", "4"))
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
FORESEEN = {
    (500, "TRANSFER_FAILED", "/v1/wallets/{wallet_id}/transfer"),
    (500, "TRANSFER_FAILED", "/v1/credits/topup"),
    (500, "WITHDRAWAL_FAILED", "/v1/wallets/{wallet_id}/withdraw"),
    (500, "SWAP_FAILED", "/v1/wallets/{wallet_id}/swap"),
    (500, "BRIDGE_FAILED", "/v1/wallets/{wallet_id}/bridge"),
    (501, "NOT_IMPLEMENTED", "/v1/trading/perpdex"),
    (502, "PERPDEX_ERROR", "/v1/trading/perpdex"),
    (502, "BALANCE_FETCH_ERROR", "/v1/wallets/{wallet_id}/balances"),
    (502, "UPSTREAM_ERROR", "/v1/proxy/{service_id}/{path}"),
}
"""Failures that are not the caller's, and where each may stand: services, the exchange and Solana are away."""
_SECRET = "canary-of-the-secret-key-0123456789"
_CODE = re.compile(r"`([A-Z_]+)`")


@dataclass
class Scene:
    """Somebody of each kind, things that are theirs, and what was found to be wrong so far."""

    app: Flask
    agent: Agent
    ops: Operator
    claim_code: str
    problems: list[str] = field(default_factory=list)

    def keys(self, path: str) -> dict[str, str]:
        return self.ops.headers() if path.startswith("/v1/platform") else self.agent.headers()

    def existing(self, path: str, method: str) -> dict[str, str]:
        """Return names of things that exist, for a path; of what a request may take away, fresh ones."""
        takes_away, client = method.upper() == "DELETE", self.agent.client
        makers: dict[str, Callable[[], str]] = {
            "wallet_id": lambda: (register(client) if takes_away else self.agent).wallet_id,
            "service_id": self._service,
            "agent_id": lambda: register(client).id,
            "key_id": self._new_master_key if "master-keys" in path else self._new_gateway_key,
            "provider": lambda: "brave",
            "path": lambda: "web/search",
        }
        return {name: make() for name, make in makers.items() if f"{{{name}}}" in path}

    def _service(self) -> str:
        listed = self.agent.get("/v1/services").get_json()["services"]
        return str(listed[0]["id"]) if listed else self._made(self.agent.post("/v1/services", offer()))

    def _new_master_key(self) -> str:
        return self._made(self.ops.post("/master-keys", {"name": "spare"}))

    def _new_gateway_key(self) -> str:
        return self._made(self.agent.client.post("/v1/keys", json={}))

    @staticmethod
    def _made(answer: Any) -> str:
        assert answer.status_code == 201, answer.get_data(as_text=True)
        return str(answer.get_json()["id"])

    def complete(self, body: Any, *, but: int) -> None:
        """Put what makes sense in all fields of a body but one."""
        sensible = {
            "chain": "base", "to": RECIPIENT, "amount": "0.001", "currency": "ETH", "input_token": "ETH",
            "output_token": "USDC", "source_chain": "base", "destination_chain": "ethereum", "token": "ETH",
            "wallet_id": self.agent.wallet_id, "walletId": self.agent.wallet_id, "symbol": "ETH", "side": "buy",
            "price": "3000", "action": "order", "base_url": "http://127.0.0.1:1", "url": "http://127.0.0.1:1/p",
            "price_per_call_usd": 0.5, "openapi_spec": SPEC, "code": self.claim_code, "max_total_usd": 30,
            "daily_limit_usd": 1000, "allowed_addresses": [], "allowed_domains": ["shop.example"],
        }  # fmt: skip
        present = sorted(sensible.keys() & body.keys())
        for place, name in enumerate(present):
            if place != but % len(present):
                body[name] = sensible[name]


@pytest.fixture
def scene(
    each_database_url: str,
    build_app: Callable[..., Flask],
    chains: dict[ChainName, EvmChain],
    base_node: EvmNode,
) -> Iterator[Scene]:
    with misbehaving_upstream() as upstream:
        own = provider_settings(upstream.url, secret_key=_SECRET)
        app = build_app(each_database_url, settings=own, chains=chains, shopper=FakeShopper())
        with app.app_context():
            client = app.test_client()
            agent, ops = register(client), operator(client)
            code = agent.post("/v1/agents/claim-code", {}).get_json()["claimCode"]
            agent.unlimited()
            base_node.fund_eth(agent.address, 10**18)
            yield Scene(app, agent, ops, code)


def test_whatever_is_asked_is_answered_as_the_document_says(scene: Scene) -> None:
    schema = schemathesis.openapi.from_wsgi("/openapi.json", scene.app)
    # Keys are ours to choose: made-up ones never get past the door.
    schema.config.generation.with_security_parameters = False
    with written_logs() as lines:
        for found in schema.get_all_operations():
            operation = found.ok()
            heartbeats.beat(Heart.SHOPPER)
            _ask(scene, operation, GenerationMode.POSITIVE)
            # Any text will do for a path and a header.
            if operation.body or operation.query:
                _ask(scene, operation, GenerationMode.NEGATIVE)
        written = lines()
    scene.problems += [f"logged: {line}" for line in written if line["event"] == "request_failed"]
    told = str(written)
    for secret in (
        _SECRET,
        key_of("k1").split(":")[1],
        key_of("p1").split(":")[1],
        scene.agent.key,
        scene.ops.key,
    ):
        assert secret not in told
    assert not scene.problems, "\n".join(scene.problems)


def _wrong(case: schemathesis.Case, answer: Any) -> Iterator[str]:
    """Compare an answer with what the document says of this operation, and with what the contract foresees."""
    status, said = answer.status_code, f"{answer.status_code} {answer.content[:300]!r}"
    if any(secret.encode() in answer.content for secret in (_SECRET, *KEYS.values())):
        yield f"a secret: {said}"
    try:
        case.validate_response(answer, checks=CHECKS)
    except FailureGroup as group:
        yield from (f"{failure.title} {failure.message}: {said}" for failure in group.exceptions)
    if status < 400 or answer.headers.get("content-type") != ["application/json"]:
        return
    body = answer.json()
    if set(body) < {"error", "code", "request_id"}:
        # An upstream's own answer.
        return
    code, documented = body["code"], case.operation.definition.raw["responses"].get(str(status), {})
    if code not in _CODE.findall(documented.get("description", "")):
        yield f"{code} is not what the document has for this status: {said}"
    if status >= 500 and (status, code, case.path) not in FORESEEN:
        yield f"{code} is not foreseen here: {said}"


def _ask(scene: Scene, operation: Any, mode: GenerationMode) -> None:
    asked = 0

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case: schemathesis.Case) -> None:
        nonlocal asked
        asked += 1
        if asked % 4 and case.path_parameters:
            case.path_parameters.update(scene.existing(case.path, case.method))
        if asked % 2 == 0 and isinstance(case.body, dict):
            scene.complete(case.body, but=asked // 2)
        for headers in [scene.keys(case.path), *([{}] if asked == 1 else [])]:
            answer = case.call(headers=headers)
            scene.problems += [
                f"{case.method} {case.path} ({asked}): {problem}" for problem in _wrong(case, answer)
            ]

    # Where there is nothing to choose, there is nothing to do wrong.
    with suppress(Unsatisfiable):
        one()
