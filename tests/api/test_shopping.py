from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import select, update
from werkzeug.test import TestResponse

from app.core import clock
from app.db import leases
from app.db.leases import Heartbeat, ProcessKind
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.jobs import JobName
from app.observability import telemetry
from app.platform import personal_data
from app.ports.shopper import FailureCode
from app.shopping import maintenance, purchase_runner
from app.shopping.models import Purchase, PurchaseEvidence
from app.spending import accounts as spending_accounts
from tests.support.agents import Agent, register
from tests.support.applications import RecordingQueue
from tests.support.fake_shopper import PAGE, PNG, FakeShopper, purchase_failure
from tests.support.ledger import race
from tests.support.mcp import call
from tests.support.webhooks import feed
from workers import purchases

BUY = "/v1/gateway/shopping/buy"
BODY: dict[str, Any] = {
    "url": "https://shop.example/p/1",
    "credentials": {"username": "ada@example.com", "password": "canary-password"},
    "shippingAddress": {"name": "Ada Buyer", "zip": "94107"},
}


ON_BOTH = pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


@pytest.fixture
def shopper() -> FakeShopper:
    return FakeShopper()


@pytest.fixture
def app(database_url: str, build_app: Callable[..., Flask], shopper: FakeShopper) -> Flask:
    return build_app(database_url, shopper=shopper)


@pytest.fixture
def agent(app: Flask) -> Iterator[Agent]:
    with app.app_context():
        leases.record(ProcessKind.SHOPPER)
        yield register(app.test_client())


def order(agent: Agent, *, key: str | None = None, **more: Any) -> TestResponse:
    headers = {"Idempotency_Key": key} if key else {}
    return agent.post(BUY, {**BODY, **more}, **headers)


def bought(agent: Agent, **more: Any) -> dict[str, Any]:
    """Order and run the worker; return the purchase."""
    accepted = order(agent, **more)
    assert accepted.status_code == 202, accepted.text
    purchases.buy(accepted.get_json()["id"])
    return seen(agent, accepted.get_json()["id"])


def test_a_retry_that_is_written_anew_buys_nothing_again(agent: Agent) -> None:
    first = order(agent, key="k", max_total_usd=40)
    for again in (
        {"maxTotalUsd": 40.0, "quantity": 1, "options": {}, "dryRun": False, "coupon_code": None, "unknown": 1},
        {"max_total_usd": 40, "shippingAddress": {"zip": "94107", "name": "Ada Buyer", "city": None}},
    ):
        answer = order(agent, key="k", **again)
        assert (answer.status_code, answer.get_json()["id"]) == (202, first.get_json()["id"]), answer.text
        assert answer.headers["Idempotent-Replayed"] == "true"
    for other in ({"max_total_usd": 41}, {"max_total_usd": 40, "quantity": 2}):
        assert order(agent, key="k", **other).status_code == 409


def test_each_status_of_a_purchase_is_an_event(agent: Agent) -> None:
    purchase = bought(agent)
    events = feed(agent, types="purchase.*")
    assert [event["type"] for event in events] == [
        "purchase.queued", "purchase.running", "purchase.submitting", "purchase.completed",
    ]  # fmt: skip
    assert {event["object_id"] for event in events} == {purchase["id"]}
    assert "password" not in str(events)


def seen(agent: Agent, purchase_id: str) -> dict[str, Any]:
    answer = agent.get(f"/v1/gateway/shopping/purchases/{purchase_id}")
    assert answer.status_code == 200
    body: dict[str, Any] = answer.get_json()
    return body


def credits_left(agent: Agent) -> float:
    left: float = agent.get("/v1/balance").get_json()["credits_usd"]
    return left


def row() -> Purchase:
    with read_only_unit() as session:
        return session.scalars(select(Purchase)).one()


def refused(answer: TestResponse) -> tuple[int, str]:
    return answer.status_code, answer.get_json()["code"]


