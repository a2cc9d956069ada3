"""Coupon codes and delivery methods on small pages: where they are entered, and what counts as accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Browser, Route

from app.ports.shopper import FailureCode, OrderReview, Product, PurchaseFailed, PurchaseOutcomeUnknown, PurchaseRequest
from shopper.flow import checkout, coupon, delivery, discounts, login, run
from shopper.flow.address import FillAttempts
from shopper.flow.session import BrowserSession
from shopper.page.prices import AmountKind, LabelledAmount, PageAmount
from shopper.page.tab import BrowserTab
from tests.browser.conftest import FULL, RecordingHandler

pytestmark = pytest.mark.browser

SHOP = "https://shop.example/cart"
CODE = "SPRING20"
# What happens to the order when the code is sent; `sent` counts how often.
SCRIPT = """<script>
  let sent = [];
  const send = (event, total, discount, says) => {
    event.preventDefault(); sent.push(document.querySelector("input").value);
    const row = `<tr><td>Saved</td><td>-$${discount}</td></tr>`;
    if (discount) document.querySelector("tbody").insertAdjacentHTML("afterbegin", row);
    document.getElementById("total").textContent = total;
    document.getElementById("says").textContent = says || "";
  };
</script>"""
TOTALS = """<h1>Your cart</h1><table><tbody><tr><td>Mug</td><td>$12.50</td></tr>
  <tr><th>Total</th><td id=total>$12.50</td></tr></tbody></table><p role=alert id=says></p>
  <form action=/checkout><button>Proceed to checkout</button></form>"""
FORM = """<form action=/{path} onsubmit="send(event, '{total}', '{discount}', '{says}')">
  <label>{label} <input name={name}></label><button {more}>{button}</button></form>"""


def form(**changed: str) -> str:
    """Return a cart with a form that grants a discount of $2.50."""
    usual = {
        "path": "basket",
        "total": "$10.00",
        "discount": "2.50",
        "says": "",
        "label": "Code",
        "name": "promo",
        "button": "Apply",
    }
    return SCRIPT + TOTALS + FORM.format(**{"more": "", **usual, **changed})


Visit = Callable[..., BrowserSession]


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Visit]:
    """Open a page of the shop, or of another one, in a purchase with a mug of $12.50."""
    context = chromium.new_context()

    def visit(html: str, *, at: str = SHOP, **request: Any) -> BrowserSession:
        def answer(route: Route) -> None:
            route.fulfill(body=f"<!doctype html><main>{html}</main>", content_type="text/html")

        context.route("**/*", answer)
        tab = BrowserTab(context, start=SHOP, allowed_domains=("pay.example",), quiet_ms=50)
        wanted = PurchaseRequest(SHOP, FULL, allowed_domains=("pay.example",), **request)
        tab.open(at)
        return BrowserSession(
            tab, wanted, RecordingHandler(), product=Product("Mug", 12_500_000_000, "in_stock", "text")
        )

    yield visit
    context.close()


def enter(session: BrowserSession) -> bool:
    return coupon.enter(session, session.tab.take_snapshot(), checkout.confirms_order)


def sent(session: BrowserSession) -> list[str]:
    """Return the codes that the page received."""
    codes: list[str] = session.tab.page.evaluate("sent")
    return codes


@pytest.mark.parametrize(
    "html",
    [
        form(),
        form(name="code", path="voucher/add", button="Add"),
        form(name="x", label="Gutscheincode", button="Einlösen"),
        form(name="coupon", label="Koodi", button="Käytä"),
        form(discount=""),
        form(total="$12.50"),
    ],
    ids=["by-name", "by-path", "by-label", "the-only-button", "a-lower-total", "a-row-of-its-own"],
)
def test_a_code_is_sent_once_with_the_button_of_its_form(visit: Visit, html: str) -> None:
    session = visit(html, coupon_code=CODE)
    assert enter(session)
    assert not enter(session)
    assert sent(session) == [CODE]
    assert session.coupon_discount_nanos == 2_500_000_000
    handler = session.handler
    assert isinstance(handler, RecordingHandler)
    assert CODE not in str(handler.steps)


OPEN = "onclick='box.hidden=false'"


@pytest.mark.parametrize(
    "opener",
    [
        f"<button type=button aria-expanded=false {OPEN}>Have a coupon?</button><div id=box hidden>{{}}</div>",
        "<details><summary>Enter a promo code</summary>{}</details>",
        f"<a href=#voucher {OPEN}>I have a voucher</a><div id=box hidden>{{}}</div>",
        "<button type=button onclick='box.showModal()'>Discount code</button><dialog id=box>{}</dialog>",
    ],
    ids=["a-button", "a-summary", "a-link", "a-drawer"],
)
def test_a_field_behind_a_disclosure_is_opened_first(visit: Visit, opener: str) -> None:
    hidden = "<style>[hidden]{display:none!important}</style>" + SCRIPT + TOTALS
    field = form().removeprefix(SCRIPT + TOTALS)
    session = visit(hidden + opener.format(field), coupon_code=CODE)
    assert enter(session)
    assert sent(session) == []
    assert enter(session)
    assert sent(session) == [CODE]


def test_a_form_outside_of_the_content_waits_for_one_behind_a_disclosure(visit: Visit) -> None:
    other = "<aside><form action=/redeem><input name=voucher><button>Redeem</button></form></aside>"
    inside = f"<details><summary>Redeem a voucher</summary>{form().removeprefix(SCRIPT + TOTALS)}</details>"
    session = visit(SCRIPT + TOTALS + inside + other, coupon_code=CODE)
    assert [enter(session), enter(session)] == [True, True]
    assert (sent(session), session.tab.path) == ([CODE], "/cart")


SALE = "<tr><td>Sale discount</td><td>-$1.00</td></tr><tr><th>"


@pytest.mark.parametrize(
    ("html", "says"),
    [
        (form(total="$12.50", discount="", says="Unknown code"), "It says: Unknown code."),
        (form(total="$15.00", discount="2.50", says="Saved"), "no discount is shown. It says: Saved."),
        (form(total="$12.50", discount="", says="Saved").replace("<tr><th>", SALE), "no discount is shown"),
        (form(total="$12.50", discount="0.00", says="Saved"), "no discount is shown"),
        # The only one that is waited for.
        (form(total="$12.50", discount=""), "no discount is shown. It says: nothing."),
    ],
    ids=["refused", "a-higher-total", "a-discount-of-before", "a-discount-of-nothing", "nothing"],
)
def test_a_code_without_a_discount_ends_the_purchase(visit: Visit, html: str, says: str) -> None:
    session = visit(html, coupon_code=CODE)
    with pytest.raises(PurchaseFailed) as failure:
        enter(session)
    assert failure.value.code is FailureCode.COUPON_NOT_APPLIED
    assert says in failure.value.message
    assert sent(session) == [CODE]


@pytest.mark.parametrize(
    "html",
    [
        form(button="Apply and place order"),
        form(more="aria-label='Place order'"),
        form(button="Pay $12.50"),
        form(button="Order with discount"),
        form(button="Mit Rabatt bestellen"),
        form(button="Subscribe and use the code", label="Coupon"),
        "<button type=button onclick='sent.push(1)'>Subscribe, with a discount</button>" + form(name="x"),
        form(name="newsletter", label="Your email"),
        form(more="formaction=https://codes.example/"),
        form().replace("<button >Apply", "<input name=comment><button >Continue"),
    ],
    ids=[
        "orders",
        "orders-by-its-name",
        "pays",
        "orders-with-it",
        "orders-in-german",
        "subscribes",
        "disclosure",
        "no-coupon",
        "another-origin",
        "a-step",
    ],
)
def test_a_code_is_not_typed_where_the_button_does_something_else(visit: Visit, html: str) -> None:
    session = visit(html, coupon_code=CODE)
    assert not enter(session)
    assert (sent(session), session.tab.page.input_value("input")) == ([], "")


def test_the_only_button_of_a_form_is_not_clicked_where_it_may_order(visit: Visit) -> None:
    session = visit(form(name="coupon", label="Koodi", button="Käytä"), coupon_code=CODE)
    session.zip_entered = True
    assert not enter(session)
    assert sent(session) == []


def test_a_code_is_not_typed_on_an_allowed_domain_that_is_not_the_shop(visit: Visit) -> None:
    session = visit(form(), at="https://pay.example/cart", coupon_code=CODE)
    assert not enter(session)
    assert sent(session) == []


# It refuses every sign-in at once.
SIGN_IN = """<p role=alert id=says></p>
  <form onsubmit="event.preventDefault(); document.getElementById('says').textContent = 'Wrong password.'">
  <label>E-mail <input name=email autocomplete=username></label>
  <label>Password <input type=password name=password autocomplete=current-password></label>
  <button>Sign in</button></form>"""


@pytest.mark.parametrize(
    ("host", "typed"),
    [("pay.example", ["", ""]), ("shop.example", ["ada", "s3cret"]), ("id.shop.example", ["ada", "s3cret"])],
)
def test_credentials_are_typed_on_the_shops_own_host_only(visit: Visit, host: str, typed: list[str]) -> None:
    session = visit(SIGN_IN, at=f"https://{host}/login", username="ada", password="s3cret")
    with pytest.raises(PurchaseFailed) as refusal:
        login.sign_in(session, session.tab.take_snapshot())
    assert refusal.value.code is FailureCode.LOGIN_FAILED
    assert session.tab.page.evaluate("[...document.querySelectorAll('input')].map(each => each.value)") == typed
    assert ("another host" in refusal.value.message) is (typed == ["", ""])
    assert ("Wrong password" in refusal.value.message) is (typed != ["", ""])


def test_an_order_by_the_button_that_applies_a_code_is_an_unknown_outcome(visit: Visit) -> None:
    ordering = form().replace(
        "send(event", "document.querySelector(`h1`).textContent = `Thank you for your order`; send(event"
    )
    session = visit(ordering, coupon_code=CODE)
    with pytest.raises(PurchaseOutcomeUnknown):
        enter(session)


def test_a_code_that_the_cart_has_already_is_not_sent_again(visit: Visit) -> None:
    row = f"<tr><td>Discount ({CODE})</td><td>-$2.50</td></tr>"
    session = visit(form().replace("<tr><th>", f"{row}<tr><th>"), coupon_code=CODE)
    assert not enter(session)
    assert (sent(session), session.coupon_discount_nanos) == ([], 2_500_000_000)


def rows(*found: tuple[AmountKind, int]) -> list[LabelledAmount]:
    return [LabelledAmount(kind.value, kind, PageAmount(cents * 10**7, "$")) for kind, cents in found]


GOODS, DISCOUNT, TOTAL = AmountKind.GOODS, AmountKind.DISCOUNT, AmountKind.TOTAL


@pytest.mark.parametrize(
    ("review", "goods_cents"),
    [
        (rows((GOODS, 1250), (DISCOUNT, 250), (TOTAL, 1000)), 1250),
        (rows((GOODS, 1000), (TOTAL, 1000)), 1000),
        # "Ticket, voucher used: $10.00" has the label of a discount and is the price.
        (rows((DISCOUNT, 1000), (TOTAL, 1000)), 1000),
    ],
    ids=["a-row", "lower-prices", "lower-prices-with-the-code"],
)
def test_a_review_counts_the_discount_in_a_row_or_in_the_prices(
    visit: Visit, review: list[LabelledAmount], goods_cents: int
) -> None:
    session = visit("", coupon_code=CODE)
    session.coupon_sent, session.coupon_discount_nanos = True, 2_500_000_000
    counted = discounts.counted_rows(session, review)
    assert session.goods_nanos == goods_cents * 10**7
    assert sum(row.kind is DISCOUNT for row in counted) == (goods_cents == 1250)


@pytest.mark.parametrize(
    "review",
    [rows((GOODS, 1250), (TOTAL, 1250)), rows((GOODS, 1250), (DISCOUNT, 100), (TOTAL, 1150)), rows((TOTAL, 1250))],
    ids=["dropped", "less", "not-shown"],
)
def test_a_review_without_the_discount_orders_nothing(visit: Visit, review: list[LabelledAmount]) -> None:
    session = visit("", coupon_code=CODE)
    session.coupon_sent, session.coupon_discount_nanos = True, 2_500_000_000
    with pytest.raises(PurchaseFailed) as failure:
        discounts.counted_rows(session, review)
    assert failure.value.code is FailureCode.COUPON_NOT_APPLIED


@pytest.mark.parametrize("cents", [(1250, 0), (1250, 250)], ids=["full-price", "discounted"])
def test_a_review_after_a_code_that_could_not_be_typed_orders_nothing(visit: Visit, cents: tuple[int, int]) -> None:
    session = visit("", coupon_code=CODE)
    session.coupon_sent = True
    price, less = cents
    with pytest.raises(PurchaseFailed) as failure:
        discounts.counted_rows(session, rows((GOODS, price), (DISCOUNT, less), (TOTAL, price - less)))
    assert failure.value.code is FailureCode.COUPON_NOT_APPLIED


def test_a_problem_of_the_field_that_was_there_before_the_code_is_not_the_answer(visit: Visit) -> None:
    late = form(more='aria-describedby="old"').replace("send(event", "setTimeout(send, 1500, event")
    html = late.replace("<input name=promo>", "<input name=promo aria-invalid=true>")
    session = visit(html.replace("onsubmit='", "onsubmit='event.preventDefault();"), coupon_code=CODE)
    session.tab.page.evaluate("document.forms[1].addEventListener('submit', (event) => event.preventDefault())")
    assert enter(session)
    assert session.coupon_discount_nanos == 2_500_000_000


def test_a_review_reached_without_a_field_for_the_code_orders_nothing(visit: Visit) -> None:
    session = visit("", coupon_code=CODE)
    with pytest.raises(PurchaseFailed) as failure:
        discounts.counted_rows(session, rows((GOODS, 1250), (DISCOUNT, 250), (TOTAL, 1000)))
    assert failure.value.code is FailureCode.COUPON_NOT_APPLIED


METHODS = ("Courier $5.00", "Express courier $12.00", "Pick-up in store $0.00")
RADIOS = "<fieldset><legend>Shipping</legend>{}</fieldset>".format(
    "".join(f"<label><input type=radio name=shipping value={n}>{name}</label>" for n, name in enumerate(METHODS))
)
PAYMENTS = "<label><input type=radio name=payment>Pay at pickup</label>"
LIST = "<select name=shipping_method>{}</select>".format("".join(f"<option>{name}</option>" for name in METHODS))
BUTTONS = "<h1>Shipping method</h1>" + "".join(
    f"<div><p>{name}</p><form action=#{n}><button>Select option</button></form></div>" for n, name in enumerate(METHODS)
)
CHOSEN = """(() => {
  const radio = document.querySelector("[name=shipping]:checked"), list = document.querySelector("select");
  return radio ? Number(radio.value) : list ? list.selectedIndex : Number(location.hash.slice(1) || -1); })()"""


@pytest.mark.parametrize("html", [PAYMENTS + RADIOS, LIST, BUTTONS], ids=["radios", "a-list", "buttons"])
@pytest.mark.parametrize(
    ("wanted", "index"), [("pickup", 2), ("EXPRESS", 1), ("Express courier $12.00", 1), ("in store", 2)]
)
def test_a_method_is_chosen_by_its_name_or_the_only_part_of_one(
    visit: Visit, html: str, wanted: str, index: int
) -> None:
    session = visit(html, delivery_method=wanted)
    assert delivery.choose(session, session.tab.take_snapshot(), FillAttempts())
    assert session.tab.page.evaluate(CHOSEN) == index
    delivery.assert_chosen(session, session.tab.take_snapshot())
    assert session.delivery_chosen is not None
    assert session.delivery_chosen.startswith(METHODS[index].partition(" $")[0])


@pytest.mark.parametrize("html", [PAYMENTS + RADIOS, LIST, BUTTONS], ids=["radios", "a-list", "buttons"])
@pytest.mark.parametrize("wanted", ["drone", "courier plus", "ou"])
def test_a_method_that_is_not_offered_or_ambiguous_ends_the_purchase_with_the_offered_ones(
    visit: Visit, html: str, wanted: str
) -> None:
    session = visit(html, delivery_method=wanted)
    assert not delivery.choose(session, session.tab.take_snapshot(), FillAttempts())
    with pytest.raises(PurchaseFailed) as failure:
        delivery.assert_chosen(session, session.tab.take_snapshot())
    assert failure.value.code is FailureCode.DELIVERY_METHOD_NOT_OFFERED
    names = [choice.partition(" $")[0] for choice in failure.value.choices]
    assert [name.strip() for name in names] == [name.partition(" $")[0] for name in METHODS]


@pytest.mark.parametrize(("wanted", "is_met"), [("courier", True), ("pickup", False)])
def test_the_only_method_of_a_shop_needs_no_choice_and_another_one_is_refused(
    visit: Visit, *, wanted: str, is_met: bool
) -> None:
    session = visit(
        "<table><tr><td>Shipping (Courier)</td><td>$5.00</td></tr><tr><td>Total</td><td>$17.50</td></tr></table>",
        delivery_method=wanted,
    )
    with nullcontext() if is_met else pytest.raises(PurchaseFailed):
        delivery.assert_chosen(session, session.tab.take_snapshot())


def test_addresses_are_no_delivery_methods(visit: Visit) -> None:
    same = "<label><input type=radio name=billing checked>Same as shipping address</label>"
    stored = "<label><input type=radio name=shipping_address value=9>Ada, 1 Main St</label>"
    methods = RADIOS.replace("name=shipping ", "name=way ").replace("<legend>Shipping</legend>", "")
    session = visit(same + stored + methods, delivery_method="pickup")
    assert delivery.choose(session, session.tab.take_snapshot(), FillAttempts())
    assert session.tab.page.evaluate("document.querySelector('[name=way]:checked').value") == "2"
    assert not any("Main St" in name for name in session.delivery_offered)
    session.tab.page.evaluate("document.querySelector('fieldset').remove()")
    delivery.assert_chosen(session, session.tab.take_snapshot())


def test_a_method_that_the_page_changed_back_is_not_ordered(visit: Visit) -> None:
    session = visit(RADIOS, delivery_method="pickup")
    assert delivery.choose(session, session.tab.take_snapshot(), FillAttempts())
    session.tab.page.check("[value='0']")
    with pytest.raises(PurchaseFailed):
        delivery.assert_chosen(session, session.tab.take_snapshot())


@pytest.mark.parametrize(
    "html",
    [
        """<label><input type=radio name=o id=a checked>DHL</label>
        <label><input type=radio name=o onchange='a.checked = true'>Abholung</label>""",
        """<select name=shipping onchange='this.value = `a`'><option value=a>DHL</option>
        <option value=b>Abholung</option></select>""",
    ],
    ids=["radios", "a-list"],
)
def test_a_method_that_the_page_never_keeps_is_not_ordered(visit: Visit, html: str) -> None:
    session, attempts = visit(html, delivery_method="abholung"), FillAttempts()
    for _ in range(10):
        if not delivery.choose(session, session.tab.take_snapshot(), attempts):
            break
    with pytest.raises(PurchaseFailed):
        delivery.assert_chosen(session, session.tab.take_snapshot())


@pytest.mark.parametrize(("wanted", "is_ordered"), [("courier $5", True), ("pickup", False)])
def test_a_later_review_with_another_method_is_not_ordered(visit: Visit, *, wanted: str, is_ordered: bool) -> None:
    review_page = (
        "<table><tr><td>Subtotal</td><td>$12.50</td></tr><tr><td>Shipping</td><td>$0.00</td></tr>"
        f"<tr><td>Total</td><td>$12.50</td></tr></table><p>{FULL.name}, {FULL.line1}, {FULL.city} {FULL.zip}</p>"
        "<button type=button>Place order</button>" + RADIOS.replace("value=0", "value=0 checked")
    )
    session = visit(review_page, delivery_method=wanted)
    session.delivery_chosen, session.zip_entered = "Pick-up in store", True
    now = session.tab.take_snapshot()
    before = replace(now, text="", buttons=())
    clicked = replace(now.buttons[0], text="Next")
    found = OrderReview(12_500_000_000, None, None)
    assert (run._later_order_button(session, before, now, clicked, found) is not None) == is_ordered


def test_a_code_that_the_shop_writes_in_capitals_is_hidden_in_screenshots(visit: Visit) -> None:
    session = visit(f"<input value={CODE}><input value=other>")
    session.tab.mask(CODE.lower())
    assert session.tab.screenshot() is not None
    assert session.tab.page.locator("[data-purser-hidden]").evaluate_all("all => all.map(each => each.value)") == [CODE]
