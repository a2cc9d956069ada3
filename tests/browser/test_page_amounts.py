"""The amounts of real pages, by structure and arithmetic, in two languages, and pages that mislead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from app.core.order_amounts import OrderAmount, adds_up
from shopper.page import breakdown, prices
from shopper.page.snapshot import SCRIPT, parse_snapshot

pytestmark = pytest.mark.browser

_NANOS = 10**9
_GOODS = 12 * _NANOS

TABLE = """<table><tr><td>Mug</td><td>1</td><td>$12.00</td></tr><tr><td>Subtotal</td><td>$12.00</td></tr>
  <tr><td>Shipping</td><td>$5.00</td></tr>
  <tr><td>Total <small>(Inclusive of tax <b>$0.00</b>)</small></td><td>$17.00</td></tr></table>"""
LIST = """<dl><dt>Zwischensumme</dt><dd>12,00 USD</dd><dt>Versand</dt><dd>5,00 USD</dd><dt>zzgl. MwSt.</dt>
  <dd>1,00 USD</dd><dt>Gesamtsumme</dt><dd>18,00 USD</dd></dl>"""
DISCOUNTED = """<ul><li>Subtotal <s>$15.00</s> <b>$12.00</b></li><li>Discount <b>-$2.00</b></li>
  <li>Shipping <b>$5.00</b></li><li>Order total <b>$15.00</b></li></ul>"""
NOTES = """<div role="row"><div>Ticket</div><div>$12.00</div>
    <div><b>$12.00</b><br><small>incl. 7% VAT</small></div></div>
  <div role="row"><b>Payment fee</b><div><b>$1.00</b><br><small>incl. 7% VAT</small></div></div>
  <div role="row"><b>Total</b><div><b>$13.00</b><br><small>incl. $0.89 taxes</small></div></div>"""
ONE_LINE_NOTES = """<p>Mug</p><p>$12.00 incl. 7% VAT</p><p>Total before discount: $14.00</p>
  <p>Discount: -$2.00</p><p>Total: $12.00</p>"""
CODES = """<div><div><label>Sub total:</label> <span>$12.00</span></div>
  <div><label>VAT (8%):</label> <span>$1.00</span></div>
  <div class="total"><label>Total:</label> <span>$13.00</span></div></div>"""
UNIT_PRICES = """<div role="row"><b>Ticket</b><div>1</div><div>$12.00</div>
    <div><b>$12.00</b><br>incl. 7% VAT</div></div>
  <div role="row"><b>Fee</b> <b>$1.00</b></div><div role="row"><b>Total</b> <b>$13.00</b></div>"""
LABELS_NEXT_TO_AMOUNTS = """<ul role="radiogroup"><li><button role="radio" aria-checked="true">x</button>
    <label>Standard delivery</label> <b>$5.00</b></li><li><button role="radio" aria-checked="false">x</button>
    <label>Express delivery</label> <b>$12.00</b></li></ul>
  <div><div><div>Subtotal</div>$12.00</div><div><p>Shipping</p><p>$5.00</p></div>
    <div><div><div>Total</div><i>(Inclusive of tax $0.00)</i></div><div>$17.00</div></div></div>"""
OPTIONS = """<label><input type="radio" name="s">Express delivery $12.00</label>
  <label><input type="radio" name="s" checked>Standard delivery $5.00</label>
  <table><tr><td>Subtotal</td><td>$12.00</td></tr><tr><td>Total</td><td>$17.00</td></tr></table>"""
CELLS_OF_CURRENCY = """<table><tr><td>Net</td><td>$</td><td>10.00</td></tr><tr><td>VAT</td><td>$</td><td>2.00</td></tr>
  <tr><td>Shipping: by post, from 6,- $, free if the gross price of the purchase is above <b>$200</b>:</td><td>$</td>
    <td>6.00</td></tr>
  <tr><td>Total</td><td>$</td><td>18.00</td></tr></table><p>1 mug <b>$12.00</b></p>"""
UNKNOWN_LANGUAGE = """<table><tr><td>Välisumma</td><td>$12.00</td></tr><tr><td>Toimitus</td><td>$5.00</td></tr>
  <tr><td>Yhteensä</td><td>$17.00</td></tr></table>"""
STICKY = TABLE + '<div style="position:fixed;bottom:0"><span>Total</span> <b>$17.00</b></div>'
NO_PARTS = "<p>Total <b>{}</b></p><aside>Amount due <b>{}</b></aside>"


class ReadPage:
    """A fragment as the shopper reads it."""

    def __init__(self, page: Page, html: str) -> None:
        page.set_content(f"<main>{html}</main>")
        raw: dict[str, Any] = page.evaluate(SCRIPT)
        self.snapshot = parse_snapshot(raw)
        self.rows = breakdown.order_rows(self.snapshot, _GOODS)
        self.total = prices.total_of(self.rows)

    @property
    def amounts(self) -> tuple[OrderAmount, ...]:
        assert self.total is not None
        return breakdown.order_amounts(self.rows, self.total, _GOODS)

    @property
    def roles(self) -> set[tuple[str, int]]:
        return {(amount.role.value, amount.nanos // _NANOS) for amount in self.amounts}

    @property
    def is_refused(self) -> bool:
        return self.total is None or bool(breakdown.disagreeing_totals(self.rows, self.amounts))


@pytest.mark.parametrize(
    ("html", "roles"),
    [
        (TABLE, {("subtotal", 12), ("shipping", 5), ("included_tax", 0), ("total", 17)}),
        (LIST, {("subtotal", 12), ("shipping", 5), ("tax", 1), ("total", 18)}),
        (DISCOUNTED, {("subtotal", 12), ("discount", 2), ("shipping", 5), ("total", 15)}),
        (NOTES, {("item", 12), ("tax", 1), ("included_tax", 0), ("total", 13)}),
        (UNIT_PRICES, {("item", 12), ("tax", 1), ("total", 13)}),
        (CODES, {("subtotal", 12), ("tax", 1), ("total", 13)}),
        (STICKY, {("subtotal", 12), ("shipping", 5), ("included_tax", 0), ("total", 17)}),
        (LABELS_NEXT_TO_AMOUNTS, {("subtotal", 12), ("shipping", 5), ("included_tax", 0), ("total", 17)}),
        (OPTIONS, {("subtotal", 12), ("shipping", 5), ("total", 17)}),
        (CELLS_OF_CURRENCY, {("item", 12), ("tax", 2), ("shipping", 6), ("total", 18)}),
    ],
    ids=[
        "a-table",
        "a-german-list",
        "a-discount",
        "notes-on-taxes",
        "unit-prices",
        "an-abbreviation",
        "a-sticky-total",
        "labels-next-to-amounts",
        "prices-of-options",
        "cells-of-the-currency",
    ],
)
def test_each_amount_has_its_role_and_the_parts_make_the_total(
    open_page: Callable[..., Page], html: str, roles: set[tuple[str, int]]
) -> None:
    page = ReadPage(open_page(), html)
    assert (page.roles, page.is_refused) == (roles, False)
    assert page.total is not None
    assert adds_up(page.amounts, page.total.nanos)


def test_a_note_after_an_amount_and_a_total_before_the_discount_have_no_role(open_page: Callable[..., Page]) -> None:
    page = ReadPage(open_page(), ONE_LINE_NOTES)
    assert {role for role, _ in page.roles} <= {"item", "discount", "total"}
    assert page.total is not None
    assert page.total.nanos == 12 * _NANOS


def test_a_total_in_an_unknown_language_is_the_sum_of_the_rows_before_it(open_page: Callable[..., Page]) -> None:
    page = ReadPage(open_page(), UNKNOWN_LANGUAGE)
    assert page.total is not None
    assert page.total.nanos == 17 * _NANOS


@pytest.mark.parametrize(
    "labels",
    [
        ("Total parcial", "Gastos de envío", "Importe a pagar"),
        ("Total bez dostawy", "Wysyłka", "Do zapłaty"),
        ("Total", "Fee for nothing", "Alltogether"),
    ],
    ids=["spanish", "polish", "a-lie"],
)
def test_the_sum_is_the_total_although_a_part_is_called_a_total(
    open_page: Callable[..., Page], labels: tuple[str, str, str]
) -> None:
    rows = zip(labels, ("12.00", "5.00", "17.00"), strict=True)
    table = "".join(f"<tr><th>{label}</th><td>${amount}</td></tr>" for label, amount in rows)
    page = ReadPage(open_page(), f"<table>{table}</table>")
    assert page.total is not None
    assert (page.total.nanos, page.is_refused) == (17 * _NANOS, False)
    assert adds_up(page.amounts, page.total.nanos)


@pytest.mark.parametrize(
    "html",
    [
        UNKNOWN_LANGUAGE + "<p>Maksu tänään <b>$99.00</b></p>",
        UNKNOWN_LANGUAGE.replace("$5.00", "$4.00"),
        NO_PARTS.format("$17.00", "$18.00"),
        TABLE + "<p>Total due today <b>$99.00</b></p>",
        TABLE.replace("$17.00", "$1.00") + '<p style="opacity:0">Total $17.50</p>',
        '<p style="opacity:0">Total $1.00</p><p>Amount due <b>$17.00</b></p>',
        TABLE + '<label><input type="radio" name="t">Total due today $99.00</label>',
    ],
    ids=[
        "more-elsewhere",
        "a-wrong-sum",
        "two-totals",
        "a-later-total",
        "a-hidden-higher-total",
        "a-hidden-total",
        "a-total-of-an-option",
    ],
)
def test_totals_that_disagree_or_do_not_add_up_are_refused(open_page: Callable[..., Page], html: str) -> None:
    assert ReadPage(open_page(), html).is_refused


def test_a_smaller_total_that_is_confirmed_by_nothing_does_not_replace_the_sum(open_page: Callable[..., Page]) -> None:
    page = ReadPage(open_page(), TABLE + '<p style="opacity:0">Total $1.00</p>')
    assert page.total is not None
    assert (page.total.nanos, page.is_refused) == (17 * _NANOS, False)


def test_a_crossed_out_total_is_no_total(open_page: Callable[..., Page]) -> None:
    page = ReadPage(open_page(), "<p>Total <s>$40.00</s></p>" + TABLE)
    assert page.total is not None
    assert (page.total.nanos, page.is_refused) == (17 * _NANOS, False)
