"""Which press during a checkout may order, by what its page asks, shows and contains; without a browser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from app.ports.shopper import Product, PurchaseRequest, ShippingAddress
from shopper.flow import checkout, steps
from shopper.flow.session import BrowserSession
from shopper.flow.steps import NextPress
from shopper.page.snapshot import FormControl, PageSnapshot
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
LEADS_ON, MAY_ORDER, UNCERTAIN = NextPress.LEADS_ON, NextPress.MAY_ORDER, NextPress.UNCERTAIN


def consequence(
    *controls: FormControl,
    button: dict[str, Any] | None = None,
    page: dict[str, Any] | None = None,
    session: dict[str, Any] | None = None,
    username: str | None = None,
) -> NextPress:
    request = PurchaseRequest(URL, ShippingAddress("Ada Buyer", "94107"), username=username)
    state = {"zip_entered": True, "product": Product("Mug", 12 * 10**9, "", ""), **(session or {})}
    open_session = BrowserSession(cast("BrowserTab", None), request, RecordingHandler(), **state)
    pressed = replace(NEXT, **(button or {}))
    snapshot = PageSnapshot(
        url=URL, title="", heading="Nearly there", language="", text=TOTAL, alerts=(), controls=controls,
        buttons=(pressed,), prices=(), frames=(), json_ld=(), declared={}, currencies=(),
    )  # fmt: skip
    return steps.consequence(open_session, replace(snapshot, **(page or {})), pressed)


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
def test_a_press_that_nothing_shows_to_lead_on_may_order(
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
        ((PAYMENT,), {}),
        ((PAYMENT,), {"session": {"payment_sent": True}}),
    ],
    ids=[
        "no-recipient", "no-amount", "less-than-the-goods", "two-more-steps", "another-order-button", "link",
        "named-step", "accessible-name", "checkout", "address", "delivery", "payment", "payment-again",
    ],
)  # fmt: skip
def test_a_press_that_is_shown_to_lead_on_needs_no_authorization(
    controls: tuple[FormControl, ...], change: dict[str, Any]
) -> None:
    assert consequence(*controls, **change) is LEADS_ON


def test_an_unknown_word_that_submits_a_payment_is_uncertain() -> None:
    assert consequence(PAYMENT, button={"text": "Jatka"}) is UNCERTAIN


def test_a_link_that_a_script_operates_can_be_the_order_button() -> None:
    script = replace(BUTTON, text="Place order", tag="a", href=f"{URL}#")
    snapshot = PageSnapshot(
        url=URL, title="", heading="", language="", text=TOTAL, alerts=(), controls=(), buttons=(script,),
        prices=(), frames=(), json_ld=(), declared={}, currencies=(),
    )  # fmt: skip
    assert checkout.order_button(snapshot) == script
    away = replace(script, href="https://shop.example/orders")
    assert checkout.order_button(replace(snapshot, buttons=(away,))) is None
