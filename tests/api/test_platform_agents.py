"""`/v1/platform/agents`: administration of single agents."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
import time_machine
from flask import Flask
from sqlalchemy import func, select, update

from app.agents.claims import ClaimCode
from app.audit_log.trail import AuditEntry, AuditHead
from app.core import clock
from app.credits import accounts as credit_accounts
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.identity.models import Agent as AgentRow
from app.identity.models import ApiKey, OwnerKey
from app.wallets.core.models import RetiredKey, Wallet
from tests.support import rows
from tests.support.agents import register
from tests.support.applications import change_settings
from tests.support.ledger import statements
from tests.support.market import offer
from tests.support.operators import Operator, entries, operator

UNKNOWN = "00000000-0000-4000-8000-000000000000"


def test_an_agent_created_without_a_body_gets_the_documented_defaults(ops: Operator) -> None:
    answer = ops.post("/agents")
    assert answer.status_code == 201
    assert answer.headers["Cache-Control"] == "no-store"
    body = answer.get_json()
    assert re.fullmatch(r"ak_[A-Za-z0-9_-]{43}", body["apiKey"])
    assert re.fullmatch(r"agent-[0-9a-f]{8}@agents\.invalid", body["email"])
    assert (body["name"], body["credits_usd"]) == ("unnamed-agent", 10.0)
    assert body["spending_controls"] == {
        "daily_limit_usd": 100.0, "weekly_limit_usd": 500.0, "monthly_limit_usd": 1000.0, "per_tx_limit_usd": 50.0,
    }  # fmt: skip
    assert set(body["wallet"]["addresses"]) == {"ethereum", "base", "solana"}
    mine = {"X-API-Key": body["apiKey"]}
    assert ops.client.get("/v1/balance", headers=mine).get_json()["credits_usd"] == 10.0
    assert ops.client.get("/v1/wallets", headers=mine).get_json()["wallets"][0]["id"] == body["wallet"]["id"]


def test_an_agent_gets_the_values_that_the_operator_sent(ops: Operator) -> None:
    body = {"name": " fleet 7 ", "credits_usd": 0.000000001, "daily_limit_usd": 0, "per_tx_limit_usd": 2.5}
    made = ops.post("/agents", body).get_json()
    assert (made["name"], made["credits_usd"]) == ("fleet 7", 1e-09)
    assert made["spending_controls"]["daily_limit_usd"] == 0.0
    assert made["spending_controls"]["per_tx_limit_usd"] == 2.5
    assert made["spending_controls"]["weekly_limit_usd"] == 500.0
    (entry,) = entries(action="agent.created")
    assert entry.subject_id == made["agentId"]
    assert (entry.actor_kind, entry.actor_id, entry.actor_name) == ("master_key", ops.id, "ops")
    assert entry.after is not None
    assert entry.after["credits_usd"] == "0.000000001"
    assert made["apiKey"] not in str(entry)


def test_null_is_the_default_of_every_field(ops: Operator) -> None:
    limits = ("daily_limit_usd", "weekly_limit_usd", "monthly_limit_usd", "per_tx_limit_usd")
    answer = ops.post("/agents", dict.fromkeys(("name", "credits_usd", *limits)))
    assert answer.status_code == 201, answer.text
    assert [answer.get_json()["spending_controls"][name] for name in limits] == [100, 500, 1000, 50]
    assert answer.get_json()["credits_usd"] == 10.0


@pytest.mark.parametrize(
    "body",
    [
        {"credits_usd": -1}, {"credits_usd": 10**10}, {"credits_usd": "5"}, {"credits_usd": True},
        {"credits_usd": 1e-10}, {"daily_limit_usd": -0.01}, {"per_tx_limit_usd": 1e30}, {"name": "x" * 101},
        {"name": "a\u202eb"}, {"name": "a\x00b"}, {"name": "\ud800"}, {"name": 5}, [],
    ],
)  # fmt: skip
def test_an_invalid_agent_is_refused_and_leaves_no_rows(ops: Operator, body: object) -> None:
    assert ops.post("/agents", body).status_code == 400
    with read_only_unit() as session:
        assert session.scalar(select(func.count(AgentRow.id))) == 0
    assert entries(action="agent.created") == []


def test_operators_are_not_bound_by_the_budget_for_free_credits(app: Flask, ops: Operator) -> None:
    change_settings(app, grant_budget_usd_per_day=0)
    assert ops.post("/agents", {"credits_usd": 500}).status_code == 201
    assert ops.client.post("/v1/agents/register").status_code == 429


def test_listing_agents_takes_a_constant_number_of_queries(ops: Operator) -> None:
    made = [ops.make_agent(name=f"n{number}") for number in range(5)]
    registered = register(ops.client, name="self-made", email="ada@example.org")
    registered.delete(registered.wallet_url)
    with statements() as of_one:
        assert len(ops.get("/agents?limit=1").get_json()["agents"]) == 1
    with statements() as of_all:
        answer = ops.get("/agents")
    assert len(of_all) == len(of_one)
    assert answer.headers["Cache-Control"] == "no-store"
    body = answer.get_json()
    assert [row["id"] for row in body["agents"]] == [*(agent.id for agent in made), registered.id]
    assert [row["apiKey"] for row in body["agents"]] == [*(agent.key for agent in made), registered.key]
    assert body["agents"][-1]["wallet"] is None
    assert body["agents"][0]["wallet"]["id"] == made[0].wallet_id
    assert body["pagination"] == {"total": 6, "limit": 50, "offset": 0, "has_more": False}
    second = ops.get("/agents?limit=2&offset=2").get_json()
    assert [row["name"] for row in second["agents"]] == ["n2", "n3"]
    assert second["pagination"]["has_more"] is True
    assert ops.get(f"/agents?limit=2&after={made[1].id}").get_json() == second
    assert ops.get("/agents?limit=9999").get_json()["pagination"]["limit"] == 200
    assert ops.get("/agents?limit=0").status_code == 400
    shown = entries(action="agents.shown")
    assert shown[2].after == {"limit": 2, "offset": 2, "count": 2, "first": made[2].id, "last": made[3].id}
    assert shown[0].client_address == "127.0.0.1"
    assert shown[0].request_id


def test_one_agent_is_shown_with_all_its_wallets(ops: Operator) -> None:
    agent = ops.make_agent(name="shown")
    agent.post("/v1/wallets", {"name": "second"})
    body = ops.get(f"/agents/{agent.id}").get_json()
    assert (body["id"], body["apiKey"], body["frozen"], body["frozen_at"]) == (agent.id, agent.key, False, None)
    assert [wallet["name"] for wallet in body["wallets"]] == ["wallet-1", "second"]
    assert body["wallets"][0]["spending_controls"]["daily_limit_usd"] == 100.0
    assert [entry.subject_id for entry in entries(action="agent.shown")] == [agent.id]


@pytest.mark.parametrize("agent_id", [UNKNOWN, "x", "%00", UNKNOWN.replace("-", ""), UNKNOWN.upper()[:-1] + "G"])
def test_an_unknown_or_malformed_agent_is_404_everywhere(ops: Operator, agent_id: str) -> None:
    for method, path, body in (
        ("GET", "", None), ("PATCH", "", {"name": "n"}), ("DELETE", "", None), ("POST", "/rotate-key", {}),
        ("PUT", "/controls", {"daily_limit_usd": 1}), ("POST", "/credits", {"credits_usd": 1}),
        ("POST", "/freeze", None), ("POST", "/unfreeze", None), ("DELETE", "/claim-code", None),
    ):  # fmt: skip
        answer = ops.ask(method, f"/agents/{agent_id}{path}", body)
        assert (answer.status_code, answer.get_json()["code"]) == (404, "NOT_FOUND"), (method, path)
    assert [entry.action for entry in entries()] == ["master_key.created"]


def test_a_change_is_recorded_with_the_previous_values(ops: Operator) -> None:
    agent = register(ops.client, name="old", email="old@example.org")
    answer = ops.patch(f"/agents/{agent.id}", {"name": "neu ✨", "email": "NEW@example.org"})
    changed = {"id": agent.id, "name": "neu ✨", "email": "new@example.org", "rpm": None}
    assert answer.get_json() == {**changed, "updated": True}
    (entry,) = entries(action="agent.changed")
    assert entry.before == {"name": "old", "email": "old@example.org"}
    assert entry.after == {"name": "neu ✨", "email": "new@example.org"}
    assert ops.patch(f"/agents/{agent.id}", {"email": None}).get_json()["email"] is None
    assert ops.patch(f"/agents/{agent.id}", {}).status_code == 400
    assert ops.patch(f"/agents/{agent.id}", {"name": " "}).status_code == 400


def test_a_key_entered_as_a_name_is_redacted_from_the_audit_trail(ops: Operator) -> None:
    agent = ops.make_agent()
    assert ops.patch(f"/agents/{agent.id}", {"name": agent.key}).status_code == 200
    assert ops.patch(f"/agents/{agent.id}", {"name": "again"}).status_code == 200
    assert agent.key not in str(entries())


def test_a_rotation_without_grace_invalidates_the_old_key_immediately(ops: Operator) -> None:
    agent = ops.make_agent()
    answer = ops.post(f"/agents/{agent.id}/rotate-key")
    body = answer.get_json()
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-store")
    assert body["agentId"] == agent.id
    assert body["previous_key_valid_until"] == body["rotated_at"]
    assert agent.get("/v1/wallets").status_code == 401
    renewed = {"X-API-Key": body["apiKey"]}
    assert ops.client.get(f"/v1/wallets/{agent.wallet_id}", headers=renewed).status_code == 200
    assert ops.get(f"/agents/{agent.id}").get_json()["apiKey"] == body["apiKey"]
    assert body["apiKey"] not in str(entries())


def test_an_old_key_works_only_until_its_grace_period_ends(ops: Operator) -> None:
    agent = ops.make_agent()
    first = ops.post(f"/agents/{agent.id}/rotate-key", {"grace_seconds": 600}).get_json()
    second = ops.post(f"/agents/{agent.id}/rotate-key", {"grace_seconds": 3600}).get_json()
    keys = {"oldest": agent.key, "older": first["apiKey"], "newest": second["apiKey"]}

    def working() -> set[str]:
        return {
            name
            for name, key in keys.items()
            if ops.client.get("/v1/balance", headers={"X-API-Key": key}).status_code == 200
        }

    assert working() == {"oldest", "older", "newest"}
    # The second rotation does not extend what the first one has shortened.
    with time_machine.travel(clock.now() + timedelta(seconds=601), tick=True):
        assert working() == {"older", "newest"}
    with time_machine.travel(clock.now() + timedelta(seconds=3601), tick=True):
        assert working() == {"newest"}


def test_a_rotation_without_grace_ends_earlier_grace_periods(ops: Operator) -> None:
    agent = ops.make_agent()
    first = ops.post(f"/agents/{agent.id}/rotate-key", {"grace_seconds": 3600}).get_json()
    ops.post(f"/agents/{agent.id}/rotate-key", {"grace_seconds": 0})
    for key in (agent.key, first["apiKey"]):
        assert ops.client.get("/v1/balance", headers={"X-API-Key": key}).status_code == 401


def test_a_rotation_records_only_the_keys_that_it_invalidates(ops: Operator) -> None:
    agent = ops.make_agent()
    for rotation in range(4):
        with time_machine.travel(clock.now() + timedelta(seconds=10 * rotation), tick=True):
            assert ops.post(f"/agents/{agent.id}/rotate-key", {"grace_seconds": 5}).status_code == 200
    noted = [entry.before["key_ids"] for entry in entries(action="agent.key_rotated") if entry.before]
    assert [len(ids) for ids in noted] == [1, 1, 1, 1]
    assert len({ids[0] for ids in noted}) == 4


@pytest.mark.parametrize("grace", [-1, 1.5, "soon", True, 2_592_001, 10**30, None])
def test_an_invalid_grace_period_is_refused(ops: Operator, grace: object) -> None:
    agent = ops.make_agent()
    assert ops.post(f"/agents/{agent.id}/rotate-key", {"grace_seconds": grace}).status_code == 400
    assert agent.get("/v1/balance").status_code == 200


def test_two_keys_of_one_agent_share_its_rate_limit(app: Flask, ops: Operator) -> None:
    agent = ops.make_agent()
    renewed = ops.post(f"/agents/{agent.id}/rotate-key", {"grace_seconds": 600}).get_json()["apiKey"]
    change_settings(app, rate_limit_per_key="3 per minute")
    asked = [
        ops.client.get("/v1/balance", headers={"X-API-Key": key}).status_code
        for key in (agent.key, renewed, agent.key, renewed)
    ]
    assert asked == [200, 200, 200, 429]


def test_an_idempotency_key_belongs_to_the_agent_across_a_rotation(ops: Operator) -> None:
    agent = ops.make_agent()
    first = agent.post("/v1/wallets", {"name": "once"}, Idempotency_Key="k")
    renewed = ops.post(f"/agents/{agent.id}/rotate-key").get_json()["apiKey"]
    headers = {"X-API-Key": renewed, "Idempotency-Key": "k"}
    again = ops.client.post("/v1/wallets", json={"name": "once"}, headers=headers)
    assert again.get_json() == first.get_json()
    assert again.headers["Idempotent-Replayed"] == "true"


def test_a_repeated_request_creates_nothing_again(ops: Operator) -> None:
    agent = ops.make_agent()
    for path, body, other in (
        ("/agents", {"name": "once"}, {"name": "other"}),
        (f"/agents/{agent.id}/rotate-key", {"grace_seconds": 5}, {"grace_seconds": 6}),
        (f"/agents/{agent.id}/credits", {"credits_usd": 5}, {"credits_usd": 6}),
        ("/master-keys", {"name": "once"}, {"name": "other"}),
    ):
        first = ops.post(path, body, Idempotency_Key="k")
        assert first.status_code < 300, first.text
        again = ops.post(path, body, Idempotency_Key="k")
        assert again.get_json() == first.get_json()
        assert ops.post(path, other, Idempotency_Key="k").status_code == 409
    assert agent.get("/v1/balance").status_code == 200
    with read_only_unit() as session:
        assert session.scalar(select(func.count(AgentRow.id))) == 2
        assert session.scalar(select(func.count(ApiKey.id))) == 3
    assert len(entries(action="agent.credits_granted")) == 1


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_replay_that_shows_a_key_is_recorded_or_refused(app: Flask, ops: Operator, *, is_rebuilt: bool) -> None:
    agent = ops.make_agent()
    shown: list[str] = []
    for path, body in (
        ("/agents", {"name": "once"}),
        (f"/agents/{agent.id}/rotate-key", {}),
        (f"/agents/{agent.id}/credits", {"credits_usd": 5}),
        ("/master-keys", {"name": "once"}),
    ):
        first = ops.post(path, body, Idempotency_Key="k").get_json()
        if is_rebuilt:
            with app.app_context():
                rows.lose_responses()
        before = len(entries())
        assert ops.post(path, body, Idempotency_Key="k").get_json() == first
        shown += [f"{e.action} {e.subject_id or e.after}" for e in entries()[before:]]
        made = first.get("agentId") or first["id"]
        if "credits_usd" in body:
            continue
        last = (
            f"agent.shown {made}"
            if "agentId" in first
            else f"master_keys.shown {{'key_ids': ['{made}'], 'repeated': True}}"
        )
        assert shown[-1] == last
    assert len(shown) == 3
    # The trail cannot be written: no response.
    with unit_of_work() as session:
        sealed = session.scalars(select(AuditHead.sealed)).one()
        session.execute(update(AuditHead).values(sealed="k1.AAAA"))
    refused = ops.post("/master-keys", {"name": "once"}, Idempotency_Key="k")
    with unit_of_work() as session:
        session.execute(update(AuditHead).values(sealed=sealed))
    assert refused.status_code == 500
    assert "mk_" not in refused.text


def test_a_response_lost_in_a_crash_is_rebuilt_from_the_audit_entry(app: Flask, ops: Operator) -> None:
    agent = ops.make_agent()
    for path, body in (
        ("/agents", {"name": "once"}),
        (f"/agents/{agent.id}/rotate-key", {"grace_seconds": 5}),
        (f"/agents/{agent.id}/credits", {"credits_usd": 5}),
        ("/master-keys", {"name": "once"}),
    ):
        first = ops.post(path, body, Idempotency_Key="k")
        with app.app_context():
            rows.lose_responses()
        again = ops.post(path, body, Idempotency_Key="k")
        assert again.headers["Idempotent-Replayed"] == "true"
        assert (again.status_code, again.get_json()) == (first.status_code, first.get_json())


def test_credits_are_granted_exactly_and_recorded(ops: Operator) -> None:
    agent = ops.make_agent(credits_usd=1)
    body = ops.post(f"/agents/{agent.id}/credits", {"credits_usd": 0.123456789}).get_json()
    assert body == {"agentId": agent.id, "granted_usd": 0.123456789, "credits_usd": 1.123456789}
    assert agent.get("/v1/balance").get_json()["credits_usd"] == 1.123456789
    (entry,) = entries(action="agent.credits_granted")
    assert entry.before == {"credits_usd": "1"}
    assert entry.after is not None
    assert entry.after["credits_usd"] == "1.123456789"


@pytest.mark.parametrize(
    "value", [-1, 0, -0.000000001, 10**9 + 1, 10**30, "1", None, True, [], {"usd": 1}, 0.0000000001]
)
def test_invalid_credit_amounts_are_refused(ops: Operator, value: object) -> None:
    agent = ops.make_agent()
    assert ops.post(f"/agents/{agent.id}/credits", {"credits_usd": value}).status_code == 400
    assert agent.get("/v1/balance").get_json()["credits_usd"] == 10.0


def test_grants_never_exceed_the_maximum_balance(each_database_url: str, build_app: Callable[..., Flask]) -> None:
    with build_app(each_database_url).app_context() as context:
        ops = operator(context.app.test_client())
        agents = [ops.make_agent(credits_usd=0) for _ in range(12)]
        for agent in agents:
            assert ops.post(f"/agents/{agent.id}/credits", {"credits_usd": 10**9}).status_code == 200
            over = ops.post(f"/agents/{agent.id}/credits", {"credits_usd": 0.000000001})
            assert (over.status_code, over.get_json()["code"]) == (400, "INVALID_INPUT")
        # Twelve billion dollars exceed a BIGINT of nano-dollars: the audit must still add them up.
        with read_only_unit() as session:
            assert credit_accounts.balance(session, agents[0].id).credits_nanos == 10**18


def test_a_freeze_applies_to_the_agent_with_or_without_wallets(ops: Operator) -> None:
    agent = ops.make_agent()
    agent.delete(agent.wallet_url)
    body = ops.post(f"/agents/{agent.id}/freeze").get_json()
    assert body["frozen"] is True
    assert body["frozen_at"]
    wallet = agent.post("/v1/wallets", {"name": "born frozen"}).get_json()["id"]
    answer = agent.delete(f"/v1/wallets/{wallet}")
    assert (answer.status_code, answer.get_json()["code"]) == (403, "WALLET_FROZEN")
    again = ops.post(f"/agents/{agent.id}/freeze").get_json()
    assert again == body
    assert ops.get(f"/agents/{agent.id}").get_json()["frozen"] is True
    assert ops.post(f"/agents/{agent.id}/unfreeze").get_json() == {
        "agentId": agent.id, "frozen": False, "frozen_at": None,
    }  # fmt: skip
    assert agent.delete(f"/v1/wallets/{wallet}").status_code == 200
    assert [(e.before, e.after) for e in entries(subject_id=agent.id) if "frozen" in e.action] == [
        ({"frozen": False}, {"frozen": True}),
        ({"frozen": True}, {"frozen": True}),
        ({"frozen": True}, {"frozen": False}),
    ]


def test_a_deleted_agent_loses_access_and_its_ledger_is_kept(ops: Operator) -> None:
    agent = register(ops.client, name="gone", email="gone@example.org")
    second = agent.post("/v1/wallets", {"name": "second"}).get_json()["id"]
    ops.put(f"/agents/{agent.id}/controls", {"locked": True})
    service = agent.post("/v1/services", offer()).get_json()["id"]
    answer = ops.delete(f"/agents/{agent.id}")
    assert answer.get_json() == {"id": agent.id, "deleted": True}
    assert agent.get("/v1/balance").status_code == 401
    assert ops.get(f"/agents/{agent.id}").status_code == 404
    assert ops.delete(f"/agents/{agent.id}").status_code == 404
    assert ops.get("/agents").get_json()["agents"] == []
    with read_only_unit() as session:
        assert session.scalar(select(func.count(Wallet.id))) == 0
        assert set(session.scalars(select(RetiredKey.wallet_id))) == {agent.wallet_id, second}
        row = session.scalars(select(AgentRow)).one()
        assert (row.name, row.email) == ("deleted-agent", None)
        assert credit_accounts.balance(session, agent.id).credits_nanos == 10 * 10**9
    (entry,) = entries(action="agent.deleted")
    assert entry.before is not None
    assert (entry.before["had_email"], entry.before["was_claimed"]) == (True, False)
    assert "gone@example.org" not in str(entries())
    assert set(entry.before["wallet_ids"]) == {agent.wallet_id, second}
    assert entry.before["service_ids"] == [service]
    other = register(ops.client)
    assert other.get(f"/v1/catalog/{service}").status_code == 404
    assert other.get("/v1/catalog").get_json()["services"] == []


def test_a_frozen_agent_is_not_deleted(ops: Operator) -> None:
    agent = ops.make_agent()
    ops.post(f"/agents/{agent.id}/freeze")
    answer = ops.delete(f"/agents/{agent.id}")
    assert (answer.status_code, answer.get_json()["code"]) == (403, "WALLET_FROZEN")
    assert agent.get(agent.wallet_url).status_code == 200


def test_a_deleted_agent_cannot_be_claimed_and_its_owner_is_erased(ops: Operator) -> None:
    made = ops.client.post("/v1/agents/register", json={}).get_json()
    claimed = ops.client.post("/v1/agents/register", json={}).get_json()
    claim = {"code": claimed["claimCode"], "email": "ada@example.org"}
    assert ops.client.post("/v1/device/claim", json=claim).status_code == 200
    for agent in (made, claimed):
        assert ops.delete(f"/agents/{agent['agentId']}").status_code == 200
        code = {"code": agent["claimCode"], "email": "ada@example.org"}
        assert ops.client.post("/v1/device/claim", json=code).status_code == 404
        assert ops.client.get("/v1/device/info", query_string=code).status_code == 404
    with read_only_unit() as session:
        assert session.scalars(select(OwnerKey.owner_email)).all() == [None]
        assert session.scalar(select(func.count()).where(OwnerKey.revoked_at.is_(None))) == 0
        assert set(session.scalars(select(ClaimCode.answer_sealed))) == {None}
    assert "ada@example.org" not in str(entries())


def test_an_open_claim_code_is_revoked_and_a_new_one_can_be_requested(ops: Operator) -> None:
    made = ops.client.post("/v1/agents/register", json={}).get_json()
    path = f"/agents/{made['agentId']}/claim-code"
    assert ops.delete(path).get_json() == {"agentId": made["agentId"], "revoked": True}
    assert ops.delete(path).get_json()["revoked"] is False
    assert ops.client.get("/v1/device/info", query_string={"code": made["claimCode"]}).status_code == 404
    code = ops.client.post("/v1/agents/claim-code", headers={"X-API-Key": made["apiKey"]}).get_json()["claimCode"]
    assert ops.client.post("/v1/device/claim", json={"code": code}).status_code == 200
    assert ops.delete(path).get_json()["revoked"] is False


def test_only_master_keys_authenticate_on_the_platform(ops: Operator) -> None:
    agent = register(ops.client)
    gateway = ops.client.post("/v1/keys", json={}).get_json()["api_key"]
    other = operator(ops.client, "other")
    ops.delete(f"/master-keys/{other.id}")
    headers: list[dict[str, str]] = [
        {}, {"X-Master-Key": ""}, {"X-API-Key": agent.key}, {"X-Master-Key": agent.key}, {"X-Master-Key": gateway},
        {"X-API-Key": ops.key}, {"X-Master-Key": other.key}, {"Authorization": f"Bearer {ops.key}"},
        {"X-Master-Key": ops.key + "x"}, {"X-Master-Key": "mk_" + "ä" * 40}, {"X-Master-Key": f" {ops.key[:-1]}"},
        {"X-Master-Key": "mk_" + "x" * 9000},
    ]  # fmt: skip
    bodies = set()
    for sent in headers:
        for method, path in (("GET", "/agents"), ("POST", "/agents"), ("PUT", "/controls"), ("GET", "/audit")):
            answer = ops.client.open(f"/v1/platform{path}", method=method, headers=sent, json={})
            assert answer.status_code == 401, (sent, method, path)
            bodies.add((answer.get_json()["error"], answer.get_json()["code"]))
    assert len(bodies) == 1
    with read_only_unit() as session:
        assert session.scalar(select(func.count(AuditEntry.number))) == 3
