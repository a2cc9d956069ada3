"""Who may call what: every route against every kind of caller. A route that is not in the table fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.deployments import DEPLOYMENTS
from app.core.chains import ChainName
from tests.support.agents import Agent, register
from tests.support.chains import RECIPIENT
from tests.support.loopback_http import unused_url
from tests.support.market import offer
from tests.support.operators import operator

UNKNOWN = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
LETS_IN = frozenset({200, 201, 202, 204, 400, 404, 409, 413, 501, 502, 503})
IS_THERE = LETS_IN - {404}
MOVE = {"amount": "0.001", "currency": "ETH", "chain": "base", "to": RECIPIENT}
BRIDGE = {"source_chain": "base", "destination_chain": "ethereum", "token": "USDC", "amount": "1"}
SWAP = {"amount": "0.001", "input_token": "ETH", "output_token": "USDC", "chain": "base"}


class Who(StrEnum):
    """The kinds of caller."""

    NOBODY = "nobody"
    NONSENSE = "nonsense"
    OWNER = "owner"
    OTHER = "another agent"
    FROZEN = "a frozen owner"
    GATEWAY = "a gateway-only key"
    REVOKED = "a revoked key"
    MASTER = "a master key"
    MISPLACED = "an agent's key as a master key"
    COOKIE = "a browser's cookie"


@dataclass(frozen=True, slots=True)
class Access:
    """Which answers a route has for each kind of caller."""

    answers: Mapping[Who, frozenset[int]]
    body: Mapping[str, Any] | None = None


def access(
    let_in: tuple[Who, ...],
    *,
    at: frozenset[int] = LETS_IN,
    body: Mapping[str, Any] | None = None,
    **more: int,
) -> Access:
    """Let these callers in; all others get a 401, and those named the status that stands there."""
    answers = {who: at if who in let_in else frozenset({401}) for who in Who}
    return Access(
        {**answers, **{Who[name.upper()]: frozenset({status}) for name, status in more.items()}}, body
    )


_AGENTS = (Who.OWNER, Who.OTHER, Who.FROZEN)
OPEN = access(tuple(Who), at=LETS_IN | {303, 405, 415, 429})
AGENT = access(_AGENTS)
ANY_KEY = access((*_AGENTS, Who.GATEWAY))
PAID = access((*_AGENTS, Who.GATEWAY), nobody=402, misplaced=402, cookie=402, master=402)
"""Whoever sends no key that is meant for here is told how to pay."""
OWN = access((Who.OWNER, Who.FROZEN), at=IS_THERE, other=404, gateway=404)
MASTER = access((Who.MASTER,))
SESSION = Access(dict.fromkeys(Who, frozenset({303})))
"""Inside the owner's pages, whatever key comes along: to the door. With a session, `test_owner_pages` tries them."""


def moves(body: Mapping[str, Any]) -> Access:
    """Return who may move money: a frozen agent may not. 500 is what the contract has for a chain that is away."""
    return access((Who.OWNER,), at=IS_THERE | {500}, other=404, gateway=404, frozen=403, body=body)


