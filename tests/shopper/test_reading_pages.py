"""Decisions on a page's data, without a browser: money, addresses, fields, order numbers."""

from __future__ import annotations

import pytest

from app.ports.shopper import ShippingAddress
from shopper.flow import address, run
from shopper.page import autofill, keywords, prices, regions
from shopper.page.prices import AmountKind, CurrencyHints, PageAmount
from shopper.page.snapshot import FormControl

_NANOS = 10**9


@pytest.mark.parametrize(
    ("text", "nanos", "currency"),
    [
        ("$12.50", 12_500_000_000, "$"),
        ("US$ 1,234.50", 1_234_500_000_000, "USD"),
        ("1.234,50 €", 1_234_500_000_000, "EUR"),
        ("12,50 USD", 12_500_000_000, "USD"),
        ("USD 740", 740_000_000_000, "USD"),
        ("CA$9.99", 9_990_000_000, "CAD"),
        ("$9.99 CAD", 9_990_000_000, "CAD"),
        ("CHF 1'234.50", 1_234_500_000_000, "CHF"),
        ("£0.99", 990_000_000, "GBP"),
    ],
)
def test_an_amount_is_read_exactly_with_its_currency(text: str, nanos: int, currency: str) -> None:
    assert prices.amounts(text) == [PageAmount(nanos, currency)]


@pytest.mark.parametrize("text", ["12.50", "Order 10001", "save 20%", "-$5.00", "($5.00)", "5 ABC", "4.5 stars"])
def test_an_unknown_currency_or_a_deduction_is_not_a_price(text: str) -> None:
    assert prices.amounts(text) == []


@pytest.mark.parametrize(
    ("signs", "expected"),
    [
        (CurrencyHints(), "USD"),
        (CurrencyHints(language="en-US", host="shop.example.com", text="Total $5.00"), "USD"),
        (CurrencyHints(declared=("USD",), language="en-CA"), "USD"),
        (CurrencyHints(declared=("CAD",)), "CAD"),
        (CurrencyHints(declared=("USD", "CAD")), None),
        (CurrencyHints(language="en-CA"), None),
        (CurrencyHints(language="en-AU"), None),
        (CurrencyHints(host="shop.com.au"), None),
        (CurrencyHints(text="All prices in CAD"), None),
        (CurrencyHints(text="Also A$7.00"), None),
        (CurrencyHints(text="All prices in Canadian dollars"), None),
        (CurrencyHints(language="es-DO"), None),
    ],
)
def test_a_bare_dollar_sign_is_the_us_dollar_only_without_contrary_evidence(
    signs: CurrencyHints, expected: str | None
) -> None:
    assert prices.resolve("$", signs) == expected


@pytest.mark.parametrize("text", ["CI$100.00", "Total: RD$5.00", "17,00 $ CA", "Bds$5.00", "ZZ$1.00"])
def test_a_dollar_sign_with_letters_of_a_country_is_not_the_us_dollar(text: str) -> None:
    [amount] = prices.amounts(text)
    assert prices.resolve(amount.currency, CurrencyHints(declared=("USD",))) is None


@pytest.mark.parametrize("text", ["Total$17.00", "TAX$17.00", "SUBTOTAL$17.00", "US$17.00", "Size XL $17.00"])
def test_a_word_before_an_amount_is_not_a_currency(text: str) -> None:
    [amount] = prices.amounts(text)
    assert prices.resolve(amount.currency, CurrencyHints()) == "USD"


def test_an_amount_without_a_currency_has_none() -> None:
    assert prices.resolve(None, CurrencyHints(declared=("USD",))) is None