@ON_BOTH
def test_an_accepted_purchase_is_queued_charged_and_executed_by_its_job(app: Flask, agent: Agent) -> None:
    answer = order(agent)
    body = answer.get_json()
    assert (answer.status_code, body["status"], body["order"], body["error"]) == (202, "queued", None, None)
    assert answer.headers["Location"] == f"/v1/gateway/shopping/purchases/{body['id']}"
    assert answer.headers["Retry-After"] == "3"
    queue: RecordingQueue = app.state.ports.queue
    assert queue.put_jobs == [(JobName.BUY, (body["id"],))]
    assert credits_left(agent) == 9.75
    purchases.buy(body["id"])
    done = seen(agent, body["id"])
    assert done["status"] == "completed"
    assert done["order"] == {
        "number": "A-1", "total": "17.00", "currency": "USD", "total_usd": "17.00",
        "payment": {"method": "Pay on delivery", "status": "pending"}, "shipping_method": "Standard",
        "price_breakdown": {
            "adds_up": True,
            "amounts": [
                {"role": "subtotal", "label": "Subtotal", "amount_usd": "12.00"},
                {"role": "shipping", "label": "Shipping", "amount_usd": "5.00"},
                {"role": "total", "label": "Total", "amount_usd": "17.00"},
            ],
        },
    }  # fmt: skip
    assert done["product"]["price"] == "12.00"
    assert (done["cost_usd"], done["steps"], done["max_total_usd"]) == ("0.25", 1, None)
    assert agent.spent_this_month() == 17
    telemetry = agent.get("/v1/usage").get_json()["logs"]
    assert [(line["provider"], line["model"], line["cost_usd"]) for line in telemetry] == [("shopping", "buy", 0.25)]


def test_a_job_that_runs_twice_buys_once(agent: Agent, shopper: FakeShopper) -> None:
    body = bought(agent)
    purchases.buy(body["id"])
    assert (shopper.clicked, len(shopper.requests)) == (1, 1)


@ON_BOTH
def test_two_concurrent_workers_buy_the_same_purchase_once(app: Flask, agent: Agent, shopper: FakeShopper) -> None:
    purchase_id = order(agent).get_json()["id"]
    race(app, [lambda: purchase_runner.run_purchase(purchase_id)] * 4)
    assert shopper.clicked == 1
    assert agent.spent_this_month() == 17


def test_a_second_authorization_of_the_same_order_is_refused(agent: Agent, shopper: FakeShopper) -> None:
    shopper.authorizes_twice = True
    body = bought(agent)
    assert body["status"] == "unknown"
    assert agent.spent_this_month() == 17


@ON_BOTH
def test_the_same_idempotency_key_returns_the_first_response_and_buys_once(agent: Agent, shopper: FakeShopper) -> None:
    first, again = order(agent, key="k"), order(agent, key="k")
    assert again.get_json() == first.get_json()
    assert again.headers["Idempotent-Replayed"] == "true"
    assert refused(order(agent, key="k", quantity=2)) == (409, "IDEMPOTENCY_CONFLICT")
    purchases.buy(first.get_json()["id"])
    assert order(agent, key="k").get_json()["id"] == first.get_json()["id"]
    assert (shopper.clicked, credits_left(agent)) == (1, 9.75)


def test_a_duplicate_without_an_idempotency_key_is_refused_while_open_or_unknown(
    agent: Agent, shopper: FakeShopper
) -> None:
    first = order(agent).get_json()
    answer = order(agent)
    assert refused(answer) == (409, "PURCHASE_IN_PROGRESS")
    assert answer.get_json()["details"] == {"purchase_id": first["id"], "status": "queued"}
    assert credits_left(agent) == 9.75
    assert order(agent, quantity=2).status_code == 202
    shopper.outcome_unknown = "No confirmation was seen."
    purchases.buy(first["id"])
    assert refused(order(agent)) == (409, "PURCHASE_IN_PROGRESS")
    # With a key it can be bought again on purpose.
    assert order(agent, key="again").status_code == 202


@ON_BOTH
def test_concurrent_duplicate_purchases_are_accepted_once(app: Flask, agent: Agent) -> None:
    answers = race(app, [lambda: order(agent)] * 4)
    codes = sorted(answer.status_code for answer in answers if isinstance(answer, TestResponse))
    assert codes == [202, 409, 409, 409]
    assert credits_left(agent) == 9.75


@ON_BOTH
def test_a_shop_account_is_used_by_one_purchase_at_a_time(app: Flask, agent: Agent, shopper: FakeShopper) -> None:
    first, second = order(agent).get_json()["id"], order(agent, quantity=2).get_json()["id"]
    inside: list[str] = []

    def meanwhile(where: str) -> None:
        if where == "review" and not inside:
            inside.append(where)

            def other() -> None:
                with app.app_context():
                    purchase_runner.run_purchase(second)
                    inside.append(seen(agent, second)["status"])

            thread = Thread(target=other)
            thread.start()
            thread.join()

    shopper.checkpoint = meanwhile
    purchases.buy(first)
    assert inside == ["review", "queued"]
    purchases.buy(second)
    assert [seen(agent, one)["status"] for one in (first, second)] == ["completed", "completed"]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (FailureCode.OUT_OF_STOCK, "failed"),
        (FailureCode.LOGIN_FAILED, "failed"),
        (FailureCode.HUMAN_CHECK, "action_required"),
        (FailureCode.OPTIONS_REQUIRED, "action_required"),
        (FailureCode.ADDRESS_INCOMPLETE, "action_required"),
        (FailureCode.PAYMENT_DETAILS_REQUIRED, "action_required"),
    ],
)
def test_a_failure_reports_its_step_and_advice_and_is_charged_once_a_page_was_read(
    agent: Agent, shopper: FakeShopper, kind: FailureCode, status: str
) -> None:
    shopper.fails_before_order = purchase_failure(kind, "This happened.", missing=("tel",), choices=("Color: White",))
    body = bought(agent)
    assert body["status"] == status
    error = body["error"]
    assert (error["code"], error["message"], error["step"]) == (kind.value, "This happened.", "open")
    assert (error["missing"], error["choices"]) == (["tel"], ["Color: White"])
    assert error["advice"]
    assert (shopper.clicked, credits_left(agent), agent.spent_this_month()) == (0, 9.75, 0)


