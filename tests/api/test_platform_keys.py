"""Master keys, gateway-only keys and the audit log, over the API and from the command line."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
from click.testing import Result
from flask import Flask
from flask.testing import FlaskClient
from pydantic import SecretStr
from sqlalchemy import delete, func, insert, select, update

from app.adapters import vault
from app.audit_log import trail, verification
from app.audit_log.trail import AuditEntry, AuditHead, AuditHeadView
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.identity.models import MasterKey
from app.platform.keys import create_bootstrap_master_key
from app.state import app_state
from app.wallets.core import custody
from app.wallets.core.models import WalletKey
from tests.support.agents import register
from tests.support.applications import change_settings
from tests.support.operators import Operator, entries


def run(app: Flask, *command: str) -> Result:
    return app.test_cli_runner().invoke(args=list(command))


def test_master_keys_are_created_listed_and_revoked(ops: Operator) -> None:
    made = ops.post("/master-keys", {"name": "second", "owner_email": "Ada@Example.org"})
    assert (made.status_code, made.headers["Cache-Control"]) == (201, "no-store")
    body = made.get_json()
    assert set(body) == {"id", "key", "name", "role", "owner_email", "created_at"}
    assert body["owner_email"] == "ada@example.org"
    second = Operator(ops.client, body["id"], body["key"])
    assert second.get("/agents").status_code == 200
    listed = ops.get("/master-keys").get_json()
    assert listed["count"] == 2
    assert [key["key"] for key in listed["master_keys"]] == [ops.key, second.key]
    answer = ops.delete(f"/master-keys/{second.id}")
    assert answer.get_json() == {"revoked": True, "id": second.id}
    assert ops.delete(f"/master-keys/{second.id}").get_json() == {"revoked": True, "id": second.id}
    assert second.get("/agents").status_code == 401
    revoked = ops.get("/master-keys").get_json()["master_keys"][1]
    assert revoked["key"] == f"{second.key[:7]}…{second.key[-4:]}"
    assert revoked["active"] is False
    assert revoked["revoked_at"]
    assert second.key not in str(entries())
    assert entries(action="master_keys.shown")[0].after == {"key_ids": [ops.id, second.id]}


def test_a_master_key_cannot_revoke_itself_or_an_unknown_key(ops: Operator) -> None:
    answer = ops.delete(f"/master-keys/{ops.id}")
    assert (answer.status_code, answer.get_json()["code"]) == (400, "SELF_REVOKE")
    for key_id in ("x", "00000000-0000-4000-8000-000000000000", register(ops.client).id):
        assert ops.delete(f"/master-keys/{key_id}").status_code == 404
    assert ops.get("/agents").status_code == 200


@pytest.mark.parametrize(
    "body", [{"name": 5}, {"name": "x" * 101}, {"owner_email": "no"}, {"name": "a\u2066b"}, {"name": "\udfff"}]
)
def test_an_invalid_master_key_body_is_refused(ops: Operator, body: dict[str, Any]) -> None:
    assert ops.post("/master-keys", body).status_code == 400
    assert ops.get("/master-keys").get_json()["count"] == 1


def test_gateway_keys_are_listed_truncated_and_revoked(ops: Operator) -> None:
    agent = register(ops.client)
    made = [ops.client.post("/v1/keys", json={"email": f"k{n}@example.org"}).get_json() for n in range(3)]
    body = ops.get("/keys?limit=2").get_json()
    assert [key["id"] for key in body["keys"]] == [key["id"] for key in made[:2]]
    assert body["keys"][0]["api_key"] == f"{made[0]['api_key'][:7]}…{made[0]['api_key'][-4:]}"
    assert (body["keys"][0]["credits_usd"], body["keys"][0]["active"]) == (10.0, True)
    assert body["pagination"]["total"] == 3
    assert ops.delete(f"/keys/{made[0]['id']}").get_json() == {"revoked": True, "id": made[0]["id"]}
    assert ops.delete(f"/keys/{made[0]['id']}").status_code == 200
    assert ops.client.get("/v1/balance", headers={"X-API-Key": made[0]["api_key"]}).status_code == 401
    assert ops.client.get("/v1/balance", headers={"X-API-Key": made[1]["api_key"]}).status_code == 200
    assert ops.get("/keys").get_json()["keys"][0]["active"] is False
    for key_id in ("x", "00000000-0000-4000-8000-000000000000", agent.id):
        assert ops.delete(f"/keys/{key_id}").status_code == 404
    assert agent.get("/v1/balance").status_code == 200


def test_the_audit_trail_is_listed_newest_first_and_filtered(ops: Operator) -> None:
    agents = [ops.make_agent(name=f"n{number}") for number in range(3)]
    ops.post(f"/agents/{agents[0].id}/freeze")
    body = ops.get("/audit?limit=2").get_json()
    assert [entry["action"] for entry in body["entries"]] == ["agent.frozen", "agent.created"]
    assert [entry["number"] for entry in body["entries"]] == [5, 4]
    assert body["entries"][0]["actor"] == {"kind": "master_key", "id": ops.id, "name": "ops"}
    assert body["entries"][0]["subject"] == {"kind": "agent", "id": agents[0].id}
    assert body["pagination"] == {"total": 5, "limit": 2, "offset": 0, "has_more": True}
    assert body["head"] == {"number": 5, "hash": body["entries"][0]["hash"]}
    assert [entry["number"] for entry in ops.get("/audit?offset=3").get_json()["entries"]] == [2, 1]
    assert ops.get("/audit?offset=99").get_json()["entries"] == []
    assert ops.get("/audit?action=agent.created").get_json()["pagination"]["total"] == 3
    mine = ops.get(f"/audit?subject_id={agents[0].id}").get_json()
    assert [entry["action"] for entry in mine["entries"]] == ["agent.frozen", "agent.created"]
    assert ops.get("/audit?action=nothing").status_code == 400
    assert ops.get("/audit?subject_id=x").status_code == 400


def tampered(statement: Any) -> list[str]:
    """Return the problems found in a trail that was tampered with, and undo it."""
    with unit_of_work() as session:
        rows = [dict(row) for row in session.execute(select(AuditEntry.__table__)).mappings()]
        heads = [dict(row) for row in session.execute(select(AuditHead.__table__)).mappings()]
        session.execute(statement)
    with read_only_unit() as session:
        found = verification.find_problems(session)
    with unit_of_work() as session:
        for table, saved in ((AuditEntry, rows), (AuditHead, heads)):
            session.execute(delete(table))
            session.execute(table.__table__.insert(), saved)
    return found


def test_every_change_or_deletion_in_the_audit_trail_is_detected(ops: Operator) -> None:
    agent = ops.make_agent(name="watched")
    for name in ("one", "two", "three"):
        ops.patch(f"/agents/{agent.id}", {"name": name})
    with read_only_unit() as session:
        assert verification.find_problems(session) == []
        last = trail.get_head(session).number
    entry = update(AuditEntry).where(AuditEntry.number == 3)
    for column, value in (
        ("after", {"name": "other"}), ("before", None), ("actor_name", "other"), ("at", entries()[0].at),
        ("request_id", None), ("client_address", "10.0.0.1"), ("subject_id", None), ("action", "agent.shown"),
    ):  # fmt: skip
        assert tampered(entry.values({column: value})) == ["entry 3 was changed"], column
    assert tampered(delete(AuditEntry).where(AuditEntry.number == 3)) == ["entry 3 is missing"]
    assert tampered(delete(AuditEntry).where(AuditEntry.number == 1)) == ["entry 1 is missing"]
    assert tampered(delete(AuditEntry).where(AuditEntry.number >= 3)) == [f"entries 3 to {last} are missing"]
    assert tampered(entry.values(number=0)) == ["entry 0 precedes the first", "entry 3 is missing"]
    assert tampered(delete(AuditHead)) == ["the head of the trail is missing, its entries exist"]
    second = insert(AuditHead).values(name="another", number=0, hash="0" * 64, proof="0" * 64, sealed="")
    assert tampered(second) == ["there is a head named 'another', which this service has not written"]
    (swapped,) = tampered(update(AuditHead).values(sealed="k1.AAAA"))
    assert "key cannot be opened" in swapped


def test_a_truncated_audit_trail_with_a_forged_head_is_detected(ops: Operator) -> None:
    ops.make_agent()
    before = entries()[-2]
    cut = tampered(update(AuditHead).values(number=before.number, hash=before.hash))
    assert "was not written by this service" in cut[0]


def test_an_audit_trail_restored_to_an_earlier_state_is_detected_by_a_recorded_head(app: Flask, ops: Operator) -> None:
    with read_only_unit() as session:
        earlier = dict(session.execute(select(AuditHead.__table__)).mappings().one())
    ops.make_agent()
    with read_only_unit() as session:
        noted = trail.get_head(session)
    with unit_of_work() as session:
        session.execute(delete(AuditEntry).where(AuditEntry.number > earlier["number"]))
        session.execute(update(AuditHead).values(earlier))
    with read_only_unit() as session:
        assert verification.find_problems(session) == []
        assert verification.find_problems(session, expected=noted) == [
            "the trail ends at entry 1, but had 2 when its head was recorded"
        ]
    ops.make_agent()
    with read_only_unit() as session:
        assert verification.find_problems(session, expected=noted) == ["entry 2 is not the recorded one"]
    done = run(app, "audit", "verify", "--expect", f"{noted.number}:{noted.hash}")
    assert done.exit_code == 1
    assert "entry 2 is not the recorded one" in done.output


def test_an_entry_cannot_be_forged_without_the_chain_key(ops: Operator) -> None:
    ops.make_agent()
    guessed = trail.entry_hash(b"\0" * 32, trail.GENESIS, trail.hashed_values(entries()[0]._asdict()))
    assert guessed != entries()[0].hash
    assert "entry 1 was changed" in tampered(update(AuditEntry).where(AuditEntry.number == 1).values(hash=guessed))


def test_the_chain_key_is_sealed_and_rotates_with_the_other_secrets(app: Flask, ops: Operator) -> None:
    ops.make_agent()
    assert run(app, "keys", "rotate").exit_code == 0
    assert entries()[-1].action == "encryption.rotated"
    with read_only_unit() as session:
        sealed = session.scalars(select(AuditHead.sealed)).one()
    assert sealed.startswith("k1.")


def test_an_interrupted_encryption_rotation_has_left_its_audit_entry(app: Flask, ops: Operator) -> None:
    ops.make_agent()
    with unit_of_work() as session:
        session.execute(update(WalletKey).values(sealed="k0.AAAA"))
    assert run(app, "keys", "rotate").exit_code == 1
    begun = entries()[-1]
    assert (begun.action, begun.actor_kind) == ("encryption.rotation_begun", "command")
    assert begun.after == {"encryption_key": "k1"}


def test_the_end_of_a_long_audit_trail_can_be_verified_alone(ops: Operator) -> None:
    for _ in range(3):
        ops.make_agent()
    with read_only_unit() as session:
        assert verification.find_problems(session, newest=2) == []
        assert verification.find_problems(session, expected=AuditHeadView(2, entries_hash(2))) == []


def entries_hash(number: int) -> str:
    found: str = db.session.scalars(select(AuditEntry.hash).where(AuditEntry.number == number)).one()
    return found


def test_the_cli_creates_lists_and_revokes_master_keys(app: Flask, client: FlaskClient) -> None:
    done = run(app, "master-keys", "create", "--name", "shell", "--owner-email", "ada@example.org")
    assert done.exit_code == 0, done.output
    key = done.stdout.strip()
    assert re.fullmatch(r"mk_[A-Za-z0-9_-]{43}", key)
    with read_only_unit() as session:
        key_id = session.scalars(select(MasterKey.id)).one()
    first = Operator(client, key_id, key)
    assert first.get("/agents").status_code == 200
    listed = run(app, "platform", "list_master_keys").stdout
    assert key not in listed
    [shown] = json.loads(listed)["master_keys"]
    assert (shown["id"], shown["key"]) == (key_id, f"{key[:7]}…{key[-4:]}")
    revoke = ("platform", "revoke_master_key")
    refused = run(app, *revoke, f"key_id={key_id}")
    assert refused.exit_code == 1
    assert "last active master key" in refused.output
    second = first.post("/master-keys", {"name": "second"}).get_json()
    assert run(app, *revoke, f"key_id={key_id}").exit_code == 0
    assert first.get("/agents").status_code == 401
    assert run(app, *revoke, f"key_id={second['id']}").exit_code == 1
    assert run(app, *revoke, "key_id=x").exit_code == 1
    assert run(app, "master-keys", "create", "--owner-email", "no").exit_code == 2
    kinds = [entry.actor_kind for entry in entries() if entry.action.startswith("master_key.")]
    assert kinds == ["command", "master_key", "command"]


def test_the_key_of_a_deleted_wallet_can_be_exported(
    app: Flask, ops: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    agent = register(ops.client)
    with read_only_unit() as session:
        sealed = session.scalars(select(WalletKey.sealed)).one()
    secret = app_state().ports.vault.open(sealed, custody.key_location(agent.wallet_id))
    phrase = vault.phrase(secret[: vault.ENTROPY_BYTES])
    assert run(app, "retired-keys", "export", agent.wallet_id).exit_code == 1
    agent.delete(agent.wallet_url)
    listed = run(app, "retired-keys", "list")
    assert agent.wallet_id in listed.output
    assert phrase not in listed.output
    caplog.clear()
    caplog.set_level(logging.DEBUG)
    done = run(app, "retired-keys", "export", agent.wallet_id)
    assert done.exit_code == 0, done.output
    assert f"Recovery phrase (BIP-39): {phrase}" in done.stdout
    assert f"{agent.address} at m/44'/60'/0'/0/0" in done.stdout
    assert f"{agent.solana_address} at m/44'/501'/0'/0'" in done.stdout
    logged = str([record.__dict__ for record in caplog.records])
    assert "audit_head" in logged
    assert phrase not in logged
    (entry,) = entries(action="retired_key.exported")
    assert (entry.subject_id, entry.actor_kind) == (agent.wallet_id, "command")
    assert phrase not in str(entry)


def test_the_bootstrap_master_key_is_recorded_in_the_audit_trail(app: Flask, client: FlaskClient) -> None:

    key = "mk_" + "b" * 43
    change_settings(app, bootstrap_master_key=SecretStr(key))
    with app.app_context():
        create_bootstrap_master_key()
        create_bootstrap_master_key()
    assert client.get("/v1/platform/agents", headers={"X-Master-Key": key}).status_code == 200
    with read_only_unit() as session:
        assert session.scalar(select(func.count(MasterKey.id))) == 1
    assert [entry.action for entry in entries()] == ["master_key.created", "agents.shown"]
