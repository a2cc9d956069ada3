"""Shopping without credits: one payment buys once, and only who paid sees and repeats it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app.adapters.evm.chain import EvmChain
from app.core import heartbeats, identifiers
from app.core.chains import USDC, ChainName
from app.core.heartbeats import Heart
from app.payments import readiness, treasury
from app.ports.shopper import Trouble
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.chains import ether
from tests.support.fake_shopper import FakeShopper, trouble
from tests.support.payments import EvmPayer, by_hash, decoded, offered, till_of
from workers import purchases

pytestmark = pytest.mark.chain
BASE = ChainName.BASE
BUY = "/v1/gateway/shopping/buy"
BODY: dict[str, Any] = {
    "url": "https://shop.example/p/1",
    "credentials": {"username": "ada@example.com", "password": "canary-password"},
    "shippingAddress": {"name": "Ada Buyer", "zip": "94107"},
    "max_total_usd": 20,
}


@dataclass(frozen=True, slots=True)
class Counter:
    """Where strangers order: the service, its shopper, and the chain that they pay on."""

    app: Flask
    shopper: FakeShopper
    node: EvmNode

    def order(self, headers: Mapping[str, str] | None = None, **more: Any) -> TestResponse:
        return self.app.test_client().post(BUY, json={**BODY, **more}, headers=dict(headers or {}))

    def signed(self) -> dict[str, str]:
        return EvmPayer(self.node).pays(self.order())

    def see(self, url: str) -> TestResponse:
        parts = urlsplit(url)
        return self.app.test_client().get(f"{parts.path}?{parts.query}")

    def received(self) -> int:
        chain = self.app.extensions["ports"].chains[BASE]
        return int(chain.balances(treasury.recipient(BASE)).of(USDC).units)


@pytest.fixture
def counter(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Counter]:
    shopper = FakeShopper()
    only = {BASE: chains[BASE]}
    app = build_app(
        sqlite_url,
        settings={"initial_credits_usd": "0"},
        chains=only,
        tills={BASE: till_of(chains[BASE])},
        shopper=shopper,
    )
    with app.app_context():
        heartbeats.beat(Heart.SHOPPER)
        base_node.fund_eth(treasury.settler(BASE), ether(1))
        readiness.board().forget()
        yield Counter(app, shopper, base_node)


def refusal(answer: TestResponse) -> tuple[int, str]:
    return answer.status_code, answer.get_json()["code"]


def test_a_stranger_pays_for_a_purchase_and_follows_it_by_its_address(counter: Counter) -> None:
    told = counter.order()
    assert refusal(told) == (402, "PAYMENT_REQUIRED")
    assert (told.get_json()["payment"]["amount"], offered(told)["amount"]) == ("0.25", "250000")
    headers = EvmPayer(counter.node).pays(told)
    accepted = counter.order(headers)
    assert accepted.status_code == 202, accepted.text
    assert decoded(accepted.headers["PAYMENT-RESPONSE"])["success"] is True
    body = accepted.get_json()
    # The answer may get lost: the same request with the same payment tells it again, and buys nothing.
    assert counter.order(headers).get_json()["status_url"] == body["status_url"]
    purchases.buy(body["id"])
    done = counter.see(body["status_url"]).get_json()
    assert (done["status"], done["order"]["total"], counter.shopper.pressed) == ("completed", "17.00", 1)
    assert counter.see(done["evidence"][0]["url"]).status_code == 200
    assert counter.order(headers).get_json()["order"] == done["order"]
    # Neither without the token, nor with another purchase's.
    parts = urlsplit(body["status_url"])
    another = f"{parts.path.rpartition('/')[0]}/{identifiers.new_id()}"
    for url in (parts.path, f"{parts.path}?token=x", f"{another}?{parts.query}"):
        assert counter.see(url).status_code == 401
    assert counter.received() == 250_000


def test_a_payment_for_one_order_buys_no_other(counter: Counter) -> None:
    headers = counter.signed()
    assert counter.order(headers).status_code == 202
    assert refusal(counter.order(headers, quantity=2)) == (402, "PAYMENT_ALREADY_USED")
    assert refusal(counter.order(counter.signed(), max_total_usd=None)) == (400, "INVALID_INPUT")


def test_what_failed_before_the_shop_was_seen_can_be_ordered_again_with_the_same_payment(
    counter: Counter,
) -> None:
    headers = counter.signed()
    counter.shopper.fails_before_page = trouble(Trouble.BROWSER_ERROR)
    first = counter.order(headers).get_json()
    purchases.buy(first["id"])
    failed = counter.see(first["status_url"]).get_json()
    assert (failed["status"], failed["cost_usd"]) == ("failed", "0.00")
    counter.shopper.fails_before_page = None
    second = counter.order(headers).get_json()
    assert second["id"] != first["id"]
    purchases.buy(second["id"])
    assert counter.see(second["status_url"]).get_json()["status"] == "completed"
    assert (counter.shopper.pressed, counter.received()) == (1, 250_000)


def test_an_agent_without_credits_is_told_the_terms_and_pays_beside_its_key(counter: Counter) -> None:
    agent = register(counter.app.test_client())
    key = {"X-API-Key": agent.key}
    told = counter.order(key)
    assert refusal(told) == (402, "INSUFFICIENT_CREDITS")
    tx_hash = counter.node.fund_usdc(told.get_json()["payment"]["recipient"], 250_000)
    counter.node.mine(6)
    paid = counter.order({**key, **by_hash(tx_hash, BASE)})
    assert paid.status_code == 202, paid.text
    assert "token" not in paid.get_json()["status_url"]
    assert agent.get("/v1/balance").get_json() == {"credits_usd": 0, "total_spent": 0.25}


def test_where_nobody_buys_no_one_is_asked_to_pay(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url)
    answer = app.test_client().post(BUY, json=BODY)
    assert refusal(answer) == (402, "PAYMENT_REQUIRED")
    assert "accepts" not in answer.get_json()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"max_total_usd": None}, "max_total_usd"),
        ({"url": "shop.example"}, "url"),
        ({"shippingAddress": {"name": "Ada Buyer"}}, "shippingAddress.zip"),
    ],
)
def test_nobody_is_asked_to_pay_for_an_order_that_would_be_refused(
    counter: Counter, changed: dict[str, Any], said: str
) -> None:
    told = counter.order(**changed)
    assert refusal(told) == (402, "PAYMENT_REQUIRED")
    assert "accepts" not in told.get_json()
    assert decoded(told.headers["PAYMENT-REQUIRED"])["accepts"] == []
    instructions = told.get_json()["payment"]["instructions"]
    assert f"this request would be refused. {said}" in instructions