def test_a_failure_before_the_first_page_costs_nothing(agent: Agent, shopper: FakeShopper) -> None:
    shopper.fails_before_page = purchase_failure(FailureCode.SHOP_UNREACHABLE)
    body = bought(agent)
    assert (body["status"], body["cost_usd"], credits_left(agent)) == ("failed", "0.00", 10)
    assert agent.get("/v1/usage").get_json()["logs"] == []


@pytest.mark.parametrize("how", ["unclear", "broken"])
def test_a_failure_after_the_order_button_is_unknown_charged_and_held(
    agent: Agent, shopper: FakeShopper, how: str
) -> None:
    shopper.outcome_unknown, shopper.crashes_after_order = "Nothing was seen.", how == "broken"
    accepted = order(agent).get_json()["id"]
    if how == "broken":
        with pytest.raises(RuntimeError):
            purchases.buy(accepted)
    else:
        purchases.buy(accepted)
    body = seen(agent, accepted)
    assert (body["status"], body["error"]["code"]) == ("unknown", "outcome_unknown")
    assert body["order"]["total"] == "17.00"
    assert (credits_left(agent), agent.spent_this_month(), shopper.clicked) == (9.75, 17, 1)
    purchases.buy(accepted)
    assert shopper.clicked == 1


def test_a_dry_run_returns_the_total_and_orders_nothing(agent: Agent, shopper: FakeShopper) -> None:
    body = bought(agent, dryRun=True)
    assert (body["status"], body["dry_run"], shopper.clicked) == ("preview", True, 0)
    assert (body["order"]["number"], body["order"]["total"]) == (None, "17.00")
    # A limit that would refuse the order is reported as well.
    refused_later = bought(agent, dryRun=True, max_total_usd=16.99)
    assert (refused_later["status"], refused_later["error"]["code"]) == ("failed", "limit_exceeded")
    assert refused_later["order"]["total"] == "17.00"
    shopper.ignores_dry_run = True
    assert bought(agent, dryRun=True)["error"]["code"] == "browser_error"
    assert (shopper.clicked, agent.spent_this_month()) == (0, 0)


@ON_BOTH
def test_an_order_without_authorization_is_unknown_and_counts_at_least_the_goods(
    agent: Agent, shopper: FakeShopper
) -> None:
    shopper.orders_without_authorization = True
    agent.controls(daily_limit_usd=12)
    body = bought(agent)
    assert (body["status"], body["error"]["code"]) == ("unknown", "outcome_unknown")
    assert agent.spent_this_month() == 12
    # It counts although the limit is used up by now.
    assert bought(agent, quantity=1, dry_run=True)["error"]["code"] == "limit_exceeded"


@ON_BOTH
def test_a_confirmed_total_above_the_review_counts_in_full(agent: Agent, shopper: FakeShopper) -> None:
    shopper.confirms_nanos = 27_000_000_000
    body = bought(agent)
    assert (body["status"], body["order"]["total"], agent.spent_this_month()) == ("completed", "27.00", 27)


def test_max_total_applies_to_the_total_with_shipping(agent: Agent, shopper: FakeShopper) -> None:
    over = bought(agent, maxTotalUsd=16.99)["error"]
    assert (over["code"], over["limit_code"], over["advice"]) == ("limit_exceeded", None, "Raise `max_total_usd`.")
    assert bought(agent, max_total_usd=11.99)["error"]["message"].startswith("The product alone")
    assert shopper.clicked == 0
    assert bought(agent, max_total_usd=17)["status"] == "completed"