_HELD = "/wallets/<string:wallet_id>"
SERVICE, PURCHASE, WALLET = (
    "/v1/services/<string:service_id>",
    "/v1/gateway/shopping/purchases",
    "/v1/wallets",
)
ONE = f"{WALLET}/<string:wallet_id>"
PLATFORM = "/v1/platform"
TABLE: dict[str, Access] = {
    **dict.fromkeys(
        (
            "GET /", "GET /docs", "GET /llms.txt", "GET /openapi.json", "GET /metrics", "GET /device", "POST /device",
            "GET /device/claim", "POST /device/claim", "GET /owner/sign-in", "POST /owner/sign-in",
            "POST /owner/sign-out",
            "GET /v1/health", "GET /v1/providers",
            "POST /v1/agents/register", "POST /v1/keys", "POST /v1/device/claim", "GET /v1/device/info",
        ),
        OPEN,
    ),
    **dict.fromkeys(
        (
            "POST /v1/agents/claim-code", "POST /v1/services", "POST /v1/credits/topup", f"POST {WALLET}",
        ),
        AGENT,
    ),
    **dict.fromkeys(
        (
            "GET /v1/balance", "GET /v1/usage", f"GET {WALLET}", "GET /v1/catalog", "GET /v1/services",
            "GET /v1/catalog/<string:service_id>", "GET /v1/subscriptions", "POST /v1/trading/perpdex",
            "POST /v1/catalog/<string:service_id>/subscribe", "DELETE /v1/catalog/<string:service_id>/subscribe",
            f"GET {PURCHASE}/<string:purchase_id>",
            f"POST {PURCHASE}/<string:purchase_id>/cancel",
            f"GET {PURCHASE}/<string:purchase_id>/evidence/<string:evidence_id>.png",
        ),
        ANY_KEY,
    ),
    **dict.fromkeys(
        (
            f"GET {ONE}", f"DELETE {ONE}", f"GET {ONE}/balances", f"GET {ONE}/controls", f"PUT {ONE}/controls",
            f"POST {ONE}/fund", f"GET {ONE}/transactions",
        ),
        OWN,
    ),
    f"GET {ONE}/transactions/<string:transaction_id>": access((), owner=404, other=404, frozen=404, gateway=404),
    **dict.fromkeys((f"POST {ONE}/transfer", f"POST {ONE}/withdraw"), moves(MOVE)),
    f"POST {ONE}/swap": moves(SWAP),
    f"POST {ONE}/bridge": moves(BRIDGE),
    "POST /v1/gateway/shopping/buy": PAID,
    **dict.fromkeys(
        (
            "GET /owner", "GET /owner/add", "POST /owner/add", "GET /owner/sessions",
            "POST /owner/sessions/end-others",
            *(
                f"{method} /owner/agents/<string:agent_id>{page}"
                for method, page in (
                    ("GET", ""), ("POST", "/freeze"), ("POST", "/unfreeze"), ("POST", "/lock"), ("POST", "/unlock"),
                    ("GET", "/keys"), ("POST", "/keys/replace-owner-key"), ("POST", "/keys/rotate"),
                    ("POST", "/keys/show"),
                    ("GET", _HELD), ("GET", f"{_HELD}/limits"), ("POST", f"{_HELD}/limits"),
                    ("GET", f"{_HELD}/transactions"),
                )
            ),
        ),
        SESSION,
    ),
    **dict.fromkeys((f"GET {SERVICE}", f"PUT {SERVICE}", f"DELETE {SERVICE}", f"GET {SERVICE}/stats"), OWN),
    **dict.fromkeys(
        (
            f"POST {PLATFORM}/agents", f"GET {PLATFORM}/agents", f"GET {PLATFORM}/agents/<string:agent_id>",
            f"PATCH {PLATFORM}/agents/<string:agent_id>", f"DELETE {PLATFORM}/agents/<string:agent_id>",
            f"DELETE {PLATFORM}/agents/<string:agent_id>/claim-code",
            f"PUT {PLATFORM}/agents/<string:agent_id>/controls",
            f"POST {PLATFORM}/agents/<string:agent_id>/credits", f"POST {PLATFORM}/agents/<string:agent_id>/freeze",
            f"POST {PLATFORM}/agents/<string:agent_id>/rotate-key",
            f"POST {PLATFORM}/agents/<string:agent_id>/unfreeze",
            f"GET {PLATFORM}/audit", f"PUT {PLATFORM}/controls", f"GET {PLATFORM}/keys",
            f"DELETE {PLATFORM}/keys/<string:key_id>", f"GET {PLATFORM}/master-keys", f"POST {PLATFORM}/master-keys",
            f"DELETE {PLATFORM}/master-keys/<string:key_id>",
        ),
        MASTER,
    ),
}  # fmt: skip
FORWARDED = {
    "/v1/gateway/<provider>/<rest:path>": PAID,
    "/v1/proxy/<service_id>": ANY_KEY,
    "/v1/proxy/<service_id>/<rest:path>": ANY_KEY,
}
"""Routes of every method."""


