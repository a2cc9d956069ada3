"""Authorization of every route for every kind of client. A route that is not in the table fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.deployments import DEPLOYMENTS
from app.buying.records import PinnedPayee
from app.core import clock
from app.core.chains import ChainName
from app.db import leases
from app.db.leases import ProcessKind
from app.db.unit_of_work import unit_of_work
from tests.support.agents import Agent, register
from tests.support.chains import RECIPIENT
from tests.support.fake_shopper import FakeShopper
from tests.support.loopback_http import unused_url
from tests.support.market import offer
from tests.support.operators import operator
from tests.support.owners import person
from tests.support.sqlite_copies import copy_database, file_of
from workers import purchases

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"
MOVE = {"amount": "0.001", "currency": "ETH", "chain": "base", "to": RECIPIENT}
BRIDGE = {"source_chain": "base", "destination_chain": "ethereum", "token": "USDC", "amount": "1"}
ORDER = {
    "url": "https://shop.example/p/1", "credentials": {"username": "ada@example.com", "password": "secret"},
    "shippingAddress": {"name": "Ada Buyer", "zip": "94107"}, "max_total_usd": 30,
}  # fmt: skip
WRITE = {"action": "order", "symbol": "ETH", "side": "buy", "price": "3000", "amount": "0.01"}
HOOK = {"url": "https://hooks.example.com/x", "types": ["*"]}
SWAP = {"amount": "0.001", "input_token": "ETH", "output_token": "USDC", "chain": "base"}


class ClientKind(StrEnum):
    """The kinds of client."""

    ANONYMOUS = "anonymous"
    UNKNOWN = "an unknown key"
    OWNER = "owner"
    OTHER = "another agent"
    FROZEN = "a frozen owner"
    GATEWAY = "a gateway-only key"
    REVOKED = "a revoked key"
    GRACE = "an owner with a key in its grace period"
    MASTER = "a master key"
    REVOKED_MASTER = "a revoked master key"
    MISPLACED = "an agent's key as a master key"
    OWNER_KEY = "the owner key of the agent's owner"
    COOKIE = "the signed-in browser of the agent's owner"


Body = Callable[[Agent], Mapping[str, Any]]
"""The body that is sent, by the agent that owns the subject of the request."""


@dataclass(frozen=True, slots=True)
class Access:
    """The status of a route for each kind of client."""

    answers: Mapping[ClientKind, int]
    body: Body | None = None


def access(at: int, authorized: tuple[ClientKind, ...], *, body: Body | None = None, **more: int) -> Access:
    """Authorize these clients; all others get a 401, and those that are named the given status.

    `at` is the status after the authorization: of an empty body often 400, of a dead upstream 502. A key in its grace
    period gives the same access as its successor, unless it is named.
    """
    answers = {kind: at if kind in authorized else 401 for kind in ClientKind}
    answers |= {ClientKind[name.upper()]: status for name, status in more.items()}
    if "grace" not in more:
        answers[ClientKind.GRACE] = answers[ClientKind.OWNER]
    return Access(answers, body)


_AGENTS = (ClientKind.OWNER, ClientKind.OTHER, ClientKind.FROZEN)
_OWN = (ClientKind.OWNER, ClientKind.FROZEN)
_KEYS = (*_AGENTS, ClientKind.GATEWAY)
NOT_KEYS = {"anonymous": 402, "misplaced": 402, "cookie": 402, "master": 402, "revoked_master": 402}
"""Clients without a key for these routes get the payment terms."""
PAID = access(503, _KEYS, **NOT_KEYS)
REFUSED = access(503, _KEYS, **dict.fromkeys(NOT_KEYS, 403))
"""No route of a provider has this method: refused before a payment is asked for."""
RELAYED = access(502, _KEYS)
RELAYED_IF_PAID = access(502, _KEYS, **NOT_KEYS)
SIGN_IN = dict.fromkeys(ClientKind, 303)
"""The owner's pages redirect all clients that are not signed in, whatever key they send."""
PAGE = Access({**SIGN_IN, ClientKind.COOKIE: 200})
ENTRY = Access(SIGN_IN)
"""A signed-in owner is redirected to the page of the only agent."""
FORM = Access({**SIGN_IN, ClientKind.COOKIE: 403})
"""These requests have no CSRF token; `test_owner_pages` sends forms with one."""


