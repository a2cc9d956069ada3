"""Export and erasure of personal data: complete, of one agent only, and without a change of accounts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import event
from sqlalchemy.engine import make_url

from app.adapters.smtp import SmtpMailer
from app.audit_log import verification
from app.audit_log.actors import shell_actor
from app.audit_log.trail import AuditEntry
from app.core import clock
from app.core.pagination import PageRequest
from app.db.unit_of_work import unit_of_work
from app.events import feed, outbox, targets
from app.events.outbox import EventType
from app.events.targets import Audience, Subscriber
from app.extensions import db
from app.identity.principal import MasterKeyRole
from app.platform import personal_data
from tests.support.fake_shopper import PNG, FakeShopper
from tests.support.filled import held
from tests.support.ledger import read
from tests.support.notices import running_mailbox
from tests.support.operators import entries, operator
from tests.support.owners import CODE, OWNER_KEY, forms_of, person
from tests.support.personal_data import EMAIL, OTHER, PLACES, WORDS, Scene, copied, fill
from tests.support.sqlite_copies import FilledOnce
from tests.support.webhooks import deliver

# Locks, a transaction that ends early, and columns of every type; what else follows from the rows is the same on both.
ON_EACH_DATABASE = pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


@pytest.fixture
def scene(database_url: str, build_app: Callable[..., Flask], with_personal_data: FilledOnce[Scene]) -> Iterator[Scene]:
    with running_mailbox() as box:
        mailer = SmtpMailer(f"smtp://127.0.0.1:{box.port}", sender="purser@service.example")
        app = build_app(database_url, shopper=FakeShopper(), mailer=mailer)
        with app.app_context():
            if database_url.startswith("sqlite"):
                yield copied(with_personal_data.fill(app, lambda: fill(app, box)), app, box)
            else:
                yield fill(app, box)


def erase(scene: Scene) -> dict[str, Any]:
    answer = scene.ops.delete(scene.path)
    assert answer.status_code == 200, answer.text
    rows: dict[str, Any] = answer.get_json()["rows"]
    return rows


@ON_EACH_DATABASE
def test_an_erased_email_address_is_nowhere_in_the_database(scene: Scene, database_url: str) -> None:
    assert scene.found(*PLACES) == set(PLACES)
    rows = erase(scene)
    assert rows["event_targets"] == 3
    # What belongs to the other agent has the same shop.
    assert scene.found(*PLACES) <= {"shop.example", "A-1"}
    assert scene.export()["purchase_evidence"] == []
    tables = json.dumps(scene.export())
    assert [text for text in PLACES if text in tables] == []
    if database_url.startswith("sqlite"):
        path = str(make_url(database_url).database)
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        content = Path(path).read_bytes()
        assert [text for text in (EMAIL, *WORDS) if text.encode() in content] == []
        assert OTHER.encode() in content


def test_the_seals_the_audit_log_and_the_accounts_agree_after_an_erasure(scene: Scene) -> None:
    heads = [entry.hash for entry in entries()]
    erase(scene)
    assert read(verification.find_problems) == []
    found = entries()
    # The same chain, which only grew.
    assert [entry.hash for entry in found[: len(heads)]] == heads
    last = found[-1]
    assert (last.action, last.subject_id) == ("agent.personal_data_erased", scene.id)
    assert EMAIL not in str(found)
    assert scene.world.call(scene.made, "GET", "/v1/wallets")[0] == 200
    assert scene.world.call(scene.made, "GET", "/v1/balance")[0] == 200


@pytest.mark.parametrize("change", [{"before": {"frozen": True}}, {"client_address": "1.2.3.4"}, {"after": None}])
def test_an_entry_that_was_erased_cannot_be_changed_afterwards(scene: Scene, change: dict[str, Any]) -> None:
    erase(scene)
    erased = next(entry for entry in entries(action="agent.changed") if entry.subject_id == scene.id)
    with unit_of_work() as session:
        session.get_one(AuditEntry, erased.number).after = {
            "erased": erased.after["erased"],
            **(change.get("after") or {}),
        }
        for name, value in change.items():
            setattr(session.get_one(AuditEntry, erased.number), name, value)
    assert read(verification.find_problems) == [f"entry {erased.number} was changed"]
    with unit_of_work() as session:
        values = {"before": None, "client_address": erased.client_address, "after": erased.after}
        for name, value in values.items():
            setattr(session.get_one(AuditEntry, erased.number), name, value)
    assert read(verification.find_problems) == []


@ON_EACH_DATABASE
def test_nothing_of_another_agent_is_exported_or_erased(scene: Scene) -> None:
    before = scene.export(scene.other["agentId"])
    assert "Analytical" in json.dumps(before)
    assert EMAIL not in json.dumps(before)
    assert OTHER not in json.dumps(scene.export())
    erase(scene)
    after = scene.export(scene.other["agentId"])
    before["audit_entries"] = after["audit_entries"] = []
    assert after == before


def test_an_export_has_the_data_and_the_references_of_screenshots_but_no_secret(scene: Scene) -> None:
    tables = scene.export()
    text = json.dumps(tables)
    assert [each for each in (*PLACES, '"Pen"') if each not in text] == []
    assert PNG.hex() not in text
    [screenshot] = [row for row in tables["purchase_evidence"] if row["media_type"] == "image/png"]
    assert set(screenshot) == {"id", "purchase_id", "name", "media_type", "created_at"}
    for secret in ("sealed", "digest", "mac", "code_hmac"):
        assert f'"{secret}"' not in text
    assert scene.made["apiKey"] not in text
    assert scene.owner.key not in text
    assert entries(action="agent.personal_data_shown")[-1].subject_id == scene.id


def test_agents_viewers_operators_and_other_owners_erase_nothing(scene: Scene) -> None:
    before = scene.export()
    client = scene.app.test_client()
    path = f"/v1/platform{scene.path}"
    for headers in ({}, {"X-API-Key": scene.made["apiKey"]}, {"X-Master-Key": scene.made["apiKey"]}):
        assert client.delete(path, headers=headers).status_code == 401
        assert client.get(path, headers=headers).status_code == 401
    for role in (MasterKeyRole.VIEWER, MasterKeyRole.OPERATOR):
        assert operator(client, role=role).delete(scene.path).status_code == 403
    stranger = person(scene.app)
    stranger.claim(scene.world.register())
    assert stranger.get(f"{scene.page}/personal-data").status_code == 404
    after = scene.export()
    before["audit_entries"] = after["audit_entries"] = []
    assert after == before


def test_the_owner_reads_what_follows_and_erases_with_the_owner_key_only(scene: Scene) -> None:
    path = f"{scene.page}/personal-data"
    page = scene.owner.get(path)
    assert "This cannot be undone" in page.text
    assert scene.owner.send(page, f"{path}/erase", owner_key="").status_code == 403
    assert scene.owner.send(page, f"{path}/export", owner_key="ok_" + "x" * 43).status_code == 403
    assert EMAIL in json.dumps(scene.export())
    exported = scene.owner.send(page, f"{path}/export", owner_key=scene.owner.key)
    assert EMAIL in json.dumps(exported.get_json()["tables"])
    done = scene.owner.send(page, f"{path}/erase", owner_key=scene.owner.key)
    assert "Your personal data was erased" in done.text
    assert not scene.found(EMAIL, *WORDS)
    assert entries()[-1].client_address is None
    # The other browser pages ask to sign in, which the key still permits.
    assert scene.owner.get(scene.page).status_code == 303
    assert scene.owner.sign_in().status_code == 303
    for name in ("", "/approvals", "/notices", "/activity", "/keys", "/connections", "/addresses", "/personal-data"):
        assert scene.owner.get(scene.page + name).status_code == 200, name


def test_a_new_owner_gets_no_address_of_the_former_one(scene: Scene) -> None:
    path = f"{scene.page}/keys/codes"
    fields = {**forms_of(scene.owner.get(f"{scene.page}/keys"))[path], "kind": "handover", "owner_key": scene.owner.key}
    [code] = CODE.findall(scene.owner.client.post(path, data=fields).text)
    successor = person(scene.app)
    shown = successor.send(successor.get("/owner/recover"), "/owner/recover", code=code)
    [successor.key] = set(OWNER_KEY.findall(shown.text))
    assert successor.send(shown, "/owner/recover/use").status_code == 200
    path = f"{scene.page}/personal-data"
    exported = successor.send(successor.get(path), f"{path}/export", owner_key=successor.key).get_json()["tables"]
    addresses = {EMAIL, "127.0.0.1"}
    assert {each for each in addresses if each in json.dumps(exported)} == set()
    assert exported["audit_entries"][0].keys() >= {"action", "at"}
    assert {each for each in addresses if each in json.dumps(scene.export())} == addresses


def test_an_erasure_that_is_repeated_changes_nothing_more(scene: Scene) -> None:
    erase(scene)
    first = scene.export()
    second = erase(scene)
    assert "event_targets" not in second
    again = scene.export()
    for tables in (first, again):
        tables["audit_entries"] = []
    assert again == first
    assert read(verification.find_problems) == []


def test_what_is_unfinished_is_named_and_nothing_is_erased(scene: Scene) -> None:
    approval_id = scene.world.ask(scene.made, 13)
    purchase_id = scene.world.order(scene.made, max_total_usd=42)["id"]
    refused = scene.ops.delete(scene.path)
    assert (refused.status_code, refused.get_json()["code"]) == (409, "TRANSACTION_IN_PROGRESS")
    assert refused.get_json()["details"]["unfinished"] == {"purchases": [purchase_id], "approvals": [approval_id]}
    assert scene.found(*PLACES) == set(PLACES)
    page = scene.owner.get(f"{scene.page}/personal-data")
    shown = scene.owner.send(page, f"{scene.page}/personal-data/erase", owner_key=scene.owner.key)
    assert "purchases, approvals" in shown.text


def test_what_happens_later_is_not_sent_to_an_erased_address(scene: Scene) -> None:
    record(scene)
    erase(scene)
    record(scene)
    feed.number_all()
    deliver()
    assert scene.mailbox.received == []
    assert targets.list_of(Subscriber(Audience.OWNER, scene.id), PageRequest(10, 0)).total == 0


def record(scene: Scene) -> None:
    data = {"agent_id": scene.id, "frozen": True, "at": clock.isoformat(clock.now())}
    with unit_of_work() as session:
        outbox.record(session, EventType.WALLET_FROZEN, agent_id=scene.id, object_id=scene.id, data=data)


@ON_EACH_DATABASE
def test_an_erasure_that_ends_at_any_statement_has_changed_nothing(scene: Scene) -> None:
    with db.engine.connect() as connection:
        before = held(connection)
    countdown = [10_000]

    def stop(*_arguments: Any) -> None:
        countdown[0] -= 1
        if not countdown[0]:
            raise KeyboardInterrupt

    event.listen(db.engine, "before_cursor_execute", stop)
    try:
        place, is_done = 0, False
        while not is_done:
            place += 1
            countdown[0] = place
            try:
                personal_data.erase(shell_actor(), scene.id)
                is_done = True
            except KeyboardInterrupt:
                countdown[0] = 10_000
                if place % 7 == 1:
                    with db.engine.connect() as connection:
                        assert held(connection) == before, place
    finally:
        event.remove(db.engine, "before_cursor_execute", stop)
    assert place > 30
    assert not scene.found(EMAIL, *WORDS)


def test_a_deleted_agent_and_a_gateway_only_key_are_erased_too(scene: Scene) -> None:
    key = scene.app.test_client().post("/v1/keys", json={"email": "mary@home.example.org"}).get_json()
    [listed] = [each for each in scene.ops.get("/keys").get_json()["keys"] if each["email"] == "mary@home.example.org"]
    assert key
    assert scene.ops.delete(f"/agents/{listed['id']}/personal-data").status_code == 200
    assert not scene.found("mary@home.example.org")
    assert scene.ops.delete(f"/agents/{scene.id}").status_code == 200
    erase(scene)
    assert not scene.found(EMAIL, *WORDS)


def test_an_unknown_agent_is_not_found(scene: Scene) -> None:
    for name in ("00000000-0000-4000-8000-000000000000", "x"):
        assert scene.ops.get(f"/agents/{name}/personal-data").status_code == 404
        assert scene.ops.delete(f"/agents/{name}/personal-data").status_code == 404


def test_commands_export_and_erase(scene: Scene) -> None:
    runner, agent = scene.app.test_cli_runner(), f"agent_id={scene.id}"
    exported = runner.invoke(args=["platform", "export_personal_data", agent])
    assert EMAIL in json.dumps(json.loads(exported.stdout)["tables"]["agents"])
    erased = runner.invoke(args=["platform", "erase_personal_data", agent])
    assert (erased.exit_code, json.loads(erased.stdout)["rows"]["agents"]) == (0, 1)
    assert not scene.found(EMAIL, *WORDS)
