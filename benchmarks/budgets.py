"""What budgets cost: chats with keys that two budgets count, compared with chats that none does."""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from app.audit_log import actors
from app.config import Settings
from app.extensions import db
from app.factory import create_app
from app.idempotency.service import Claim
from app.platform import keys
from benchmarks import rounds, stack, thresholds
from benchmarks.load_generator import Request
from benchmarks.rounds import Load
from benchmarks.stack import Infrastructure, Service
from benchmarks.thresholds import Threshold
from benchmarks.upstream import CHAT, running_upstream

_CHATS = "/v1/gateway/openai/chat/completions"
_CONNECTIONS = 16
_MOST = 1.1
_USD = 100_000


def measure(infrastructure: Infrastructure, *, quick: bool) -> list[Threshold]:
    """Compare the processor time of web processes and PostgreSQL for a chat; each connection has its own agent."""
    with running_upstream() as upstream:
        environment = infrastructure.migrated(
            "budgets", OPENAI_API_KEY="sk-benchmark", OPENAI_BASE_URL=f"{upstream.url}/v1",
            INITIAL_CREDITS_USD=str(_USD), ALLOW_PRIVATE_UPSTREAMS="1",
        )  # fmt: skip
        app = create_app(Settings(**stack.settings_of(environment)))
        with app.app_context():
            made = keys.create_master_key(actors.shell_actor(), name="bench", owner_email=None, claim=Claim.none())
            db.engine.dispose()
        thresholds.print_heading(f"Chats that budgets count, on PostgreSQL, {_CONNECTIONS} connections")
        with stack.running_service(infrastructure, environment, workers=0, schedulers=0) as service:
            return _compare(infrastructure, service, {"X-Master-Key": made.key}, quick=quick)


def _compare(
    infrastructure: Infrastructure, service: Service, master: Mapping[str, str], *, quick: bool
) -> list[Threshold]:
    def budget(window: str, **members: Sequence[str]) -> None:
        body = {"name": window, "limit_usd": _USD, "window": window, "members": members}
        _created(service, "/v1/platform/budgets", body, **master)

    def agent() -> tuple[str, dict[str, str]]:
        made = _created(service, "/v1/agents/register", {})
        return made["agentId"], {"X-API-Key": made["apiKey"]}

    plain, shared, limited = ([agent() for _ in range(_CONNECTIONS)] for _ in range(3))
    for agent_id, _ in shared:
        budget("day", agents=[agent_id])
        budget("total", agents=[agent_id])
    of_keys = []
    for _, header in limited:
        further = _created(service, "/v1/keys", {"limit_usd": _USD}, **header)
        budget("day", keys=[further["id"]])
        of_keys.append({"X-API-Key": further["api_key"]})
    roots = {"web": service.web, "database": infrastructure.database.pid}

    def load(name: str, headers: Sequence[Mapping[str, str]]) -> Load:
        return Load(name, service.port, lambda _: [[Request("POST", _CHATS, each, CHAT)] for each in headers], roots)

    loads = [
        load("Chat without a budget", [header for _, header in plain]),
        load("Chat with two shared budgets", [header for _, header in shared]),
        load("Chat with a key's budget and a shared one", of_keys),
    ]
    scale = {"rounds": 1, "seconds": 0.5} if quick else {"rounds": 9, "seconds": 2.0}
    found = rounds.measure(loads, connections=(_CONNECTIONS,), rounds=int(scale["rounds"]), seconds=scale["seconds"])
    spent = [sum(found[each.name][_CONNECTIONS].processor_ms.values()) for each in loads]
    return [
        thresholds.at_most(f"{each.name}: times one without", cost / spent[0], _MOST, "x")
        for each, cost in zip(loads[1:], spent[1:], strict=True)
    ]


def _created(service: Service, path: str, body: object, **headers: str) -> dict[str, Any]:
    status, answer = service.call("POST", path, json.dumps(body).encode(), **headers)
    if status != HTTPStatus.CREATED:
        raise RuntimeError(f"{path}: {status} {answer!r}")
    return dict(json.loads(answer))
