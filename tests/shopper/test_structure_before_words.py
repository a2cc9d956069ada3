"""Buttons that are chosen by the structure of a page, against words that mislead or are in no known language."""

from __future__ import annotations

from dataclasses import replace

from shopper.flow import steps
from shopper.page.snapshot import FormControl, PageButton, PageSnapshot
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