def test_the_total_is_the_largest_labelled_total_and_never_a_subtotal() -> None:
    rows = prices.labelled_amounts(
        "Subtotal\t$12.00\nShipping\t$5.00\nTotal savings $900.00\nOrder total: $17.00\nTotal $5.00"
    )
    assert prices.total_of(rows) == PageAmount(17 * _NANOS, "$")


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("Montant de la TVA", AmountKind.TAX),
        ("Umsatzsteuer", AmountKind.TAX),
        ("Montant des frais de livraison", AmountKind.SHIPPING),
        ("Frais de port", AmountKind.SHIPPING),
        ("Montant total des articles", AmountKind.GOODS),
        ("Warenwert", AmountKind.GOODS),
        ("Zwischensumme ohne Versand", AmountKind.GOODS),
        ("Total HT", AmountKind.OTHER),
        ("Total hors taxes", AmountKind.OTHER),
        ("Total excl. VAT", AmountKind.OTHER),
        ("Gesamtpreis netto", AmountKind.OTHER),
        ("Gesamt ohne Versand", AmountKind.OTHER),
        ("Gesamtersparnis", AmountKind.OTHER),
        ("Montant total TTC", AmountKind.TOTAL),
        ("Net à payer", AmountKind.TOTAL),
        ("Total de la commande", AmountKind.TOTAL),
        ("Total du panier", AmountKind.TOTAL),
        ("Summe der Bestellung", AmountKind.TOTAL),
        ("Rechnungsbetrag", AmountKind.TOTAL),
        ("Gesamtpreis brutto", AmountKind.TOTAL),
    ],
)
def test_a_part_of_an_order_in_french_or_german_is_not_its_total(label: str, kind: AmountKind) -> None:
    assert prices.kind_of(label) is kind


def test_a_tax_amount_next_to_a_french_total_does_not_lower_the_price_that_is_checked() -> None:
    rows = prices.labelled_amounts("Sous-total $16.00\nRemise $1.00\nMontant de la TVA $2.00\nNet à payer $17.00")
    assert prices.total_of(rows) == PageAmount(17 * _NANOS, "$")


def test_labels_in_one_column_and_amounts_in_another_are_paired() -> None:
    rows = prices.labelled_amounts("Subtotal\nShipping\nTotal\n$12.00\nFree\n$12.00")
    assert [(row.label, row.amount.nanos // _NANOS) for row in rows] == [
        ("Subtotal", 12),
        ("Shipping", 0),
        ("Total", 12),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Total (Inclusive of tax $0.00)\n$17.00",
        "Total (incl. VAT $2.00)\t$17.00",
        "Total including tax\n$17.00\nincl. $2.00 VAT",
        "Subtotal\n$12.00\nShipping\n$5.00\nTotal (Inclusive of tax $0.00)\n$17.00",
        "Gesamtsumme (inkl. $2,70 MwSt.)\n$17,00",
        "Total $17.00 (of which tax $2.00)",
        "Tax (not included in the price)\n$5.00\nTotal\n$17.00",
    ],
)
def test_a_tax_that_the_total_contains_is_not_the_total(text: str) -> None:
    assert prices.total_of(prices.labelled_amounts(text)) == PageAmount(17 * _NANOS, "$")


def test_a_tax_that_the_total_contains_is_not_added_to_the_goods() -> None:
    rows = prices.labelled_amounts("Shipping $5.00\nTotal (incl. VAT $2.00) $17.00\nIncludes tax $2.00")
    assert [row.kind for row in rows] == ["shipping", "contained", "total", "contained"]
    assert prices.goods_match(rows, 12 * _NANOS) is True


def test_a_total_without_a_currency_has_none() -> None:
    assert prices.total_of(prices.labelled_amounts("Total: 17.00")) == PageAmount(17 * _NANOS, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Subtotal $12.00\nTotal $17.00", True),
        ("Subtotal $752.00\nTotal $757.00", False),
        # A line with the right price does not make up for a wrong sum.
        ("Item total $12.00\nSubtotal $752.00", False),
        ("Shipping $5.00\nTotal $17.00", True),
        ("Shipping $5.00\nTax $1.00\nTotal $18.00", True),
        ("Discount $2.00\nShipping $5.00\nTotal $15.00", True),
        ("Total $17.00", False),
        ("Nothing here", None),
    ],
)
def test_goods_that_do_not_match_the_price_are_not_bought(text: str, expected: bool | None) -> None:  # noqa: FBT001
    assert prices.goods_match(prices.labelled_amounts(text), 12 * _NANOS) is expected


WANTED = ShippingAddress("Ada Buyer", "94107")


@pytest.mark.parametrize(
    ("card", "fits"),
    [
        ("Ada Buyer\n1 Main Street\nSan Francisco 94107", True),
        ("ADA M. BUYER, 94107-1234 San Francisco", True),
        ("Ada Buyer 10001 New York", False),
        ("Bob Buyer 94107", False),
        ("Ada Buyer 941070", False),
        ("Adaline Buyers 94107", False),
    ],
)
def test_a_stored_address_matches_by_name_and_postal_code(card: str, fits: bool) -> None:  # noqa: FBT001
    assert address.matches_address(card, WANTED) is fits