@pytest.mark.parametrize("part", [0, 1, 2])
def test_every_route_lets_in_whom_it_should_and_nobody_else(
    build_app: Callable[..., Flask], sqlite_url: str, part: int
) -> None:
    dead = {
        name: EvmChain(name, DEPLOYMENTS["sandbox", name], rpc_urls=[unused_url()], deposit_confirmations=1)
        for name in (ChainName.ETHEREUM, ChainName.BASE)
    }
    app = build_app(sqlite_url, chains=dead)
    scene, problems = _Scene(app), []
    for method, rule, row in _routes(app)[part::3]:
        if row is None:
            problems.append(f"{method} {rule} is not in the table")
            continue
        answers = scene.ask_all(method, rule, row)
        problems += [
            f"{method} {rule} answers {status} to {who}, not {sorted(row.answers[who])}"
            for who, status in answers.items()
            if status not in row.answers[who]
        ]
    assert not problems, "\n".join(problems)


def test_the_table_has_no_route_that_is_gone(app: Flask) -> None:
    assert not set(TABLE) - {f"{method} {rule}" for method, rule, _row in _routes(app)}


def _routes(app: Flask) -> list[tuple[str, str, Access | None]]:
    found = [
        (method, rule.rule, FORWARDED.get(rule.rule) or TABLE.get(f"{method} {rule.rule}"))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    ]
    return sorted(found, key=lambda route: (route[1], route[0]))


class _Scene:
    """Somebody of each kind, and something of each sort that is somebody's."""

    def __init__(self, app: Flask) -> None:
        self.app = app
        client = app.test_client()
        with app.app_context():
            self.ops = operator(client)
        self.owner, self.other = register(client), register(client)
        self.gateway = client.post("/v1/keys", json={}).get_json()["api_key"]
        revoked = register(client)
        self.revoked = revoked.key
        assert self.ops.post(f"/agents/{revoked.id}/rotate-key", {"grace_seconds": 0}).status_code == 200

    def ask_all(self, method: str, rule: str, row: Access) -> dict[Who, int]:
        """Ask as everybody in turn; as those who may last, for what they delete is gone."""
        client = self.app.test_client()
        owner = (
            register(client) if "<string:wallet_id>" in rule or "<string:service_id>" in rule else self.owner
        )
        path = re.sub(r"<(?:\w+:)?(\w+)>", lambda match: self._filled(match[1], owner), rule)
        answers = {}
        for who in sorted(Who, key=lambda who: (who in (Who.OWNER, Who.MASTER), who is not Who.FROZEN)):
            # A frozen owner who may delete would leave nothing for the others.
            if who is Who.FROZEN and method == "DELETE":
                answers[who] = min(row.answers[who])
                continue
            if who is Who.COOKIE:
                client.set_cookie("session", owner.key)
            with self._frozen(owner, if_=who is Who.FROZEN):
                body = None if method == "GET" else dict(row.body or {})
                answer = client.open(path, method=method, json=body, headers=self._headers(who, owner))
            answers[who] = int(answer.status_code)
        return answers

    @contextmanager
    def _frozen(self, owner: Agent, *, if_: bool) -> Iterator[None]:
        if if_:
            assert self.ops.post(f"/agents/{owner.id}/freeze", {}).status_code == 200
        yield
        if if_:
            assert self.ops.post(f"/agents/{owner.id}/unfreeze", {}).status_code == 200

    def _filled(self, name: str, owner: Agent) -> str:
        match name:
            case "wallet_id":
                return owner.wallet_id
            case "service_id":
                made = owner.post("/v1/services", offer())
                return str(made.get_json()["id"]) if made.status_code == 201 else UNKNOWN
            case "provider":
                return "openai"
            case "path":
                return "x"
            case _:
                return UNKNOWN

    def _headers(self, who: Who, owner: Agent) -> dict[str, str]:
        nonsense = {
            "X-API-Key": "ak_" + "x" * 43,
            "X-Master-Key": "mk_" + "x" * 43,
            "Authorization": "Bearer x",
        }
        return {
            Who.NONSENSE: nonsense,
            Who.OWNER: {"X-API-Key": owner.key},
            Who.FROZEN: {"X-API-Key": owner.key},
            Who.OTHER: {"X-API-Key": self.other.key},
            Who.GATEWAY: {"X-API-Key": self.gateway},
            Who.REVOKED: {"X-API-Key": self.revoked, "X-Master-Key": self.revoked},
            Who.MASTER: {"X-Master-Key": self.ops.key},
            Who.MISPLACED: {"X-Master-Key": owner.key},
        }.get(who, {})
