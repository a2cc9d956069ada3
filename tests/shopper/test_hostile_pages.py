"""Decisions about hostile pages, without a browser: look-alike hosts and buttons, listings, subscriptions, echoes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shopper.flow import checkout, product, steps
from shopper.flow.session import find_same_button
from shopper.page import keywords
from shopper.page.snapshot import PageButton, PageSnapshot
from shopper.page.tab import is_allowed_url
from shopper.process.redaction import CredentialRedactor

_BUTTON = PageButton(
    number=1, text="", tag="button", href="", disabled=False, form=-1, submits=False, dialog=False, region="",
    area=100, card="", around="", trail="main>button",
)  # fmt: skip


def page(*buttons: PageButton, heading: str = "") -> PageSnapshot:
    return PageSnapshot(
        url="https://shop.example/pay", title="", heading=heading, language="", text=heading, alerts=(), controls=(),
        buttons=buttons, prices=(), frames=(), json_ld=(), declared={}, currencies=(),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["Buy now with 1-Click", "Instant purchase", "Subscribe & add to cart"])
def test_a_one_click_order_button_is_not_an_add_to_cart_button(text: str) -> None:
    assert product.add_button(page(replace(_BUTTON, text=text))) is None


@pytest.mark.parametrize("text", ["Complete checkout", "Checkout and pay now", "Finish checkout"])
def test_an_order_button_that_mentions_the_checkout_is_never_clicked_during_checkout(text: str) -> None:
    assert checkout.order_button(page(replace(_BUTTON, text=text)))
    alone = replace(_BUTTON, text=text)
    assert steps.onward_button(page(alone), [alone]) is None


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("Delivered every 2 weeks until you cancel", True),
        ("$9.99 today, then $49 / month", True),
        ("Your plan renews on 1 May", True),
        ("Billed monthly", True),
        ("Subscribe to our newsletter and save 10%", False),
        ("4 interest-free payments, then $5/month with Affirm", False),
        ("Delivered in 2 weeks", False),
    ],
)
def test_recurring_orders_are_detected(text: str, again: bool) -> None:  # noqa: FBT001
    found = keywords.RECURRING.search(text) and not keywords.NOT_RECURRING.search(text)
    assert bool(found) is again


def test_a_listing_is_not_a_product_page() -> None:
    first, second = (
        replace(_BUTTON, number=number, text="Add to cart", trail="ul>li>button", card=f"Mug {number} $5")
        for number in (1, 2)
    )
    assert product.is_listing(page(first, second, heading="All mugs"), first)
    # Other products below the page's own do not make it a listing.
    own = replace(first, trail="main>button")
    assert not product.is_listing(page(own, second, heading="Mug 1"), own)
    inside = replace(first, card="Mug 1 and all about it $5")
    assert not product.is_listing(page(inside, second, heading="Mug 1"), inside)


def test_only_the_same_button_is_found_again_on_a_redrawn_page() -> None:
    seen = replace(_BUTTON, number=7, text="Pay $17.00", card="Total $17.00")
    drawn = replace(seen, number=9)
    assert find_same_button(seen, page(replace(_BUTTON, text="OK"), drawn)) == drawn
    assert find_same_button(seen, page(replace(drawn, text="Pay $27.00"))) is None
    assert find_same_button(seen, page(replace(drawn, disabled=True))) is None
    assert find_same_button(seen, page(drawn, replace(drawn, number=10))) is None
    assert find_same_button(seen, page(replace(seen, text="Pay $27.00"))) is None


@pytest.mark.parametrize(
    ("url", "start", "allowed", "expected"),
    [
        ("https://pay.shop.example/x", "https://www.shop.example/p", (), True),
        ("https://evilshop.example/", "https://shop.example/p", (), False),
        ("https://shop.example.evil.example/", "https://shop.example/p", (), False),
        ("http://shop.example/", "https://shop.example/p", (), False),
        ("https://shop.example:8443/", "https://shop.example/p", (), False),
        ("file:///etc/passwd", "https://shop.example/p", (), False),
        ("data:text/html,x", "https://shop.example/p", (), False),
        ("https://evil.com/", "https://www.com/", (), False),
        ("https://evil.co.uk/", "https://www.co.uk/", (), False),
        ("https://www.com.au/", "https://www.com.au/", (), True),
        ("https://pay.shop.co.uk/", "https://www.shop.co.uk/", (), True),
        ("https://login.other.example/", "https://shop.example/p", ("other.example",), True),
        # The list names www alone.
        ("https://pay.shop.example/", "https://www.shop.example/p", ("www.shop.example",), False),
    ],
)
def test_only_pages_of_the_shop_are_operated(
    url: str,
    start: str,
    allowed: tuple[str, ...],
    expected: bool,  # noqa: FBT001
) -> None:
    assert is_allowed_url(url, start=start, allowed=allowed) is expected


def test_credentials_are_redacted_however_a_page_spells_or_cuts_them() -> None:
    secrets = CredentialRedactor("tulip-harbour-42", "Ada@example.com", None, "")
    for text in (
        "tulip-harbour-42", "TULIP-harbour-42", "x tulip\u200b-har\x00bour-42 y", "?user=ada%40example.com",
        "Hello ada@example.com", "a button text that was cut in the middle of tulip-harb",
    ):  # fmt: skip
        hidden = secrets.redact(text).lower()
        assert not any(part in hidden for part in ("tulip", "harb", "ada@", "ada%40")), text
    assert secrets.redact("Blue mug") == "Blue mug"