@pytest.mark.parametrize(
    ("limits", "code"),
    [({"per_tx_limit_usd": 16.99}, "PER_TX_LIMIT_EXCEEDED"), ({"daily_limit_usd": 16}, "DAILY_LIMIT_EXCEEDED")],
)
def test_the_wallets_limits_are_held_before_the_order(
    agent: Agent, shopper: FakeShopper, limits: dict[str, float], code: str
) -> None:
    agent.controls(**limits)
    body = bought(agent)
    assert (body["status"], body["error"]["code"]) == ("failed", "limit_exceeded")
    assert code in body["error"]["message"]
    assert body["error"]["limit_code"] == code
    assert "max_total_usd" not in body["error"]["advice"]
    assert ("Wait until the day ends" in body["error"]["advice"]) == (code == "DAILY_LIMIT_EXCEEDED")
    assert (shopper.clicked, agent.spent_this_month()) == (0, 0)


def test_a_purchase_counts_against_the_session_that_it_names(app: Flask, agent: Agent, shopper: FakeShopper) -> None:
    other = register(app.test_client())
    later = (clock.now() + timedelta(hours=1)).isoformat()

    def opened(max_usd: int, *domains: str) -> str:
        body = {"max_usd": max_usd, "expires_at": later, "domains": list(domains)}
        return str(agent.post(f"{agent.wallet_url}/sessions", body).get_json()["id"])

    low, enough, elsewhere = (opened(16, "shop.example"), opened(20, "shop.example"), opened(20, "other.example"))
    assert bought(agent, session_id=low)["error"]["limit_code"] == "SESSION_LIMIT_EXCEEDED"
    assert bought(agent, session_id=enough)["status"] == "completed"
    assert bought(agent, session_id=enough, allow_duplicate=True)["error"]["limit_code"] == "SESSION_LIMIT_EXCEEDED"
    assert (shopper.clicked, agent.spent_this_month()) == (1, 17)
    seen = agent.get(f"{agent.wallet_url}/sessions/{enough}").get_json()
    assert (seen["spent_usd"], seen["remaining_usd"]) == (17, 3)
    assert order(agent, session_id=elsewhere).get_json()["code"] == "SESSION_LIMIT_EXCEEDED"
    assert order(other, session_id=enough).get_json()["code"] == "NOT_FOUND"


@ON_BOTH
def test_concurrent_purchases_never_exceed_a_limit_together(app: Flask, agent: Agent, shopper: FakeShopper) -> None:
    agent.controls(daily_limit_usd=40)
    ids = [order(agent, credentials={"username": f"u{n}", "password": "p"}).get_json()["id"] for n in range(4)]
    race(app, [lambda one=one: purchase_runner.run_purchase(one) for one in ids])  # type: ignore[misc]
    assert sorted(seen(agent, one)["status"] for one in ids) == ["completed", "completed", "failed", "failed"]
    assert (shopper.clicked, agent.spent_this_month()) == (2, 34)


def test_a_wallet_frozen_during_a_purchase_does_not_order(agent: Agent, shopper: FakeShopper) -> None:
    def freeze(where: str) -> None:
        if where == "review":
            with unit_of_work() as session:
                spending_accounts.set_frozen(session, agent.id, frozen=True)

    shopper.checkpoint = freeze
    error = bought(agent)["error"]
    assert (error["code"], error["limit_code"]) == ("limit_exceeded", "WALLET_FROZEN")
    assert error["advice"].startswith("Ask the owner; nothing can be bought")
    assert shopper.clicked == 0
    assert refused(order(agent)) == (403, "WALLET_FROZEN")


def test_a_domain_that_is_not_allowed_is_refused_before_anything_is_charged(agent: Agent) -> None:
    agent.controls(allowed_domains=["shop.example"])
    for url in ("https://evilshop.example/p", "https://shop.example.evil.com/p", "https://example/p"):
        assert refused(order(agent, url=url)) == (403, "DOMAIN_NOT_ALLOWED"), url
    assert credits_left(agent) == 10
    assert order(agent, url="https://www.SHOP.example/p").status_code == 202


def test_an_international_domain_is_opened_as_it_was_checked(agent: Agent) -> None:
    """Browsers resolve `straße` to another domain than `strasse`."""
    agent.controls(allowed_domains=["strasse.example"])
    body = order(agent, url="https://straße.example:443/p?a=1#b").get_json()
    assert body["url"] == "https://strasse.example/p?a=1#b"


