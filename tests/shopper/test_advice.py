"""What a language model may choose from: nothing with which a hostile page could order, pay, sign in or lead away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from app.ports.shopper import ElementQuestion, PurchaseRequest, ShippingAddress
from shopper.flow import advice
from shopper.flow.session import BrowserSession
from shopper.page.snapshot import FormControl, PageButton, PageSnapshot
from shopper.page.tab import BrowserTab, is_allowed_url
from shopper.process.redaction import PersonalDataRedactor
from tests.browser.conftest import RecordingHandler

START = "https://shop.example/p/1"
ADDRESS = ShippingAddress(
    "Ada Buyer", "94107", "1 Main Street", None, "San Francisco", "CA", "US", "+14155550100", "ada@mail.example"
)
BUTTON = PageButton(
    number=1, text="Off we go", tag="button", href="", disabled=False, form=0, submits=False, dialog=False, region="",
    area=100, card="", around="", trail="main>button",
)  # fmt: skip
CONTROL = FormControl(
    number=2, type="text", name="", id="", autocomplete="", placeholder="", label="", value="", filled=False,
    checked=False, required=False, disabled=False, problem="", form=0, group="", card="", dialog=False, options=(),
)  # fmt: skip


def page(*buttons: PageButton, text: str = "", controls: tuple[FormControl, ...] = ()) -> PageSnapshot:
    return PageSnapshot(
        url="https://shop.example/cart", title="", heading="Cart", language="", text=text, alerts=(), controls=controls,
        buttons=buttons, prices=(), frames=(), json_ld=(), declared={}, currencies=(),
    )  # fmt: skip


@dataclass
class StillTab:
    """A tab that shows one page."""

    now: PageSnapshot

    def take_snapshot(self) -> PageSnapshot:
        return self.now

    def is_allowed(self, url: str) -> bool:
        return is_allowed_url(url, start=START, allowed=())


def ask(
    snapshot: PageSnapshot,
    *,
    later: PageSnapshot | None = None,
    untouched: bool = False,
    chooses: Callable[[ElementQuestion], int | None] = lambda _question: 0,
    **request: Any,
) -> tuple[PageButton | None, RecordingHandler]:
    """Return what is clicked after the question, and the handler that was asked."""
    handler = RecordingHandler(chooses=chooses)
    tab = cast("BrowserTab", StillTab(later or snapshot))
    session = BrowserSession(tab, PurchaseRequest(START, ADDRESS, **request), handler)
    return advice.ask(session, snapshot, list(snapshot.buttons), is_untouched=untouched), handler


def test_a_harmless_element_is_offered_with_its_role_and_the_chosen_one_is_returned() -> None:
    link = replace(BUTTON, number=3, tag="a", href="https://shop.example/pay", text="Onwards", card="x" * 900)
    clicked, handler = ask(page(BUTTON, link), chooses=lambda _question: 1)
    assert clicked == link
    [question] = handler.questions
    assert [(item.role, item.name, len(item.text)) for item in question.candidates] == [
        ("button", "Off we go", 0),
        ("link", "Onwards", 200),
    ]


@pytest.mark.parametrize("index", [None, 2, -1, 10**30], ids=["none", "one-too-many", "negative", "huge"])
def test_an_answer_that_is_none_of_the_offered_elements_clicks_nothing(index: int | None) -> None:
    other = replace(BUTTON, number=3, text="Onwards")
    clicked, handler = ask(page(BUTTON, other), chooses=lambda _question: index)
    assert (clicked, len(handler.questions)) == (None, 1)
    assert [(step.action, step.text) for step in handler.steps] == [("ask_model", "")]


@pytest.mark.parametrize(
    "change",
    [
        {"text": "Place order"}, {"text": "Yes, order it"}, {"text": "Buy with one click"}, {"text": "Pay"},
        {"text": "Jetzt kostenpflichtig bestellen"}, {"text": "I agree"}, {"text": "Start my trial"},
        {"text": "PayPal"}, {"text": "Go, $17.00"}, {"text": "Add gift wrap"}, {"text": "Remove"},
        {"label": "Place order"}, {"text": "Sign in"}, {"text": "Create account"}, {"text": " "}, {"disabled": True},
        {"region": "nav"}, {"region": "contentinfo"},
        {"tag": "a", "href": "https://other.example/"}, {"tag": "a", "href": "http://shop.example/"},
        {"tag": "a", "href": "javascript:order()"}, {"tag": "a", "href": "mailto:a@shop.example"},
    ],
)  # fmt: skip
def test_an_element_that_could_do_harm_is_not_offered(change: dict[str, Any]) -> None:
    clicked, handler = ask(page(replace(BUTTON, **change)))
    assert (clicked, handler.questions) == (None, [])


ORDERS = """
    Realizar pedido, Hacer pedido, Comprar, Pagar ahora, Tramitar pedido, Efetuar pagamento, Encomendar, Comprar agora,
    Invia ordine, Acquista ora, Ordina e paga, Finalizează comanda, Cumpără, Plătește, Zamawiam, Zamawiam i płacę,
    Kupuję, Zapłać, Złóż zamówienie, Objednat, Závazně objednat, Zaplatit, Objednať, Naroči, Naruči, Oddaj naročilo,
    Kupi, Megrendelem, Vásárlás, Fizetek, Beställ, Slutför köp, Köp, Betala, Bestil, Gennemfør køb, Bekreft, Kjøp,
    Plaats bestelling, Afrekenen, Nu kopen, Tilaa, Lähetä tilaus, Maksa, Vahvista, Osta, Telli, Pasūtīt, Užsakyti,
    Pirkti, Siparişi tamamla, Satın al, Öde, SATIN AL, SİPARİŞ VER, Pesan sekarang, Bayar, Đặt hàng, Thanh toán,
    Оформить заказ, Купить, Оплатить, Подтвердить, Замовити, Сплатити, Поръчай, Наручи, Παραγγελία, Αγορά, Πληρωμή,
    注文する, 注文を確定する, 購入手続きへ, お支払い, 下单, 提交订单, 立即购买, 結帳, 確認付款, 주문하기, 결제하기,
    구매하기, اطلب الآن, شراء, ادفع الآن, تأكيد, תשלום, לביצוע הזמנה,
    קנה עכשיו, สั่งซื้อ, ชำระเงิน, ऑर्डर करें, खरीदें
