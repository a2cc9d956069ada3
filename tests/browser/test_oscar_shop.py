"""Purchases in django-oscar, checked against its own database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.order_amounts import AmountRole, adds_up
from app.ports.shopper import FailureCode, PurchaseFailed, ShippingAddress
from tests.browser.conftest import FULL, MINIMAL, RecordingHandler, SharedBrowserShopper, purchase
from tests.support.shops.django_oscar import Ordered, Oscar, oscar_shop

pytestmark = pytest.mark.browser


def test_a_guest_receives_exactly_the_requested_order(shopper: SharedBrowserShopper, oscar: Oscar) -> None:
    result = purchase(shopper, oscar.mug, address=replace(FULL, phone=None, email="guest@example.com"))
    assert result.confirmation is not None, result.failed
    number = result.confirmation.order_number or ""
    assert oscar.orders_of("guest@example.com") == [
        Ordered(number, "12.50", "guest@example.com", "Blue enamel mug", 1, "94107", "1 Main Street")
    ]
    assert result.confirmation.total_nanos == 12_500_000_000
    amounts = result.confirmation.amounts
    assert {amount.role for amount in amounts} >= {AmountRole.SUBTOTAL, AmountRole.TOTAL}, amounts
    assert adds_up(amounts, result.confirmation.total_nanos)


def test_the_stored_address_is_chosen_by_name_and_postal_code_and_a_restored_cart_is_not_bought(
    shopper: SharedBrowserShopper, oscar: Oscar
) -> None:
    address = ShippingAddress("Ada Buyer", "10001")
    account = {"username": "leftover0@example.com", "password": oscar.password}
    result = purchase(shopper, oscar.mug, address=address, quantity=2, **account)
    assert result.confirmation is not None, result.failed
    [order] = oscar.orders_of("leftover0@example.com")
    assert (order.title, order.quantity, order.total) == ("Blue enamel mug", 2, "25.00")
    assert (order.postal_code, order.line1) == ("10001", "7 Hudson Yards")


def test_an_address_that_is_not_stored_is_never_replaced_by_another(
    shopper: SharedBrowserShopper, oscar: Oscar
) -> None:
    account = {"username": "stored1@example.com", "password": oscar.password}
    result = purchase(shopper, oscar.mug, address=ShippingAddress("Ada Buyer", "60601"), **account)
    assert result.failure_code in {"address_mismatch", "address_incomplete"}
    assert oscar.orders_of("stored1@example.com") == []


def test_a_dry_run_orders_nothing_and_leaves_an_empty_cart_and_a_refused_product_is_not_added(
    shopper: SharedBrowserShopper, oscar: Oscar
) -> None:
    account = {"username": "stored2@example.com", "password": oscar.password}
    dry = purchase(shopper, oscar.mug, address=MINIMAL, dry_run=True, **account)
    assert dry.review is not None, dry.failed
    assert dry.review.total_nanos == 12_500_000_000
    assert (dry.handler.reviews, "review" in dry.handler.pictures) == ([], True)
    handler = RecordingHandler(refuses_product=PurchaseFailed(FailureCode.LIMIT_EXCEEDED, "Too dear."))
    assert purchase(shopper, oscar.table, address=MINIMAL, handler=handler, **account).failure_code == "limit_exceeded"
    assert ([product.price_nanos for product in handler.products], handler.reviews) == ([740 * 10**9], [])
    assert oscar.orders_of("stored2@example.com") == []
    assert oscar.in_basket_of("stored2@example.com") == 0


def test_a_wrong_password_and_a_sold_out_product_order_nothing(shopper: SharedBrowserShopper, oscar: Oscar) -> None:
    wrong = purchase(shopper, oscar.mug, username="plain2@example.com", password="not-it")
    assert wrong.failure_code == "login_failed"
    assert oscar.orders_of("plain2@example.com") == []
    assert purchase(shopper, oscar.lamp).failure_code == "out_of_stock"
    assert purchase(shopper, f"{oscar.base}/catalogue/").failure_code == "not_a_product"


def test_a_coupon_is_applied_once_and_stays_applied_when_the_account_keeps_it_after_a_dry_run(
    shopper: SharedBrowserShopper, oscar: Oscar
) -> None:
    customer = "stored5@example.com"
    order = {"username": customer, "password": oscar.password, "address": MINIMAL, "coupon_code": "SPRING20"}
    dry = purchase(shopper, oscar.mug, dry_run=True, **order)
    assert dry.review is not None, dry.failed
    assert (dry.review.total_nanos, oscar.orders_of(customer)) == (10_000_000_000, [])
    discounts = [amount.nanos for amount in dry.review.amounts if amount.role is AmountRole.DISCOUNT]
    assert discounts == [2_500_000_000]
    assert adds_up(dry.review.amounts, dry.review.total_nanos)
    result = purchase(shopper, oscar.mug, **order)
    assert result.confirmation is not None, result.failed
    assert [step.action for step in result.handler.steps].count("apply_coupon") == 0
    assert [found.total for found in oscar.orders_of(customer)] == ["10.00"]
    assert oscar.coupons_of(customer) == [("SPRING20", "2.50")]


def test_a_coupon_that_the_shop_refuses_orders_nothing(shopper: SharedBrowserShopper, oscar: Oscar) -> None:
    address = replace(FULL, email="refused@example.com")
    result = purchase(shopper, oscar.mug, address=address, coupon_code="NOPE99")
    assert result.failed is not None
    assert result.failure_code == "coupon_not_applied"
    assert "No coupon found with code" in result.failed.message
    assert (oscar.orders_of("refused@example.com"), result.handler.reviews) == ([], [])


def test_the_way_back_to_the_cart_is_no_order_where_a_shop_sells_only_to_customers(
    shopper: SharedBrowserShopper,
) -> None:
    with oscar_shop() as shop:
        result = purchase(shopper, shop.mug, address=replace(FULL, email="new@example.com"))
    assert (result.failure_code, result.handler.reviews) == ("stuck", [])
