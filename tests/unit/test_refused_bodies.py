"""Fields that the bodies of requests refuse, and what they accept; the routes are tested with one of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from marshmallow import Schema, ValidationError

from app.catalog.schemas import NewServiceBody, ServiceChanges
from app.core.strict_json import parse_json
from app.errors import InvalidInput
from app.shopping import orders
from app.shopping.schemas import BuyBody
from app.trading.schemas import BODY_OF_ACTION
from app.web.request_bodies import flatten_errors
from tests.support.market import offer

_PURCHASE: Mapping[str, Any] = {
    "url": "https://shop.example/p/1",
    "credentials": {"username": "ada@example.com", "password": "secret"},
    "shippingAddress": {"name": "Ada Buyer", "zip": "94107"},
}
_WALLET = {"walletId": "00000000-0000-4000-8000-000000000000"}
_ORDER: Mapping[str, Any] = {"symbol": "ETH", "side": "buy", "price": "3000", "amount": "0.01"}
_CANCEL: Mapping[str, Any] = {"symbol": "ETH", "orderId": 91490955}
_LEVERAGE: Mapping[str, Any] = {"symbol": "ETH", "leverage": 5, "cross": True}
_PAYMENT: Mapping[str, Any] = {"amount": "10", "destination": "0x5e9ee1089755c3435139848e47e6635505d5a13a"}
MISSING = object()

_SERVICE_FIELDS: list[tuple[str, Any]] = [
    ("name", ""), ("name", "   "), ("name", None), ("name", "x" * 101), ("name", 1), ("name", "a\u202eb"),
    ("description", "x" * 4001), ("description", "\x00"), ("description", None), ("description", "\ud800"),
    ("base_url", None), ("base_url", 7),
    ("price_per_call_usd", -0.01), ("price_per_call_usd", 100.000000001), ("price_per_call_usd", "1"),
    ("price_per_call_usd", None), ("price_per_call_usd", True), ("price_per_call_usd", 0.0000000001),
    ("category", ""), ("category", "x" * 51), ("category", 5), ("pricing_model", "monthly"),
]  # fmt: skip
_NEW_SERVICE = [*_SERVICE_FIELDS, ("name", MISSING), ("base_url", MISSING), ("price_per_call_usd", MISSING)]
_CHANGES = [*_SERVICE_FIELDS, *(("status", value) for value in ("retired", "deleted", "", None, 1, "ACTIVE"))]
_BUY: list[tuple[str, Any]] = [
    ("url", 7), ("url", MISSING),
    ("credentials.username", {"username": "", "password": "p"}), ("credentials.password", {"username": "ada"}),
    ("shippingAddress", None), ("shippingAddress", MISSING), ("shippingAddress.name", {"zip": "94107"}),
    ("quantity", 0), ("quantity", 101), ("quantity", True), ("quantity", 1.5),
    ("max_total_usd", -1), ("dry_run", "yes"), ("options.Color.value", {"Color": 3}),
]  # fmt: skip
_TRADES: list[tuple[str, Mapping[str, Any], list[tuple[str, Any]]]] = [
    (
        "order", _ORDER,
        [
            ("symbol", None), ("symbol", 7), ("symbol", ""), ("side", "up"), ("side", None), ("price", None),
            ("price", True), ("amount", True), ("amount", MISSING), ("tif", "FOK"),
        ],
    ),
    (
        "cancel", _CANCEL,
        [("symbol", None), *(("orderId", wrong) for wrong in (True, -1, 1.5, "0x12", "", 2**64, None, [], "١"))],
    ),
    (
        "set_leverage", _LEVERAGE,
        [("leverage", 2.5), ("leverage", True), ("leverage", None), ("cross", "yes")],
    ),
    ("withdraw", _PAYMENT, [("amount", None), ("amount", True), ("destination", None), ("destination", 5)]),
    ("transfer", _PAYMENT, [("amount", MISSING), ("destination", MISSING)]),
]  # fmt: skip


def _load(schema: type[Schema], body: Mapping[str, Any]) -> Any:
    return schema().load(parse_json(json.dumps(body).encode()))


def _refused_fields(schema: type[Schema], body: Mapping[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        _load(schema, body)
    return list(flatten_errors(caught.value.messages))


def _with(body: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    name = field.partition(".")[0]
    rest = {key: kept for key, kept in body.items() if key != name}
    return rest if value is MISSING else {**rest, name: value}


@pytest.mark.parametrize(
    ("schema", "good", "wrong"),
    [
        pytest.param(NewServiceBody, offer(), _NEW_SERVICE, id="new service"),
        pytest.param(ServiceChanges, {"status": "paused"}, _CHANGES, id="changes of a service"),
        pytest.param(BuyBody, _PURCHASE, _BUY, id="purchase"),
        *(
            pytest.param(BODY_OF_ACTION[action], {**_WALLET, "action": action, **good}, wrong, id=action)
            for action, good, wrong in _TRADES
        ),
    ],
)
def test_a_wrong_field_is_named(schema: type[Schema], good: Mapping[str, Any], wrong: list[tuple[str, Any]]) -> None:
    _load(schema, good)
    for field, value in wrong:
        assert _refused_fields(schema, _with(good, field, value)) == [field], (field, value)


@pytest.mark.parametrize("price", ["0", "0.000000001", "99.999999999", "100"])
def test_the_price_of_a_service_is_exact(price: str) -> None:
    body = json.dumps(offer(price_per_call_usd=0)).replace('"price_per_call_usd": 0', f'"price_per_call_usd": {price}')
    assert NewServiceBody().load(parse_json(body.encode()))["price_nanos"] == Decimal(price) * 10**9


def test_optional_fields_of_a_service_have_defaults() -> None:
    made = _load(NewServiceBody, {"name": "n", "base_url": "http://127.0.0.1:9", "price_per_call_usd": 0})
    assert (made["description"], made["category"], made["pricing_model"]) == ("", "other", "per_call")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://shop.example/", "https://user:secret@shop.example/", "https:///p", "https://shop.example/" + "p" * 2048,
        "https://shop.example/a b", "https://shop.example\\@evil.example/", "https://shop.example:99999/",
        "https://[::1/", "shop.example", "",
    ],
)  # fmt: skip
def test_the_address_of_a_product_is_a_plain_url(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        orders.parse_url(url)
    assert list(caught.value.details["fields"]) == ["url"]
    assert "secret" not in str(caught.value.details)
