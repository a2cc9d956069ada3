"""Requests by the service's own document, right and wrong ones: the answers are those that it promises, and no others."""

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
from app.core.chains import ChainName
from tests.support.agents import Agent, register
from tests.support.applications import key_of
from tests.support.logs import written_logs
from tests.support.market import offer
from tests.support.operators import Operator, operator

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
    (500, "TRANSFER_FAILED"): "/transfer",
    (500, "WITHDRAWAL_FAILED"): "/withdraw",
    (500, "SWAP_FAILED"): "/swap",
    (500, "BRIDGE_FAILED"): "/bridge",
    (501, "NOT_IMPLEMENTED"): "/v1/trading/perpdex",
    (502, "PERPDEX_ERROR"): "/v1/trading/perpdex",
    (502, "BALANCE_FETCH_ERROR"): "/balances",
    (502, "UPSTREAM_ERROR"): "/v1/proxy/{service_id}/{path}",
    (503, "PROVIDER_NOT_CONFIGURED"): "/v1/gateway/",
}
"""Failures that are not the caller's, and where each may stand. The exchange, the upstreams and two chains are away."""
_SECRET = "canary-of-the-secret-key-0123456789"
_CODE = re.compile(r"`([A-Z_]+)`")


@dataclass
class Scene:
    """Somebody of each kind, things that are theirs, and what was found to be wrong so far."""

    app: Flask
    agent: Agent
    ops: Operator
    problems: list[str] = field(default_factory=list)

    def headers(self, path: str, who: str) -> dict[str, str]:
        if who == "nobody":
            return {}
        return self.ops.headers() if path.startswith("/v1/platform") else self.agent.headers()

    def existing(self, path: str, method: str) -> dict[str, str]:
        """Return names of things that exist, for a path; of what a request may take away, fresh ones."""
        takes_away = method.upper() == "DELETE" or path.startswith("/v1/platform")
        makers: dict[str, Callable[[], str]] = {
            "wallet_id": self._new_wallet if takes_away else lambda: self.agent.wallet_id,
            "service_id": self._new_service,
            "agent_id": lambda: register(self.agent.client).id,
            "key_id": self._new_master_key if "master-keys" in path else self._new_gateway_key,
            "provider": lambda: "brave",
            "path": lambda: "web/search",
        }
        return {name: make() for name, make in makers.items() if f"{{{name}}}" in path}

    def _new_wallet(self) -> str:
        return self._made(self.agent.post("/v1/wallets", {}))

    def _new_service(self) -> str:
        return self._made(self.agent.post("/v1/services", offer()))

    def _new_master_key(self) -> str:
        return self._made(self.ops.post("/master-keys", {"name": "spare"}))

    def _new_gateway_key(self) -> str:
        return self._made(self.agent.client.post("/v1/keys", json={}))

    @staticmethod
    def _made(answer: Any) -> str:
        assert answer.status_code == 201, answer.get_data(as_text=True)
        return str(answer.get_json()["id"])


@pytest.fixture
def scene(
    each_database_url: str, build_app: Callable[..., Flask], chains: dict[ChainName, EvmChain]
) -> Iterator[Scene]:
    app = build_app(each_database_url, settings={"secret_key": _SECRET}, chains=chains)
    with app.app_context():
        client = app.test_client()
        yield Scene(app, register(client), operator(client))


def test_whatever_is_asked_is_answered_as_the_document_says(scene: Scene) -> None:
    schema = schemathesis.openapi.from_wsgi("/openapi.json", scene.app)
    with written_logs() as lines:
        for found in schema.get_all_operations():
            operation = found.ok()
            for mode in GenerationMode:
                for who, examples in (("a key", EXAMPLES), ("nobody", 1)):
                    _ask(scene, operation, mode, who, examples)
        written = lines()
    scene.problems += [f"logged: {line}" for line in written if line["event"] == "request_failed"]
    told = str(written)
    for secret in (_SECRET, key_of("k1").split(":")[1], key_of("p1").split(":")[1], scene.agent.key, scene.ops.key):
        assert secret not in told
    assert not scene.problems, "\n".join(scene.problems)


def _wrong(case: schemathesis.Case, answer: Any) -> Iterator[str]:
    """Compare an answer with what the document says of this operation, and with what the contract foresees."""
    status, said = answer.status_code, f"{answer.status_code} {answer.content[:300]!r}"
    if _SECRET.encode() in answer.content:
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
    if status >= 500 and FORESEEN.get((status, code), "nowhere") not in case.path:
        yield f"{code} is not foreseen here: {said}"


def _ask(scene: Scene, operation: Any, mode: GenerationMode, who: str, examples: int) -> None:
    asked = 0

    @seed(SEED)
    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case: schemathesis.Case) -> None:
        nonlocal asked
        asked += 1
        if asked % 2 and case.path_parameters:
            case.path_parameters.update(scene.existing(case.path, case.method))
        answer = case.call(headers=scene.headers(case.path, who))
        scene.problems += [f"{case.method} {case.path} ({who}): {problem}" for problem in _wrong(case, answer)]

    with suppress(Unsatisfiable):
        one()
