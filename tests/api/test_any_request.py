"""Valid and invalid requests generated from the OpenAPI document: all responses conform to it.

`UPDATE_DOCS=1` replaces the examples of the document by responses of this run, with secrets and long texts shortened.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
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
from app.buying.records import PinnedPayee
from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.db import leases
from app.db.leases import ProcessKind
from app.db.unit_of_work import unit_of_work
from app.gateway.providers.table import ProviderTable
from app.wallets.core import wallets
from app.web import openapi
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.applications import key_of
from tests.support.chains import RECIPIENT
from tests.support.fake_shopper import FakeShopper
from tests.support.gateway import KEYS, provider_settings
from tests.support.logs import written_logs
from tests.support.market import SPEC, offer
from tests.support.operators import Operator, operator
from tests.support.tiers import is_first_tier
from tests.support.upstreams import misbehaving_upstream
from workers import purchases

pytestmark = [pytest.mark.chain, pytest.mark.timeout(300)]
SEED = int(os.environ.get("ANY_REQUEST_SEED", "1"))
EXAMPLES_PER_FIELD = int(os.environ.get("ANY_REQUEST_EXAMPLES_PER_FIELD", "2"))
# Per operation, in addition to the request that has to succeed: a busy machine sends fewer, and takes no longer.
# The longer time on PostgreSQL in the second tier, which accepts less than SQLite, or when asked for.
SECONDS, SHORT_SECONDS = float(os.environ.get("ANY_REQUEST_SECONDS", "0.2")), 0.02
HAS_TIME = not {"ANY_REQUEST_SECONDS", "UPDATE_DOCS"}.isdisjoint(os.environ)
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
EXPECTED_ERRORS = {
    (500, "TRANSFER_FAILED", "/v1/wallets/{wallet_id}/transfer"),
    (500, "TRANSFER_FAILED", "/v1/credits/topup"),
    (500, "WITHDRAWAL_FAILED", "/v1/wallets/{wallet_id}/withdraw"),
    (500, "SWAP_FAILED", "/v1/wallets/{wallet_id}/swap"),
    (500, "BRIDGE_FAILED", "/v1/wallets/{wallet_id}/bridge"),
    (501, "NOT_IMPLEMENTED", "/v1/trading/perpdex"),
    (502, "PERPDEX_ERROR", "/v1/trading/perpdex"),
    (502, "BALANCE_FETCH_ERROR", "/v1/wallets/{wallet_id}/balances"),
    (502, "UPSTREAM_ERROR", "/v1/proxy/{service_id}/{path}"),
    (502, "UPSTREAM_ERROR", "/v1/wallets/{wallet_id}/x402/fetch"),
}
"""Server errors that are expected, by route: services, the exchange and Solana are unreachable."""
ORDER = {
    "url": "https://shop.example/p/1", "credentials": {"username": "ada@example.com", "password": "secret"},
    "shippingAddress": {"name": "Ada Buyer", "zip": "94107"}, "max_total_usd": 30,
}  # fmt: skip
HOOK = {"url": "https://hooks.example.com/x", "types": ["*"]}
VALID_VALUES = {"POST /v1/wallets/{wallet_id}/bridge": {"source_chain": "ethereum", "destination_chain": "base"}}
"""Valid values that differ from those of other operations."""
QUERIES = {"GET /v1/device/info": ("code",)}
NEVER_SERVED = {
    "POST /v1/trading/perpdex",
    "GET /v1/wallets/{wallet_id}/x402/purchases/{transaction_id}",
    *(f"{method} /v1/gateway/{{provider}}/{{path}}" for method in ("PUT", "PATCH", "DELETE")),
    *(f"POST /v1/{path}" for path in ("services/{service_id}/payouts", "services/{service_id}/refunds")),
    *(f"POST /v1/platform/services/{{service_id}}/{each}" for each in ("refunds", "write-off")),
    "POST /v1/platform/payments/{payment_id}/refund",
    *(f"POST /v1/{path}" for path in ("chat/completions", "messages", "responses", "embeddings")),
}
"""Operations that cannot succeed here: the exchange is unreachable, no provider has these methods, no model;
nothing was earned or paid for."""
_SECRET = "canary-of-the-secret-key-0123456789"
_SECRETS = re.compile(r"\b(ak|gw|mk|ok|sk|cr|whsec)_[\w+/=-]{16,}")
EXAMPLES = Path(openapi.__file__).with_name("examples.json")
FORWARDED_PATHS = ("/v1/gateway/{provider}/", "/v1/proxy/", "/v1/x402/services/")
_CODE = re.compile(r"`([A-Z_]+)`")


@dataclass
class Scene:
    """An agent and an operator, with their objects, and the problems found so far."""

    app: Flask
    agent: Agent
    ops: Operator
    upstream_url: str
    has_time: bool
    claim_code: str = ""
    problems: list[str] = field(default_factory=list)
    served: set[str] = field(default_factory=set)
    examples: dict[str, dict[str, Any]] = field(default_factory=dict)
    bought: dict[str, Any] = field(init=False)
    _numbers: Iterator[int] = field(default_factory=lambda: count(2))

    def keys(self, path: str) -> dict[str, str]:
        return self.ops.headers() if path.startswith("/v1/platform") else self.agent.headers()

    def existing(self, path: str, method: str) -> dict[str, str]:
        """Return ids of existing objects for a path; new ones for a request that deletes them."""
        deletes = method.upper() == "DELETE"
        makers: dict[str, Callable[[], str]] = {
            "wallet_id": lambda: self._made(self.agent.post("/v1/wallets", {})) if deletes else self.agent.wallet_id,
            "service_id": self._service,
            "agent_id": lambda: self._agent(path),
            "key_id": self._new_master_key if "master-keys" in path else lambda: self._key(path, deletes=deletes),
            "budget_id": self._budget,
            "provider": lambda: "brave",
            "path": lambda: "web/search",
            "model_id": lambda: "openai/gpt-5",
            "transaction_id": lambda: str(self.agent.history()[0]["id"]),
            "record_id": lambda: str(self.agent.history()[0]["id"]),
            "purchase_id": self._purchase if "cancel" in path else lambda: self.bought["id"],
            "domain": self._payee,
            "request_id": lambda: self.ops.get("/agents").headers["X-Request-Id"],
            "session_id": self._session,
            "approval_id": self._approval,
            "webhook_id": lambda: self._webhook(path),
            "payment_id": new_id,
            "evidence_id": lambda: self.bought["evidence"][0]["url"].rpartition("/")[2].partition(".")[0],
        }
        return {name: make() for name, make in makers.items() if f"{{{name}}}" in path}

    def _agent(self, path: str) -> str:
        if "/keys" in path:
            return self.agent.id
        client = self.agent.client
        made = client.post("/v1/agents/register", json={}).get_json()
        if path.endswith("/owner-recovery"):
            assert client.post("/v1/device/claim", json={"code": made["claimCode"]}).status_code == 200
        return str(made["agentId"])

    def _budget(self) -> str:
        return self._made(self.ops.post("/budgets", {"name": "team"}))

    def _service(self) -> str:
        listed = self.agent.get("/v1/services").get_json()["services"]
        return (
            str(listed[0]["id"])
            if listed
            else self._made(self.agent.post("/v1/services", offer(base_url=self.upstream_url)))
        )

    def _session(self) -> str:
        """Open a session of the agent's wallet."""
        later = clock.isoformat(clock.now() + timedelta(hours=1))
        body = {"max_usd": 1, "expires_at": later}
        return self._made(self.agent.post(f"{self.agent.wallet_url}/sessions", body))

    def _approval(self) -> str:
        """Order what the owner has to approve."""
        self.agent.controls(approval_threshold_usd=1)
        asked = self._order()
        self.agent.controls(approval_threshold_usd=None)
        return str(asked["approval"]["id"])

    def _webhook(self, path: str) -> str:
        caller, prefix = (self.ops, "") if path.startswith("/v1/platform") else (self.agent, "/v1")
        listed = caller.get(f"{prefix}/webhooks").get_json()["webhooks"]
        return str(listed[-1]["id"]) if listed else self._made(caller.post(f"{prefix}/webhooks", HOOK))

    def _payee(self) -> str:
        """Store a payee of a domain for each wallet that has none."""
        with unit_of_work() as session:
            for wallet in wallets.all_of(session, self.agent.id):
                pinned = PinnedPayee(
                    wallet_id=wallet.id, host="shop.example", chain="base", address="0x", created_at=clock.now()
                )
                session.merge(pinned)
        return "shop.example"

    def _purchase(self) -> str:
        """Order a new product and return the id of its purchase."""
        return str(self._order()["id"])

    def _order(self) -> dict[str, Any]:
        page = f"https://shop.example/p/{next(self._numbers)}"
        made = self.agent.post("/v1/gateway/shopping/buy", {**ORDER, "url": page})
        assert made.status_code == 202, made.text
        ordered: dict[str, Any] = made.get_json()
        return ordered

    def reset_limits(self) -> None:
        """Reset the controls that operators' requests to all agents have set."""
        limits = dict.fromkeys(("daily", "weekly", "monthly"), 0) | {"per_tx": 50}
        controls: dict[str, Any] = {f"{name}_limit_usd": limit for name, limit in limits.items()}
        controls |= {"allowed_addresses": [], "allowed_domains": [], "locked": False}
        controls |= {"approval_threshold_usd": None}
        controls |= {"approve_new_recipients": False, "approve_new_domains": False}
        assert self.ops.put(f"/agents/{self.agent.id}/controls", controls).status_code == 200

    def buy(self) -> dict[str, Any]:
        purchase_id = self._purchase()
        purchases.buy(purchase_id)
        found: dict[str, Any] = self.agent.get(f"/v1/gateway/shopping/purchases/{purchase_id}").get_json()
        return found

    def _new_master_key(self) -> str:
        return self._made(self.ops.post("/master-keys", {"name": "spare"}))

    def _key(self, path: str, *, deletes: bool) -> str:
        if path.startswith("/v1/platform/keys"):
            return self._made(self.agent.client.post("/v1/keys", json={}))
        listed = [each for each in self.agent.get("/v1/keys").get_json()["keys"] if each["revoked_at"] is None]
        return self._made(self.agent.post("/v1/keys", {})) if deletes or not listed else str(listed[0]["id"])

    @staticmethod
    def _made(answer: Any) -> str:
        assert answer.status_code == 201, answer.get_data(as_text=True)
        return str(answer.get_json()["id"])

    def ask(self, case: schemathesis.Case, headers: dict[str, str] | None = None) -> None:
        answer = case.call(headers=self.keys(case.path) if headers is None else headers)
        if answer.status_code < 300:
            self.served.add(case.operation.label)
            self._keep_example(case, answer)
        asked = f"{case.method} {case.path}"
        self.problems += [f"{asked}: {problem}" for problem in _wrong(case, answer)]

    def _keep_example(self, case: schemathesis.Case, answer: Any) -> None:
        content = answer.headers.get("content-type", [""])
        if content != ["application/json"] or case.path.startswith(FORWARDED_PATHS):
            return
        name = case.operation.definition.raw["operationId"]
        shown = _SECRETS.sub(r"\1_…", answer.content.decode().replace(self.upstream_url, "https://api.example.com"))
        self.examples.setdefault(name, {}).setdefault(str(answer.status_code), _shortened(json.loads(shown)))

    def valid_values(self) -> dict[str, Any]:
        """Return valid values by field name."""
        return {
            "chain": "base", "to": RECIPIENT, "amount": "0.001", "currency": "ETH", "input_token": "ETH",
            "output_token": "USDC", "source_chain": "base", "destination_chain": "ethereum", "token": "ETH",
            "wallet_id": self.agent.wallet_id, "walletId": self.agent.wallet_id, "symbol": "ETH", "side": "buy",
            "price": "3000", "action": "order", "base_url": self.upstream_url, "agent_ids": [self.agent.id],
            "price_per_call_usd": 0.5, "openapi_spec": SPEC, "code": self.claim_code, "max_total_usd": 30,
            "max_amount_usd": 1, "method": "GET", "networks": [], "max_usd": 1, "domains": [],
            "expires_at": clock.isoformat(clock.now() + timedelta(hours=1)),
            "types": ["*"], "failed_since": clock.isoformat(clock.now()),
            "daily_limit_usd": 1000, "allowed_addresses": [], "allowed_domains": [],
            **ORDER, "name": "Ada", "credits_usd": 1, "limit": 1, "offset": 0,
        }  # fmt: skip

    def complete(self, fields: Any, *, but: int | None) -> None:
        """Put valid values into all generated fields but one; into all of them where `but` is beyond the last."""
        if but is None:
            return
        valid, names = self.valid_values(), sorted(fields)
        for place, name in enumerate(names):
            if name in valid and place != but % (len(names) + 1):
                fields[name] = valid[name]


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
            leases.record(ProcessKind.SHOPPER)
            has_time = HAS_TIME or (each_database_url.startswith("postgres") and not is_first_tier())
            made = Scene(app, agent, ops, upstream.url, has_time)
            assert ops.post(f"/agents/{agent.id}/credits", {"credits_usd": 1000}).status_code < 300
            made.bought = made.buy()
            assert agent.move("0.001", "ETH").status_code == 200
            yield made


