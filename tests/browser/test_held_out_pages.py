"""Classes of pages that held-out shops showed, each as a small page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Route

from app.ports.shopper import FailureCode, Product, PurchaseFailed, PurchaseOutcomeUnknown, PurchaseRequest
from shopper.flow import checkout, product, steps
from shopper.flow.session import BrowserSession
from shopper.page import breakdown
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
        mug = Product("Mug", 12_500_000_000, "in_stock", "text")
        return BrowserSession(tab, PurchaseRequest(SHOP, FULL), RecordingHandler(), product=mug)

    yield visit
    context.close()


PLAN = """<h1>Garden plan</h1><form><label>Price option <select name=price>
  <option>Basic — USD 20.00</option><option>Pro — USD 45.00</option></select></label>
  <label>Quantity <input type=number name=quantity value=1></label><button>Add to cart</button></form>"""


@pytest.mark.parametrize(("html", "cents"), [(PLAN, 2000), (PLAN.replace("<option>Pro", "<option selected>Pro"), 4500)])
def test_the_price_in_a_list_is_that_of_the_chosen_option(visit: Visit, html: str, cents: int) -> None:
    session = visit(plan=html)
    assert product.read(session, session.tab.take_snapshot()).price_nanos == cents * 10**7


CART = """<h1>Your cart</h1><table><tr><td>Mug</td><td>$12.50</td></tr><tr><th>Total</th><td>$12.50</td></tr></table>
  <form action=/success><label>Full name <input name=name autocomplete=name required></label>
  <button>{}</button></form>"""
RECEIVED = "<h1>Checkout received</h1><p role=alert>The payment is not confirmed yet.</p><p>Order ID: ord_7</p>"


def test_the_address_of_a_confirmation_is_an_unknown_outcome_although_the_payment_is_open(visit: Visit) -> None:
    session = visit(cart=CART.format("Continue"), success=RECEIVED)
    with pytest.raises(PurchaseOutcomeUnknown):
        checkout.go_to_review(session, session.tab.take_snapshot())


def test_a_button_called_checkout_is_not_clicked_before_the_authorization_where_it_sends_who_orders(
    visit: Visit,
) -> None:
    session = visit(cart=CART.format("Continue to checkout"), success=RECEIVED)
    with suppress(PurchaseFailed):
        checkout.go_to_review(session, session.tab.take_snapshot())
    assert session.tab.path == "/cart"


def test_a_button_called_checkout_leads_on_where_its_form_asks_for_no_name(visit: Visit) -> None:
    session = visit(
        cart=CART.format("Checkout").replace(
            "<label>Full name <input name=name autocomplete=name required></label>", ""
        ),
        success="<h1>Review</h1><p>Total $12.50</p><button>Place order</button>",
    )
    session.recipient_entered = True
    _, button = checkout.go_to_review(session, session.tab.take_snapshot())
    assert (button.text, session.tab.path) == ("Place order", "/success")


def test_a_shop_that_sells_only_to_customers_says_so_and_its_sign_in_is_no_order_button(visit: Visit) -> None:
    session = visit(
        login="<h1>Login</h1><form><label>Username <input name=username></label>"
        "<label>Password <input type=password name=password></label><button>Submit</button></form>"
    )
    snapshot = session.tab.take_snapshot()
    assert checkout.order_button(snapshot) is None
    with pytest.raises(PurchaseFailed) as failure:
        checkout.go_to_review(session, snapshot)
    assert failure.value.code is FailureCode.LOGIN_FAILED
    assert "only to customers with an account" in failure.value.message


def test_a_password_for_a_new_account_does_not_hide_the_order_button(visit: Visit) -> None:
    session = visit(
        pay="<form><label>Postal code <input name=zip></label><label>Choose a password <input type=password></label>"
        "<button>Place order</button></form>"
    )
    assert checkout.order_button(session.tab.take_snapshot()) is not None


def test_the_button_that_adds_an_address_leads_on(visit: Visit) -> None:
    session = visit(
        checkout="<form><label>City <input name=city required></label><label>Zip <input name=zip required></label>"
        "<button>Add</button></form><a href='#'>Saved addresses</a>"
    )
    snapshot = session.tab.take_snapshot()
    button = steps.onward_button(snapshot, list(snapshot.buttons))
    assert button is not None
    assert button.text == "Add"


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ("<div><h5>Amount Payable ($)</h5></div><div><h5>12.5</h5></div>", [("Amount Payable", 12_500_000_000)]),
        ("<div><div>Subtotal (USD)</div><div>40</div><div>Total (USD)</div><div>45.00</div></div>",
         [("Subtotal", 40 * 10**9), ("Total", 45 * 10**9)]),
        ("<div><div>Discount (%)</div><div>20</div></div>", []),
        ("<div><div>Total (3)</div><div>45.00</div></div>", []),
        ("<div><div>Weight (kg)</div><div>45.00</div></div>", []),
    ],
    ids=["blocks", "a-grid", "percent", "a-count", "a-weight"],
)  # fmt: skip
def test_a_label_may_have_the_currency_of_the_number_next_to_it(
    visit: Visit, html: str, found: list[tuple[str, int]]
) -> None:
    session = visit(pay=html)
    rows = breakdown.labelled_amounts(session.tab.take_snapshot())
    assert [(row.label, row.amount.nanos) for row in rows if row.amount.currency] == found


def test_an_address_with_the_word_of_a_confirmation_is_none_before_a_recipient_was_entered(visit: Visit) -> None:
    session = visit(
        success="<h1>Your cart</h1><p>Added.</p><a href=/checkout>Checkout</a>",
        checkout="<table><tr><td>Mug</td><td>$12.50</td></tr><tr><th>Total</th><td>$12.50</td></tr></table>"
        "<form><button>Place order</button></form>",
    )
    _, button = checkout.go_to_review(session, session.tab.take_snapshot())
    assert button.text == "Place order"


def test_a_page_of_nothing_but_a_number_is_read(chromium: Browser) -> None:
    context = chromium.new_context()
    context.route("**/*", lambda route: route.fulfill(body="42", content_type="text/html"))
    tab = BrowserTab(context, start=SHOP, allowed_domains=())
    tab.open(SHOP)
    assert tab.take_snapshot().text == "42"
    context.close()
