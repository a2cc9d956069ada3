"""Buttons that are chosen by the structure of a page, against words that mislead or are in no known language."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from app.ports.shopper import PurchaseRequest, ShippingAddress
from shopper.flow import cart, login, product, steps
from shopper.flow.session import BrowserSession
from shopper.page import autofill
from shopper.page.snapshot import FormControl, PageButton, PageSnapshot
from shopper.page.tab import BrowserTab
from tests.browser.conftest import RecordingHandler
from tests.shopper.test_advice import BUTTON, CONTROL

STREET = replace(CONTROL, autocomplete="address-line1", form=1)
SUBMIT = replace(BUTTON, submits=True, form=1)


def page(*buttons: PageButton, path: str = "/p", controls: tuple[FormControl, ...] = ()) -> PageSnapshot:
    return PageSnapshot(
        url=f"https://shop.example{path}", title="", heading="", language="", text="", alerts=(), controls=controls,
        buttons=tuple(replace(button, number=number) for number, button in enumerate(buttons)), prices=(), frames=(),
        json_ld=(), declared={}, currencies=(),
    )  # fmt: skip


def onward(snapshot: PageSnapshot) -> str | None:
    found = steps.onward_button(snapshot, list(snapshot.buttons))
    return found.text if found else None


def test_the_button_of_the_form_that_a_checkout_asks_to_fill_comes_before_known_words_elsewhere() -> None:
    decoy = replace(BUTTON, text="Continue", form=-1, area=9000)
    asked = replace(SUBMIT, text="Tovább")
    assert onward(page(decoy, asked, controls=(STREET,))) == "Tovább"
    assert onward(page(decoy, asked, replace(asked, text="Next"), controls=(STREET,))) == "Next"
    # A review of the product also has a form; it is not the checkout's.
    review = replace(CONTROL, autocomplete="name", form=1)
    assert onward(page(decoy, asked, controls=(review,))) == "Continue"


def test_the_link_to_the_checkout_comes_before_known_words_elsewhere() -> None:
    link = replace(BUTTON, tag="a", text="Ödemeye geç", href="https://shop.example/checkout", form=-1)
    assert onward(page(replace(BUTTON, text="Proceed"), link)) == "Ödemeye geç"
    assert onward(page(replace(BUTTON, text="Proceed"), link, path="/checkout")) == "Proceed"


def test_a_button_that_says_it_orders_never_leads_on_by_structure() -> None:
    for name in ({"text": "Pay $17.00"}, {"text": "Tovább", "label": "Place order"}):
        assert (
            onward(page(replace(SUBMIT, text=name["text"], label=name.get("label", "")), controls=(STREET,)))
            is None
        )


QUANTITY = replace(CONTROL, type="number", value="1", form=1)
OFFER = {"price": "12.00", "currency": "USD"}


def added(*buttons: PageButton, offer: bool = True, quantity: bool = True) -> str | None:
    snapshot = page(*buttons, controls=(QUANTITY,) if quantity else ())
    found = product.add_button(replace(snapshot, declared=OFFER if offer else {}))
    return found.text if found else None


def test_the_form_that_asks_how_many_adds_the_product_and_not_known_words_elsewhere() -> None:
    own, decoy = (
        replace(SUBMIT, text="Kosárba"),
        replace(BUTTON, text="Add to basket", form=2, area=9000),
    )
    assert added(decoy, own) == "Kosárba"
    assert added(own, replace(own, text="Összehasonlítás")) is None
    sent = replace(own, action="/cart/add")
    assert added(replace(own, text="Kedvencek"), sent) == "Kosárba"
    assert added(decoy, own, offer=False) == "Add to basket"


def test_a_form_that_orders_adds_nothing_and_no_button_replaces_one_that_is_disabled() -> None:
    assert added(replace(SUBMIT, text="Pay now")) is None
    assert added(replace(SUBMIT, text="Vásárlás", label="Place order")) is None
    disabled = replace(SUBMIT, text="Add to cart", disabled=True)
    assert added(disabled, replace(SUBMIT, text="Azonnal")) is None


def test_an_identifier_or_the_path_of_a_form_adds_the_product_in_any_language() -> None:
    for identifier in ("btn add-to-cart", "addToCart", "product-addtocart-button", "add_to_basket"):
        assert added(replace(BUTTON, text="Sepete ekle", code=identifier), quantity=False) == "Sepete ekle"
    assert (
        added(replace(SUBMIT, text="カートに入れる", action="/cart/add"), quantity=False) == "カートに入れる"
    )
    listed = replace(SUBMIT, text="カートに入れる", action="/cart/add", in_list=True)
    assert added(listed, quantity=False) is None


def test_a_sign_in_form_is_the_one_with_the_token_or_the_path_and_not_the_one_with_the_words() -> None:
    user, secret = replace(CONTROL, name="u", form=2), replace(CONTROL, type="password", name="p", form=2)
    words = replace(SUBMIT, text="Sign in")
    fields = (replace(user, form=1), replace(secret, form=1), user)
    for coded, action in ((replace(secret, autocomplete="current-password"), ""), (secret, "/login")):
        send = replace(BUTTON, text="Giriş", form=2, action=action)
        assert login._login_form(page(words, send, controls=(*fields, coded))) == (user, coded)
    link = replace(BUTTON, tag="a", text="Giriş", href="https://shop.example/login", form=-1)
    decoy = replace(BUTTON, text="Sign in", area=9000)
    google = replace(link, href="https://shop.example/login/google", area=9000)
    found = login._login_link(page(decoy, google, link))
    assert found is not None
    assert found.href == link.href


def test_the_cart_is_the_link_that_counts_and_not_the_one_with_the_words() -> None:
    counting = replace(BUTTON, tag="a", text="Kosár 1", href="https://shop.example/kosar", number=2)
    named = replace(BUTTON, text="View cart", area=9000)
    request = PurchaseRequest("https://shop.example/p", ShippingAddress("", ""))
    session = BrowserSession(cast("BrowserTab", None), request, RecordingHandler())
    snapshot = replace(page(), buttons=(named, counting))
    assert cart.find_cart_link(session, snapshot) == named
    session.cart_link = counting
    assert cart.find_cart_link(session, snapshot) == counting
    # A panel over the page is operated first.
    panel = replace(named, dialog=True)
    assert cart.find_cart_link(session, replace(snapshot, buttons=(panel, counting))) == panel


@pytest.mark.parametrize(
    ("field", "token"),
    [
        ({"type": "email", "label": "Cím"}, "email"),
        ({"type": "email", "label": "Newsletter"}, autofill.IGNORED),
        ({"label": "Title", "name": "order[given_name]"}, "given-name"),
        ({"label": "Land", "id": "postal-code"}, "postal-code"),
        ({"label": "City", "name": "line4"}, "address-level2"),
        ({"type": "tel", "label": "Zip"}, "postal-code"),
        ({"type": "tel", "label": "Cep"}, "tel"),
    ],
)
def test_a_field_is_what_its_type_or_its_identifier_says_before_its_label(
    field: dict[str, str], token: str
) -> None:
    assert autofill.token_of(replace(CONTROL, **cast("Any", field))) == token
