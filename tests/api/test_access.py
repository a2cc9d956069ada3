"""Who may call what: every route against every kind of caller. A route that is not in the table fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.deployments import DEPLOYMENTS
from app.core import heartbeats
from app.core.chains import ChainName
from app.core.heartbeats import Heart
from tests.support.agents import Agent, register
from tests.support.chains import RECIPIENT
from tests.support.fake_shopper import FakeShopper
from tests.support.loopback_http import unused_url
from tests.support.market import offer
from tests.support.operators import operator
from tests.support.owners import person
from workers import purchases

LETS_IN = frozenset({200, 201, 202, 204, 400, 404, 409, 413, 501, 502, 503})
IS_THERE = LETS_IN - {404}
DONE = frozenset({200, 201, 202, 409})
MOVED = frozenset({200, 500})
MOVE = {"amount": "0.001", "currency": "ETH", "chain": "base", "to": RECIPIENT}
BRIDGE = {"source_chain": "base", "destination_chain": "ethereum", "token": "USDC", "amount": "1"}
ORDER = {
    "url": "https://shop.example/p/1", "credentials": {"username": "ada@example.com", "password": "secret"},
    "shippingAddress": {"name": "Ada Buyer", "zip": "94107"}, "max_total_usd": 30,
}  # fmt: skip
WRITE = {"action": "order", "symbol": "ETH", "side": "buy", "price": "3000", "amount": "0.01"}
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
    GRACE = "an owner with a key in its grace time"
    MASTER = "a master key"
    REVOKED_MASTER = "a revoked master key"
    MISPLACED = "an agent's key as a master key"
    OWNER_KEY = "the owner key of whoever claimed the agent"
    COOKIE = "the browser of whoever claimed the agent, signed in"


Body = Callable[[Agent], Mapping[str, Any]]
"""What is sent, by whose things the request is about."""


@dataclass(frozen=True, slots=True)
class Access:
    """Which answers a route has for each kind of caller."""

    answers: Mapping[Who, frozenset[int]]
    body: Body | None = None


def access(
    let_in: tuple[Who, ...],
    *,
    at: frozenset[int] = LETS_IN,
    body: Body | None = None,
    **more: int,
) -> Access:
    """Let these callers in; all others get a 401, and those named the status that stands there.

    A key in its grace time opens what its successor does.
    """
    answers = {who: at if who in let_in else frozenset({401}) for who in Who}
    answers |= {Who[name.upper()]: frozenset({status}) for name, status in more.items()}
    return Access({**answers, Who.GRACE: answers[Who.OWNER]}, body)


_AGENTS = (Who.OWNER, Who.OTHER, Who.FROZEN)
OPEN = access(tuple(Who), at=LETS_IN | {303, 405, 415, 429})
AGENT = access(_AGENTS)
ANY_KEY = access((*_AGENTS, Who.GATEWAY))
NOT_KEYS = {"nobody": 402, "misplaced": 402, "cookie": 402, "master": 402, "revoked_master": 402}
"""Whoever sends no key that is meant for here is told how to pay."""
PAID = access((*_AGENTS, Who.GATEWAY), **NOT_KEYS)
OWN = access((Who.OWNER, Who.FROZEN), at=IS_THERE, other=404, gateway=404)
HELD = access((Who.OWNER, Who.FROZEN), at=DONE, other=404, gateway=404)
MASTER = access((Who.MASTER,), at=IS_THERE)
DOOR = dict.fromkeys(Who, frozenset({303}))
"""Inside the owner's pages, whatever key comes along: to the door, but for who is signed in."""
PAGE = Access({**DOOR, Who.COOKIE: frozenset({200})})
ENTRY = Access(DOOR)
"""From here who is signed in is sent to its one agent's page."""
FORM = Access({**DOOR, Who.COOKIE: frozenset({403})})
"""What is sent here was in no page of ours. `test_owner_pages` sends what was."""


