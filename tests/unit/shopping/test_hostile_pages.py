"""What pages try, on their data, without a browser: look-alike hosts and buttons, lists, subscriptions, echoes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.adapters.shopper_browser import checkout, product, signals
from app.adapters.shopper_browser.secrecy import Secrets
from app.adapters.shopper_browser.snapshot import Button, Snapshot
from app.adapters.shopper_browser.tab import may_visit
from app.adapters.shopper_browser.trip import same

_BUTTON = Button(
    number=1, text="", tag="button", href="", disabled=False, form=-1, submits=False, dialog=False, region="",
    area=100, card="", around="", trail="main>button",
)  # fmt: skip


def page(*buttons: Button, heading: str = "") -> Snapshot:
    return Snapshot(
        url="https://shop.example/pay", title="", heading=heading, language="", text=heading, alerts=(), controls=(),
        buttons=buttons, prices=(), frames=(), json_ld=(), declared={}, currencies=(),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["Buy now with 1-Click", "Instant purchase", "Subscribe & add to cart"])
def test_what_orders_at_once_is_not_taken_for_a_carts_button(text: str) -> None:
    assert product.add_button(page(replace(_BUTTON, text=text))) is None


@pytest.mark.parametrize("text", ["Complete checkout", "Checkout and pay now", "Finish checkout"])
def test_an_order_button_that_speaks_of_the_checkout_is_never_pressed_on_the_way(text: str) -> None:
    assert checkout.place_button(page(replace(_BUTTON, text=text)))
    assert checkout._next_button(page(replace(_BUTTON, text=text)), checkout._Progress()) is None


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
def test_what_comes_again_by_itself_is_seen(text: str, again: bool) -> None:  # noqa: FBT001
    found = signals.COMES_AGAIN.search(text) and not signals.NOT_AGAIN.search(text)
    assert bool(found) is again


def test_a_list_of_articles_is_no_products_page() -> None:
    first, second = (
        replace(_BUTTON, number=number, text="Add to cart", trail="ul>li>button", card=f"Mug {number} $5")
        for number in (1, 2)
    )
    assert product.is_one_of_many(page(first, second, heading="All mugs"), first)
    # Others below the page's own article are no list of which it is a part.
    own = replace(first, trail="main>button")
    assert not product.is_one_of_many(page(own, second, heading="Mug 1"), own)
    inside = replace(first, card="Mug 1 and all about it $5")
    assert not product.is_one_of_many(page(inside, second, heading="Mug 1"), inside)


def test_a_button_is_found_again_when_the_page_was_drawn_anew_and_never_another_one() -> None:
    seen = replace(_BUTTON, number=7, text="Pay $17.00", card="Total $17.00")
    drawn = replace(seen, number=9)
    assert same(seen, page(replace(_BUTTON, text="OK"), drawn)) == drawn
    assert same(seen, page(replace(drawn, text="Pay $27.00"))) is None
    assert same(seen, page(replace(drawn, disabled=True))) is None
    assert same(seen, page(drawn, replace(drawn, number=10))) is None
    assert same(seen, page(replace(seen, text="Pay $27.00"))) is None


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
        ("https://login.other.example/", "https://shop.example/p", ("other.example",), True),
        # The list names www alone.
        ("https://pay.shop.example/", "https://www.shop.example/p", ("www.shop.example",), False),
    ],
)
def test_a_page_is_worked_with_only_where_it_is_the_shops(
    url: str,
    start: str,
    allowed: tuple[str, ...],
    expected: bool,  # noqa: FBT001
) -> None:
    assert may_visit(url, start=start, allowed=allowed) is expected


def test_credentials_are_hidden_however_a_page_spells_or_cuts_them() -> None:
    secrets = Secrets("tulip-harbour-42", "Ada@example.com", None, "")
    for text in (
        "tulip-harbour-42", "TULIP-harbour-42", "x tulip\u200b-har\x00bour-42 y", "?user=ada%40example.com",
        "Hello ada@example.com", "a button whose text was cut in the middle of tulip-harb",
    ):  # fmt: skip
        hidden = secrets.hide(text).lower()
        assert not any(part in hidden for part in ("tulip", "harb", "ada@", "ada%40")), text
    assert secrets.hide("Blue mug") == "Blue mug"