def test_private_addresses_and_plain_http_are_refused_outside_the_sandbox(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    app = build_app(sqlite_url, shopper=FakeShopper(), settings={"allow_private_upstreams": False})
    with app.app_context():
        leases.record(ProcessKind.SHOPPER)
        agent = register(app.test_client())
        for url in (
            "http://shop.com/", "https://127.0.0.1/", "https://[::1]/", "https://localhost/", "https://shop.com:8443/",
            "https://100.64.0.1/", "https://metadata.internal/", "https://169.254.169.254/latest", "https://10.1.2.3/",
        ):  # fmt: skip
            assert refused(order(agent, url=url)) == (403, "DOMAIN_NOT_ALLOWED"), url
        assert order(agent, url="https://www.shop.com/p").status_code == 202


def test_max_total_is_required_without_a_limit_per_transaction(agent: Agent, app: Flask) -> None:
    agent.controls(per_tx_limit_usd=0)
    assert refused(order(agent)) == (400, "INVALID_INPUT")
    assert order(agent, max_total_usd=20).status_code == 202
    key = app.test_client().post("/v1/keys", json={}).get_json()["api_key"]
    gateway = {"headers": {"X-API-Key": key}}
    assert app.test_client().post(BUY, json=BODY, **gateway).status_code == 400  # type: ignore[arg-type]
    capped = app.test_client().post(BUY, json={**BODY, "max_total_usd": 20}, **gateway)  # type: ignore[arg-type]
    assert capped.status_code == 202
    purchases.buy(capped.get_json()["id"])
    own = app.test_client().get(
        f"/v1/gateway/shopping/purchases/{capped.get_json()['id']}", headers={"Authorization": f"Bearer {key}"}
    )
    assert own.get_json()["status"] == "completed"


def test_an_agent_that_deleted_its_limits_with_its_wallets_cannot_shop(agent: Agent) -> None:
    assert agent.delete(agent.wallet_url).status_code == 200
    assert refused(order(agent)) == (404, "NOT_FOUND")


def test_a_wallet_is_kept_while_a_purchase_is_open(agent: Agent) -> None:
    purchase_id = order(agent).get_json()["id"]
    answer = agent.delete(agent.wallet_url)
    assert refused(answer) == (409, "TRANSACTION_IN_PROGRESS")
    assert answer.get_json()["details"]["purchase_id"] == purchase_id
    purchases.buy(purchase_id)
    assert agent.delete(agent.wallet_url).status_code == 200


def _listed(agent: Agent) -> dict[str, Any]:
    rows = agent.client.get("/v1/providers").get_json()["providers"]
    [found] = [row for row in rows if row["slug"] == "shopping"]
    return dict(found)


def test_without_a_shopping_worker_the_route_is_not_configured_and_nothing_is_charged(agent: Agent) -> None:
    listed = _listed(agent)
    assert (listed["configured"], listed["pricing"]["usd"], listed["x402_price_usd"]) == (True, 0.25, 0.25)
    assert listed["route"].endswith(BUY)
    with unit_of_work() as session:
        session.execute(update(Heartbeat).values(at=clock.now() - timedelta(minutes=3)))
    assert _listed(agent)["configured"] is False
    answer = order(agent, url="nonsense")
    assert refused(answer) == (503, "PROVIDER_NOT_CONFIGURED")
    assert credits_left(agent) == 10


def test_without_a_key_or_credits_nothing_is_accepted(agent: Agent, app: Flask) -> None:
    assert refused(app.test_client().post(BUY, json=BODY)) == (402, "PAYMENT_REQUIRED")
    for number in range(40):
        order(agent, credentials={"username": f"u{number}", "password": "p"})
    assert credits_left(agent) == 0
    assert refused(order(agent)) == (402, "INSUFFICIENT_CREDITS")


@pytest.mark.parametrize(
    ("url", "remedy"), [("https://my_shop.example.com/p", "host"), ("https://u@a.b/", "credentials")]
)
def test_the_refusal_of_a_url_says_what_to_change(agent: Agent, url: str, remedy: str) -> None:
    answer = order(agent, url=url)
    assert refused(answer) == (400, "INVALID_INPUT")
    assert remedy in answer.get_json()["details"]["fields"]["url"][0]


def test_an_invalid_field_is_named_and_no_secret_is_echoed(agent: Agent) -> None:
    for change, field in (
        ({"url": "https://user:secret@shop.example/"}, "url"),
        ({"credentials": {"username": "", "password": "canary-password"}}, "credentials.username"),
    ):
        answer = order(agent, **change)
        assert refused(answer) == (400, "INVALID_INPUT")
        assert list(answer.get_json()["details"]["fields"]) == [field]
        assert "canary-password" not in answer.text
        assert "secret" not in answer.text
    assert credits_left(agent) == 10


def test_snake_case_aliases_and_further_address_fields_are_accepted(agent: Agent, shopper: FakeShopper) -> None:
    body = {key: value for key, value in BODY.items() if key != "shippingAddress"}
    address = {"name": "Ada Buyer", "zip": "94107", "line1": "1 Main Street", "country": "US", "phone": "+1 415"}
    answer = agent.post(BUY, {**body, "shipping_address": address, "options": {"Color": "White"}})
    purchases.buy(answer.get_json()["id"])
    request = shopper.requests[0]
    assert (request.address.line1, request.address.phone, request.options) == (
        "1 Main Street",
        "+1 415",
        {"Color": "White"},
    )
    assert "canary-password" not in repr(request)


@pytest.mark.parametrize("names", [("coupon_code", "delivery_method"), ("couponCode", "deliveryMethod")])
def test_a_coupon_and_a_delivery_method_reach_the_shopper_sealed(
    agent: Agent, shopper: FakeShopper, names: tuple[str, str]
) -> None:
    answer = order(agent, **dict(zip(names, ("canary-coupon", "canary-pickup"), strict=True)))
    assert (answer.status_code, "canary" in answer.text) == (202, False)
    stored = row()
    assert "canary" not in str([getattr(stored, column.name) for column in Purchase.__table__.columns])
    purchases.buy(answer.get_json()["id"])
    request = shopper.requests[0]
    assert (request.coupon_code, request.delivery_method) == ("canary-coupon", "canary-pickup")
    assert "canary-coupon" not in repr(request)
    assert "canary-coupon" not in str(seen(agent, answer.get_json()["id"]))


def test_another_coupon_or_delivery_method_is_another_request_but_not_another_purchase(agent: Agent) -> None:
    assert order(agent, key="k", coupon_code="SPRING20").status_code == 202
    assert refused(order(agent, key="k", coupon_code="SUMMER20")) == (409, "IDEMPOTENCY_CONFLICT")
    assert refused(order(agent, key="k")) == (409, "IDEMPOTENCY_CONFLICT")
    # The goods would be bought twice.
    assert refused(order(agent, delivery_method="pickup")) == (409, "PURCHASE_IN_PROGRESS")


@pytest.mark.parametrize("name", ["coupon_code", "delivery_method"])
@pytest.mark.parametrize("value", ["", "x", "x" * 101, 7])
def test_a_coupon_or_delivery_method_that_is_none_is_refused(agent: Agent, name: str, value: object) -> None:
    answer = order(agent, **{name: value})
    assert refused(answer) == (400, "INVALID_INPUT")
    assert list(answer.get_json()["details"]["fields"]) == [name]


def test_a_dry_run_by_a_tool_takes_a_coupon_and_a_delivery_method(agent: Agent, shopper: FakeShopper) -> None:
    wanted = {**BODY, "dry_run": True, "coupon_code": "SPRING20", "delivery_method": "pickup"}
    accepted = call(agent.client, "buy", agent.key, **wanted)["structuredContent"]
    purchases.buy(accepted["id"])
    assert (shopper.requests[0].coupon_code, shopper.requests[0].delivery_method) == ("SPRING20", "pickup")
    assert seen(agent, accepted["id"])["status"] == "preview"


def test_waiting_returns_the_outcome_if_it_ends_in_time(app: Flask, agent: Agent) -> None:
    def work() -> None:
        with app.app_context():
            while not (found := _ids()):
                pass
            purchase_runner.run_purchase(found[0])

    thread = Thread(target=work)
    thread.start()
    answer = agent.post(BUY, BODY, Prefer="wait=25")
    thread.join()
    assert (answer.status_code, answer.get_json()["status"]) == (200, "completed")
    assert answer.headers["Preference-Applied"] == "wait=25"


def _ids() -> list[str]:
    with read_only_unit() as session:
        return list(session.scalars(select(Purchase.id)))


def test_a_queued_purchase_can_be_cancelled_and_costs_nothing(agent: Agent, shopper: FakeShopper) -> None:
    purchase_id = order(agent).get_json()["id"]
    url = f"/v1/gateway/shopping/purchases/{purchase_id}/cancel"
    assert agent.post(url).get_json()["status"] == "cancelled"
    assert agent.post(url).get_json()["status"] == "cancelled"
    purchases.buy(purchase_id)
    assert (shopper.requests, credits_left(agent)) == ([], 10)
    done = bought(agent)["id"]
    assert refused(agent.post(f"/v1/gateway/shopping/purchases/{done}/cancel")) == (409, "PURCHASE_IN_PROGRESS")


def test_other_accounts_cannot_read_a_purchase_or_its_screenshots(agent: Agent, app: Flask) -> None:
    body = bought(agent)
    picture = body["evidence"][0]["url"].removeprefix("http://purser.test")
    other_agent = register(app.test_client())
    assert other_agent.get(f"/v1/gateway/shopping/purchases/{body['id']}").status_code == 404
    assert other_agent.get(picture).status_code == 404
    assert other_agent.post(f"/v1/gateway/shopping/purchases/{body['id']}/cancel").status_code == 404
    assert app.test_client().get(picture).status_code == 401
    assert agent.get("/v1/gateway/shopping/purchases/nonsense").status_code == 404
    mine = agent.get(picture)
    assert (mine.status_code, mine.data, mine.mimetype) == (200, PNG, "image/png")
    assert mine.headers["Cache-Control"] == "private, no-store"
    other = bought(agent, quantity=2)
    foreign = picture.replace(body["id"], other["id"])
    assert agent.get(foreign).status_code == 404


def test_an_agent_lists_its_purchases_newest_first(agent: Agent, app: Flask, shopper: FakeShopper) -> None:
    first = bought(agent)
    shopper.fails_before_order = purchase_failure(FailureCode.OUT_OF_STOCK)
    failed = bought(agent, quantity=2)
    queued = order(agent, quantity=3).get_json()
    body = agent.get("/v1/gateway/shopping/purchases").get_json()
    assert body["pagination"] == {"total": 3, "limit": 50, "offset": 0, "has_more": False}
    assert [each["id"] for each in body["purchases"]] == [queued["id"], failed["id"], first["id"]]
    heavy = {"steps", "trail", "evidence"}
    assert body["purchases"][2] == {name: value for name, value in first.items() if name not in heavy}
    for query, wanted in (
        ({"status": "failed"}, [failed]), ({"limit": 1, "offset": 1}, [failed]), ({"after": failed["id"]}, [first]),
        ({"status": "queued"}, [queued]), ({"status": "unknown"}, []),
    ):  # fmt: skip
        found = agent.get("/v1/gateway/shopping/purchases", **query).get_json()["purchases"]
        assert [each["id"] for each in found] == [each["id"] for each in wanted], query
    refused_status = agent.get("/v1/gateway/shopping/purchases", status="done")
    assert (refused_status.status_code, list(refused_status.get_json()["details"]["fields"])) == (400, ["status"])
    other_agent = register(app.test_client())
    assert other_agent.get("/v1/gateway/shopping/purchases").get_json()["purchases"] == []
    assert other_agent.get("/v1/gateway/shopping/purchases", after=first["id"]).status_code == 400
    assert app.test_client().get("/v1/gateway/shopping/purchases").status_code == 401
    assert app.test_client().get("/v1/gateway/shopping/purchases?token=x").status_code == 401


def test_evidence_is_deleted_after_thirty_days(agent: Agent) -> None:
    body = bought(agent)
    personal_data.prune("purchase_evidence", clock.now() + timedelta(days=29))
    assert seen(agent, body["id"])["evidence"]
    personal_data.prune("purchase_evidence", clock.now() + timedelta(days=31))
    assert seen(agent, body["id"])["evidence"] == []
    with read_only_unit() as session:
        assert session.scalars(select(PurchaseEvidence)).all() == []


def test_the_page_of_a_failure_is_for_the_operator_alone_and_deleted_after_thirty_days(
    agent: Agent, app: Flask, shopper: FakeShopper
) -> None:
    shopper.fails_before_order = purchase_failure(FailureCode.STUCK)
    body = bought(agent)
    with read_only_unit() as session:
        stored = session.scalars(select(PurchaseEvidence).where(PurchaseEvidence.name == "page")).one()
        page_id = str(stored.id)
    assert page_id not in repr(body)
    path = f"/v1/gateway/shopping/purchases/{body['id']}/evidence/{page_id}.png"
    assert agent.get(path).status_code == 404
    runner = app.test_cli_runner()
    assert runner.invoke(args=["purchases", "page", body["id"]]).output == f"{PAGE}\n"
    assert runner.invoke(args=["purchases", "page", "nonsense"]).exit_code == 1
    personal_data.prune("purchase_evidence", clock.now() + timedelta(days=31))
    gone = runner.invoke(args=["purchases", "page", body["id"]])
    assert (gone.exit_code, PAGE in gone.output) == (1, False)


@pytest.mark.parametrize("ends", ["completed", "preview", "failed", "action_required", "unknown", "cancelled"])
def test_credentials_are_deleted_at_every_end(agent: Agent, shopper: FakeShopper, ends: str) -> None:
    if ends == "failed":
        shopper.fails_before_order = purchase_failure(FailureCode.STUCK)
    elif ends == "action_required":
        shopper.fails_before_order = purchase_failure(FailureCode.HUMAN_CHECK)
    elif ends == "unknown":
        shopper.outcome_unknown = "?"
    purchase_id = order(agent, dry_run=ends == "preview").get_json()["id"]
    assert row().sealed is not None
    if ends == "cancelled":
        agent.post(f"/v1/gateway/shopping/purchases/{purchase_id}/cancel")
    else:
        purchases.buy(purchase_id)
    assert seen(agent, purchase_id)["status"] == ends
    assert row().sealed is None


class Killed(BaseException):
    """The worker's process has died: nothing of it runs any more."""


def _killed_at(where: str) -> Callable[[str], None]:
    def die(here: str) -> None:
        if here == where:
            raise Killed

    return die


@ON_BOTH
@pytest.mark.parametrize(
    ("where", "status", "spent", "left"),
    [
        ("start", "failed", 0, 10),
        ("review", "failed", 0, 9.75),
        ("allowed", "unknown", 17, 9.75),
        ("clicked", "unknown", 17, 9.75),
    ],
)
def test_a_worker_that_dies_at_any_point_never_causes_a_second_order(
    agent: Agent, shopper: FakeShopper, where: str, status: str, spent: int, left: float
) -> None:
    shopper.checkpoint = _killed_at(where)
    purchase_id = order(agent).get_json()["id"]
    with pytest.raises(Killed):
        purchases.buy(purchase_id)
    shopper.checkpoint = lambda _where: None
    clicked = shopper.clicked
    purchases.buy(purchase_id)  # the job runs again immediately
    maintenance.sweep(clock.now())
    assert seen(agent, purchase_id)["status"] in {"running", "submitting"}
    maintenance.sweep(clock.now() + purchase_runner.LEASE)
    purchases.buy(purchase_id)
    body = seen(agent, purchase_id)
    assert (body["status"], agent.spent_this_month(), credits_left(agent)) == (status, spent, left)
    assert shopper.clicked == clicked
    assert row().sealed is None
    maintenance.sweep(clock.now() + timedelta(days=2))
    assert seen(agent, purchase_id)["status"] == status


def test_a_worker_with_an_expired_lease_cannot_order(agent: Agent, shopper: FakeShopper) -> None:
    def pause(where: str) -> None:
        if where == "review":
            maintenance.sweep(clock.now() + purchase_runner.LEASE * 2)

    shopper.checkpoint = pause
    body = bought(agent)
    assert (body["status"], shopper.clicked, agent.spent_this_month()) == ("failed", 0, 0)


@pytest.mark.parametrize("where", ["start", "review", "clicked"])
def test_a_worker_that_renews_its_lease_during_a_sweep_keeps_its_purchase(
    agent: Agent, shopper: FakeShopper, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    later = clock.now() + purchase_runner.LEASE * 2

    def renew(caused_by: str | None) -> AbstractContextManager[None]:
        # The sweep has read its rows, and not ended any.
        with unit_of_work() as session:
            session.execute(update(Purchase).values(lease_until=later + purchase_runner.LEASE))
        return telemetry.caused_by(caused_by)

    def sweep(reached: str) -> None:
        if reached == where:
            with monkeypatch.context() as patched:
                patched.setattr(maintenance, "telemetry", SimpleNamespace(caused_by=renew))
                maintenance.sweep(later)

    shopper.checkpoint = sweep
    assert bought(agent)["status"] == "completed"


@ON_BOTH
def test_a_confirmation_after_the_lease_expired_counts(agent: Agent, shopper: FakeShopper) -> None:
    def pause(where: str) -> None:
        if where == "clicked":
            maintenance.sweep(clock.now() + purchase_runner.LEASE * 2)

    shopper.checkpoint = pause
    body = bought(agent)
    assert (body["status"], body["error"], body["order"]["number"]) == ("completed", None, "A-1")
    assert agent.spent_this_month() == 17


def test_a_purchase_that_no_worker_takes_expires_and_costs_nothing(app: Flask, agent: Agent) -> None:
    purchase_id = order(agent).get_json()["id"]
    queue: RecordingQueue = app.state.ports.queue
    queue.put_jobs.clear()
    maintenance.sweep(clock.now())
    assert queue.put_jobs == [(JobName.BUY, (purchase_id,))]
    with time_machine.travel(clock.now() + timedelta(minutes=16)):
        maintenance.sweep(clock.now())
    body = seen(agent, purchase_id)
    assert (body["status"], body["error"]["code"], credits_left(agent)) == ("failed", "timeout", 10)
    assert row().sealed is None


def test_a_tool_orders_once_however_often_it_is_retried(agent: Agent) -> None:
    order_ = {**BODY, "request_id": "order-1"}
    results = [call(agent.client, "buy", agent.key, **order_)["structuredContent"] for _ in range(3)]
    assert results == [results[0]] * 3, results
    purchases.buy(results[0]["id"])
    found = call(agent.client, "get_purchase", agent.key, purchase_id=results[0]["id"])["structuredContent"]
    assert found["status"] == "completed", found
    with read_only_unit() as session:
        assert session.scalars(select(Purchase.id)).all() == [results[0]["id"]]
