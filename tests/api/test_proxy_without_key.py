"""`/v1/proxy` is for holders of keys: no payment opens it, and no payment of its caller is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask

from tests.support.market import Market, market

HASH = "0x" + "5" * 64
SIGNED = "eyJ4NDAyVmVyc2lvbiI6Mn0="
PAYMENTS = (
    {"X-Payment": HASH},
    {"X-Payment": HASH, "X-Payment-Chain": "base"},
    {"X-Payment": SIGNED},
    {"PAYMENT-SIGNATURE": SIGNED},
    {"Authorization": f"Payment {SIGNED}"},
    {},
)


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Market]:
    with market(build_app, sqlite_url) as made:
        made.behave(lambda exchange: exchange.json({"weather": "sunny"}))
        yield made


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "DELETE"])
def test_a_call_without_a_key_is_refused_whatever_payment_it_carries(stage: Market, method: str) -> None:
    client = stage.app.test_client()
    for payment in PAYMENTS:
        for key in ({}, {"X-API-Key": "ak_" + "0" * 43}, {"Authorization": f"Bearer {stage.buyer.key}"}):
            answer = client.open(f"/v1/proxy/{stage.id}/x", method=method, headers={**payment, **key})
            assert answer.status_code == 401
            assert "PAYMENT-REQUIRED" not in answer.headers
            if method != "HEAD":
                assert answer.get_json()["code"] == "UNAUTHORIZED"
                assert "accepts" not in answer.get_json()
    assert stage.upstream.asked == []


def test_a_holder_without_credits_gets_no_terms_of_a_payment(stage: Market) -> None:
    stage.change(price_per_call_usd=50)
    answer = stage.call(headers={"X-Payment": HASH})
    assert (answer.status_code, answer.get_json()["code"]) == (402, "INSUFFICIENT_CREDITS")
    assert "PAYMENT-REQUIRED" not in answer.headers
    assert stage.upstream.asked == []


def test_a_valid_key_pays_with_credits_at_the_address_for_payments_too(stage: Market) -> None:
    for payment in PAYMENTS:
        answer = stage.app.test_client().get(
            f"/v1/x402/services/{stage.id}/x", headers={"X-API-Key": stage.buyer.key, **payment}
        )
        assert answer.status_code == 200
    stage.assert_charged(len(PAYMENTS))


def test_a_valid_key_in_another_place_is_never_answered_with_an_offer_to_pay(stage: Market) -> None:
    client, key = stage.app.test_client(), stage.buyer.key
    for headers in (
        {"Authorization": f"Bearer {key}"},
        {"Authorization": key},
        {"api-key": key},
        {"X-Goog-Api-Key": key},
    ):
        for payment in PAYMENTS:
            answer = client.get(f"/v1/x402/services/{stage.id}/x", headers={**payment, **headers})
            assert (answer.status_code, answer.get_json()["code"]) == (401, "UNAUTHORIZED")
            assert "X-API-Key" in answer.get_json()["error"]
    assert stage.upstream.asked == []


def test_two_different_keys_never_pay(stage: Market) -> None:
    headers = {"X-API-Key": stage.buyer.key, "Authorization": f"Bearer {stage.seller.key}"}
    for prefix in ("proxy", "x402/services"):
        answer = stage.app.test_client().get(f"/v1/{prefix}/{stage.id}/x", headers=headers)
        assert answer.status_code == 401
        assert "two different API keys" in answer.get_json()["error"]
    answer = stage.app.test_client().get("/v1/balance", headers=headers)
    assert answer.status_code == 401
    assert stage.upstream.asked == []
