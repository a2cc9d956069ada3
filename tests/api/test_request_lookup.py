"""What one request did, found by its id: all of it, nothing of another request, and only by operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import text

from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.extensions import db
from app.observability import telemetry
from app.payments import claimed_payments
from app.payments.claimed_payments import PaymentRail, PaymentStatus
from app.payments.models import Payment
from tests.api.test_console import VIEWER, signed_in, text_of
from tests.support.fake_shopper import FakeShopper
from tests.support.gateway import gateway_stage
from tests.support.operators import operator
from tests.support.owner_world import World
from tests.support.upstreams import chat_answer

_KINDS = {"transactions", "calls", "purchases", "payments", "approvals", "events", "audit_entries"}
_ORDER = {"url": "https://shop.example/p/2", "shippingAddress": {"name": "Ada", "zip": "94107"}}


@pytest.fixture
def world(build_app: Callable[..., Flask], sqlite_url: str) -> World:
    return World(build_app(sqlite_url, shopper=FakeShopper()), "http://purser.test", {})


def pay(request_id: str | None) -> str:
    """Record a payment for a call of a request."""
    payment = Payment(
        id=new_id(), rail=PaymentRail.HASH, chain="base", payer="0xpayer", units=12_500, required_units=12_500,
        provider="openai", fingerprint=new_id(), signed=False, recipient="0xtreasury", terms={}, tries=0,
        created_at=clock.now(),
    )  # fmt: skip
    with telemetry.caused_by(request_id), unit_of_work() as session:
        claimed_payments.add_payment(session, payment, status=PaymentStatus.PAID)
        claimed_payments.claim(session, [payment.fingerprint], payment.id)
        return payment.id


def test_all_that_a_request_recorded_is_found_and_nothing_of_another_one(world: World) -> None:
    made, of = world.register(), new_id()
    moved, browser_and_ops = new_id(), signed_in(world.app, VIEWER)
    for request_id, transaction_id in ((of, moved), (new_id(), new_id()), (None, new_id())):
        with telemetry.caused_by(request_id):
            world.add_transaction(made, id=transaction_id)
    with world.app.app_context():
        paid = pay(of)
        pay(new_id())
        pay(None)
        browser, ops = browser_and_ops
        found = ops.get(f"/requests/{of}").get_json()
        assert found.keys() == {"request_id", *_KINDS}
        assert found["request_id"] == of
        assert [each["id"] for each in found["transactions"]] == [moved]
        assert [(each["id"], each["amount"], each["status"]) for each in found["payments"]] == [
            (paid, "0.0125", "paid")
        ]
        assert {each["object_id"] for each in found["events"]} == {moved, paid}
        assert [found[kind] for kind in ("calls", "purchases", "approvals", "audit_entries")] == [[]] * 4
        page = text_of(browser.get(f"/requests/{of}"))
        assert moved in page
        assert paid in page
        assert f"/admin/agents?search={made['wallet']['id']}" in page


def test_a_purchase_is_found_with_its_charge_and_events_and_without_what_opens_it(world: World) -> None:
    made = world.register()
    client, key = world.app.test_client(), {"X-API-Key": made["apiKey"]}
    _, ops = signed_in(world.app, VIEWER)
    world.buy(made)
    with world.app.app_context():
        answers = [client.post("/v1/gateway/shopping/buy", json={**_ORDER, "quantity": n}, headers=key) for n in (1, 2)]
        assert [each.status_code for each in answers] == [202, 202], answers[0].get_json()
        of, purchase_id = answers[0].headers["X-Request-Id"], answers[0].get_json()["id"]
        answer = ops.get(f"/requests/{of}")
        found = answer.get_json()
        assert [(each["id"], each["account_id"]) for each in found["purchases"]] == [(purchase_id, made["agentId"])]
        assert [(each["id"], each["account_id"]) for each in found["calls"]] == [(purchase_id, made["agentId"])]
        assert [each["type"] for each in found["events"]] == ["purchase.queued"]
        assert "token=" not in text_of(answer)


def test_a_charged_call_is_found_by_the_id_of_its_response(sqlite_url: str, build_app: Callable[..., Flask]) -> None:
    with gateway_stage(build_app, sqlite_url) as stage:
        stage.behave(lambda exchange: exchange.json(chat_answer()))
        first, second = (stage.chat().headers["X-Gateway-Request-Id"] for _ in range(2))
        ops = operator(stage.app.test_client(), role=VIEWER)
        [call] = ops.get(f"/requests/{first}").get_json()["calls"]
        assert (call["id"], call["account_id"], call["provider"]) == (first, stage.agent.id, "openai")
        assert first != second


def test_the_entries_of_an_act_are_found_and_listed_by_its_request(world: World) -> None:
    made = world.register()
    with world.app.app_context():
        ops = operator(world.app.test_client())
        answers = [ops.patch(f"/agents/{made['agentId']}", {"name": name}) for name in ("one", "two")]
        of = answers[0].headers["X-Request-Id"]
        [entry] = ops.get(f"/requests/{of}").get_json()["audit_entries"]
        assert (entry["action"], entry["after"]) == ("agent.changed", {"name": "one"})
        assert ops.get(f"/audit?request_id={of}").get_json()["entries"] == [entry]


@pytest.mark.parametrize(
    "of", ["abcdef00-0000-4000-8000-000000000000", "ABCDEF00-0000-4000-8000-000000000000", "x", "%00"]
)
def test_an_unknown_request_is_refused_with_how_long_things_are_kept(app: Flask, of: str) -> None:
    _, ops = signed_in(app, VIEWER)
    refused = ops.get(f"/requests/{of}")
    assert (refused.status_code, refused.get_json()["code"]) == (404, "NOT_FOUND")
    assert "for 400 days and events for 30 days" in refused.get_json()["error"]


def test_the_console_asks_for_the_id_and_shows_the_request(world: World) -> None:
    made, of = world.register(), new_id()
    with telemetry.caused_by(of):
        world.add_transaction(made)
    browser, _ = signed_in(world.app, VIEWER)
    assert 'name="request_id"' in text_of(browser.get("/requests"))
    assert '<a href="/admin/requests"' in text_of(browser.get(""))
    shown = browser.get(f"/requests?request_id=%20{of}%20")
    assert (shown.status_code, shown.headers["Location"]) == (303, f"/admin/requests/{of}")
    unknown = browser.get(f"/requests/{new_id()}")
    assert (unknown.status_code, "Nothing is stored" in text_of(unknown)) == (404, True)


@pytest.mark.postgres
def test_large_tables_are_searched_by_an_index(build_app: Callable[..., Flask], postgres_url: str) -> None:
    with build_app(postgres_url).app_context(), db.engine.connect() as connection:
        connection.execute(text("SET enable_seqscan = off"))
        for table in ("transactions", "payments", "audit_entries"):
            search: Any = text(f"EXPLAIN SELECT * FROM {table} WHERE request_id = '{new_id()}'")  # noqa: S608
            plan = "\n".join(connection.execute(search).scalars())
            assert f"ix_{table}_request_id" in plan, plan
