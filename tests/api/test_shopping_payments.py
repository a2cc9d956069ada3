"""Shopping without credits: one payment buys once, and only its payer can read and repeat the purchase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app.adapters.evm.chain import EvmChain
from app.core import identifiers
from app.core.chains import USDC, ChainName
from app.db import leases
from app.db.leases import ProcessKind
from app.payments import treasury
from app.payments.settlement_capacity import SettlementCapacityCache
from app.ports.shopper import FailureCode
from app.state import app_state
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.chains import ether
from tests.support.fake_shopper import FakeShopper, purchase_failure
from tests.support.mpp import answered
from tests.support.operators import operator
from tests.support.payments import EvmPayer, by_hash, decoded, facilitator_of, offered
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
class Storefront:
    """The service, its shopper, and the chain on which anonymous clients pay."""

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
        chain = self.app.state.ports.chains[BASE]
        return int(chain.balances(treasury.recipient(BASE)).of(USDC).units)


@pytest.fixture
def storefront(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Storefront]:
    shopper = FakeShopper()
    only = {BASE: chains[BASE]}
    app = build_app(
        sqlite_url,
        settings={"initial_credits_usd": "0"},
        chains=only,
        facilitators={BASE: facilitator_of(chains[BASE])},
        shopper=shopper,
    )
    with app.app_context():
        leases.record(ProcessKind.SHOPPER)
        base_node.fund_eth(treasury.settler(BASE), ether(1))
        app_state().part(SettlementCapacityCache).clear()
        yield Storefront(app, shopper, base_node)


def refusal(answer: TestResponse) -> tuple[int, str]:
    return answer.status_code, answer.get_json()["code"]


@pytest.mark.parametrize(("pays", "settled_in"), [(EvmPayer.pays, "PAYMENT-RESPONSE"), (answered, "Payment-Receipt")])
def test_an_anonymous_client_pays_for_a_purchase_and_polls_its_status_url(
    storefront: Storefront, pays: Callable[[EvmPayer, TestResponse], dict[str, str]], settled_in: str
) -> None:
    terms_response = storefront.order()
    assert refusal(terms_response) == (402, "PAYMENT_REQUIRED")
    assert (terms_response.get_json()["payment"]["amount"], offered(terms_response)["amount"]) == ("0.25", "250000")
    headers = pays(EvmPayer(storefront.node), terms_response)
    accepted = storefront.order(headers)
    assert accepted.status_code == 202, accepted.text
    assert accepted.headers["Cache-Control"] == "no-store"
    assert settled_in in accepted.headers
    body = accepted.get_json()
    # The response may get lost: the same request with the same payment returns it again, and buys nothing.
    assert storefront.order(headers).get_json()["status_url"] == body["status_url"]
    purchases.buy(body["id"])
    done = storefront.see(body["status_url"]).get_json()
    assert (done["status"], done["order"]["total"], storefront.shopper.clicked) == ("completed", "17.00", 1)
    assert storefront.see(done["evidence"][0]["url"]).status_code == 200
    assert storefront.order(headers).get_json()["order"] == done["order"]
    # Neither without the token, nor with another purchase's.
    parts = urlsplit(body["status_url"])
    another = f"{parts.path.rpartition('/')[0]}/{identifiers.new_id()}"
    for url in (parts.path, f"{parts.path}?token=x", f"{another}?{parts.query}"):
        assert storefront.see(url).status_code == 401
    assert storefront.received() == 250_000


def test_a_payment_for_one_order_buys_no_other(storefront: Storefront) -> None:
    headers = storefront.signed()
    assert storefront.order(headers).status_code == 202
    assert refusal(storefront.order(headers, quantity=2)) == (402, "PAYMENT_ALREADY_USED")
    assert refusal(storefront.order(storefront.signed(), max_total_usd=None)) == (400, "INVALID_INPUT")


def test_a_purchase_that_failed_before_the_first_page_can_be_repeated_with_the_same_payment(
    storefront: Storefront,
) -> None:
    headers = storefront.signed()
    storefront.shopper.fails_before_page = purchase_failure(FailureCode.BROWSER_ERROR)
    first = storefront.order(headers).get_json()
    purchases.buy(first["id"])
    failed = storefront.see(first["status_url"]).get_json()
    assert (failed["status"], failed["cost_usd"]) == ("failed", "0.00")
    storefront.shopper.fails_before_page = None
    second = storefront.order(headers).get_json()
    assert second["id"] != first["id"]
    purchases.buy(second["id"])
    assert storefront.see(second["status_url"]).get_json()["status"] == "completed"
    assert (storefront.shopper.clicked, storefront.received()) == (1, 250_000)


def test_an_agent_without_credits_receives_the_terms_and_pays_along_with_its_key(storefront: Storefront) -> None:
    agent = register(storefront.app.test_client())
    key = {"X-API-Key": agent.key}
    terms_response = storefront.order(key)
    assert refusal(terms_response) == (402, "INSUFFICIENT_CREDITS")
    tx_hash = storefront.node.fund_usdc(terms_response.get_json()["payment"]["recipient"], 250_000)
    storefront.node.mine(6)
    paid = storefront.order({**key, **by_hash(tx_hash, BASE)})
    assert paid.status_code == 202, paid.text
    assert "token" not in paid.get_json()["status_url"]
    assert agent.get("/v1/balance").get_json() == {"credits_usd": 0, "total_spent": 0.25, "owed_usd": 0.0}


def test_a_payment_buys_although_a_shared_budget_is_used_up(storefront: Storefront) -> None:
    client = storefront.app.test_client()
    agent, ops = register(client), operator(client)
    budget = ops.post("/budgets", {"name": "team", "limit_usd": 0, "members": {"agents": [agent.id]}}).get_json()
    key = {"X-API-Key": agent.key}
    terms_response = storefront.order(key)
    assert refusal(terms_response) == (402, "BUDGET_EXCEEDED")
    tx_hash = storefront.node.fund_usdc(terms_response.get_json()["payment"]["recipient"], 250_000)
    storefront.node.mine(6)
    paid = storefront.order({**key, **by_hash(tx_hash, BASE)})
    assert paid.status_code == 202, paid.text
    assert ops.get(f"/budgets/{budget['id']}").get_json()["used_usd"] == 0.25
    assert agent.get("/v1/balance").get_json() == {"credits_usd": 0, "total_spent": 0.25, "owed_usd": 0.0}


def test_no_payment_is_requested_without_a_shopping_worker(build_app: Callable[..., Flask], sqlite_url: str) -> None:
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
def test_no_payment_is_requested_for_an_order_that_would_be_refused(
    storefront: Storefront, changed: dict[str, Any], said: str
) -> None:
    terms_response = storefront.order(**changed)
    assert refusal(terms_response) == (402, "PAYMENT_REQUIRED")
    assert "accepts" not in terms_response.get_json()
    assert decoded(terms_response.headers["PAYMENT-REQUIRED"])["accepts"] == []
    instructions = terms_response.get_json()["payment"]["instructions"]
    assert f"this request would be refused. {said}" in instructions