def moves(body: Callable[[Agent], Mapping[str, Any]], *, at: frozenset[int] = MOVED, **more: int) -> Access:
    """Return who may move money: a frozen agent may not. 500 is what the contract has for a chain that is away."""
    return access((Who.OWNER,), at=at, frozen=403, body=body, **{"other": 404, "gateway": 404, **more})


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
            "GET /v1/health", "GET /v1/providers",
            "POST /v1/agents/register", "POST /v1/keys", "POST /v1/device/claim", "GET /v1/device/info",
        ),
        OPEN,
    ),
    "POST /owner/sign-out": Access({**OPEN.answers, Who.COOKIE: frozenset({403})}),
    **dict.fromkeys(
        (
            "POST /v1/agents/claim-code", "POST /v1/services", f"POST {WALLET}",
        ),
        AGENT,
    ),
    "POST /v1/credits/topup": moves(
        lambda owner: {"wallet_id": owner.wallet_id, "chain": "base", "amount": "1"}, gateway=401
    ),
    "POST /v1/trading/perpdex": moves(
        lambda owner: {**WRITE, "walletId": owner.wallet_id}, at=frozenset({501})
    ),
    **dict.fromkeys(
        (
            "GET /v1/balance", "GET /v1/usage", f"GET {WALLET}", "GET /v1/catalog", "GET /v1/services",
            "GET /v1/catalog/<string:service_id>", "GET /v1/subscriptions",
        ),
        ANY_KEY,
    ),
    **dict.fromkeys(
        (
            f"GET {PURCHASE}/<string:purchase_id>",
            f"POST {PURCHASE}/<string:purchase_id>/cancel",
            f"GET {PURCHASE}/<string:purchase_id>/evidence/<string:evidence_id>.png",
        ),
        HELD,
    ),
    **dict.fromkeys(
        ("POST /v1/catalog/<string:service_id>/subscribe", "DELETE /v1/catalog/<string:service_id>/subscribe"),
        access(
            (Who.OWNER, Who.FROZEN), at=DONE, other=404, gateway=404,
            body=lambda owner: {"wallet_id": owner.wallet_id},
        ),
    ),
    **dict.fromkeys(
        (
            f"GET {ONE}", f"GET {ONE}/balances", f"GET {ONE}/controls", f"PUT {ONE}/controls",
            f"POST {ONE}/fund", f"GET {ONE}/transactions",
        ),
        OWN,
    ),
    f"DELETE {ONE}": access((Who.OWNER,), at=DONE, frozen=403, other=404, gateway=404),
    f"GET {ONE}/transactions/<string:transaction_id>": HELD,
    **dict.fromkeys((f"POST {ONE}/transfer", f"POST {ONE}/withdraw"), moves(lambda _: MOVE)),
    f"POST {ONE}/swap": moves(lambda _: SWAP),
    f"POST {ONE}/bridge": moves(lambda _: BRIDGE),
    "POST /v1/gateway/shopping/buy": access(
        (Who.OWNER, Who.OTHER, Who.GATEWAY), at=DONE, frozen=403, body=lambda _: ORDER, **NOT_KEYS
    ),
    **{
        f"{method} /owner{page}": ENTRY if not page else PAGE if method == "GET" else FORM
        for method, page in (
            ("GET", ""), ("GET", "/add"), ("POST", "/add"), ("GET", "/sessions"), ("POST", "/sessions/end-others"),
            *(
                (method, f"/agents/<string:agent_id>{page}")
                for method, page in (
                    ("GET", ""), ("POST", "/freeze"), ("POST", "/unfreeze"), ("POST", "/lock"), ("POST", "/unlock"),
                    ("GET", "/keys"), ("POST", "/keys/replace-owner-key"), ("POST", "/keys/rotate"),
                    ("POST", "/keys/show"),
                    ("GET", _HELD), ("GET", f"{_HELD}/limits"), ("POST", f"{_HELD}/limits"),
                    ("GET", f"{_HELD}/transactions"),
                )
            ),
        )
    },
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
    app = build_app(sqlite_url, chains=dead, shopper=FakeShopper())
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


@dataclass(frozen=True, slots=True)
class _Owner:
    """An agent, and what else opens its doors, or does not."""

    agent: Agent
    grace_key: str
    owner_key: str
    browser: FlaskClient