def test_the_street_must_match_if_it_was_sent() -> None:
    wanted = ShippingAddress("Ada Buyer", "94107", line1="1 Main Street")
    assert address.matches_address("Ada Buyer, 1  Main street, 94107", wanted)
    assert not address.matches_address(
        "Ada Buyer, 12 Main Street, 94107", ShippingAddress("Ada Buyer", "94107", line1="2 Main Street, ")
    )


def control(**parts: object) -> FormControl:
    values = {
        "number": 1, "type": "text", "name": "", "id": "", "autocomplete": "", "placeholder": "", "label": "",
        "value": "", "filled": False, "checked": False, "required": False, "disabled": False, "problem": "",
        "form": 0, "group": "", "card": "", "dialog": False, "options": (), **parts,
    }  # fmt: skip
    return FormControl(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parts", "token"),
    [
        ({"autocomplete": "section-a shipping postal-code", "label": "Anything"}, "postal-code"),
        ({"name": "line4", "label": "City"}, "address-level2"),
        ({"name": "first_name"}, "given-name"),
        ({"name": "shippingAddress.postcode"}, "postal-code"),
        ({"placeholder": "Your email"}, "email"),
        ({"label": "Name on card"}, "cc-name"),
        ({"label": "Card number"}, "cc-number"),
        ({"label": "Gift card or discount code"}, "ignored"),
        ({"label": "Address line 2 (optional)"}, "address-line2"),
        ({"label": "Quantity"}, "quantity"),
        ({"type": "password", "label": "Email"}, "current-password"),
        ({"label": "Favourite colour"}, None),
    ],
)
def test_a_field_is_identified_by_its_visible_label(parts: dict[str, str], token: str | None) -> None:
    assert autofill.token_of(control(**parts)) == token


def test_countries_and_states_are_found_by_any_of_their_names() -> None:
    assert {"us", "usa", "united states", "united states of america"} <= set(regions.country_names("US"))
    assert regions.matches("United States of America", regions.country_names("usa"))
    assert regions.matches("California", regions.state_names("CA", "US"))
    assert regions.country_names("Atlantis") == ()
    assert regions.matches("Österreich", regions.country_names("AT"))
    assert regions.matches("Allemagne", regions.country_names("DE"))


def test_a_name_next_to_a_first_name_is_the_last_name() -> None:
    first, name, city = (control(label=label) for label in ("First name", "Name", "City"))
    assert [token for _, token in autofill.tokens_of([first, name, city])] == [
        "given-name",
        "family-name",
        "address-level2",
    ]
    assert autofill.tokens_of([name]) == [(name, "name")]


@pytest.mark.parametrize(("text", "pays"), [("Kauf auf Rechnung", True), ("Rechnungsadresse", False)])
def test_an_address_for_invoices_is_no_payment(text: str, pays: bool) -> None:  # noqa: FBT001
    assert bool(keywords.OFFLINE_PAYMENT.search(text)) is pays
    assert bool(keywords.PAYMENT_ON_DELIVERY.search(text)) is pays


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Your order number is 100017. Thank you!", "100017"),
        ("Thank you\nOrder #A-1293", "A-1293"),
        ("Your reference is PX-20931", "PX-20931"),
        ("Order reference: QWERTY", "QWERTY"),
        ("Thank you for your order", None),
        ("Your order confirmation has been sent", None),
        ("Order date: 2026-11-21", None),
        ("Your order: 2026-11-24T19:38:02Z", None),
    ],
)
def test_an_order_number_is_recognized_or_omitted(text: str, number: str | None) -> None:
    assert run.order_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "Place order",
        "Place your order",
        "Pay $17.00",
        "Complete purchase",
        "Confirm order",
        "Buy now",
        "Zahlungspflichtig bestellen",
    ],
)
def test_order_buttons_are_recognized(text: str) -> None:
    assert keywords.PLACE_ORDER.search(text)


@pytest.mark.parametrize("text", ["Continue to payment", "Next", "Proceed to checkout", "Ship to this address"])
def test_a_checkout_step_is_not_an_order_button(text: str) -> None:
    assert keywords.NEXT.search(text)
    assert not keywords.PLACE_ORDER.search(text)
