from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.support.agents import Agent, register
from tests.support.market import sell


@pytest.fixture
def buyer(everywhere: FlaskClient) -> Agent:
    return register(everywhere)


@pytest.fixture
def service(seller: Agent) -> dict[str, Any]:
    return sell(seller)


def subscribe(agent: Agent, service: dict[str, Any], **headers: str) -> TestResponse:
    return agent.post(f"/v1/catalog/{service['id']}/subscribe", {"wallet_id": agent.wallet_id}, **headers)


def test_a_subscription_is_created_once_cancelled_and_reactivated(buyer: Agent, service: dict[str, Any]) -> None:
    first = subscribe(buyer, service)
    expected = {
        "subscription_id": first.get_json()["subscription_id"],
        "service_id": service["id"],
        "service_name": "City weather",
        "wallet_id": buyer.wallet_id,
        "status": "active",
    }
    assert (first.status_code, first.get_json()) == (201, expected)
    again = subscribe(buyer, service)
    assert (again.status_code, again.get_json()["code"]) == (409, "ALREADY_SUBSCRIBED")
    for _ in range(2):
        cancelled = buyer.client.delete(
            f"/v1/catalog/{service['id']}/subscribe", json={"wallet_id": buyer.wallet_id}, headers=buyer.headers()
        )
        assert (cancelled.status_code, cancelled.get_json()) == (200, {**expected, "status": "cancelled"})
    back = subscribe(buyer, service)
    assert (back.status_code, back.get_json()) == (200, {**expected, "reactivated": True})
    assert subscribe(buyer, service).status_code == 409


def test_the_wallet_may_be_named_in_the_query_when_cancelling(buyer: Agent, service: dict[str, Any]) -> None:
    subscribe(buyer, service)
    path = f"/v1/catalog/{service['id']}/subscribe"
    assert buyer.delete(path).status_code == 400
    assert buyer.delete(f"{path}?wallet_id={buyer.wallet_id}").get_json()["status"] == "cancelled"


def test_a_missing_wallet_is_a_bad_request(buyer: Agent, service: dict[str, Any]) -> None:
    for body in ({}, {"wallet_id": None}, {"wallet_id": 5}):
        answer = buyer.post(f"/v1/catalog/{service['id']}/subscribe", body)
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
        assert "wallet_id" in answer.get_json()["details"]["fields"]


def test_a_foreign_wallet_cannot_be_subscribed(
    everywhere: FlaskClient, buyer: Agent, seller: Agent, service: dict[str, Any]
) -> None:
    path = f"/v1/catalog/{service['id']}/subscribe"
    for wallet_id in (seller.wallet_id, "x", "00000000-0000-4000-8000-000000000000"):
        answer = buyer.post(path, {"wallet_id": wallet_id})
        assert (answer.status_code, answer.get_json()["code"]) == (404, "NOT_FOUND")
    subscribe(seller, service)
    assert buyer.delete(f"{path}?wallet_id={seller.wallet_id}").status_code == 404
    key = {"X-API-Key": everywhere.post("/v1/keys", json={}).get_json()["api_key"]}
    assert everywhere.post(path, json={"wallet_id": buyer.wallet_id}, headers=key).status_code == 404
    assert everywhere.get("/v1/subscriptions", headers=key).get_json()["subscriptions"] == []


def test_a_paused_service_accepts_no_subscribers_and_keeps_the_present_ones(
    buyer: Agent, seller: Agent, service: dict[str, Any]
) -> None:
    subscribe(buyer, service)
    seller.put(f"/v1/services/{service['id']}", {"status": "paused"})
    assert subscribe(seller, service).status_code == 404
    assert buyer.get("/v1/subscriptions", status="active").get_json()["pagination"]["total"] == 1
    assert seller.get(f"/v1/services/{service['id']}").get_json()["subscribers"] == 1


def test_unsubscribing_from_a_paused_service_works(buyer: Agent, seller: Agent, service: dict[str, Any]) -> None:
    subscribe(buyer, service)
    seller.put(f"/v1/services/{service['id']}", {"status": "paused"})
    path = f"/v1/catalog/{service['id']}/subscribe"
    cancelled = buyer.delete(f"{path}?wallet_id={buyer.wallet_id}")
    assert (cancelled.status_code, cancelled.get_json()["status"]) == (200, "cancelled")
    assert buyer.delete(path).status_code == 400
    assert seller.get(f"/v1/services/{service['id']}").get_json()["subscribers"] == 0
    seller.delete(f"/v1/services/{service['id']}")
    assert buyer.delete(f"{path}?wallet_id={buyer.wallet_id}").status_code == 404


def test_a_repeated_request_returns_the_first_response(buyer: Agent, service: dict[str, Any]) -> None:
    first = subscribe(buyer, service, Idempotency_Key="k")
    again = subscribe(buyer, service, Idempotency_Key="k")
    assert (again.status_code, again.get_json()) == (201, first.get_json())
    assert again.headers["Idempotent-Replayed"] == "true"


def test_subscribers_are_counted_while_they_are_active(buyer: Agent, seller: Agent, service: dict[str, Any]) -> None:
    subscribe(buyer, service)
    subscribe(seller, service)
    path = f"/v1/services/{service['id']}"
    assert seller.get(f"{path}/stats").get_json()["active_subscribers"] == 2
    buyer.delete(f"/v1/catalog/{service['id']}/subscribe?wallet_id={buyer.wallet_id}")
    assert seller.get(f"{path}/stats").get_json()["active_subscribers"] == 1
    assert seller.get(path).get_json()["subscribers"] == 1


def test_deleting_a_wallet_cancels_its_subscriptions_and_no_others(
    buyer: Agent, seller: Agent, service: dict[str, Any]
) -> None:
    second = buyer.post("/v1/wallets", {}).get_json()["id"]
    subscribe(buyer, service)
    subscribe(seller, service)
    buyer.post(f"/v1/catalog/{service['id']}/subscribe", {"wallet_id": second})
    assert buyer.delete(f"/v1/wallets/{buyer.wallet_id}").status_code == 200
    rows = buyer.get("/v1/subscriptions").get_json()["subscriptions"]
    assert {row["wallet_id"]: row["status"] for row in rows} == {buyer.wallet_id: "cancelled", second: "active"}
    assert seller.get(f"/v1/services/{service['id']}").get_json()["subscribers"] == 2


def test_a_wallet_keeps_its_subscriptions_if_its_deletion_fails(buyer: Agent, service: dict[str, Any]) -> None:
    subscribe(buyer, service)
    assert buyer.delete(f"/v1/wallets/{service['id']}").status_code == 404
    assert buyer.get("/v1/subscriptions").get_json()["subscriptions"][0]["status"] == "active"
