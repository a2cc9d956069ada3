"""Buttons that are chosen by the structure of a page, against words that mislead or are in no known language."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from app.ports.shopper import PurchaseRequest, ShippingAddress
from shopper.flow import cart, checkout, choices, login, product, steps
from shopper.flow.address import FillAttempts
from shopper.flow.session import BrowserSession
from shopper.page import autofill
from shopper.page.snapshot import FormControl, PageButton, PageSnapshot
from shopper.page.tab import BrowserTab, PageActionFailed
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
        assert onward(page(replace(SUBMIT, text=name["text"], label=name.get("label", "")), controls=(STREET,))) is None


@pytest.mark.parametrize("name", ["Place order", "Pay $17.00", "Jetzt kaufen", "Confirm"])
def test_a_form_that_orders_is_not_sent_to_sign_in(name: str) -> None:
    user, secret = replace(CONTROL, name="login", form=1), replace(CONTROL, type="password", name="p", form=1)
    order = replace(SUBMIT, text=name)
    total = {"text": "Total $17.00"}
    snapshot = replace(page(order, controls=(STREET, user, secret)), **total)
    with pytest.raises(PageActionFailed):
        operated(snapshot, lambda session, _: login._send(session, secret))
    sign_in = replace(SUBMIT, text="Sign in")
    both = replace(page(order, sign_in, controls=(STREET, user, secret)), **total)
    assert operated(both, lambda session, _: login._send(session, secret)) == ["Sign in"]
    alone = replace(page(replace(order, text="Submit"), controls=(replace(user, type="email"), secret)), **total)
    assert operated(alone, lambda session, _: login._send(session, secret)) == ["Submit"]
    labelled = replace(page(replace(sign_in, label="Submit"), controls=(user, secret)), text="")
    assert operated(labelled, lambda session, _: login._send(session, secret)) == ["Sign in"]


QUANTITY = replace(CONTROL, type="number", value="1", form=1)
OFFER = {"price": "12.00", "currency": "USD"}


def added(*buttons: PageButton, offer: bool = True, quantity: bool = True) -> str | None:
    snapshot = page(*buttons, controls=(QUANTITY,) if quantity else ())
    found = product.add_button(replace(snapshot, declared=OFFER if offer else {}))
    return found.text if found else None


def test_the_form_that_asks_how_many_adds_the_product_and_not_known_words_elsewhere() -> None:
    own, decoy = (replace(SUBMIT, text="Kosárba"), replace(BUTTON, text="Add to basket", form=2, area=9000))
    assert added(decoy, own) == "Kosárba"
    assert added(own, replace(own, text="Összehasonlítás")) is None
    sent = replace(own, action="/cart/add")
    assert added(replace(own, text="Kedvencek"), sent) == "Kosárba"
    assert added(decoy, own, offer=False) == "Add to basket"


def test_a_form_that_orders_adds_nothing_and_no_button_replaces_one_that_is_disabled() -> None:
    assert added(replace(SUBMIT, text="Pay now")) is None
    assert added(replace(SUBMIT, text="Vásárlás", label="Place order")) is None
    for name in ("Pay now", "Place order", "Checkout"):
        assert added(replace(BUTTON, text=name, code="btn add-to-cart"), quantity=False) is None
    disabled = replace(SUBMIT, text="Add to cart", disabled=True)
    assert added(disabled, replace(SUBMIT, text="Azonnal")) is None


def test_an_identifier_or_the_path_of_a_form_adds_the_product_in_any_language() -> None:
    for identifier in ("btn add-to-cart", "addToCart", "product-addtocart-button", "add_to_basket"):
        assert added(replace(BUTTON, text="Sepete ekle", code=identifier), quantity=False) == "Sepete ekle"
    assert added(replace(SUBMIT, text="カートに入れる", action="/cart/add"), quantity=False) == "カートに入れる"
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
def test_a_field_is_what_its_type_or_its_identifier_says_before_its_label(field: dict[str, str], token: str) -> None:
    assert autofill.token_of(replace(CONTROL, **cast("Any", field))) == token


@dataclass
class RecordingTab:
    """A tab that shows one page and records what is operated."""

    now: PageSnapshot
    operated: list[str] = field(default_factory=list)
    path: str = "/p"

    def take_snapshot(self) -> PageSnapshot:
        return self.now

    def open(self, url: str) -> int:
        return 404 if url else 200

    def check(self, target: FormControl) -> None:
        self.operated.append(target.label)

    def click(self, target: PageButton) -> None:
        self.operated.append(target.text)

    def fill(self, target: FormControl, text: str) -> None:
        self.operated.append(f"{target.label}={text}")

    def submit_by_enter(self, target: FormControl) -> None:
        self.now = replace(self.now, controls=tuple(c for c in self.now.controls if c != target))

    def wait_for(self, condition: Callable[[PageSnapshot], bool], *, seconds: float) -> PageSnapshot:
        assert condition is not None
        assert seconds > 0
        return self.now


def operated(snapshot: PageSnapshot, act: Callable[[BrowserSession, PageSnapshot], object]) -> list[str]:
    tab = RecordingTab(snapshot)
    request = PurchaseRequest("https://shop.example/p", ShippingAddress("Ada Buyer", "94107"))
    act(BrowserSession(cast("BrowserTab", tab), request, RecordingHandler()), snapshot)
    return tab.operated


def test_a_payment_with_an_identifier_of_one_without_a_card_comes_before_one_with_known_words() -> None:
    names = (("Kártya", "card"), ("Invoice by a third party", "klarna_x"), ("Számla", "payment-invoice"))
    radios = tuple(
        replace(CONTROL, number=number, type="radio", name="payment", group="payment", label=label, value=value)
        for number, (label, value) in enumerate(names)
    )
    assert operated(
        page(controls=radios), lambda session, now: choices.choose_defaults(session, now, FillAttempts())
    ) == ["Számla"]


def as_guest(*buttons: PageButton, controls: tuple[FormControl, ...] = ()) -> list[str]:
    return operated(
        page(*buttons, controls=controls),
        lambda session, now: checkout._continue_as_guest(session, now, checkout._CheckoutProgress()),
    )


def test_a_guest_is_known_by_identifiers_and_paths_where_the_page_offers_a_choice() -> None:
    choice = replace(CONTROL, type="radio", name="options", label="Vendég", value="anonymous")
    assert as_guest(controls=(choice,)) == ["Vendég"]
    link = replace(BUTTON, tag="a", text="Vendégként", href="https://shop.example/checkout/guest", form=-1)
    assert as_guest(link) == ["Vendégként"]
    coded = replace(SUBMIT, text="Tovább", code="guest-checkout-submit")
    assert as_guest(coded, controls=(replace(CONTROL, type="password", form=7),)) == ["Tovább"]
    # The last button of a guest's checkout has such an identifier, too.
    assert as_guest(coded) == []


ENTER = replace(BUTTON, tag="a", text="Tovább", href="https://shop.example/checkout", form=-1)
ENTRY = replace(BUTTON, text="Törlés", entry=5, entry_text="Bögre 12.00 $")
ARTICLE = replace(BUTTON, tag="a", text="Bögre", href="https://shop.example/p/1", form=-1, entry=5)


def removals(*buttons: PageButton, controls: tuple[FormControl, ...] = ()) -> list[str]:
    return [
        found.text if isinstance(found, PageButton) else found.label
        for found in cart._lines(page(*buttons, controls=controls))
    ]


def test_the_lines_of_a_cart_are_removed_by_identifiers_or_the_only_button_of_an_entry_or_their_quantities() -> None:
    number = replace(CONTROL, type="number", label="Db", value="2", entry=5)
    coded = replace(ENTRY, text="Ki", code="cart-item__remove")
    assert removals(ENTER, coded, replace(ENTRY, text="Remove")) == ["Ki"]
    assert removals(ENTER, ARTICLE, ENTRY) == ["Törlés"]
    assert removals(ENTER, ENTRY, controls=(replace(number, type="text"),)) == ["Törlés"]
    assert removals(ENTER, controls=(number,)) == ["Db"]
    for other in (
        replace(coded, code="remove-coupon"), replace(coded, entry=-1, entry_text=""),
    ):  # fmt: skip
        assert removals(other) == []
    for kept in (
        (ARTICLE, ENTRY),  # No page of a cart: nothing leads to the checkout.
        (ENTER, ARTICLE, ENTRY, replace(ENTRY, text="Később")),
        (ENTER, ARTICLE, replace(ENTRY, entry_text="Kosár")),
        (ENTER, ARTICLE, replace(ENTRY, text="Add to cart")),
        (ENTER, ARTICLE, replace(ENTRY, text="Update")),
        (ENTER, ARTICLE, replace(ENTRY, submits=True, action="/checkout/order")),
        (ENTER, replace(ENTRY, text="Megrendelem", entry_text="Összesen 12.00 $")),
    ):
        assert removals(*kept) == []
    assert removals(controls=(number,)) == []
    assert removals(ENTER, controls=(replace(number, value="0"),)) == []
    assert removals(ENTER, controls=(replace(number, entry=-1),)) == []


def test_the_path_of_a_form_removes_a_line_if_it_has_one_button_that_names_no_order() -> None:
    sent = replace(ENTRY, submits=True, action="/kosar/remove", entry_text="Bögre 12.00 $")
    assert removals(sent) == ["Törlés"]
    assert removals(sent, replace(sent, text="Megrendelem")) == []
    assert removals(replace(sent, text="Place order")) == []


def test_enter_in_a_quantity_is_not_clicked_where_it_submits_the_form_to_the_checkout() -> None:
    number = replace(CONTROL, type="number", label="Db", value="2", entry=5, form=1)
    for first, clicked in (("/kosar", ["Db"]), ("/checkout/cart/update", ["Db"]), ("/checkout/order", [])):
        assert removals(ENTER, replace(SUBMIT, text="Küldés", action=first), controls=(number,)) == clicked
    assert removals(ENTER, replace(SUBMIT, text="Place order"), controls=(number,)) == []


@pytest.mark.parametrize("kept", ["/wishlist/remove/3", "/account/addresses/delete/3", "/subscriptions/3/delete"])
def test_what_a_shop_keeps_besides_the_cart_is_not_removed(kept: str) -> None:
    for change in ({"action": kept}, {"tag": "a", "href": f"https://shop.example{kept}"}):
        assert removals(ENTER, replace(ENTRY, text="Remove", **change)) == []


def test_a_page_that_is_counted_in_the_header_and_is_no_cart_is_not_emptied() -> None:
    counted = replace(BUTTON, tag="a", text="Lista 3", href="https://shop.example/lista", region="header", form=-1)
    for link in (counted, replace(counted, href="https://shop.example/wishlist")):
        clicked = operated(page(link, replace(ENTRY, text="Remove")), lambda session, _: cart.empty_cart(session))
        assert "Remove" not in clicked


def test_a_click_that_removes_no_line_of_a_cart_is_not_repeated() -> None:
    counted = replace(BUTTON, tag="a", text="Kosár 3", href="https://shop.example/kosar", region="header", form=-1)
    assert operated(page(counted, ENTER, ARTICLE, ENTRY), lambda session, _: cart.empty_cart(session)) == [
        "Kosár 3",
        "Törlés",
    ]
