"""Requests of the shopper's browser are signed for the shop's own host, and a purchase goes on as without."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest

from app import bot_auth
from app.adapters.shopper import BrowserShopper
from app.state import Application
from tests.browser.conftest import purchase
from tests.support.loopback_http import Asked, Reply, serve
from tests.support.published import run_node
from tests.support.shops.corner import PASSWORD, Corner

pytestmark = pytest.mark.browser
ACCOUNT = {"username": "ada@example.com", "password": PASSWORD}
KEY = base64.b64encode(bytes([2]) * 32).decode()
HTML = {"Content-Type": "text/html"}


def signing_shopper(app: Application, browser: str) -> BrowserShopper:
    del app
    return BrowserShopper(browser, private=True, sandbox_required=False, sign=bot_auth.request_headers)


def test_a_shop_can_verify_the_browser_and_another_host_gets_no_signature(
    browser: str, build_app: Callable[..., Application], sqlite_url: str
) -> None:
    app = build_app(sqlite_url, settings={"web_bot_auth_keys": f"k:{KEY}"})
    with serve(lambda _asked: Reply(b"", 200, {"Content-Type": "image/png"})) as elsewhere:
        page = f'<img src="{elsewhere.url}/pixel.png"><a href="/more">More</a>'.encode()

        def answer(_asked: Asked) -> Reply:
            return Reply(page, 200, HTML)

        with serve(answer) as shop, app.app_context():
            result = purchase(signing_shopper(app, browser), shop.url + "/thing")
            directory = app.test_client().get(bot_auth.DIRECTORY_PATH).get_json()
            first = next(asked for asked in shop.asked if asked.target == "/thing")
        assert result.failed is not None
        names = ("Signature-Agent", "Signature-Input", "Signature")
        headers = {name: first.headers[name] for name in names}
        told = {"url": shop.url + "/thing", "headers": headers, "directory": directory}
        found = run_node("web_bot_auth.mjs", json.dumps(told))
        assert (found["here"], found["elsewhere"]) == (True, False)
        assert [asked.target for asked in elsewhere.asked] == ["/pixel.png"]
        assert not {name.lower() for name in names} & {name.lower() for name in elsewhere.asked[0].headers}


def test_a_purchase_with_signed_requests_ends_in_an_order(
    browser: str, corner: Corner, build_app: Callable[..., Application], sqlite_url: str
) -> None:
    app = build_app(sqlite_url, settings={"web_bot_auth_keys": f"k:{KEY}"})
    with app.app_context():
        result = purchase(signing_shopper(app, browser), corner.product, quantity=3, **ACCOUNT)
    assert result.confirmation is not None, result.failed
    assert [order["cart"] for order in corner.orders] == [{"pen-holder": 3}]
