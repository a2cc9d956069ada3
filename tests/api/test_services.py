from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask.testing import FlaskClient
from sqlalchemy import func, insert, select

from app.catalog import services
from app.catalog.models import Service, ServiceSpecification
from app.core.identifiers import new_id
from app.core.unit_of_work import reading, unit_of_work
from app.extensions import db
from app.identity import rotation
from app.ports import provider
from tests.support.agents import Agent, register
from tests.support.market import SPEC, offer, sell

NOBODY_S = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def seller(client: FlaskClient) -> Agent:
    return register(client)


def field_problem(answer: Any, field: str) -> str:
    assert answer.status_code == 400, answer.get_data(as_text=True)
    assert answer.get_json()["code"] == "INVALID_INPUT"
    problem: str = answer.get_json()["details"]["fields"][field][0]
    return problem


def test_a_registered_service_is_told_whole_and_its_secret_once(seller: Agent) -> None:
    made = sell(seller, openapi_spec=SPEC)
    assert made["signing_secret"].startswith("sv_")
    assert made["proxy_url"] == f"http://purser.test/v1/proxy/{made['id']}"
    answer = seller.get(f"/v1/services/{made['id']}")
    assert answer.get_json() == {
        "id": made["id"],
        "name": "City weather",
        "description": "Current weather of any city.",
        "base_url": "http://127.0.0.1:9/api",
        "pricing_model": "per_call",
        "price_per_call_usd": 0.25,
        "category": "weather",
        "status": "active",
        "total_calls": 0,
        "total_revenue_usd": 0.0,
        "subscribers": 0,
        "endpoints_count": 2,
        "endpoints": [
            {"method": "GET", "path": "/weather/{city}", "summary": "Current weather of a city"},
            {"method": "POST", "path": "/reports", "summary": "Send a report."},
        ],
        "created_at": made["created_at"],
        "updated_at": made["updated_at"],
    }
    assert made["signing_secret"] not in answer.get_data(as_text=True)
    with reading():
        assert made["signing_secret"] not in str(db.session.execute(select(Service.__table__)).all())


def test_a_secret_still_opens_after_the_encryption_keys_were_rotated(seller: Agent) -> None:
    made = sell(seller)
    assert ("services", "secret_sealed") in [
        (table.name, column.name) for table, column in rotation.sealed_columns()
    ]
    rotation.rotate(provider.current().vault, batch=10)
    assert services.for_calling(made["id"]).secret.decode() == made["signing_secret"]


def test_a_repeated_registration_gets_the_same_secret_and_makes_no_second_service(seller: Agent) -> None:
    first = seller.post("/v1/services", offer(), Idempotency_Key="once")
    again = seller.post("/v1/services", offer(), Idempotency_Key="once")
    assert (again.status_code, again.get_json()) == (201, first.get_json())
    assert again.headers["Idempotent-Replayed"] == "true"
    assert seller.get("/v1/services").get_json()["pagination"]["total"] == 1