"""
ONWARD = """
    Continuar, Siguiente, Avanti, Dalej, Další, Tovább, Nästa, Volgende, Jatka, Kassalle, Devam, Далее, Далі,
    Продолжить, Επόμενο, 次へ, 下一步, 다음, التالي, הבא, ถัดไป, Tiếp tục, Weiter, Suivant, Ostoskori, Lisää koriin
"""


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


@pytest.mark.parametrize("member", ["text", "label"])
@pytest.mark.parametrize("name", [*names(ORDERS), "Besta\u0308ll", "Com\u200bprar"])
def test_no_model_orders_in_a_language_that_no_rule_knows(name: str, member: str) -> None:
    _, handler = ask(page(replace(BUTTON, **{member: name})))
    assert handler.questions == []


@pytest.mark.parametrize("name", names(ONWARD))
def test_a_model_may_still_lead_on_in_those_languages(name: str) -> None:
    _, handler = ask(page(replace(BUTTON, text=name)))
    assert len(handler.questions) == 1


@pytest.mark.parametrize("change", [{"type": "password"}, {"autocomplete": "cc-number"}])
def test_the_button_of_a_form_with_a_secret_is_not_offered(change: dict[str, Any]) -> None:
    _, handler = ask(page(BUTTON, controls=(replace(CONTROL, **change),)))
    assert handler.questions == []
    _, handler = ask(page(BUTTON, controls=(replace(CONTROL, **change, form=1),)))
    assert len(handler.questions) == 1


@pytest.mark.parametrize(
    ("untouched", "username", "is_asked"),
    [(True, None, True), (False, None, False), (True, "ada", False)],
    ids=["an-untouched-guest", "after-an-entry", "an-account"],
)
def test_a_page_with_an_amount_may_order_once_the_shop_has_a_recipient(
    *, untouched: bool, username: str | None, is_asked: bool
) -> None:
    _, handler = ask(page(BUTTON, text="Total $17.00"), untouched=untouched, username=username)
    assert bool(handler.questions) is is_asked


def test_a_page_with_an_amount_is_asked_about_while_more_than_one_step_follows() -> None:
    _, handler = ask(replace(page(BUTTON, text="Total $17.00"), steps_after=2))
    assert len(handler.questions) == 1
    _, handler = ask(replace(page(BUTTON, text="Total $17.00"), steps_after=1))
    assert handler.questions == []


@pytest.mark.parametrize(
    "later",
    [
        page(replace(BUTTON, text="Place order")),
        page(replace(BUTTON, disabled=True)),
        page(BUTTON, text="Total $17.00"),
        page(BUTTON, controls=(replace(CONTROL, type="password"),)),
        page(),
    ],
    ids=["order-button", "disabled", "amount", "password", "gone"],
)
def test_a_page_that_changes_while_the_model_thinks_is_not_clicked(later: PageSnapshot) -> None:
    clicked, handler = ask(page(BUTTON), later=later)
    assert (clicked, len(handler.questions)) == (None, 1)


def test_a_page_full_of_buttons_asks_about_twelve() -> None:
    _, handler = ask(page(*(replace(BUTTON, number=number, text=f"Go {number}") for number in range(300))))
    assert len(handler.questions[0].candidates) == 12


@pytest.mark.parametrize(
    "text",
    [
        "Ship to ada buyer", "BUYER", "1 Main Street", "Street", "94107", "San Francisco",
        "415 555 0100", "+1 (415) 5550100",
        "ada@mail.example", "other@mail.example", "4242 4242 4242 4242", "•••• 4242", "4242", "hunter2!", "customer-7",
        "hun\u200bter2!",
    ],
)  # fmt: skip
def test_texts_for_a_model_contain_nothing_of_a_person(text: str) -> None:
    redactor = PersonalDataRedactor(PurchaseRequest(START, ADDRESS, username="customer-7", password="hunter2!"))
    redacted = redactor.redact(f"[{text}] Off we go, $17.00")
    assert redacted.endswith("Off we go, $17.00")
    assert not any(
        word in redacted.lower()
        for word in ("buyer", "street", "francisco", "94107", "0100", "4242", "mail", "hunter", "customer")
    )
