"""What the shopper reads of a page as assistive technology does: roles, names, states, and structured data."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page

from shopper.flow import product, seen, steps
from shopper.page import page_data, structured
from shopper.page.snapshot import SCRIPT, PageSnapshot, parse_snapshot
from shopper.page.tab import BrowserTab

pytestmark = pytest.mark.browser

STEPS = "<ol><li>A</li><li {}>B</li><li>C</li><li>D</li></ol>"


@pytest.fixture
def read(open_page: Callable[..., Page]) -> Callable[[str], PageSnapshot]:
    page = open_page()

    def read(html: str) -> PageSnapshot:
        page.set_content(f"<main>{html}</main>")
        return parse_snapshot(page.evaluate(SCRIPT))

    return read


@pytest.mark.parametrize(
    ("html", "field"),
    [
        (
            "<div role=listbox aria-label=Väri><div role=option aria-selected=true>Musta</div></div>",
            ("radio", "Musta", True),
        ),
        ("<div role=menu><div role=menuitemradio aria-checked=false>Iso</div></div>", ("radio", "Iso", False)),
        ("<p id=l>Maa</p><button aria-haspopup=listbox aria-labelledby=l>Suomi</button>", ("combobox", "Maa", False)),
        ("<div role=switch aria-checked=true aria-label=Vakuutus>.....</div>", ("checkbox", "Vakuutus", True)),
        ("<div role=spinbutton aria-label=Määrä contenteditable>1....</div>", ("number", "Määrä", False)),
    ],
    ids=["an-option", "a-menu-item", "a-list-button", "a-switch", "a-spin-button"],
)
def test_a_widget_is_the_field_that_its_role_names(
    read: Callable[[str], PageSnapshot], html: str, field: tuple[str, str, bool]
) -> None:
    [control] = read(html).controls
    assert (control.type, control.label, control.checked) == field


def test_a_label_without_a_reference_names_the_only_field_of_the_next_block(
    read: Callable[[str], PageSnapshot],
) -> None:
    snapshot = read(
        "<div><label>Kappaleet</label><div><input type=number value=1></div></div>"
        "<div><label>Nimi</label><div><input><input></div></div><p>Katso</p><div><input></div>"
    )
    assert [control.label for control in snapshot.controls] == ["Kappaleet", "", "", ""]


def test_the_error_of_a_field_is_the_text_that_it_refers_to(read: Callable[[str], PageSnapshot]) -> None:
    snapshot = read(
        "<input aria-label=Katu aria-invalid=true aria-errormessage=e value=x><p id=e>Katu puuttuu</p>"
        "<input aria-label=Nimi aria-invalid=true aria-describedby=d value=x><p id=d>Nimi on liian pitkä</p>"
        "<input aria-label=Maa aria-invalid=true value=x><input aria-label=Postinumero required>"
    )
    assert [control.problem for control in snapshot.controls][:3] == ["Katu puuttuu", "Nimi on liian pitkä", "invalid"]
    described, _ = seen.describe(snapshot)
    assert "Katu: Katu puuttuu; Nimi: Nimi on liian pitkä" in described
    assert "Empty fields: Postinumero." in described


def test_a_button_has_its_accessible_name_its_state_and_the_path_of_its_form(
    read: Callable[[str], PageSnapshot],
) -> None:
    snapshot = read(
        "<p id=n>Tilaa nyt</p><button aria-labelledby=n>Jatka</button><button aria-busy=true>Odota</button>"
        "<form action=https://shop.example/basket/add><button>Koriin</button><button formaction=https://shop.example/wishlist>Talteen</button></form>"
        "<button aria-expanded=false>Lisää</button><ul><li><button>Poista</button></li></ul>"
        "<form action='http://[bad'><button>Rikki</button></form>"
    )
    named, busy, add, other, toggle, entry, broken = snapshot.buttons
    assert (named.text, named.label, busy.disabled) == ("Jatka", "Tilaa nyt", True)
    assert (add.action, other.action, broken.action) == ("/basket/add", "/wishlist", "")
    assert (toggle.toggles, entry.in_list, add.toggles, add.in_list) == (True, True, False, False)


@pytest.mark.parametrize(
    ("html", "after"),
    [
        (STEPS.format("aria-current=step"), 2),
        (STEPS.format("class=is-active"), 2),
        (STEPS.format(""), -1),
        (STEPS.format("aria-current=step").replace("<li>A", "<li aria-current=step>A"), -1),
        (STEPS.format("aria-current=step").replace("<li>C", "<li>$5.00"), -1),
        ("<ul><li class=active>Koti</li><li>Tuotteet</li><li>Tarjoukset</li></ul>", -1),
        (f"<div style='display:none'>{STEPS.format('aria-current=step')}</div>", -1),
    ],
    ids=["aria", "a-class", "none-is-current", "two-are", "a-list-of-goods", "a-menu", "hidden"],
)
def test_the_steps_that_follow_are_those_of_a_visible_list_with_one_current_step(
    read: Callable[[str], PageSnapshot], html: str, after: int
) -> None:
    assert read(html).steps_after == after


MICRODATA = """<div itemscope itemtype="https://schema.org/Product"><span itemprop=offers itemscope>
  <meta itemprop=price content="12.00"><meta itemprop=priceCurrency content=USD></span>$12.00</div>
  <form><input type=number value=1><button>Koriin</button></form>"""
RDFA = MICRODATA.replace("itemprop=price ", 'property="schema:price" ').replace(
    "itemprop=priceCurrency", "property=priceCurrency"
)


@pytest.mark.parametrize("html", [MICRODATA, RDFA], ids=["microdata", "rdfa"])
def test_an_offer_in_any_markup_makes_the_button_of_its_form_the_one_that_adds_it(
    read: Callable[[str], PageSnapshot], html: str
) -> None:
    snapshot = read(html)
    assert (snapshot.declared["price"], snapshot.declared["currency"]) == ("12.00", "USD")
    add = product.add_button(snapshot)
    assert add is not None
    assert add.text == "Koriin"
    without = read("<form><input type=number value=1><button>Koriin</button></form>")
    assert product.add_button(without) is None


@pytest.mark.parametrize(
    "html",
    [
        '<script type="application/ld+json">{"@graph": [{"@type": "Order", "orderNumber": "A-17"}]}</script>',
        '<div itemscope itemtype="https://schema.org/Order"><b itemprop=orderNumber>A-17</b></div>',
    ],
    ids=["json-ld", "microdata"],
)
def test_an_order_in_structured_data_is_a_confirmation_unless_it_was_there_before(
    read: Callable[[str], PageSnapshot], html: str
) -> None:
    before, now = read("<p>Yhteenveto</p>"), read(html)
    assert structured.order_number(now) == "A-17"
    assert steps.confirms_by_structure(before, now)
    assert not steps.confirms_by_structure(now, now)
    assert not steps.confirms_by_structure(before, before)


@pytest.mark.parametrize(
    ("html", "nanos"),
    [
        ('{"@type": "Order", "totalPaymentDue": {"price": "17.00"}}', 17 * 10**9),
        ('{"@type": ["Thing", "Invoice"], "totalPaymentDue": {"value": 17}}', 17 * 10**9),
        ('{"@type": "Offer", "totalPaymentDue": {"price": "17.00"}}', None),
        ('{"@type": "Order", "totalPaymentDue": "17.00"}', None),
    ],
)
def test_an_amount_due_is_that_of_an_order_or_an_invoice(
    read: Callable[[str], PageSnapshot], html: str, nanos: int | None
) -> None:
    snapshot = read(f'<p>.</p><script type="application/ld+json">{html}</script>')
    assert structured.order_total_nanos(snapshot) == nanos


@pytest.mark.parametrize("data", ["[" * 100_000, '{"@type": "Offer"', "[" + "1," * 30_000 + "1]"])
def test_structured_data_that_are_too_deep_or_too_many_or_broken_are_none(
    read: Callable[[str], PageSnapshot], data: str
) -> None:
    snapshot = read(f'<p>.</p><script type="application/ld+json">{data}</script>')
    assert structured.offers(snapshot) == []


LATER = """<section {}>Ladataan</section><script>setTimeout(() => {{
  document.querySelector("section").outerHTML = "<section>Valmis</section>"; }}, 1200);</script>"""


@pytest.fixture
def tab(chromium: Browser) -> Iterator[BrowserTab]:
    with chromium.new_context() as context:
        yield BrowserTab(context, start="https://shop.example/", allowed_domains=())


@pytest.mark.parametrize("state", ["aria-busy=true", "role=progressbar"])
def test_a_region_that_is_busy_is_waited_for(tab: BrowserTab, state: str) -> None:
    tab.page.set_content(f"<main>{LATER.format(state)}</main>")
    tab.settle()
    assert tab.page.inner_text("main") == "Valmis"


@pytest.mark.parametrize(
    "html",
    [
        "<p role=progressbar aria-valuenow=40>Vielä 5 $ ilmaiseen toimitukseen</p>",
        "<p aria-busy=true aria-hidden=true>Ladataan</p>",
        "<p aria-busy=true hidden>Ladataan</p>",
        "<progress value=4 max=5></progress>",
    ],
    ids=["a-known-progress", "not-for-readers", "hidden", "a-known-element"],
)
def test_what_shows_its_progress_or_is_not_shown_is_not_waited_for(tab: BrowserTab, html: str) -> None:
    tab.page.set_content(f"<main>{html}</main>")
    assert not tab._is_busy(gives_up=False)


def test_a_region_that_stays_busy_is_waited_for_once(tab: BrowserTab) -> None:
    tab.page.set_content("<main aria-busy=true>Ladataan</main>")
    tab.settle()
    assert not tab._is_busy(gives_up=False)
    tab.page.set_content("<main aria-busy=true>Ladataan</main>")
    assert tab._is_busy(gives_up=False)


@pytest.mark.parametrize(
    ("script", "is_read"),
    [
        ('<script type="application/json">{"price": 12, "currency": "USD"}</script>', True),
        ('<script>window.__STATE__ = {"price": 12, "currency": "USD"};</script>', True),
        ('<script>var shop = {"price": 12, "currency": "USD"}</script>', True),
        ('<script>window["a"] = {"price": 12, "currency": "USD"}; run()</script>', False),
        ('<script>window.a = {price: 12, currency: "USD"};</script>', False),
        ('<script type="text/template">window.a = {"price": 12, "currency": "USD"}</script>', False),
        ('<script type="application/json">{"colour": "red"}</script>', False),
    ],
)
def test_the_shops_own_data_are_those_that_are_strict_json(
    read: Callable[[str], PageSnapshot],
    script: str,
    is_read: bool,  # noqa: FBT001
) -> None:
    found = page_data.offered(read(f"<p>.</p>{script.replace('run()', 'void 0')}"))
    assert bool(found) is is_read


@pytest.mark.parametrize(
    "price", ["<data itemprop=price value=12.00>\u0661\u0662</data>", "<meter itemprop=price value=12.00>12</meter>"]
)
def test_the_value_for_machines_is_the_price_of_an_offer(read: Callable[[str], PageSnapshot], price: str) -> None:
    snapshot = read(f"<div itemscope>{price}<meta itemprop=priceCurrency content=USD></div>")
    assert snapshot.declared["price"] == "12.00"
    assert snapshot.machine_values == ("12.00",)