def own(at: int, *, body: Body | None = None) -> Access:
    """Authorize the agent that owns the subject, frozen or not; for others it does not exist."""
    return access(at, _OWN, body=body, other=404, gateway=404)


def moves(body: Body, *, at: int = 500, **more: int) -> Access:
    """Authorize payments: not of a frozen agent. 500 is the contract's status for an unreachable chain."""
    return access(at, (ClientKind.OWNER,), frozen=403, body=body, **{"other": 404, "gateway": 404, **more})


def _wallet_of(owner: Agent) -> Mapping[str, Any]:
    return {"wallet_id": owner.wallet_id}


_HELD = "/wallets/<string:wallet_id>"
SERVICE, PURCHASE, WALLET = ("/v1/services/<string:service_id>", "/v1/gateway/shopping/purchases", "/v1/wallets")
ONE = f"{WALLET}/<string:wallet_id>"
APPROVAL, WEBHOOK = "/v1/approvals/<string:approval_id>", "/webhooks/<string:webhook_id>"
PLATFORM = "/v1/platform"
TABLE: dict[str, Access] = {
    **dict.fromkeys(
        (
            "GET /", "GET /docs", "GET /docs/errors", "GET /docs/<tag>", "GET /docs/<tag>/<operation>",
            "GET /llms.txt", "GET /skill.md", "GET /openapi.json", "GET /metrics",
            "GET /device", "GET /device/claim", "GET /v1/health", "GET /v1/health/live", "GET /v1/providers",
            "GET /.well-known/oauth-protected-resource", "GET /.well-known/oauth-protected-resource/mcp",
            "GET /discovery/resources", "GET /.well-known/x402", "GET /.well-known/mcp/server-card.json",
            "GET /mcp/server-card", "GET /server.json", "GET /.well-known/jwks.json", "GET /.well-known/did.json",
            "GET /.well-known/http-message-signatures-directory",
            "GET /receipts", "POST /receipts",
        ),
        access(200, tuple(ClientKind)),
    ),
    "POST /v1/agents/register": access(201, tuple(ClientKind)),
    # Elsewhere, or without a key, it makes a key with its own credits.
    "POST /v1/keys": access(201, tuple(ClientKind), unknown=401, revoked=401),
    **dict.fromkeys(("GET /v1/keys/<string:key_id>", "DELETE /v1/keys/<string:key_id>"), access(200, _OWN, other=404)),
    "PATCH /v1/keys/<string:key_id>": access(400, _AGENTS),
    **dict.fromkeys(
        (
            "POST /device", "POST /device/claim", "POST /owner/sign-in", "POST /v1/device/claim",
            "GET /v1/device/info",
        ),
        access(400, tuple(ClientKind)),
    ),
    **dict.fromkeys(
        (
            "GET /.well-known/oauth-authorization-server", "GET /.well-known/oauth-authorization-server/mcp",
            "GET /.well-known/openid-configuration", "GET /.well-known/openid-configuration/mcp",
            "GET /mcp/.well-known/openid-configuration", "GET /oauth/device", "POST /oauth/revoke",
        ),
        access(200, tuple(ClientKind)),
    ),
    **dict.fromkeys(
        ("GET /oauth/authorize", "POST /oauth/device", "POST /oauth/token", "POST /oauth/device_authorization"),
        access(400, tuple(ClientKind)),
    ),
    # No contact is set.
    "GET /.well-known/security.txt": access(404, tuple(ClientKind)),
    "POST /oauth/register": access(201, tuple(ClientKind)),
    # Not a request that this service has signed.
    "POST /oauth/agent": access(404, tuple(ClientKind)),
    "GET /owner/connect/<string:signed>": Access({**SIGN_IN, ClientKind.COOKIE: 404}),
    "POST /owner/connect/<string:signed>": FORM,
    "GET /owner/sign-in": access(200, tuple(ClientKind), cookie=303),
    "POST /owner/sign-out": FORM,
    "POST /owner/sign-in/passkey": access(403, tuple(ClientKind)),
    "GET /owner/recover": access(200, tuple(ClientKind)),
    # Not a code, and a form without its token.
    "POST /owner/recover": access(403, tuple(ClientKind)),
    "POST /owner/recover/use": access(400, tuple(ClientKind)),
    # Without a key, agents can register.
    "POST /mcp": access(400, tuple(ClientKind), unknown=401, revoked=401, owner_key=401),
    # The owner has claimed its agent.
    "POST /v1/agents/claim-code": access(409, _AGENTS, other=201),
    "POST /v1/services": access(400, _AGENTS),
    "POST /v1/x402/validate": access(400, _AGENTS),
    f"POST {WALLET}": access(201, _AGENTS),
    **dict.fromkeys(("GET /v1/approvals", "GET /v1/events", "GET /v1/webhooks", "GET /v1/keys"), access(200, _AGENTS)),
    "GET /v1/receipts/<string:record_id>": access(200, _OWN, other=404),
    **dict.fromkeys((f"GET {APPROVAL}", f"POST {APPROVAL}/cancel"), access(200, _OWN, other=404)),
    **{
        f"{method} {prefix}{path}": authorized(at, body)
        for prefix, authorized in (
            ("/v1", lambda at, body: access(at, _OWN, other=404, body=body)),
            (PLATFORM, lambda at, body: access(at, (ClientKind.MASTER,), body=body)),
        )
        for method, path, at, body in (
            ("GET", WEBHOOK, 200, None), ("PATCH", WEBHOOK, 200, lambda _: {"types": ["wallet.*"]}),
            ("DELETE", WEBHOOK, 200, None), ("POST", f"{WEBHOOK}/rotate-secret", 200, None),
            ("POST", f"{WEBHOOK}/test", 202, None), ("GET", f"{WEBHOOK}/deliveries", 200, None),
            ("POST", f"{WEBHOOK}/replay", 202, lambda _: {"failed_since": clock.isoformat(clock.now())}),
        )
    },
    "POST /v1/webhooks": access(201, _AGENTS, body=lambda _: HOOK),
    "POST /v1/credits/topup": moves(
        lambda owner: {"wallet_id": owner.wallet_id, "chain": "base", "amount": "1"}, gateway=401
    ),
    "POST /v1/trading/perpdex": moves(
        lambda owner: {**WRITE, "walletId": owner.wallet_id}, at=501
    ),
    **dict.fromkeys(
        (
            "GET /v1/balance", "GET /v1/usage", "GET /v1/usage/sums", "GET /v1/usage/focus", f"GET {PURCHASE}",
            f"GET {WALLET}", "GET /v1/catalog",
            "GET /v1/services", "GET /v1/catalog/<string:service_id>", "GET /v1/subscriptions",
        ),
        access(200, _KEYS),
    ),
    **dict.fromkeys(
        (
            f"GET {PURCHASE}/<string:purchase_id>",
            f"POST {PURCHASE}/<string:purchase_id>/cancel",
            f"GET {PURCHASE}/<string:purchase_id>/evidence/<string:evidence_id>.png",
        ),
        own(200),
    ),
    f"POST {SERVICE}/check": access(200, _OWN, other=404),
    # It is subscribed.
    "POST /v1/catalog/<string:service_id>/subscribe": own(409, body=_wallet_of),
    "DELETE /v1/catalog/<string:service_id>/subscribe": own(200, body=_wallet_of),
    **dict.fromkeys((f"GET {ONE}", f"GET {ONE}/controls", f"GET {ONE}/transactions"), own(200)),
    **dict.fromkeys((f"PUT {ONE}/controls", f"POST {ONE}/fund"), own(400)),
    **dict.fromkeys((f"POST {ONE}/x402/fetch", f"POST {ONE}/sessions"), own(400)),
    f"GET {ONE}/x402/purchases/<string:transaction_id>": own(404),
    **dict.fromkeys((f"GET {ONE}/x402/purchases", f"GET {ONE}/x402/payees", f"GET {ONE}/sessions"), own(200)),
    f"DELETE {ONE}/x402/payees/<string:domain>": own(200),
    f"GET {ONE}/sessions/<string:session_id>": own(200),
    f"GET {ONE}/balances": own(502),
    f"GET {ONE}/tokens": own(200),
    f"DELETE {ONE}": access(200, (ClientKind.OWNER,), frozen=403, other=404, gateway=404),
    f"GET {ONE}/transactions/<string:transaction_id>": own(200),
    **dict.fromkeys((f"POST {ONE}/transfer", f"POST {ONE}/withdraw"), moves(lambda _: MOVE)),
    f"POST {ONE}/swap": moves(lambda _: SWAP),
    f"POST {ONE}/bridge": moves(lambda _: BRIDGE),
    "GET /v1/gateway/<provider>/<rest:path>": PAID,
    "GET /v1/models": access(200, _KEYS),
    "GET /v1/models/<path:model_id>": access(404, _KEYS),
    **dict.fromkeys(
        ("POST /v1/chat/completions", "POST /v1/messages", "POST /v1/responses", "POST /v1/embeddings"),
        access(400, _KEYS),
    ),
    # The order of the former key repeats the open one of its successor.
    "POST /v1/gateway/shopping/buy": access(
        202, (ClientKind.OWNER, ClientKind.OTHER, ClientKind.GATEWAY), frozen=403, grace=409,
        body=lambda _: ORDER, **NOT_KEYS,
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
                    ("POST", "/keys/show"), ("POST", "/keys/revoke"), ("POST", "/keys/codes"), ("POST", "/keys/cancel"),
                    ("GET", _HELD), ("GET", f"{_HELD}/limits"), ("POST", f"{_HELD}/limits"),
                    ("GET", f"{_HELD}/keys"), ("POST", f"{_HELD}/keys"), ("POST", f"{_HELD}/keys/cancel"),
                    ("POST", f"{_HELD}/keys/take"), ("POST", "/import"), ("POST", "/import/<string:import_id>"),
                    ("GET", "/addresses"), ("POST", "/addresses"), ("POST", "/addresses/remove"),
                    ("GET", "/activity"), ("GET", "/approvals"), ("POST", "/approvals/payees"),
                    ("GET", "/passkeys"), ("POST", "/passkeys"), ("POST", "/passkeys/create"),
                    ("POST", "/passkeys/remove"), ("GET", "/notices"), ("GET", "/personal-data"),
                    ("POST", "/personal-data/export"), ("POST", "/personal-data/erase"),
                    ("GET", "/connections"), ("POST", "/connections/end"),
                    ("POST", "/notices/email"), ("POST", "/notices/email/<string:token>"), ("POST", "/notices/browser"),
                    ("POST", "/notices/webhook"), ("POST", "/notices/test"), ("POST", "/notices/remove"),
                    ("GET", "/approvals/<string:approval_id>"), ("POST", "/approvals/<string:approval_id>"),
                )
            ),
        )
    },
    # `test_console` signs in.
    **dict.fromkeys(
        (
            "GET /admin", "GET /admin/<slug>", "GET /admin/<slug>/<item_id>", "POST /admin/<slug>/<item_id>/<act>",
            "POST /admin/<slug>/<act>", "POST /admin/sign-out", "GET /admin/passkeys", "POST /admin/passkeys",
            "POST /admin/passkeys/create", "POST /admin/passkeys/remove",
        ),
        ENTRY,
    ),
    "GET /admin/sign-in": access(200, tuple(ClientKind)),
    "POST /admin/sign-in": access(400, tuple(ClientKind)),
    "POST /admin/sign-in/passkey": access(403, tuple(ClientKind)),
    # Leads to those of the first wallet.
    "GET /owner/agents/<string:agent_id>/limits": Access({**SIGN_IN, ClientKind.COOKIE: 303}),
    # Not a link that confirms an address.
    "GET /owner/agents/<string:agent_id>/notices/email/<string:token>": Access(
        {**SIGN_IN, ClientKind.COOKIE: 400}
    ),
    **dict.fromkeys(
        (
            f"GET /owner/agents/<string:agent_id>/{page}"
            for page in (
                "activity/<string:transaction_id>", "purchases/<string:purchase_id>",
                "purchases/<string:purchase_id>/<string:evidence_id>.png",
            )
        ),
        PAGE,
    ),
    **dict.fromkeys((f"GET {SERVICE}", f"DELETE {SERVICE}", f"GET {SERVICE}/stats"), own(200)),
    f"PUT {SERVICE}": own(400),
    # Payouts are off.
    f"GET {SERVICE}/payouts": access(200, _OWN, other=404),
    f"POST {SERVICE}/payouts": access(409, _OWN, other=404),
    f"POST {SERVICE}/refunds": access(400, _OWN, other=404),
    **{
        f"{method} {PLATFORM}{path}": access(status, (ClientKind.MASTER,))
        for method, path, status in (
            ("POST", "/agents", 201), ("GET", "/agents", 200), ("GET", "/agents/<string:agent_id>", 200),
            ("PATCH", "/agents/<string:agent_id>", 400), ("DELETE", "/agents/<string:agent_id>", 200),
            ("DELETE", "/agents/<string:agent_id>/claim-code", 200),
            ("PUT", "/agents/<string:agent_id>/controls", 400), ("POST", "/agents/<string:agent_id>/credits", 400),
            ("POST", "/agents/<string:agent_id>/freeze", 200), ("POST", "/agents/<string:agent_id>/unfreeze", 200),
            ("POST", "/agents/<string:agent_id>/rotate-key", 200),
            ("POST", "/agents/<string:agent_id>/owner-recovery", 200),
            ("GET", "/agents/<string:agent_id>/personal-data", 200),
            ("DELETE", "/agents/<string:agent_id>/personal-data", 200),
            ("GET", "/approvals", 200), ("GET", "/audit", 200), ("GET", "/events", 200),
            ("GET", "/webhooks", 200), ("POST", "/webhooks", 400), ("PUT", "/controls", 400), ("GET", "/keys", 200),
            ("GET", "/agents/<string:agent_id>/transactions", 200), ("GET", "/usage", 200), ("GET", "/services", 200),
            ("GET", "/usage/sums", 200), ("GET", "/usage/focus", 200),
            ("POST", "/budgets", 400), ("GET", "/budgets", 200), ("GET", "/budgets/<string:budget_id>", 200),
            ("PATCH", "/budgets/<string:budget_id>", 400), ("DELETE", "/budgets/<string:budget_id>", 200),
            ("GET", "/agents/<string:agent_id>/keys", 200), ("POST", "/agents/<string:agent_id>/keys", 201),
            ("PATCH", "/agents/<string:agent_id>/keys/<string:key_id>", 400),
            ("DELETE", "/agents/<string:agent_id>/keys/<string:key_id>", 200),
            ("POST", "/services/<string:service_id>/pause", 200), ("POST", "/services/<string:service_id>/resume", 200),
            ("POST", "/services/<string:service_id>/refunds", 400), ("GET", "/payouts", 200),
            ("GET", "/payments", 200), ("POST", "/payments/<string:payment_id>/refund", 404),
            ("POST", "/services/<string:service_id>/write-off", 409),
            ("GET", "/doctor", 200), ("GET", "/audit/verification", 200), ("GET", "/stuck-movements", 200),
            ("GET", "/treasury", 200), ("GET", "/agents/<string:agent_id>/events", 200),
            ("GET", "/purchases", 200),
            ("GET", "/purchases/<string:purchase_id>", 200), ("GET", "/requests/<string:request_id>", 200),
            ("DELETE", "/keys/<string:key_id>", 200), ("GET", "/master-keys", 200), ("POST", "/master-keys", 201),
            ("DELETE", "/master-keys/<string:key_id>", 200),
        )
    },
}  # fmt: skip
FORWARDED = {
    "/v1/gateway/<provider>/<rest:path>": REFUSED,
    "/v1/proxy/<service_id>": RELAYED,
    "/v1/proxy/<service_id>/<rest:path>": RELAYED,
    "/v1/x402/services/<service_id>": RELAYED_IF_PAID,
    "/v1/x402/services/<service_id>/<rest:path>": RELAYED_IF_PAID,
}
"""Routes of every method."""
CACHEABLE = {"GET /v1/health", "GET /v1/health/live", "GET /v1/providers"}
"""The routes with the same response for every client. No cache may store the response of any other one."""


