"""Classes of pages that held-out shops showed, each as a small page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Route

from app.ports.shopper import PurchaseOutcomeUnknown, PurchaseRequest
from shopper.flow import checkout, product
from shopper.flow.session import BrowserSession
from shopper.page.tab import BrowserTab
from tests.browser.conftest import FULL, RecordingHandler

pytestmark = pytest.mark.browser

SHOP = "https://shop.example/"
Visit = Callable[..., BrowserSession]


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Visit]:
    """Open the first of some pages by path."""
    context = chromium.new_context()

    def visit(**pages: str) -> BrowserSession:
        def answer(route: Route) -> None:
            html = pages.get(urlsplit(route.request.url).path.strip("/"), "<h1>Not found</h1>")
            route.fulfill(body=f"<!doctype html><main>{html}</main>", content_type="text/html")

        context.route("**/*", answer)
        tab = BrowserTab(context, start=SHOP, allowed_domains=())
        tab.open(SHOP + next(iter(pages)))
        return BrowserSession(tab, PurchaseRequest(SHOP, FULL), RecordingHandler())

    yield visit
    context.close()


PLAN = """<h1>Garden plan</h1><form><label>Price option <select name=price>
  <option>Basic — USD 20.00</option><option>Pro — USD 45.00</option></select></label>
  <label>Quantity <input type=number name=quantity value=1></label><button>Add to cart</button></form>"""


@pytest.mark.parametrize(
    ("html", "cents"), [(PLAN, 2000), (PLAN.replace("<option>Pro", "<option selected>Pro"), 4500)]
)
def test_the_price_in_a_list_is_that_of_the_chosen_option(visit: Visit, html: str, cents: int) -> None:
    session = visit(plan=html)
    assert product.read(session, session.tab.take_snapshot()).price_nanos == cents * 10**7


def test_the_address_of_a_confirmation_is_an_unknown_outcome_although_the_payment_is_open(
    visit: Visit,
) -> None:
    session = visit(
        cart="""<h1>Your cart</h1><table><tr><th>Total</th><td>$12.50</td></tr></table><form action=/success>
          <label>Full name <input name=name autocomplete=name required></label>
          <button>Continue to checkout</button></form>""",
        success="<h1>Checkout received</h1><p role=alert>The payment is not confirmed yet.</p><p>Order ID: ord_7</p>",
    )
    with pytest.raises(PurchaseOutcomeUnknown):
        checkout.go_to_review(session, session.tab.take_snapshot())


def test_an_address_with_the_word_of_a_confirmation_is_none_before_a_recipient_was_entered(
    visit: Visit,
) -> None:
    session = visit(
        success="<h1>Your cart</h1><p>Added.</p><a href=/checkout>Checkout</a>",
        checkout="<table><tr><td>Mug</td><td>$12.50</td></tr><tr><th>Total</th><td>$12.50</td></tr></table>"
        "<form><button>Place order</button></form>",
    )
    _, button = checkout.go_to_review(session, session.tab.take_snapshot())
    assert button.text == "Place order"
