"""What a shop's own data may find and confirm on its pages, and what they may not: they are code, and may lie."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from app.ports.shopper import FailureCode, Product, PurchaseFailed, PurchaseRequest, ShippingAddress
from shopper.flow import product
from shopper.flow.session import BrowserSession
from shopper.page import breakdown, page_data, prices
from shopper.page.snapshot import PagePrice, PageSnapshot
from shopper.page.tab import BrowserTab
from tests.browser.conftest import RecordingHandler
from tests.shopper.test_advice import BUTTON

ADD = replace(BUTTON, text="Sepete ekle", code="add-to-cart")


def page(*data: Any, shows: tuple[str, ...] = (), sizes: tuple[int, ...] = (), **change: Any) -> PageSnapshot:
    blank = PageSnapshot(
        url="https://shop.example/p", title="", heading="Kupa", language="tr", text="\n".join(shows), alerts=(),
        controls=(), buttons=(ADD,), frames=(), json_ld=(), declared={}, currencies=(),
        prices=tuple(
            PagePrice(text, after_heading=True, struck=False, size=size)
            for text, size in zip(shows, sizes or (20,) * len(shows), strict=True)
        ),
        data=tuple(json.dumps(each) for each in data),
    )  # fmt: skip
    return replace(blank, **change)


def read(snapshot: PageSnapshot) -> Product:
    request = PurchaseRequest("https://shop.example/p", ShippingAddress("", ""))
    session = BrowserSession(cast("BrowserTab", None), request, RecordingHandler())
    return product.read(session, snapshot)


@pytest.mark.parametrize("price", [12, 12.0, "12.00", 1200])
def test_the_shops_own_data_confirm_which_visible_amount_is_the_price(price: object) -> None:
    data = {"props": {"product": [{"variant": {"price": price, "currencyCode": "USD"}}]}}
    shown = page(data, shows=("4.90 $", "12.00 $"), sizes=(12, 24))
    assert (read(shown).price_nanos, read(shown).price_source) == (12 * 10**9, "markup")
    assert read(replace(shown, data=())).price_nanos == 4_900_000_000


@pytest.mark.parametrize(
    ("price", "shows", "sizes"),
    [
        ("1.00", ("12.00 $",), (24,)),
        ("1.00", ("12.00 $", "1.00 $"), (24, 12)),
        ("99.00", ("12.00 $",), (24,)),
        ("15.00", ("12.00 $", "15.00 $"), (24, 24)),
    ],
    ids=["lower", "lower-and-shown-small", "higher", "of-another-product"],
)
def test_a_price_of_the_data_that_the_page_does_not_show_as_its_own_changes_nothing(
    price: str, shows: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    found = read(page({"price": price, "currency": "USD"}, shows=shows, sizes=sizes))
    assert (found.price_nanos, found.price_source) == (12 * 10**9, "text")


def test_a_price_that_only_the_shops_own_data_have_is_unknown() -> None:
    with pytest.raises(PurchaseFailed) as failed:
        read(page({"price": "12.00", "currency": "USD"}))
    assert failed.value.code is FailureCode.PRICE_UNKNOWN


def test_a_currency_of_the_data_is_that_of_a_dollar_sign_and_not_of_another_sign() -> None:
    for shows, code in ((("12.00 $",), "CAD"), (("12.00 €",), "USD")):
        with pytest.raises(PurchaseFailed) as failed:
            read(page({"price": "12.00", "currency": code}, shows=shows))
        assert failed.value.code is FailureCode.CURRENCY_UNSUPPORTED
    both = ({"price": "12.00", "currency": "USD"}, {"price": "12.00", "currency": "CAD"})
    with pytest.raises(PurchaseFailed) as failed:
        read(page(*both, shows=("12.00 $",)))
    assert failed.value.code is FailureCode.PRICE_UNKNOWN


def test_a_page_without_a_button_is_sold_out_if_all_of_its_data_say_so() -> None:
    gone, here = ({"price": 12, "currency": "USD", "available": state} for state in (False, True))
    for data, code in (
        ((gone,), FailureCode.OUT_OF_STOCK),
        (({**gone, "available": "OutOfStock"},), FailureCode.OUT_OF_STOCK),
        ((gone, here), FailureCode.NOT_A_PRODUCT),
        ((), FailureCode.NOT_A_PRODUCT),
    ):
        with pytest.raises(PurchaseFailed) as failed:
            read(page(*data, shows=("12.00 $",), buttons=()))
        assert failed.value.code is code


@pytest.mark.parametrize(
    ("data", "total"),
    [
        ({"cart": {"grandTotal": 17}}, 17),
        ({"cart": {"total_price": 1700}}, 17),
        ({"cart": {"total": {"amount": "17.00", "currencyCode": "USD"}}}, 17),
        ({"cart": {"total": 12}}, None),
        ({"cart": {"total": 1}}, None),
        ({"cart": {"total": 99}}, None),
        ({"cart": {"subtotal": 17}}, None),
        ({"cart": {"total": True}}, None),
    ],
)
def test_the_largest_amount_that_is_shown_is_the_total_if_the_data_name_it_so(data: Any, total: int | None) -> None:
    rows = breakdown.order_rows(page(data, shows=("12.00 $", "5.00 $", "17.00 $")), 12 * 10**9)
    found = prices.total_of(rows)
    alone = breakdown.order_rows(page({"total": 12}, shows=("12.00 $",)), 12 * 10**9)
    assert prices.total_of(alone) is None
    assert (found.nanos // 10**9 if found else None) == total


def test_data_that_are_not_strict_json_or_too_deep_are_none() -> None:
    for text in ("{price: 12}", "[" * 100_000, '{"price": 12, "currency": "XYZ"}', '{"price": 12}'):
        assert page_data.offered(replace(page(), data=(text,))) == []


def test_a_currency_is_read_next_to_an_object_of_a_similar_name() -> None:
    data = ({"price": 12, "currency": {"code": "USD"}, "currencyCode": "USD"}, {"price": 12, "currency": "USD"})
    assert all(page_data.offered(page(each)) for each in data)
