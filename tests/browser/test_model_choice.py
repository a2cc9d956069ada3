"""A purchase that a language model continues: API, gateway, a scripted model, the shopper's process, a shop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask

from app.adapters.shopper import BrowserShopper
from app.db import leases
from app.db.leases import ProcessKind
from tests.support.agents import register
from tests.support.gateway import provider_settings
from tests.support.shops.corner import Behaviour, Corner
from tests.support.upstreams import misbehaving_upstream
from workers import purchases

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]
BUY = "/v1/gateway/shopping/buy"
ADDRESS = {
    "name": "Ada Buyer", "zip": "94107", "line1": "1 Main Street", "city": "San Francisco", "country": "US",
}  # fmt: skip


def test_a_language_model_continues_a_checkout(
    sqlite_url: str, build_app: Callable[..., Flask], browser: str, corner: Corner
) -> None:
    corner.behaviour = Behaviour(checkout_word="Off we go", other_word="Leave it")
    message = {"role": "assistant", "content": '{"choice": 1}'}
    completion = {
        "id": "c", "object": "chat.completion", "model": "gpt-5-mini",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 400, "completion_tokens": 100, "total_tokens": 500},
    }  # fmt: skip
    with misbehaving_upstream(lambda exchange: exchange.json(completion)) as upstream:
        settings = provider_settings(upstream.url, shopper_model="openai/gpt-5-mini", allow_private_upstreams=True)
        shopper = BrowserShopper(browser, private=True, sandbox_required=False)
        app = build_app(sqlite_url, settings=settings, shopper=shopper)
        with app.app_context():
            leases.record(ProcessKind.SHOPPER)
            agent = register(app.test_client())
            accepted = agent.post(BUY, {"url": corner.product, "shippingAddress": ADDRESS, "max_total_usd": 50})
            assert accepted.status_code == 202, accepted.text
            purchases.buy(accepted.get_json()["id"])
            purchase = agent.get(f"/v1/gateway/shopping/purchases/{accepted.get_json()['id']}").get_json()
    assert (purchase["status"], len(corner.orders)) == ("completed", 1), purchase
    # 400 tokens at 0.25 dollars a million, and 100 at 2 dollars.
    assert purchase["cost_usd"] == "0.2503"
    [question] = [asked.body.decode() for asked in upstream.asked]
    assert "Off we go" in question
    assert all(word not in question for word in ("Buyer", "94107", "Main", corner.url))
    assert "ask_model" in [step["action"] for step in purchase["trail"]]