def test_an_answer_that_a_crash_swallowed_is_made_again_from_the_record(seller: Agent) -> None:
    made = sell(seller)
    registered = services.registered(made["id"])
    assert registered.secret == made["signing_secret"]
    assert registered.secret not in repr(registered)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""), ("name", "   "), ("name", None), ("name", "x" * 101), ("name", 1), ("name", "a\u202eb"),
        ("description", "x" * 4001), ("description", "\x00"), ("description", None), ("description", "\ud800"),
        ("base_url", None), ("base_url", ""), ("base_url", "ftp://example.org"), ("base_url", 7),
        ("price_per_call_usd", -0.01), ("price_per_call_usd", 100.000000001), ("price_per_call_usd", "1"),
        ("price_per_call_usd", None), ("price_per_call_usd", True), ("price_per_call_usd", 0.0000000001),
        ("category", ""), ("category", "x" * 51), ("category", 5), ("pricing_model", "monthly"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named_and_nothing_is_registered(seller: Agent, field: str, value: Any) -> None:
    assert field_problem(seller.post("/v1/services", offer(**{field: value})), field)
    assert seller.get("/v1/services").get_json()["services"] == []


@pytest.mark.parametrize("missing", ["name", "base_url", "price_per_call_usd"])
def test_what_cannot_be_guessed_must_be_sent(seller: Agent, missing: str) -> None:
    body = offer()
    del body[missing]
    assert field_problem(seller.post("/v1/services", body), missing) == "is required"


def test_what_can_be_left_out_has_a_default(seller: Agent) -> None:
    made = seller.post(
        "/v1/services", {"name": "n", "base_url": "http://127.0.0.1:9", "price_per_call_usd": 0}
    ).get_json()
    assert (made["description"], made["category"], made["pricing_model"]) == ("", "other", "per_call")


@pytest.mark.parametrize("price", [0, 0.000000001, 99.999999999, 100])
def test_a_price_is_kept_to_the_last_digit(seller: Agent, price: float) -> None:
    assert sell(seller, price_per_call_usd=price)["price_per_call_usd"] == price


def test_an_invalid_specification_is_refused_with_its_place_and_registers_nothing(seller: Agent) -> None:
    broken = {**SPEC, "paths": {"/x": {"get": {"responses": {"200": {}}}}}}
    answer = seller.post("/v1/services", offer(openapi_spec=broken))
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_SPEC")
    assert answer.get_json()["details"]["place"] == "#/paths/~1x/get/responses/200"
    assert "description" in answer.get_json()["details"]["problem"]
    assert seller.get("/v1/services").get_json()["services"] == []


@pytest.mark.parametrize("document", [5, 0.1, True, [1], "5", "[]", ""])
def test_what_is_no_document_at_all_is_an_invalid_specification(seller: Agent, document: Any) -> None:
    service = sell(seller)
    for answer in (
        seller.post("/v1/services", offer(openapi_spec=document)),
        seller.put(f"/v1/services/{service['id']}", {"openapi_spec": document}),
    ):
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_SPEC"), answer.text
        assert answer.get_json()["details"]["fields"]["openapi_spec"]
    assert len(seller.get("/v1/services").get_json()["services"]) == 1


def test_a_specification_may_be_sent_as_text_and_as_deep_and_large_as_the_limits_say(seller: Agent) -> None:
    deep: Any = "x"
    for _ in range(25):
        deep = {"a": deep}
    large = {**SPEC, "info": {**SPEC["info"], "description": "ü" * 150_000, "x-deep": deep}}
    assert sell(seller, openapi_spec=json.dumps(large))["id"]
    assert sell(seller, openapi_spec=large)["id"]
    too_deep = {**SPEC, "info": {**SPEC["info"], "x-deep": {"b": {"c": {"d": {"e": {"f": {"g": deep}}}}}}}}
    assert seller.post("/v1/services", offer(openapi_spec=too_deep)).get_json()["code"] == "INVALID_SPEC"
    too_large = {**SPEC, "info": {**SPEC["info"], "description": "x" * 2**20}}
    assert seller.post("/v1/services", offer(openapi_spec=too_large)).get_json()["code"] == "INVALID_SPEC"


def test_a_change_changes_what_it_names_and_nothing_else(seller: Agent) -> None:
    made = sell(seller, openapi_spec=SPEC)
    path = f"/v1/services/{made['id']}"
    before = seller.get(path).get_json()
    for change in (
        {"name": "Other"},
        {"description": "line one\nline two"},
        {"price_per_call_usd": 1},
        {"category": "sky"},
        {"base_url": "http://127.0.0.1:10/v2"},
        {"status": "paused"},
        {"status": "active"},
    ):
        assert seller.put(path, change).get_json() == {"id": made["id"], "updated": True}
        after = seller.get(path).get_json()
        assert after == {**before, **change, "updated_at": after["updated_at"]}
        before = after


def test_a_specification_is_replaced_taken_away_or_kept_as_it_was(seller: Agent) -> None:
    made = sell(seller, openapi_spec=SPEC)
    path = f"/v1/services/{made['id']}"
    refused = seller.put(path, {"openapi_spec": {"openapi": "2.0"}, "name": "never"})
    assert (refused.status_code, refused.get_json()["code"]) == (400, "INVALID_SPEC")
    assert refused.get_json()["details"]["place"] == "#/openapi"
    assert (seller.get(path).get_json()["name"], seller.get(path).get_json()["endpoints_count"]) == (
        "City weather",
        2,
    )
    one = {**SPEC, "paths": {"/reports": SPEC["paths"]["/reports"]}}
    seller.put(path, {"openapi_spec": one})
    assert seller.get(path).get_json()["endpoints_count"] == 1
    seller.put(path, {"openapi_spec": None})
    assert seller.get(path).get_json()["endpoints"] == []


@pytest.mark.parametrize("status", ["retired", "deleted", "", None, 1, "ACTIVE"])
def test_a_status_that_is_none_is_refused(seller: Agent, status: Any) -> None:
    made = sell(seller)
    assert field_problem(seller.put(f"/v1/services/{made['id']}", {"status": status}), "status")


@pytest.mark.parametrize("body", [{}, {"unknown": 1}])
def test_a_change_of_nothing_is_refused(seller: Agent, body: dict[str, Any]) -> None:
    answer = seller.put(f"/v1/services/{sell(seller)['id']}", body)
    assert field_problem(answer, "body") == "has no field to change"


def test_others_services_are_not_there(client: FlaskClient, seller: Agent) -> None:
    made = sell(seller)
    stranger = register(client)
    for service_id in (made["id"], NOBODY_S, "x", made["id"].upper(), made["id"].replace("-", "")):
        path = f"/v1/services/{service_id}"
        answers = [
            stranger.get(path),
            stranger.put(path, {"status": "no"}),  # 404 wins over 400
            stranger.delete(path),
            stranger.get(f"{path}/stats"),
        ]
        assert [answer.status_code for answer in answers] == [404] * 4
        assert {answer.get_json()["code"] for answer in answers} == {"NOT_FOUND"}
    assert stranger.get("/v1/services").get_json()["services"] == []
    assert seller.get(f"/v1/services/{made['id']}").status_code == 200


def test_a_gateway_only_key_owns_no_services(client: FlaskClient, seller: Agent) -> None:
    made = sell(seller)
    key = {"X-API-Key": client.post("/v1/keys", json={}).get_json()["api_key"]}
    assert client.get("/v1/services", headers=key).get_json()["services"] == []
    assert client.get(f"/v1/services/{made['id']}", headers=key).status_code == 404
    refused = client.post("/v1/services", headers=key, json={"name": 1})
    assert (refused.status_code, "agent key" in refused.get_json()["error"]) == (401, True)


def test_a_retired_service_is_gone_for_everybody_and_its_subscriptions_end(
    client: FlaskClient, seller: Agent
) -> None:
    made = sell(seller)
    buyer = register(client)
    buyer.post(f"/v1/catalog/{made['id']}/subscribe", {"wallet_id": buyer.wallet_id})
    answer = seller.delete(f"/v1/services/{made['id']}")
    assert answer.get_json() == {"id": made["id"], "retired": True}
    for agent in (seller, buyer):
        assert agent.get(f"/v1/services/{made['id']}").status_code == 404
        assert agent.get(f"/v1/catalog/{made['id']}").status_code == 404
        assert agent.get("/v1/catalog").get_json()["services"] == []
    assert seller.put(f"/v1/services/{made['id']}", {"status": "active"}).status_code == 404
    assert seller.delete(f"/v1/services/{made['id']}").status_code == 404
    (subscription,) = buyer.get("/v1/subscriptions").get_json()["subscriptions"]
    assert subscription["status"] == "cancelled"


def test_an_agent_has_a_bounded_number_of_services(seller: Agent) -> None:
    first = sell(seller)
    with unit_of_work() as session:
        (row,) = session.execute(select(Service.__table__)).mappings().all()
        session.execute(insert(Service), [{**row, "id": new_id()} for _ in range(99)])
    refused = seller.post("/v1/services", offer())
    assert (refused.status_code, refused.get_json()["code"]) == (409, "LIMIT_REACHED")
    seller.delete(f"/v1/services/{first['id']}")
    assert sell(seller)["id"]


def test_what_is_registered_and_retired_again_and_again_fills_no_disk(seller: Agent) -> None:
    first = sell(seller, openapi_spec=SPEC)
    seller.delete(f"/v1/services/{first['id']}")
    with unit_of_work() as session:
        assert session.scalar(select(func.count()).select_from(ServiceSpecification)) == 0
        (row,) = session.execute(select(Service.__table__)).mappings().all()
        session.execute(insert(Service), [{**row, "id": new_id()} for _ in range(199)])
    refused = seller.post("/v1/services", offer())
    assert (refused.status_code, refused.get_json()["code"]) == (409, "LIMIT_REACHED")
    with time_machine.travel(row["created_at"] + timedelta(days=1, seconds=1)):
        assert sell(seller)["id"]


def test_own_services_are_listed_oldest_first_with_their_status(seller: Agent) -> None:
    made = [sell(seller, name=f"service {number}") for number in range(3)]
    seller.put(f"/v1/services/{made[1]['id']}", {"status": "paused"})
    page = seller.get("/v1/services", limit=2, offset=1).get_json()
    assert [row["name"] for row in page["services"]] == ["service 1", "service 2"]
    assert [row["status"] for row in page["services"]] == ["paused", "active"]
    assert page["pagination"] == {"total": 3, "limit": 2, "offset": 1, "has_more": False}
