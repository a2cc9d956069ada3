from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask.testing import FlaskClient
from sqlalchemy import func, insert, select

from app.catalog.models import Service, ServiceSpecification
from app.catalog.services import service as services
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.platform import row_seals
from app.state import app_state
from server.pool import ResourceUse
from tests.support.agents import Agent, register
from tests.support.market import SPEC, offer, sell

UNKNOWN_SERVICE = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def seller(client: FlaskClient) -> Agent:
    return register(client)


def field_problem(answer: Any, field: str) -> str:
    assert answer.status_code == 400, answer.get_data(as_text=True)
    assert answer.get_json()["code"] == "INVALID_INPUT"
    problem: str = answer.get_json()["details"]["fields"][field][0]
    return problem


def test_registration_returns_the_service_and_shows_its_secret_once(seller: Agent) -> None:
    made = sell(seller, openapi_spec=SPEC)
    assert made["signing_secret"].startswith("sv_")
    assert made["x402_url"] == f"http://purser.test/v1/x402/services/{made['id']}"
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
    with read_only_unit() as session:
        assert made["signing_secret"] not in str(session.execute(select(Service.__table__)).all())


def test_a_secret_is_readable_after_key_rotation(seller: Agent) -> None:
    made = sell(seller)
    assert ("services", "secret_sealed") in [(table.name, column.name) for table, column in row_seals.sealed_columns()]
    row_seals.reseal_all(app_state().ports.vault, batch=10)
    assert services.callable_service(made["id"]).secret.decode() == made["signing_secret"]


def test_a_repeated_registration_gets_the_same_secret_and_makes_no_second_service(seller: Agent) -> None:
    first = seller.post("/v1/services", offer(), Idempotency_Key="once")
    again = seller.post("/v1/services", offer(), Idempotency_Key="once")
    assert (again.status_code, again.get_json()) == (201, first.get_json())
    assert again.headers["Idempotent-Replayed"] == "true"
    assert seller.get("/v1/services").get_json()["pagination"]["total"] == 1


def test_a_response_lost_in_a_crash_is_rebuilt_from_the_record(seller: Agent) -> None:
    made = sell(seller)
    registered = services.registration_of(made["id"])
    assert registered.secret == made["signing_secret"]
    assert registered.secret not in repr(registered)


def test_an_invalid_field_is_named_and_nothing_is_registered(seller: Agent) -> None:
    for field, value in (("name", " "), ("base_url", "ftp://example.org")):
        assert field_problem(seller.post("/v1/services", offer(**{field: value})), field)
    assert seller.get("/v1/services").get_json()["services"] == []


def test_prices_are_exact(seller: Agent) -> None:
    for price in (0.000000001, 99.999999999):
        assert sell(seller, price_per_call_usd=price)["price_per_call_usd"] == price


def test_an_invalid_specification_is_refused_with_its_position_and_registers_nothing(seller: Agent) -> None:
    broken = {**SPEC, "paths": {"/x": {"get": {"responses": {"200": {}}}}}}
    answer = seller.post("/v1/services", offer(openapi_spec=broken))
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_SPEC")
    assert answer.get_json()["details"]["place"] == "#/paths/~1x/get/responses/200"
    assert "description" in answer.get_json()["details"]["problem"]
    assert seller.get("/v1/services").get_json()["services"] == []


def test_a_non_document_is_an_invalid_specification(seller: Agent) -> None:
    service = sell(seller)
    for document in (5, 0.1, True, [1], "5", "[]", ""):
        for answer in (
            seller.post("/v1/services", offer(openapi_spec=document)),
            seller.put(f"/v1/services/{service['id']}", {"openapi_spec": document}),
        ):
            assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_SPEC"), answer.text
            assert answer.get_json()["details"]["fields"]["openapi_spec"]
    assert len(seller.get("/v1/services").get_json()["services"]) == 1


def test_a_specification_may_be_text_and_as_deep_and_large_as_the_limits(seller: Agent) -> None:
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


def test_an_agent_that_floods_specifications_leaves_threads_to_other_requests(seller: Agent) -> None:
    places = 0
    while app_state().threads.acquire(ResourceUse.OUTCOME, seller.id):
        places += 1
    assert places < app_state().settings.web_threads
    refused = seller.post("/v1/services", offer(openapi_spec=SPEC))
    assert (refused.status_code, refused.get_json()["code"]) == (503, "OVERLOADED")
    assert refused.headers["Retry-After"]
    app_state().threads.release(ResourceUse.OUTCOME, seller.id, places)
    sell(seller, openapi_spec=SPEC)


def test_an_update_changes_only_the_given_fields(seller: Agent) -> None:
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


def test_a_specification_is_replaced_removed_or_kept(seller: Agent) -> None:
    made = sell(seller, openapi_spec=SPEC)
    path = f"/v1/services/{made['id']}"
    refused = seller.put(path, {"openapi_spec": {"openapi": "2.0"}, "name": "never"})
    assert (refused.status_code, refused.get_json()["code"]) == (400, "INVALID_SPEC")
    assert refused.get_json()["details"]["place"] == "#/openapi"
    assert (seller.get(path).get_json()["name"], seller.get(path).get_json()["endpoints_count"]) == ("City weather", 2)
    one = {**SPEC, "paths": {"/reports": SPEC["paths"]["/reports"]}}
    seller.put(path, {"openapi_spec": one})
    assert seller.get(path).get_json()["endpoints_count"] == 1
    seller.put(path, {"openapi_spec": None})
    assert seller.get(path).get_json()["endpoints"] == []


def test_an_unknown_status_and_an_empty_update_are_refused(seller: Agent) -> None:
    path = f"/v1/services/{sell(seller)['id']}"
    assert field_problem(seller.put(path, {"status": "retired"}), "status")
    for body in ({}, {"unknown": 1}):
        assert field_problem(seller.put(path, body), "body") == "has no field to set"


def test_services_of_other_agents_are_not_found(client: FlaskClient, seller: Agent) -> None:
    made = sell(seller)
    other_agent = register(client)
    for service_id in (made["id"], UNKNOWN_SERVICE, "x", made["id"].upper(), made["id"].replace("-", "")):
        path = f"/v1/services/{service_id}"
        answers = [
            other_agent.get(path),
            other_agent.put(path, {"status": "no"}),  # 404 precedes 400
            other_agent.delete(path),
            other_agent.get(f"{path}/stats"),
        ]
        assert [answer.status_code for answer in answers] == [404] * 4
        assert {answer.get_json()["code"] for answer in answers} == {"NOT_FOUND"}
    assert other_agent.get("/v1/services").get_json()["services"] == []
    assert seller.get(f"/v1/services/{made['id']}").status_code == 200


def test_a_gateway_only_key_owns_no_services(client: FlaskClient, seller: Agent) -> None:
    made = sell(seller)
    key = {"X-API-Key": client.post("/v1/keys", json={}).get_json()["api_key"]}
    assert client.get("/v1/services", headers=key).get_json()["services"] == []
    assert client.get(f"/v1/services/{made['id']}", headers=key).status_code == 404
    refused = client.post("/v1/services", headers=key, json={"name": 1})
    assert (refused.status_code, "agent key" in refused.get_json()["error"]) == (401, True)


def test_a_retired_service_is_not_found_and_its_subscriptions_end(client: FlaskClient, seller: Agent) -> None:
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


def test_repeated_registration_and_retirement_is_limited(seller: Agent) -> None:
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
