"""Purchases in shop systems that the rules were not written for, checked against their own databases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from app.core.order_amounts import AmountRole, adds_up
from app.ports.shopper import FailureCode, PurchaseFailed, ShippingAddress
from shopper.page.tab import QUIET_MS
from tests.browser.conftest import FULL, CountingHandler, RecordingHandler, SharedBrowserShopper, purchase
from tests.support.shops.corpus import CorpusShop, PloneShop, corpus_shop, plone_shop
from tests.support.shops.evershop import EverShop, ever_shop

pytestmark = pytest.mark.browser

ADDRESS = replace(FULL, email="guest@example.com")
AUSTRIA = ShippingAddress(
    "Ada Buyer", "1010", "Ringstrasse 1", None, "Wien", None, "AT", "+4311234567", "guest@example.com"
)
TOO_DEAR = PurchaseFailed(FailureCode.LIMIT_EXCEEDED, "Too dear.")


@pytest.fixture(autouse=True)
def _patience(shopper: SharedBrowserShopper) -> Iterator[None]:
    """Wait as long as a real purchase does for pages, and for slow confirmations: shops write a first order slowly."""
    usual = shopper.confirmation_seconds, shopper.quiet_ms
    shopper.confirmation_seconds, shopper.quiet_ms = 20.0, QUIET_MS
    yield
    shopper.confirmation_seconds, shopper.quiet_ms = usual


@pytest.fixture(scope="module")
def pretix(browser: str) -> Iterator[CorpusShop]:
    """Tickets, with a fee and taxes inside the prices; nothing is delivered."""
    del browser
    with corpus_shop("pretix") as shop:
        yield shop


@pytest.fixture(scope="module")
def cartridge(browser: str) -> Iterator[CorpusShop]:
    """Goods, with taxes and shipping on top; the last step before the order has a button called "Next"."""
    del browser
    with corpus_shop("cartridge") as shop:
        yield shop


def test_a_ticket_is_bought_without_a_postal_address_and_not_before_it_is_authorized(
    shopper: SharedBrowserShopper, pretix: CorpusShop
) -> None:
    before = pretix.orders()
    counting = CountingHandler(lambda: len(pretix.orders()))
    result = purchase(shopper, pretix.urls["concert"], address=ADDRESS, handler=counting)
    assert result.confirmation is not None, result.failed
    assert counting.orders_before == [len(before)]
    assert pretix.orders() == [*before, ("13.00", "guest@example.com")]
    amounts = result.confirmation.amounts
    assert adds_up(amounts, 13 * 10**9), amounts
    included = [amount.nanos for amount in amounts if amount.role is AmountRole.INCLUDED_TAX]
    assert included == [790_000_000]


def test_an_order_is_not_placed_by_the_last_button_called_next_before_it_is_authorized(
    shopper: SharedBrowserShopper, cartridge: CorpusShop
) -> None:
    before = cartridge.orders()
    refusing = RecordingHandler(refuses_order=TOO_DEAR)
    refused = purchase(shopper, cartridge.urls["mug"], address=ADDRESS, handler=refusing)
    assert (refused.failure_code, cartridge.orders()) == ("limit_exceeded", before)
    assert [review.total_nanos for review in refusing.reviews] == [23_500_000_000]


def test_goods_with_taxes_and_shipping_on_top_are_bought_at_the_sum(
    shopper: SharedBrowserShopper, cartridge: CorpusShop
) -> None:
    before = cartridge.orders()
    result = purchase(shopper, cartridge.urls["shirt"], address=ADDRESS, options={"Size": "Large"})
    assert result.confirmation is not None, result.failed
    assert cartridge.orders() == [*before, ("53.20", "94107")]
    roles = {(amount.role, amount.nanos // 10**7) for amount in result.confirmation.amounts}
    assert roles == {
        (AmountRole.SUBTOTAL, 4000),
        (AmountRole.TAX, 320),
        (AmountRole.SHIPPING, 1000),
        (AmountRole.TOTAL, 5320),
    }
    assert adds_up(result.confirmation.amounts, 53_200_000_000)


@pytest.mark.parametrize(
    ("product", "code"), [("late", "out_of_stock"), ("euro", "currency_unsupported")], ids=["sold-out", "euro"]
)
def test_tickets_that_cannot_be_bought_are_refused_before_the_cart(
    shopper: SharedBrowserShopper, pretix: CorpusShop, product: str, code: str
) -> None:
    before = pretix.orders()
    result = purchase(shopper, pretix.urls[product], address=ADDRESS)
    assert (result.failure_code, pretix.orders()) == (code, before)


def test_a_checkout_that_does_not_continue_reports_where_it_ended_and_what_the_page_has(
    shopper: SharedBrowserShopper, pretix: CorpusShop
) -> None:
    result = purchase(shopper, pretix.urls["unpayable"], address=ADDRESS)
    assert result.failed is not None
    assert result.failed.code is FailureCode.STUCK
    assert result.handler.steps[-1].path.endswith("/checkout/payment/")
    for part in ("select a payment method", "An evening (unpayable)", "Buttons seen: ", "Go back; Continue"):
        assert part in result.failed.message
    assert "end" in result.handler.pictures


@pytest.fixture(scope="module")
def evershop(browser: str) -> Iterator[EverShop]:
    """Variants, two delivery methods with prices, and a checkout on one page that React draws."""
    del browser
    with ever_shop() as shop:
        yield shop


def test_a_variant_is_bought_on_the_one_page_of_a_react_shop(shopper: SharedBrowserShopper, evershop: EverShop) -> None:
    result = purchase(shopper, evershop.urls["PEN-002-WHT"], address=ADDRESS, options={"Color": "Black"})
    assert result.confirmation is not None, result.failed
    assert evershop.orders_of("guest@example.com") == [("17.00", "94107", "PEN-002-BLK", 1)]
    roles = {(amount.role, amount.nanos // 10**9) for amount in result.confirmation.amounts}
    assert roles == {
        (AmountRole.SUBTOTAL, 12),
        (AmountRole.SHIPPING, 5),
        (AmountRole.INCLUDED_TAX, 0),
        (AmountRole.TOTAL, 17),
    }


def test_a_customer_of_a_react_shop_orders_two_units_once_they_are_authorized(
    shopper: SharedBrowserShopper, evershop: EverShop
) -> None:
    account = {"username": "ada@example.com", "password": "a-long-password-1"}
    order = {"options": {"Color": "White"}, "quantity": 2, "address": ADDRESS, **account}
    counting = CountingHandler(lambda: len(evershop.orders_of("ada@example.com")))
    result = purchase(shopper, evershop.urls["PEN-002-WHT"], handler=counting, **order)
    assert result.confirmation is not None, result.failed
    assert counting.orders_before == [0]
    assert evershop.orders_of("ada@example.com") == [("29.00", "94107", "PEN-002-WHT", 2)]


def test_a_sold_out_product_of_a_react_shop_is_not_ordered(shopper: SharedBrowserShopper, evershop: EverShop) -> None:
    assert purchase(shopper, evershop.urls["BOWL-003-WHT"], address=ADDRESS).failure_code == "out_of_stock"


@pytest.fixture(scope="module")
def plone(browser: str) -> Iterator[PloneShop]:
    """A German shop: addresses in four countries, prices with taxes, consent on the review, orders on invoice."""
    del browser
    with plone_shop("de") as shop:
        yield shop


def test_a_guest_of_a_german_shop_orders_on_invoice_within_the_limit_only(
    shopper: SharedBrowserShopper, plone: PloneShop
) -> None:
    before = plone.orders()
    refusing = RecordingHandler(refuses_order=TOO_DEAR)
    refused = purchase(shopper, plone.urls["mug"], address=AUSTRIA, handler=refusing)
    assert (refused.failure_code, plone.orders()) == ("limit_exceeded", before)
    assert [review.total_nanos for review in refusing.reviews] == [18 * 10**9]
    result = purchase(shopper, plone.urls["mug"], address=AUSTRIA)
    assert result.confirmation is not None, result.failed
    assert plone.orders() == [*before, ("18.00", "1010", "Ada Buyer")]
    assert result.confirmation.payment_method == "Rechnung"
    amounts = result.confirmation.amounts
    assert {(AmountRole.SHIPPING, 6), (AmountRole.TOTAL, 18)} <= {
        (amount.role, amount.nanos // 10**9) for amount in amounts
    }
    assert adds_up(amounts, 18 * 10**9)


def test_a_customer_of_a_german_shop_orders_two_units(shopper: SharedBrowserShopper, plone: PloneShop) -> None:
    before = plone.orders()
    account = {"username": "ada", "password": "a-long-password"}
    result = purchase(shopper, plone.urls["mug"], address=AUSTRIA, quantity=2, **account)
    assert result.confirmation is not None, result.failed
    assert plone.orders() == [*before, ("30.00", "1010", "Ada Buyer")]


def test_a_german_shop_does_not_deliver_to_every_country_and_not_what_is_sold_out(
    shopper: SharedBrowserShopper, plone: PloneShop
) -> None:
    before = plone.orders()
    abroad = purchase(shopper, plone.urls["mug"], address=ADDRESS)
    assert abroad.failed is not None
    assert (abroad.failed.code, abroad.failed.choices[0]) == (FailureCode.ADDRESS_MISMATCH, "Österreich")
    assert purchase(shopper, plone.urls["bowl"], address=AUSTRIA).failure_code == "out_of_stock"
    assert plone.orders() == before


def test_a_coupon_counts_once_where_the_shop_shows_a_row_for_it(
    shopper: SharedBrowserShopper, cartridge: CorpusShop
) -> None:
    before = cartridge.orders()
    result = purchase(shopper, cartridge.urls["mug"], address=ADDRESS, coupon_code="SPRING20")
    assert result.confirmation is not None, result.failed
    assert cartridge.orders() == [*before, ("21.00", "94107")]
    assert cartridge.coupons()[-1] == "SPRING20"
    amounts = result.confirmation.amounts
    assert [amount.nanos for amount in amounts if amount.role is AmountRole.DISCOUNT] == [2_500_000_000]
    assert adds_up(amounts, 21 * 10**9)


def test_a_voucher_counts_where_the_shop_lowers_the_price_of_the_goods(
    shopper: SharedBrowserShopper, pretix: CorpusShop
) -> None:
    before = pretix.orders()
    result = purchase(shopper, pretix.urls["concert"], address=ADDRESS, coupon_code="SPRING20")
    assert result.confirmation is not None, result.failed
    assert pretix.orders() == [*before, ("10.60", "guest@example.com")]
    assert pretix.coupons()[-1] == "SPRING20"
    amounts = result.confirmation.amounts
    assert [amount.nanos for amount in amounts if amount.role is AmountRole.ITEM] == [9_600_000_000]
    assert adds_up(amounts, 10_600_000_000)


def test_a_coupon_and_the_requested_delivery_method_are_those_of_the_order(
    shopper: SharedBrowserShopper, evershop: EverShop
) -> None:
    order = {"options": {"Color": "Black"}, "address": replace(FULL, email="express@example.com")}
    url = evershop.urls["PEN-002-WHT"]
    result = purchase(shopper, url, coupon_code="SPRING20", delivery_method="express", **order)
    assert result.confirmation is not None, result.failed
    assert evershop.orders_of("express@example.com") == [("21.60", "94107", "PEN-002-BLK", 1)]
    assert evershop.terms_of("express@example.com") == [("SPRING20", "2.40", "Express delivery")]
    assert result.confirmation.shipping_method == "Express delivery $12.00"
    assert adds_up(result.confirmation.amounts, 21_600_000_000)


def test_goods_are_picked_up_on_request_without_shipping(shopper: SharedBrowserShopper, plone: PloneShop) -> None:
    before = plone.orders()
    result = purchase(shopper, plone.urls["mug"], address=AUSTRIA, delivery_method="Selbstabholung")
    assert result.confirmation is not None, result.failed
    assert plone.orders() == [*before, ("12.00", "1010", "Ada Buyer")]
    assert plone.delivery_methods()[-1] == "cash_and_carry"
    assert (result.confirmation.shipping_method or "").startswith("Selbstabholung")