def test_every_response_conforms_to_the_openapi_document(scene: Scene) -> None:
    schema = schemathesis.openapi.from_wsgi("/openapi.json", scene.app)
    # Requests use real keys: generated ones would only be answered 401.
    schema.config.generation.with_security_parameters = False
    table = scene.app.state.part(ProviderTable)
    provider_routes = tuple(f"/v1/gateway/{row.slug}/" for row in table.rows)
    with written_logs() as lines:
        asked = set()
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path.startswith(provider_routes):
                # The view of the generic operation serves them, which is asked for success below.
                _ask(scene, operation, GenerationMode.POSITIVE)
                continue
            asked.add(operation.label)
            leases.record(ProcessKind.SHOPPER)
            _send_valid(scene, operation)
            _ask(scene, operation, GenerationMode.POSITIVE)
            # Paths and headers accept any text.
            if operation.body or operation.query:
                _ask(scene, operation, GenerationMode.NEGATIVE)
        written = lines()
        scene.problems += [f"never answered with success: {one}" for one in asked - scene.served - NEVER_SERVED]
    scene.problems += [f"logged: {line}" for line in written if line["event"] == "request_failed"]
    logged = str(written)
    for secret in (_SECRET, key_of("k1").split(":")[1], key_of("p1").split(":")[1], scene.agent.key, scene.ops.key):
        assert secret not in logged
    assert not scene.problems, "\n".join(scene.problems)
    if os.environ.get("UPDATE_DOCS"):
        scene.reset_limits()
        scene.agent.controls(approval_threshold_usd=1)
        awaiting = scene.agent.move("0.001", "ETH")
        assert awaiting.status_code == 202, awaiting.text
        for name in ("transfer", "withdraw", "swap", "bridge", "top_up", "fetch_paid_resource"):
            scene.examples[name]["202"] = awaiting.get_json()
        EXAMPLES.write_text(json.dumps(scene.examples, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def _wrong(case: schemathesis.Case, answer: Any) -> Iterator[str]:
    """Compare a response with the document of the operation, and with the expected server errors."""
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
        # The upstream's own response.
        return
    code, documented = body["code"], case.operation.definition.raw["responses"].get(str(status), {})
    if reference := documented.get("$ref"):
        documented = case.operation.schema.raw_schema["components"]["responses"][reference.rpartition("/")[2]]
    if code not in _CODE.findall(documented.get("description", "")):
        yield f"{code} is not documented for this status: {said}"
    if status >= 500 and (status, code, case.path) not in EXPECTED_ERRORS:
        yield f"{code} is not expected here: {said}"


def _send_valid(scene: Scene, operation: Any) -> None:
    """Send a valid request about existing objects, with a key and without."""
    scene.reset_limits()
    if "/device/" in operation.path:
        made = scene.agent.client.post("/v1/agents/register", json={}).get_json()
        scene.claim_code = made["claimCode"]
    valid, fields = scene.valid_values() | VALID_VALUES.get(operation.label, {}), _fields(operation)
    if operation.path.endswith("/x402/fetch"):
        valid["url"] = scene.upstream_url
    if operation.path.endswith("/x402/validate"):
        valid["resource"] = scene.upstream_url
    case = operation.Case(
        path_parameters=scene.existing(operation.path, operation.method),
        query={name: valid[name] for name in QUERIES.get(operation.label, ())},
        **(
            {"body": {name: valid[name] for name in fields if name in valid}, "media_type": "application/json"}
            if operation.body
            else {}
        ),
    )
    scene.ask(case)
    scene.ask(case, headers={})


def _ask(scene: Scene, operation: Any, mode: GenerationMode) -> None:
    seconds = SECONDS if scene.has_time else min(SECONDS, SHORT_SECONDS)
    ends, fields = time.monotonic() + seconds, _fields(operation)

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
            raise _TimeOverError
        if exists and case.path_parameters:
            case.path_parameters.update(scene.existing(case.path, case.method))
        if isinstance(case.body, dict):
            scene.complete(case.body, but=free)
        scene.ask(case)

    # An operation without parameters has no invalid requests.
    with suppress(Unsatisfiable, _TimeOverError):
        one()


def _shortened(value: Any) -> Any:
    """Return a value with at most two entries in each list, and without the end of long texts."""
    if isinstance(value, dict):
        return {name: _shortened(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_shortened(each) for each in value[:2]]
    return f"{value[:200]}…" if isinstance(value, str) and len(value) > 200 else value


class _TimeOverError(Exception):
    """The time of this operation is over."""


def _fields(operation: Any) -> list[str]:
    """Return the names of all fields of body and query."""
    found = {str(parameter.name) for parameter in operation.query}
    content = operation.definition.raw.get("requestBody", {}).get("content", {})
    for shape in (each.get("schema", {}) for each in content.values()):
        name = shape.get("$ref", "").rpartition("/")[2]
        whole = operation.schema.raw_schema["components"]["schemas"][name] if name else shape
        for each in [whole, *whole.get("anyOf", []), *whole.get("oneOf", [])]:
            found |= set(each.get("properties", {}))
    return sorted(found)
