"""Requests by the service's own document, right and wrong: the answers are those that it promises, no others."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks

from app.adapters.evm.chain import EvmChain
from app.adapters.upstream_http.exchange import HttpUpstream
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
from workers import purchases

pytestmark = [pytest.mark.chain, pytest.mark.timeout(300)]
SEED = int(os.environ.get("ANY_REQUEST_SEED", "1"))
EXAMPLES_PER_FIELD = int(os.environ.get("ANY_REQUEST_EXAMPLES_PER_FIELD", "2"))
# Of one operation, beside the request that has to succeed: a busy machine asks less, it does not take longer.
SECONDS = float(os.environ.get("ANY_REQUEST_SECONDS", "0.2"))
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
ORDER = {
    "url": "https://shop.example/p/1", "credentials": {"username": "ada@example.com", "password": "secret"},
    "shippingAddress": {"name": "Ada Buyer", "zip": "94107"}, "max_total_usd": 30,
}  # fmt: skip
SENSIBLE = {"POST /v1/wallets/{wallet_id}/bridge": {"source_chain": "ethereum", "destination_chain": "base"}}
"""Where what makes sense elsewhere does not."""
QUERIES = {"GET /v1/device/info": ("code",)}
NEVER_SERVED = {"POST /v1/trading/perpdex"}
"""Operations that cannot succeed here: the exchange is away."""
_SECRET = "canary-of-the-secret-key-0123456789"
_CODE = re.compile(r"`([A-Z_]+)`")


@dataclass
class Scene:
    """Somebody of each kind, things that are theirs, and what was found to be wrong so far."""

    app: Flask
    agent: Agent
    ops: Operator
    upstream_url: str
    claim_code: str = ""
    problems: list[str] = field(default_factory=list)
    served: set[str] = field(default_factory=set)
    bought: dict[str, Any] = field(init=False)
    _numbers: Iterator[int] = field(default_factory=lambda: count(2))

    def keys(self, path: str) -> dict[str, str]:
        return self.ops.headers() if path.startswith("/v1/platform") else self.agent.headers()

    def existing(self, path: str, method: str) -> dict[str, str]:
        """Return names of things that exist, for a path; of what a request may take away, fresh ones."""
        takes_away, client = method.upper() == "DELETE", self.agent.client
        makers: dict[str, Callable[[], str]] = {
            "wallet_id": lambda: (
                self._made(self.agent.post("/v1/wallets", {})) if takes_away else self.agent.wallet_id
            ),
            "service_id": self._service,
            "agent_id": lambda: register(client).id,
            "key_id": self._new_master_key if "master-keys" in path else self._new_gateway_key,
            "provider": lambda: "brave",
            "path": lambda: "web/search",
            "transaction_id": lambda: str(self.agent.history()[0]["id"]),
            "purchase_id": self._purchase if "cancel" in path else lambda: self.bought["id"],
            "evidence_id": lambda: self.bought["evidence"][0]["url"].rpartition("/")[2].partition(".")[0],
        }
        return {name: make() for name, make in makers.items() if f"{{{name}}}" in path}

    def _service(self) -> str:
        listed = self.agent.get("/v1/services").get_json()["services"]
        return (
            str(listed[0]["id"])
            if listed
            else self._made(self.agent.post("/v1/services", offer(base_url=self.upstream_url)))
        )

    def _purchase(self) -> str:
        """Order something that nobody has ordered yet."""
        page = f"https://shop.example/p/{next(self._numbers)}"
        made = self.agent.post("/v1/gateway/shopping/buy", {**ORDER, "url": page})
        assert made.status_code == 202, made.text
        return str(made.get_json()["id"])

    def buys(self) -> dict[str, Any]:
        purchase_id = self._purchase()
        purchases.buy(purchase_id)
        found: dict[str, Any] = self.agent.get(f"/v1/gateway/shopping/purchases/{purchase_id}").get_json()
        return found

    def _new_master_key(self) -> str:
        return self._made(self.ops.post("/master-keys", {"name": "spare"}))

    def _new_gateway_key(self) -> str:
        return self._made(self.agent.client.post("/v1/keys", json={}))

    @staticmethod
    def _made(answer: Any) -> str:
        assert answer.status_code == 201, answer.get_data(as_text=True)
        return str(answer.get_json()["id"])

    def ask(self, case: schemathesis.Case, headers: dict[str, str] | None = None) -> None:
        answer = case.call(headers=self.keys(case.path) if headers is None else headers)
        if answer.status_code < 300:
            self.served.add(case.operation.label)
        asked = f"{case.method} {case.path}"
        self.problems += [f"{asked}: {problem}" for problem in _wrong(case, answer)]

    def sensible(self) -> dict[str, Any]:
        """Return what makes sense in a field of this name."""
        return {
            "chain": "base", "to": RECIPIENT, "amount": "0.001", "currency": "ETH", "input_token": "ETH",
            "output_token": "USDC", "source_chain": "base", "destination_chain": "ethereum", "token": "ETH",
            "wallet_id": self.agent.wallet_id, "walletId": self.agent.wallet_id, "symbol": "ETH", "side": "buy",
            "price": "3000", "action": "order", "base_url": self.upstream_url, "agent_ids": [self.agent.id],
            "price_per_call_usd": 0.5, "openapi_spec": SPEC, "code": self.claim_code, "max_total_usd": 30,
            "daily_limit_usd": 1000, "allowed_addresses": [], "allowed_domains": [],
            **ORDER, "name": "Ada", "credits_usd": 1, "limit": 1, "offset": 0,
        }  # fmt: skip

    def complete(self, fields: Any, *, but: int | None) -> None:
        """Put what makes sense in all fields but one; in all that there are, and nothing else, with none left out."""
        if but is None:
            return
        sensible, names = self.sensible(), sorted(fields)
        for place, name in enumerate(names):
            if name in sensible and place != but % (len(names) + 1):
                fields[name] = sensible[name]


@pytest.fixture
def scene(
    each_database_url: str,
    build_app: Callable[..., Flask],
    chains: dict[ChainName, EvmChain],
    base_node: EvmNode,
    ethereum_node: EvmNode,
) -> Iterator[Scene]:
    with misbehaving_upstream() as upstream:
        own = provider_settings(upstream.url, secret_key=_SECRET)
        app = build_app(
            each_database_url,
            settings=own,
            chains=chains,
            shopper=FakeShopper(),
            public_upstream=HttpUpstream(connect_seconds=1, read_seconds=2),
        )
        with app.app_context():
            client = app.test_client()
            agent, ops = register(client), operator(client)
            agent.unlimited()
            for node in (base_node, ethereum_node):
                node.fund_eth(agent.address, 10**18)
            heartbeats.beat(Heart.SHOPPER)
            made = Scene(app, agent, ops, upstream.url)
            assert ops.post(f"/agents/{agent.id}/credits", {"credits_usd": 1000}).status_code < 300
            made.bought = made.buys()
            assert agent.move("0.001", "ETH").status_code == 200
            yield made


def test_whatever_is_asked_is_answered_as_the_document_says(scene: Scene) -> None:
    schema = schemathesis.openapi.from_wsgi("/openapi.json", scene.app)
    # Keys are ours to choose: made-up ones never get past the door.
    schema.config.generation.with_security_parameters = False
    with written_logs() as lines:
        asked = set()
        for found in schema.get_all_operations():
            operation = found.ok()
            asked.add(operation.label)
            heartbeats.beat(Heart.SHOPPER)
            _ask_sensibly(scene, operation)
            _ask(scene, operation, GenerationMode.POSITIVE)
            # Any text will do for a path and a header.
            if operation.body or operation.query:
                _ask(scene, operation, GenerationMode.NEGATIVE)
        written = lines()
        scene.problems += [
            f"never answered with success: {one}" for one in asked - scene.served - NEVER_SERVED
        ]
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


def _ask_sensibly(scene: Scene, operation: Any) -> None:
    """Ask about what exists, for what makes sense; and once as nobody."""
    if "/device/" in operation.path:
        made = scene.agent.client.post("/v1/agents/register", json={}).get_json()
        scene.claim_code = made["claimCode"]
    sensible, fields = scene.sensible() | SENSIBLE.get(operation.label, {}), _fields(operation)
    case = operation.Case(
        path_parameters=scene.existing(operation.path, operation.method),
        query={name: sensible[name] for name in QUERIES.get(operation.label, ())},
        **({"body": {name: sensible[name] for name in fields if name in sensible}} if operation.body else {}),
    )
    scene.ask(case)
    scene.ask(case, headers={})


def _ask(scene: Scene, operation: Any, mode: GenerationMode) -> None:
    ends, fields = time.monotonic() + SECONDS, _fields(operation)

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES_PER_FIELD * max(len(fields), 1), deadline=None, database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        case=operation.as_strategy(generation_mode=mode),
        exists=strategies.sampled_from([True, True, True, False]),
        free=strategies.none() | strategies.integers(0, len(fields)),
    )
    def one(case: schemathesis.Case, exists: bool, free: int | None) -> None:  # noqa: FBT001 - drawn
        if time.monotonic() > ends:
            raise _TimeIsOverError
        if exists and case.path_parameters:
            case.path_parameters.update(scene.existing(case.path, case.method))
        if isinstance(case.body, dict):
            scene.complete(case.body, but=free)
        scene.ask(case)

    # Where there is nothing to choose, there is nothing to do wrong.
    with suppress(Unsatisfiable, _TimeIsOverError):
        one()


class _TimeIsOverError(Exception):
    """Nothing is wrong: the other operations have their turn."""


def _fields(operation: Any) -> list[str]:
    """Return the names of what may be sent in a body or a query."""
    found = {str(parameter.name) for parameter in operation.query}
    content = operation.definition.raw.get("requestBody", {}).get("content", {})
    for shape in (each.get("schema", {}) for each in content.values()):
        name = shape.get("$ref", "").rpartition("/")[2]
        whole = operation.schema.raw_schema["components"]["schemas"][name] if name else shape
        for each in [whole, *whole.get("anyOf", []), *whole.get("oneOf", [])]:
            found |= set(each.get("properties", {}))
    return sorted(found)
