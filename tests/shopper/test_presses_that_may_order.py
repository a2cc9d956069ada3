"""Which click during a checkout may order, by what its page asks, shows and contains; without a browser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from app.ports.shopper import Product, PurchaseRequest, ShippingAddress
from shopper.flow import checkout, steps
from shopper.flow.session import BrowserSession
from shopper.flow.steps import NextClick
from shopper.page.snapshot import FormControl, PageButton, PageSnapshot
from shopper.page.tab import BrowserTab
from tests.browser.conftest import RecordingHandler
from tests.shopper.test_advice import BUTTON, CONTROL

URL = "https://shop.example/pay"
TOTAL = "Total $17.00"
NEXT = replace(BUTTON, text="Next", submits=True)
PAYMENT = replace(CONTROL, type="radio", label="Invoice", name="payment", checked=True)
DELIVERY = replace(CONTROL, type="radio", label="Courier", name="delivery", checked=True)
STREET = replace(CONTROL, autocomplete="address-line1", value="1 Main Street", filled=True)
ORDER = replace(BUTTON, number=9, text="Place order", disabled=True)
LEADS_ON, MAY_ORDER, UNCERTAIN = NextClick.LEADS_ON, NextClick.MAY_ORDER, NextClick.UNCERTAIN


def consequence(
    *controls: FormControl,
    button: dict[str, Any] | None = None,
    page: dict[str, Any] | None = None,
    session: dict[str, Any] | None = None,
    username: str | None = None,
) -> NextClick:
    request = PurchaseRequest(URL, ShippingAddress("Ada Buyer", "94107"), username=username)
    state = {"zip_entered": True, "product": Product("Mug", 12 * 10**9, "", ""), **(session or {})}
    open_session = BrowserSession(cast("BrowserTab", None), request, RecordingHandler(), **state)
    clicked = replace(NEXT, **(button or {}))
    snapshot = PageSnapshot(
        url=URL, title="", heading="Nearly there", language="", text=TOTAL, alerts=(), controls=controls,
        buttons=(clicked,), prices=(), frames=(), json_ld=(), declared={}, currencies=(),
    )  # fmt: skip
    return steps.consequence(open_session, replace(snapshot, **(page or {})), clicked)


@pytest.mark.parametrize(
    ("controls", "change"),
    [
        ((), {}),
        ((), {"button": {"text": "Jatka"}}),
        ((), {"button": {"submits": False, "form": -1}}),
        ((), {"button": {"tag": "a", "href": f"{URL}#"}}),
        ((), {"page": {"text": "Total 17.00"}}),
        ((), {"page": {"text": "Total 17,00"}}),
        ((), {"page": {"steps_after": 1}}),
        ((), {"page": {"buttons": (NEXT, replace(ORDER, text="Buy now", disabled=False))}}),
        ((), {"session": {"zip_entered": False, "recipient_entered": True}}),
        ((), {"session": {"zip_entered": False}, "username": "ada", "page": {"text": f"{TOTAL} 94107"}}),
        ((replace(CONTROL, type="checkbox", label="I agree", required=True),), {}),
        ((replace(CONTROL, type="textarea", label="Comment", required=True),), {}),
        ((replace(STREET, form=7),), {}),
        ((DELIVERY,), {"session": {"payment_sent": True}}),
        ((STREET, PAYMENT), {}),
        ((PAYMENT,), {"page": {"steps_after": 0}}),
    ],
    ids=[
        "asks-nothing", "unknown-word", "no-form", "script-link", "no-currency", "comma", "one-more-step",
        "another-product",
        "email-only", "account", "consent", "comment", "other-form", "after-the-payment", "one-page", "last-step",
    ],
)  # fmt: skip
def test_a_click_that_nothing_shows_to_lead_on_may_order(
    controls: tuple[FormControl, ...], change: dict[str, Any]
) -> None:
    assert consequence(*controls, **change) is MAY_ORDER


@pytest.mark.parametrize(
    ("controls", "change"),
    [
        ((), {"session": {"zip_entered": False}}),
        ((), {"page": {"text": "Mug"}}),
        ((), {"page": {"text": "Delivery $5.00"}}),
        ((), {"page": {"steps_after": 2}}),
        ((), {"page": {"buttons": (NEXT, ORDER)}}),
        ((), {"button": {"tag": "a", "href": "https://shop.example/review"}}),
        ((), {"button": {"text": "Continue to payment"}}),
        ((), {"button": {"text": "Jatka", "label": "Go to review"}}),
        ((), {"button": {"text": "Checkout"}}),
        ((STREET,), {}),
        ((DELIVERY,), {}),
    ],
    ids=[
        "no-recipient", "no-amount", "less-than-the-goods", "two-more-steps", "another-order-button", "link",
        "named-step", "accessible-name", "checkout", "address", "delivery",
    ],
)  # fmt: skip
def test_a_click_that_is_shown_to_lead_on_needs_no_authorization(
    controls: tuple[FormControl, ...], change: dict[str, Any]
) -> None:
    assert consequence(*controls, **change) is LEADS_ON


@pytest.mark.parametrize("text", ["Jatka", "Next", "Tovább"])
@pytest.mark.parametrize("change", [{}, {"session": {"payment_sent": True}}], ids=["payment", "payment-again"])
def test_a_page_that_asks_for_the_payment_alone_is_uncertain(text: str, change: dict[str, Any]) -> None:
    assert consequence(PAYMENT, button={"text": text}, **change) is UNCERTAIN


@pytest.mark.parametrize(
    "lie",
    [
        {"button": {"text": "Continue to payment"}},
        {"button": {"text": "Tovább", "label": "Checkout"}},
        {"page": {"steps_after": 3}},
        {"page": {"buttons": (NEXT, ORDER)}},
    ],
    ids=["a-step", "the-checkout", "steps-that-follow", "a-disabled-order-button"],
)
def test_no_name_and_no_list_of_steps_shows_that_a_page_without_questions_leads_on_after_the_payment(
    lie: dict[str, Any],
) -> None:
    assert consequence(**lie) is LEADS_ON
    assert consequence(**lie, session={"payment_sent": True}) is MAY_ORDER


ORDER_DATA = '{"@type": "Order", "orderNumber": "HU-7"}'


def shown(*buttons: PageButton, path: str = "/checkout/b", **change: Any) -> PageSnapshot:
    blank = PageSnapshot(
        url=f"https://shop.example{path}", title="", heading="", language="", text="", alerts=(), controls=(),
        buttons=buttons, prices=(), frames=(), json_ld=(), declared={}, currencies=(),
    )  # fmt: skip
    return replace(blank, **change)


def test_a_confirmation_with_an_order_number_may_have_words_of_a_failure_in_its_text_only() -> None:
    before = shown(path="/checkout/a")
    help_text = "Rendelés rögzítve\nWhat to do if a payment failed"
    assert checkout.confirms_order(before, shown(text=help_text, json_ld=(ORDER_DATA,)))
    assert not checkout.confirms_order(before, shown(text=help_text, path="/order-confirmation"))
    for failure in ({"heading": "Payment failed"}, {"alerts": ("Your card was declined",)}):
        assert not checkout.confirms_order(before, shown(json_ld=(ORDER_DATA,), **failure))
    assert not checkout.confirms_order(before, shown(replace(ORDER, disabled=False), json_ld=(ORDER_DATA,)))


def test_only_a_press_of_a_button_that_is_not_called_an_order_button_leads_to_another_click() -> None:
    before, order = shown(NEXT, path="/checkout/a"), replace(ORDER, disabled=False)
    assert checkout.later_order_button(before, shown(order), NEXT) == order
    assert checkout.later_order_button(before, shown(order), order) is None
    assert checkout.later_order_button(shown(order, NEXT), shown(order), NEXT) is None
    assert checkout.later_order_button(before, shown(order, heading="The order failed"), NEXT) is None


@pytest.mark.parametrize(
    "confirmation",
    [
        {"heading": "Thank you, Ada"},
        {"text": "Your order was received.\nTell us if a delivery failed."},
        {"json_ld": (ORDER_DATA,)},
        {"path": "/checkout/order-received/7", "controls": (PAYMENT,)},
    ],
    ids=["heading", "text", "structured-data", "path"],
)
def test_the_order_button_of_an_offer_on_a_confirmation_is_not_a_later_one(confirmation: dict[str, Any]) -> None:
    before, offer = shown(NEXT, path="/checkout/a"), replace(ORDER, text="Buy now", disabled=False)
    assert checkout.later_order_button(before, shown(offer), NEXT) == offer
    assert checkout.later_order_button(before, shown(offer, **confirmation), NEXT) is None


def test_without_a_name_the_later_order_button_submits_the_next_page_to_the_checkout() -> None:
    before, send = shown(NEXT, path="/checkout/a"), replace(NEXT, text="Küldés", action="/checkout/b")
    assert checkout.later_order_button(before, shown(send), NEXT) == send
    assert checkout.later_order_button(before, shown(replace(send, action="/rendelesek")), NEXT) is None
    assert checkout.later_order_button(before, shown(replace(send, submits=False)), NEXT) is None
    assert checkout.later_order_button(before, shown(send, path="/checkout/a"), NEXT) is None
    assert checkout.later_order_button(before, shown(send, path="/koszonjuk"), NEXT) is None
    assert checkout.later_order_button(before, shown(send, json_ld=(ORDER_DATA,)), NEXT) is None


def test_a_link_that_a_script_operates_can_be_the_order_button() -> None:
    script = replace(BUTTON, text="Place order", tag="a", href=f"{URL}#")
    snapshot = PageSnapshot(
        url=URL, title="", heading="", language="", text=TOTAL, alerts=(), controls=(), buttons=(script,),
        prices=(), frames=(), json_ld=(), declared={}, currencies=(),
    )  # fmt: skip
    assert checkout.order_button(snapshot) == script
    away = replace(script, href="https://shop.example/orders")
    assert checkout.order_button(replace(snapshot, buttons=(away,))) is None
