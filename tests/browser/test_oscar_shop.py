"""django-oscar, which nobody here wrote: its own database says what was ordered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.ports.shopper import Failed, ShippingAddress, Trouble
from tests.browser.conftest import FULL, MINIMAL, OneBrowser, Witness, send
from tests.support.shops.django_oscar import Ordered, Oscar

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_guest_gets_just_what_was_asked_for(shopper: OneBrowser, oscar: Oscar) -> None:
    trial = send(shopper, oscar.mug, address=replace(FULL, phone=None, email="guest@example.com"))
    assert trial.bought is not None, trial.failed
    number = trial.bought.order_number or ""
    assert oscar.orders_of("guest@example.com") == [
        Ordered(number, "12.50", "guest@example.com", "Blue enamel mug", 1, "94107", "1 Main Street")
    ]
    assert trial.bought.total_nanos == 12_500_000_000


def test_the_stored_address_is_chosen_by_name_and_postal_code_and_an_old_cart_is_not_bought(
    shopper: OneBrowser, oscar: Oscar
) -> None:
    address = ShippingAddress("Ada Buyer", "10001")
    account = {"username": "leftover0@example.com", "password": oscar.password}
    trial = send(shopper, oscar.mug, address=address, quantity=2, **account)
    assert trial.bought is not None, trial.failed
    [order] = oscar.orders_of("leftover0@example.com")
    assert (order.title, order.quantity, order.total) == ("Blue enamel mug", 2, "25.00")
    assert (order.postal_code, order.line1) == ("10001", "7 Hudson Yards")


def test_an_address_that_is_not_stored_there_is_not_replaced_by_another(
    shopper: OneBrowser, oscar: Oscar
) -> None:
    account = {"username": "stored1@example.com", "password": oscar.password}
    trial = send(shopper, oscar.mug, address=ShippingAddress("Ada Buyer", "60601"), **account)
    assert trial.trouble in {"address_mismatch", "address_incomplete"}
    assert oscar.orders_of("stored1@example.com") == []


def test_a_dry_run_orders_nothing_and_leaves_no_cart_and_what_is_too_dear_gets_into_none(
    shopper: OneBrowser, oscar: Oscar
) -> None:
    account = {"username": "stored2@example.com", "password": oscar.password}
    dry = send(shopper, oscar.mug, address=MINIMAL, dry_run=True, **account)
    assert dry.review is not None, dry.failed
    assert dry.review.total_nanos == 12_500_000_000
    assert (dry.witness.reviews, "review" in dry.witness.pictures) == ([], True)
    witness = Witness(refuses_product=Failed(Trouble.LIMIT_EXCEEDED, "Too dear."))
    assert send(shopper, oscar.desk, address=MINIMAL, witness=witness, **account).trouble == "limit_exceeded"
    assert ([product.price_nanos for product in witness.products], witness.reviews) == ([740 * 10**9], [])
    assert oscar.orders_of("stored2@example.com") == []
    assert oscar.in_basket_of("stored2@example.com") == 0


def test_a_wrong_password_and_a_sold_out_article_order_nothing(shopper: OneBrowser, oscar: Oscar) -> None:
    wrong = send(shopper, oscar.mug, username="plain2@example.com", password="not-it")
    assert wrong.trouble == "login_failed"
    assert oscar.orders_of("plain2@example.com") == []
    assert send(shopper, oscar.lamp).trouble == "out_of_stock"
    assert send(shopper, f"{oscar.base}/catalogue/").trouble == "not_a_product"
