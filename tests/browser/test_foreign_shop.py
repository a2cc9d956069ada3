"""Purchases by structure alone, in a shop of which the shopper knows no word; and structure that lies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from app.core.order_amounts import AmountRole, adds_up
from app.ports.shopper import ChoicePurpose, ElementQuestion, FailureCode, PurchaseFailed
from tests.browser.conftest import FULL, CountingHandler, RecordingHandler, SharedBrowserShopper, purchase
from tests.support.shops.foreign import Foreign, Wording, foreign_shop

pytestmark = pytest.mark.browser
ADDRESS = replace(FULL, email="ada@example.com")
TOO_DEAR = PurchaseFailed(FailureCode.LIMIT_EXCEEDED, "Too dear.")
NEXT = Wording(order="Next", onward="Next", review="Nearly there", shows_steps=False)
HIDDEN_TOTAL = '<p style="opacity:0">Total <b>$1.00</b></p>'
DUE = """<div itemscope itemtype="https://schema.org/Invoice" hidden><div itemprop=totalPaymentDue>
  <meta itemprop=price content="1.00"></div></div>"""
HIDDEN_FIELDS = """<form action=/steal style="position:absolute;left:-9999px"><input autocomplete=cc-number>
  <input autocomplete=current-password type=password><input autocomplete="shipping tel"></form>
  <div style="opacity:0"><input name=h autocomplete="tel"><input name=i autocomplete="address-line2"></div>"""


@pytest.fixture(scope="module")
def _foreign(browser: str) -> Iterator[Foreign]:
    del browser
    with foreign_shop() as shop:
        yield shop


@pytest.fixture
def foreign(_foreign: Foreign) -> Foreign:
    _foreign.reset()
    return _foreign


def test_a_shop_without_a_known_word_is_bought_from_by_its_structure(
    shopper: SharedBrowserShopper, foreign: Foreign
) -> None:
    result = purchase(shopper, foreign.product, address=ADDRESS, quantity=2)
    assert result.confirmation is not None, (result.failed and result.failed.message, result.outcome_unknown)
    [order] = foreign.orders
    assert [order[name] for name in ("maara", "s1", "s2", "s5", "s6", "payment")] == [
        "2", "ada@example.com", "Ada Buyer", "94107", "US", "Lasku",
    ]  # fmt: skip
    assert result.confirmation.order_number == "FI-2041"
    [review] = result.handler.reviews
    assert result.confirmation.total_nanos == review.total_nanos
    assert adds_up(review.amounts, review.total_nanos)
    assert AmountRole.OTHER in {amount.role for amount in review.amounts}


def test_the_cart_is_found_by_its_count_and_the_confirmation_by_its_path(
    shopper: SharedBrowserShopper, foreign: Foreign
) -> None:
    foreign.wording = Wording(stays_on_product=True, describes_order=False, done_path="/order-confirmation")
    result = purchase(shopper, foreign.product, address=ADDRESS)
    assert result.confirmation is not None, (result.failed, result.outcome_unknown)
    assert (len(foreign.orders), result.confirmation.order_number) == (1, None)


def test_a_required_list_and_a_required_consent_are_answered_and_hidden_fields_with_autofill_tokens_are_not_filled(
    shopper: SharedBrowserShopper, foreign: Foreign
) -> None:
    foreign.wording = Wording(lists=True, extra=HIDDEN_FIELDS)
    result = purchase(shopper, foreign.product, address=replace(ADDRESS, line2="Flat 9"))
    assert result.confirmation is not None, result.failed and result.failed.message
    assert [(order["toimitus"], order["ok"]) for order in foreign.orders] == [("Nouto", "on")]
    filled = {step.text for step in result.handler.steps if step.action == "fill"}
    assert "address-line1" in filled
    assert not filled & {"address-line2", "tel"}


def test_a_box_with_a_price_of_its_own_is_unticked_and_nothing_is_ordered_if_it_stays(
    shopper: SharedBrowserShopper, foreign: Foreign
) -> None:
    foreign.wording = Wording(extra="<label><input type=checkbox name=v checked>Vakuutus 2.99 $</label>")
    result = purchase(shopper, foreign.product, address=ADDRESS)
    assert (result.failure_code, foreign.orders, result.handler.reviews) == ("cart_mismatch", [], [])
    assert "Vakuutus 2.99 $" in [step.text for step in result.handler.steps if step.action == "refuse"]


@pytest.mark.parametrize("removes", ["a-button", "a-quantity"])
def test_an_account_is_signed_in_by_autofill_tokens_and_what_it_has_in_its_cart_is_removed_first(
    shopper: SharedBrowserShopper, foreign: Foreign, removes: str
) -> None:
    foreign.wording = Wording(offers_sign_in=True, left_in_cart=3, removes=removes)
    result = purchase(shopper, foreign.product, address=ADDRESS, username="ada", password="tulip-harbour")
    assert result.confirmation is not None, (result.failed, result.outcome_unknown)
    assert [(order["user"], order["secret"], order["maara"]) for order in foreign.orders] == [
        ("ada", "tulip-harbour", "1")
    ]


def test_a_cart_that_cannot_be_emptied_is_not_ordered(shopper: SharedBrowserShopper, foreign: Foreign) -> None:
    foreign.wording = Wording(offers_sign_in=True, left_in_cart=3, removes="nothing")
    result = purchase(shopper, foreign.product, address=ADDRESS, username="ada", password="tulip-harbour")
    assert (foreign.orders, result.handler.reviews) == ([], [])
    assert result.failure_code in {"cart_mismatch", "price_unknown"}, result.failed


@pytest.mark.parametrize(
    ("wording", "code"),
    [
        (replace(NEXT, reviews_with_fields=True), "limit_exceeded"),
        (Wording(order="Tilaa", order_label="Continue"), "limit_exceeded"),
        (Wording(order="Continue", order_label="Place order"), "limit_exceeded"),
        (Wording(shows_steps=False, shows_total_at_payment=False), "stuck"),
        (Wording(order="Continue to payment"), "limit_exceeded"),
    ],
    ids=[
        "next-with-a-comment-and-a-consent",
        "an-order-button-named-continue",
        "continue-that-is-named-an-order",
        "unknown-words-and-no-total",
        "an-order-button-named-as-a-step",
    ],
)
def test_no_button_of_any_name_orders_before_the_order_is_authorized(
    shopper: SharedBrowserShopper, foreign: Foreign, wording: Wording, code: str
) -> None:
    foreign.wording = wording
    refusing = RecordingHandler(refuses_order=TOO_DEAR)
    result = purchase(shopper, foreign.product, address=ADDRESS, handler=refusing)
    assert result.failed is not None
    assert (foreign.orders, result.failed.code.value) == ([], code), result.failed.message
    assert len(refusing.reviews) == (1 if code == "limit_exceeded" else 0)
    if code == "stuck":
        assert "may order" in result.failed.message


@pytest.mark.parametrize(
    "wording",
    [
        NEXT,
        replace(NEXT, orders_at_payment=True),
        Wording(shows_steps=False, orders_at_payment=True),
        Wording(shows_steps=False, order="Place order"),
        Wording(shows_steps=False),
    ],
    ids=["a-review", "the-payment", "unknown-payment", "a-named-review-after-it", "an-unknown-review-after-it"],
)
def test_a_last_button_of_any_name_orders_once_it_is_authorized_and_not_before(
    shopper: SharedBrowserShopper, foreign: Foreign, wording: Wording
) -> None:
    foreign.wording = wording
    counting = CountingHandler(lambda: len(foreign.orders))
    result = purchase(shopper, foreign.product, address=ADDRESS, handler=counting)
    assert result.confirmation is not None, (result.failed, result.outcome_unknown)
    assert (counting.orders_before, len(foreign.orders)) == ([0], 1)


def test_a_review_that_costs_more_than_was_authorized_on_the_page_of_the_payment_is_not_ordered(
    shopper: SharedBrowserShopper, foreign: Foreign
) -> None:
    foreign.wording = Wording(shows_steps=False, order="Place order", fee=1)
    result = purchase(shopper, foreign.product, address=ADDRESS)
    assert (result.outcome_unknown is not None, foreign.orders) == (True, [])
    assert [review.total_nanos for review in result.handler.reviews] == [12 * 10**9]


@pytest.mark.parametrize(
    ("wording", "code", "words"),
    [
        (Wording(offer_price="1.00", visible_price=""), "price_unknown", ("price, 1,", "Yhteensä 12")),
        (Wording(extra=HIDDEN_TOTAL), "cart_mismatch", ("cost 12", "Total 1")),
        (Wording(extra=DUE), "price_unknown", ("amount due, 1", "Yhteensä 12")),
    ],
    ids=["a-lower-price-in-the-data", "a-hidden-total", "another-amount-due-in-the-data"],
)
def test_structure_that_contradicts_the_page_is_refused_with_the_numbers(
    shopper: SharedBrowserShopper, foreign: Foreign, wording: Wording, code: str, words: tuple[str, ...]
) -> None:
    foreign.wording = wording
    result = purchase(shopper, foreign.product, address=ADDRESS)
    assert result.failed is not None
    assert (result.failed.code.value, foreign.orders, result.handler.reviews) == (code, [], [])
    assert all(word in result.failed.message for word in words), result.failed.message


def test_an_order_without_a_word_or_data_that_confirms_it_is_unknown(
    shopper: SharedBrowserShopper, foreign: Foreign
) -> None:
    foreign.wording = Wording(describes_order=False)
    result = purchase(shopper, foreign.product, address=ADDRESS)
    assert (result.outcome_unknown is not None, len(foreign.orders)) == (True, 1)


def test_a_language_model_chooses_among_buttons_that_may_add_the_product_and_among_payments(
    shopper: SharedBrowserShopper, foreign: Foreign
) -> None:
    foreign.wording = Wording(before_add="<button formaction=/ostoskori/lista>Muistiin</button>")
    without = purchase(shopper, foreign.product, address=ADDRESS)
    assert (without.failure_code, foreign.orders) == ("not_a_product", [])
    wanted = {ChoicePurpose.ADD_TO_CART: "Lisää koriin", ChoicePurpose.PAYMENT: "Lasku"}

    def choose(question: ElementQuestion) -> int:
        return [item.name for item in question.candidates].index(wanted[question.purpose])

    result = purchase(shopper, foreign.product, address=ADDRESS, handler=RecordingHandler(chooses=choose))
    assert result.confirmation is not None, result.failed
    assert [question.purpose for question in result.handler.questions] == list(wanted)
    chosen = [step.text for step in result.handler.steps if step.action == "choose"]
    assert (len(foreign.orders), chosen[-1], "Kortti" in chosen) == (1, "Lasku", False)


def test_bad_advice_on_the_product_and_the_payment_orders_nothing_without_authorization(
    shopper: SharedBrowserShopper, foreign: Foreign
) -> None:
    foreign.wording = Wording(before_add="<button formaction=/ostoskori/lista>Muistiin</button>")
    refusing = RecordingHandler(refuses_order=TOO_DEAR, chooses=lambda _question: 0)
    result = purchase(shopper, foreign.product, address=ADDRESS, handler=refusing)
    assert result.failed is not None
    assert (foreign.orders, refusing.questions[0].purpose) == ([], ChoicePurpose.ADD_TO_CART)