@pytest.mark.parametrize("part", [0, 1, 2])
def test_every_route_authorizes_exactly_the_clients_of_the_table(
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
            f"{method} {rule} answers {status} to {kind}, not {row.answers[kind]}"
            for kind, status in answers.items()
            if status != row.answers[kind]
        ]
    assert not problems, "\n".join(problems)


def test_the_table_has_no_removed_route(app: Flask) -> None:
    assert not set(TABLE) - {f"{method} {rule}" for method, rule, _row in _routes(app)}


def _routes(app: Flask) -> list[tuple[str, str, Access | None]]:
    found = [
        (method, rule.rule, TABLE.get(f"{method} {rule.rule}") or FORWARDED.get(rule.rule))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    ]
    return sorted(found, key=lambda route: (route[1], route[0]))


@dataclass(frozen=True, slots=True)
class _Owner:
    """An agent, with its other credentials."""

    agent: Agent
    grace_key: str
    owner_key: str
    browser: FlaskClient


def _order(kind: ClientKind) -> int:
    """Return the place of a kind among those that ask: at the end those whose requests have an effect."""
    last = (ClientKind.OWNER, ClientKind.GRACE, ClientKind.MASTER, ClientKind.FROZEN)
    return last.index(kind) if kind in last else -1


class _Scene:
    """A client of each kind, and their database as it was at first: no request decides the answers of the next route's.

    Restoring it takes a tenth of the time of making another owner.
    """

    def __init__(self, app: Flask) -> None:
        self.app, self._database = app, file_of(app)
        client = app.test_client()
        with app.app_context():
            self.ops = operator(client)
        self.other = register(client)
        self.gateway = client.post("/v1/keys", json={}).get_json()["api_key"]
        revoked = register(client)
        self.revoked = revoked.key
        assert self.ops.post(f"/agents/{revoked.id}/rotate-key", {"grace_seconds": 0}).status_code == 200
        gone = self.ops.post("/master-keys", {"name": "gone"}).get_json()
        self.revoked_master = gone["key"]
        assert self.ops.delete(f"/master-keys/{gone['id']}").status_code == 200
        self.owner = self._new_owner()
        self._at_first = self._database.with_suffix(".first")
        copy_database(self._database, self._at_first)

    def _restore(self) -> None:
        copy_database(self._at_first, self._database)
        with self.app.app_context():
            leases.record(ProcessKind.SHOPPER)

    def _new_owner(self) -> _Owner:
        agent = register(self.app.test_client())
        code = agent.post("/v1/agents/claim-code").get_json()["claimCode"]
        claimed = agent.client.post("/v1/device/claim", json={"code": code}).get_json()
        visitor = person(self.app)
        assert visitor.sign_in(claimed["ownerKey"]).status_code == 303
        assert visitor.client.get_cookie("purser_owner")
        rotated = self.ops.post(f"/agents/{agent.id}/rotate-key", {"grace_seconds": 3600}).get_json()
        return _Owner(replace(agent, key=rotated["apiKey"]), agent.key, claimed["ownerKey"], visitor.client)

    def ask_all(self, method: str, rule: str, row: Access) -> dict[ClientKind, int]:
        """Send a request as every kind of client; what was deleted is restored for the next.

        The owner is frozen last, for good: the next route finds the database as it was at first.
        """
        owner, path, answers = self.owner, "", {}
        for kind in sorted(ClientKind, key=_order):
            if not path:
                self._restore()
                path = self._path(rule, owner.agent)
            if kind is ClientKind.FROZEN:
                assert self.ops.post(f"/agents/{owner.agent.id}/freeze", {}).status_code == 200
            client = owner.browser if kind is ClientKind.COOKIE else self.app.test_client()
            body = None if method == "GET" else row.body(owner.agent) if row.body else {}
            answer = client.open(path, method=method, json=body, headers=self._headers(kind, owner), buffered=True)
            answers[kind] = int(answer.status_code)
            if rule.startswith("/v1/"):
                policy = answer.headers.get("Cache-Control", "")
                assert ("no-store" in policy) is (f"{method} {rule}" not in CACHEABLE), (method, rule, kind, policy)
            if method == "DELETE" and answer.status_code < 300:
                path = ""
        # The refusals did not end the owner's session.
        assert not path or owner.browser.get("/owner/sessions").status_code == 200
        return answers

    def _new_objects(self, rule: str, names: list[str], owner: Agent) -> dict[str, str]:
        """Create the approval or webhook that a route names."""
        made = {}
        if "approval_id" in names:
            owner.controls(approval_threshold_usd=1)
            asked = owner.post("/v1/gateway/shopping/buy", ORDER).get_json()
            owner.controls(approval_threshold_usd=None)
            made["approval_id"] = asked["approval"]["id"]
        if "webhook_id" in names:
            of_operators = "platform" in rule
            answer = self.ops.post("/webhooks", HOOK) if of_operators else owner.post("/v1/webhooks", HOOK)
            made["webhook_id"] = answer.get_json()["id"]
        return made

    def _path(self, rule: str, owner: Agent) -> str:
        names = re.findall(r"<(?:\w+:)?(\w+)>", rule)
        values = {
            "provider": "openai",
            "path": "models",
            "model_id": "openai/gpt-5",
            "agent_id": owner.id,
            "wallet_id": owner.wallet_id,
            "token": "x",
            "signed": "none",
            "slug": "agents",
            "item_id": owner.id,
            "act": "freeze_agent",
        }
        if "service_id" in names:
            values["service_id"] = owner.post("/v1/services", offer()).get_json()["id"]
            if "subscribe" in rule:
                wallet = {"wallet_id": owner.wallet_id}
                path = f"/v1/catalog/{values['service_id']}/subscribe"
                assert owner.post(path, wallet).status_code == 201
        if {"transaction_id", "record_id"} & set(names):
            failed = owner.move("0.001", "ETH").get_json()
            values["transaction_id"] = values["record_id"] = failed["details"]["transaction_id"]
        if "session_id" in names:
            body = {"max_usd": 1, "expires_at": clock.isoformat(clock.now() + timedelta(hours=1))}
            values["session_id"] = owner.post(f"{owner.wallet_url}/sessions", body).get_json()["id"]
        values |= self._new_objects(rule, names, owner) | {
            "tag": "wallets",
            "operation": "transfer",
            "import_id": UNKNOWN_ID,
            "payment_id": UNKNOWN_ID,
            # An access that is recorded in the audit log.
            "request_id": self.ops.get("/agents").headers["X-Request-Id"] if "platform/req" in rule else UNKNOWN_ID,
        }
        if "domain" in names:
            values["domain"] = "shop.example"
            pinned = {"wallet_id": owner.wallet_id, "host": "shop.example", "chain": "base", "address": "0x"}
            with self.app.app_context(), unit_of_work() as session:
                session.add(PinnedPayee(**pinned, created_at=clock.now()))
        if "purchase_id" in names:
            values["purchase_id"] = owner.post("/v1/gateway/shopping/buy", ORDER).get_json()["id"]
        if "evidence_id" in names:
            with self.app.app_context():
                purchases.buy(values["purchase_id"])
            bought = owner.get(f"{PURCHASE}/{values['purchase_id']}").get_json()
            values["evidence_id"] = bought["evidence"][0]["url"].rpartition("/")[2].partition(".")[0]
        if "budget_id" in names:
            values["budget_id"] = self.ops.post("/budgets", {"name": "team"}).get_json()["id"]
        if "key_id" in names:
            made = self.ops.post("/master-keys", {"name": "spare"}) if "master" in rule else owner.post("/v1/keys", {})
            values["key_id"] = made.get_json()["id"]
        return re.sub(r"<(?:\w+:)?(\w+)>", lambda match: values[match[1]], rule)

    def _headers(self, kind: ClientKind, owner: _Owner) -> dict[str, str]:
        unknown_keys = {"X-API-Key": "ak_" + "x" * 43, "X-Master-Key": "mk_" + "x" * 43, "Authorization": "Bearer x"}
        return {
            ClientKind.UNKNOWN: unknown_keys,
            ClientKind.OWNER: {"X-API-Key": owner.agent.key},
            ClientKind.GRACE: {"X-API-Key": owner.grace_key},
            ClientKind.FROZEN: {"X-API-Key": owner.agent.key},
            ClientKind.OTHER: {"X-API-Key": self.other.key},
            ClientKind.GATEWAY: {"X-API-Key": self.gateway},
            ClientKind.REVOKED: {"X-API-Key": self.revoked, "X-Master-Key": self.revoked},
            ClientKind.MASTER: {"X-Master-Key": self.ops.key},
            ClientKind.REVOKED_MASTER: {"X-Master-Key": self.revoked_master},
            ClientKind.MISPLACED: {"X-Master-Key": owner.agent.key},
            ClientKind.OWNER_KEY: dict.fromkeys(("X-API-Key", "X-Master-Key"), owner.owner_key),
        }.get(kind, {})
