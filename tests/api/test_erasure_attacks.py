"""Erasures at a bad moment, repeated, and what an owner and an agent do afterwards."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import delete, select, update

from app.adapters.smtp import SmtpMailer
from app.audit_log.actors import shell_actor
from app.audit_log.trail import AuditEntry
from app.catalog.models import Payout
from app.core import clock, identifiers
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import TransactionInProgress
from app.events import feed, outbox
from app.events.models import EventDelivery
from app.events.outbox import EventType
from app.platform import personal_data
from app.shopping.models import Purchase, PurchaseStatus
from app.wallets.core.lifecycle import MovementStatus
from tests.support.fake_shopper import FakeShopper
from tests.support.ledger import read
from tests.support.notices import running_mailbox
from tests.support.owners import person
from tests.support.personal_data import EMAIL, WORDS, Scene, copied, fill
from tests.support.sqlite_copies import FilledOnce
from tests.support.webhooks import deliver
from workers import sweeps

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


def erase(scene: Scene) -> dict[str, int]:
    return personal_data.erase(shell_actor(), scene.id)


def add_payout(scene: Scene) -> str:
    payout_id = identifiers.new_id()
    values = {"service_id": identifiers.new_id(), "agent_id": scene.id, "kind": "payout", "status": "pending"}
    with unit_of_work() as session:
        row = Payout(id=payout_id, amount_nanos=1, commission_nanos=0, chain="base", created_at=clock.now(), **values)
        session.add(row)
    return payout_id


def test_a_transfer_and_a_payout_in_the_middle_refuse_the_erasure(scene: Scene) -> None:
    scene.world.add_transaction(scene.made, status=MovementStatus.PENDING)
    payout_id = add_payout(scene)
    with pytest.raises(TransactionInProgress) as refused:
        erase(scene)
    unfinished = refused.value.details["unfinished"]
    assert (list(unfinished), unfinished["service_payouts"]) == (["transactions", "service_payouts"], [payout_id])
    assert scene.found(EMAIL, *WORDS) == {EMAIL, *WORDS}
    # The suite's own audit would find the invented payout.
    with unit_of_work() as session:
        session.execute(delete(Payout).where(Payout.id == payout_id))


@pytest.mark.parametrize("status", ["queued", "running", "submitting"])
def test_a_purchase_at_any_step_refuses_the_erasure(scene: Scene, status: str) -> None:
    purchase_id = scene.world.order(scene.made, max_total_usd=42)["id"]
    with unit_of_work() as session:
        session.execute(update(Purchase).where(Purchase.id == purchase_id).values(status=PurchaseStatus(status).value))
    with pytest.raises(TransactionInProgress):
        erase(scene)
    assert scene.found(EMAIL) == {EMAIL}


def test_an_approval_that_is_approved_and_not_yet_paid_refuses_the_erasure(scene: Scene) -> None:
    approval_id = scene.world.ask(scene.made, 13)
    path = f"{scene.page}/approvals/{approval_id}"
    page = scene.owner.get(path)
    scene.owner.send(page, path, decision="approve", owner_key=scene.owner.key)
    with pytest.raises(TransactionInProgress) as refused:
        erase(scene)
    assert refused.value.details["unfinished"] == {"approvals": [approval_id]}


@ON_EACH_DATABASE
def test_two_erasures_at_once_erase_once_and_the_audit_finds_nothing(scene: Scene) -> None:
    failures: list[Exception] = []
    start = threading.Barrier(2)

    def run() -> None:
        with scene.app.app_context():
            start.wait()
            try:
                erase(scene)
            except Exception as error:  # shown by the assertion below
                failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []
    assert scene.found(EMAIL, *WORDS) == set()
    assert sweeps.audit() == []


@ON_EACH_DATABASE
def test_every_audit_passes_after_an_erasure_and_no_address_of_a_webhook_or_browser_is_left(scene: Scene) -> None:
    assert scene.found("hooks.example.com", "push.example.com") == {"hooks.example.com", "push.example.com"}
    erase(scene)
    assert scene.found("hooks.example.com", "push.example.com") == set()
    assert sweeps.audit() == []
    with read_only_unit() as session:
        kinds = AuditEntry.actor_kind.in_(("owner", "agent", "anonymous"))
        is_scenes = AuditEntry.subject_id == scene.id, AuditEntry.client_address.is_not(None)
        assert session.scalars(select(AuditEntry.action).where(kinds, *is_scenes)).all() == []


def test_an_export_has_nothing_of_operators(scene: Scene) -> None:
    text = json.dumps(scene.export())
    assert '"owner"' in text
    assert scene.ops.id not in text
    assert '"master_key"' not in text
    assert '"command"' not in text


@ON_EACH_DATABASE
def test_an_erasure_while_a_message_is_sent_leaves_nothing_behind(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def send(*arguments: Any, **_more: Any) -> None:
        calls.append(arguments)
        erase(scene)

    monkeypatch.setattr(SmtpMailer, "send", send)
    with unit_of_work() as session:
        data = {"agent_id": scene.id, "frozen": True}
        outbox.record(session, EventType.WALLET_FROZEN, agent_id=scene.id, object_id=scene.id, data=data)
    feed.number_all()
    deliver()
    assert len(calls) == 1
    assert scene.found(EMAIL, *WORDS) == set()
    with read_only_unit() as session:
        assert session.scalars(select(EventDelivery.id).where(EventDelivery.object_id == scene.id)).all() == []
    assert sweeps.audit() == []


def test_the_last_message_to_an_owner_says_that_notices_end(scene: Scene) -> None:
    path = f"{scene.page}/personal-data"
    done = scene.owner.send(scene.owner.get(path), f"{path}/erase", owner_key=scene.owner.key)
    assert "was erased" in done.text
    [(receivers, message)] = scene.mailbox.received
    assert (receivers, "gets no more notices" in message.replace("=\n", "")) == ([EMAIL], True)


def test_an_unclaimed_agent_is_claimed_with_a_new_code_only(scene: Scene) -> None:
    made = scene.world.register(name="Loom", email="joseph@home.example.org")
    personal_data.erase(shell_actor(), made["agentId"])
    client = scene.app.test_client()
    body = {"code": made["claimCode"], "email": "joseph@home.example.org"}
    assert client.post("/v1/device/claim", json=body).status_code in {404, 410}
    status, code = scene.world.call(made, "POST", "/v1/agents/claim-code")
    assert status in {200, 201}
    owner = person(scene.app)
    owner.claim({**made, "claimCode": code["claimCode"]})
    assert owner.get(f"/owner/agents/{made['agentId']}").status_code == 200
    # The same address may be used again, by a new agent, too.
    again = scene.world.register(name="Loom", email="joseph@home.example.org")
    assert again["agentId"] != made["agentId"]
    assert sweeps.audit() == []


def test_the_used_code_of_a_deleted_agent_is_a_wrong_code(scene: Scene) -> None:
    assert scene.ops.delete(f"/agents/{scene.other['agentId']}").status_code == 200
    client, answers = scene.app.test_client(), []
    for code in ("BCDF-GHJK", scene.other["claimCode"]):
        answer = client.post("/v1/device/claim", json={"code": code})
        answers.append((answer.status_code, answer.get_json()["error"]))
    assert answers[0] == answers[1]


def test_what_an_owner_enters_after_an_erasure_is_stored_and_erased_again(scene: Scene) -> None:
    erase(scene)
    assert scene.ops.patch(f"/agents/{scene.id}", {"email": EMAIL, "name": WORDS[0]}).status_code == 200
    assert scene.found(EMAIL) == {EMAIL}
    assert scene.world.buy(scene.made, max_total_usd=43)
    assert scene.world.ask(scene.made, 14, note=WORDS[2])
    with pytest.raises(TransactionInProgress):
        erase(scene)
    with read_only_unit() as session:
        assert session.scalar(select(Purchase.url).where(Purchase.max_total_nanos == 43 * 10**9)) is not None


def test_the_feed_and_the_pages_show_events_that_were_emptied(scene: Scene) -> None:
    erase(scene)
    status, page = scene.world.call(scene.made, "GET", "/v1/events?limit=100")
    assert status == 200
    emptied = [each for each in page["events"] if each["type"].startswith(("purchase.", "approval."))]
    assert emptied
    assert all(each["data"] == {} for each in emptied)
    assert scene.world.call(scene.made, "GET", "/v1/gateway/shopping/purchases")[0] == 200
    assert scene.world.call(scene.made, "GET", "/v1/approvals")[0] == 200
    for path in (f"/agents/{scene.id}", "/purchases", "/approvals", "/audit", "/events"):
        assert scene.ops.get(path).status_code in {200, 404}, path
    assert read(lambda session: session.scalar(select(Purchase.host).where(Purchase.account_id == scene.id)))