class _Scene:
    """Somebody of each kind, and something of each sort that is somebody's."""

    def __init__(self, app: Flask) -> None:
        self.app = app
        client = app.test_client()
        with app.app_context():
            self.ops = operator(client)
            heartbeats.beat(Heart.SHOPPER)
        self.other = register(client)
        self.gateway = client.post("/v1/keys", json={}).get_json()["api_key"]
        revoked = register(client)
        self.revoked = revoked.key
        assert self.ops.post(f"/agents/{revoked.id}/rotate-key", {"grace_seconds": 0}).status_code == 200
        gone = self.ops.post("/master-keys", {"name": "gone"}).get_json()
        self.revoked_master = gone["key"]
        assert self.ops.delete(f"/master-keys/{gone['id']}").status_code == 200
        self.owner = self._somebody()

    def _somebody(self) -> _Owner:
        agent = register(self.app.test_client())
        code = agent.post("/v1/agents/claim-code").get_json()["claimCode"]
        claimed = agent.client.post("/v1/device/claim", json={"code": code}).get_json()
        visitor = person(self.app)
        assert visitor.sign_in(claimed["ownerKey"]).status_code == 303
        assert visitor.client.get_cookie("purser_owner")
        rotated = self.ops.post(f"/agents/{agent.id}/rotate-key", {"grace_seconds": 600}).get_json()
        return _Owner(replace(agent, key=rotated["apiKey"]), agent.key, claimed["ownerKey"], visitor.client)

    def ask_all(self, method: str, rule: str, row: Access) -> dict[Who, int]:
        """Ask as everybody in turn; what somebody took away is there again for the next."""
        owner, path, answers = self.owner, "", {}
        for who in sorted(Who, key=lambda who: who in (Who.OWNER, Who.GRACE, Who.MASTER)):
            if not path:
                changes = rule.startswith("/v1/") and (
                    (method != "GET" and "<" in rule) or "purchase_id" in rule
                )
                owner = self._somebody() if changes else self.owner
                path = self._path(rule, owner.agent)
            client = owner.browser if who is Who.COOKIE else self.app.test_client()
            with self._frozen(owner.agent, if_=who is Who.FROZEN):
                body = None if method == "GET" else row.body(owner.agent) if row.body else {}
                answer = client.open(path, method=method, json=body, headers=self._headers(who, owner))
            answers[who] = int(answer.status_code)
            if method == "DELETE" and answer.status_code < 300:
                path = ""
        # Who was refused was signed in nevertheless.
        assert not path or owner.browser.get("/owner/sessions").status_code == 200
        return answers

    @contextmanager
    def _frozen(self, owner: Agent, *, if_: bool) -> Iterator[None]:
        if if_:
            assert self.ops.post(f"/agents/{owner.id}/freeze", {}).status_code == 200
        yield
        if if_:
            assert self.ops.post(f"/agents/{owner.id}/unfreeze", {}).status_code == 200

    def _path(self, rule: str, owner: Agent) -> str:
        names = re.findall(r"<(?:\w+:)?(\w+)>", rule)
        values = {"provider": "openai", "path": "x", "agent_id": owner.id, "wallet_id": owner.wallet_id}
        if "service_id" in names:
            values["service_id"] = owner.post("/v1/services", offer()).get_json()["id"]
            if "subscribe" in rule:
                wallet = {"wallet_id": owner.wallet_id}
                path = f"/v1/catalog/{values['service_id']}/subscribe"
                assert owner.post(path, wallet).status_code == 201
        if "transaction_id" in names:
            failed = owner.move("0.001", "ETH").get_json()
            values["transaction_id"] = failed["details"]["transaction_id"]
        if "purchase_id" in names:
            values["purchase_id"] = owner.post("/v1/gateway/shopping/buy", ORDER).get_json()["id"]
        if "evidence_id" in names:
            with self.app.app_context():
                purchases.buy(values["purchase_id"])
            bought = owner.get(f"{PURCHASE}/{values['purchase_id']}").get_json()
            values["evidence_id"] = bought["evidence"][0]["url"].rpartition("/")[2].partition(".")[0]
        if "key_id" in names:
            made = (
                self.ops.post("/master-keys", {"name": "spare"})
                if "master" in rule
                else owner.client.post("/v1/keys", json={})
            )
            values["key_id"] = made.get_json()["id"]
        return re.sub(r"<(?:\w+:)?(\w+)>", lambda match: values[match[1]], rule)

    def _headers(self, who: Who, owner: _Owner) -> dict[str, str]:
        nonsense = {
            "X-API-Key": "ak_" + "x" * 43,
            "X-Master-Key": "mk_" + "x" * 43,
            "Authorization": "Bearer x",
        }
        return {
            Who.NONSENSE: nonsense,
            Who.OWNER: {"X-API-Key": owner.agent.key},
            Who.GRACE: {"X-API-Key": owner.grace_key},
            Who.FROZEN: {"X-API-Key": owner.agent.key},
            Who.OTHER: {"X-API-Key": self.other.key},
            Who.GATEWAY: {"X-API-Key": self.gateway},
            Who.REVOKED: {"X-API-Key": self.revoked, "X-Master-Key": self.revoked},
            Who.MASTER: {"X-Master-Key": self.ops.key},
            Who.REVOKED_MASTER: {"X-Master-Key": self.revoked_master},
            Who.MISPLACED: {"X-Master-Key": owner.agent.key},
            Who.OWNER_KEY: dict.fromkeys(("X-API-Key", "X-Master-Key"), owner.owner_key),
        }.get(who, {})
